"""The log that most of these tests read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proxy.logs.logging_here import Written, logging_to


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Written]:
    """A log of JSON at level debug."""
    with logging_to(tmp_path / "log", level="debug") as made:
        yield made
