"""What the engine's tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket in it (about 100 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    yield folder
    shutil.rmtree(folder)
