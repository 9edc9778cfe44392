"""What the engine's tests share."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wellspoken.engine.llamacpp import llamacpp_kind
from wellspoken.engine.vllm import vllm_check


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """Let an engine and nvidia-smi answer late on a busy machine; a test may say less.

    By patches of its own: the test's are then undone before its other fixtures end.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in (llamacpp_kind, vllm_check):
            patch.setattr(module, "ASK_SECONDS", 60.0)
        yield


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket in it (about 100 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    yield folder
    shutil.rmtree(folder)
