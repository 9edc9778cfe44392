"""The log that most of these tests read back, and time for it to be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.logs.logging_here import Written, logging_to
from tests.waiting import SECONDS
from wellspoken.proxy import logs


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a log's end wait for a busy machine."""
    monkeypatch.setattr(logs, "SECONDS", SECONDS)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A log of JSON at level debug."""
    with logging_to(tmp_path / "log", level="debug") as made:
        yield made
