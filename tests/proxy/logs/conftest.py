"""The log that most of these tests read back, and time for it to be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.logs.logging_here import Written, logging_to
from tests.waiting import SECONDS
from wellspoken.proxy import logs


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Let the end of a log wait for a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "SECONDS", SECONDS)
        yield


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A log of JSON at level debug."""
    with logging_to(tmp_path / "log", level="debug") as made:
        yield made
