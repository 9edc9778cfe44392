"""What the tests on a GPU share.

They are collected when WELLSPOKEN_LIVE_GPU names the executable `vllm`, as `make live-gpu` sets it,
or when the command line names this folder; without a GPU they are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.models.tiny_hf import write_model

HERE = Path(__file__).parent
# Read now, since the tests' environment has none of ours.
EXECUTABLE = os.environ.get("WELLSPOKEN_LIVE_GPU") or None
ASK_SECONDS = 60.0


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out of a run that did not ask for it."""
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    named = any(path == HERE or HERE in path.parents for path in asked)
    return None if EXECUTABLE or named else True


def without_gpu() -> str:
    """Return why no NVIDIA GPU can be used here, "" where one can."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "there is no nvidia-smi"
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not answer within {ASK_SECONDS:g} s"
    if listed.returncode == 0 and "GPU 0" in listed.stdout:
        return ""
    return f"nvidia-smi lists no GPU: {(listed.stdout + listed.stderr).strip()[:200]}"


@pytest.fixture(scope="session")
def executable() -> Path:
    """The `vllm` command; skips where there is no GPU, fails where there is one and no vllm."""
    reason = without_gpu()
    if reason:
        pytest.skip(f"no GPU here ({reason}): run `make live-gpu` on a machine with one")
    if EXECUTABLE is None:
        pytest.skip("WELLSPOKEN_LIVE_GPU names no vllm executable: run `make live-gpu`")
    path = Path(EXECUTABLE).absolute()  # not resolved: it may be a link into a venv
    if not path.is_file():
        pytest.fail(f"WELLSPOKEN_LIVE_GPU={EXECUTABLE}: no such file; run `make live-gpu`")
    return path


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model as a Hugging Face folder."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny")
