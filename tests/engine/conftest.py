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
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an engine and nvidia-smi answer late on a busy machine; a test may say less."""
    for module in (llamacpp_kind, vllm_check):
        monkeypatch.setattr(module, "ASK_SECONDS", 60.0)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path is short enough for a unix socket in it (about 100 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="ws-"))
    yield folder
    shutil.rmtree(folder)
