"""The engine on a real vLLM on a GPU: what it answers, and that all its memory comes back.

tests/live/vllm/test_engine.py has the same steps on the CPU, and more of them.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.engine_process import (
    MODEL,
    Hosting,
    check_answers,
    core_killed,
    ended_in_order,
    phases_until_ready,
    proxy_killed,
)
from tests.models.tiny_hf import CONTEXT
from tests.waiting import block_until

SLACK = 64 << 20
"""Bytes of a GPU's memory that a driver may keep."""
TAKEN = 1 << 30
"""Bytes that a running vLLM surely holds."""
FREED_SECONDS = 10.0
ARGUMENTS = (
    "--served-model-name", MODEL, "--max-model-len", str(CONTEXT), "--max-num-seqs", "8",
    "--gpu-memory-utilization", "0.3",
)  # fmt: skip


def used() -> int:
    """Return the bytes of memory in use on all GPUs."""
    said = subprocess.run(
        ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return sum(int(line) for line in said.stdout.split()) << 20


@pytest.fixture(scope="module")
def before(executable: Path) -> int:
    """The memory in use before any test ran."""
    return used()


@pytest.fixture(scope="module")
def hosting(executable: Path, model_folder: Path, before: int) -> Iterator[Hosting]:
    """A proxy with a vLLM of its own, which a test may kill; not started yet."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or executable.parent.parent / "cache")
    environment = {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(caches)}
    made = Hosting(model_folder, executable, ARGUMENTS, environment)
    yield made
    made.clear()


def check_freed(before: int) -> None:
    """Assert that the memory is as before soon, and say how long that took."""
    began = time.monotonic()
    block_until(
        lambda: used() <= before + SLACK, lambda: f"{used()} of {before} bytes", FREED_SECONDS
    )
    print(f"memory as before after {time.monotonic() - began:.1f} s")


def test_it_starts_and_answers(hosting: Hosting, before: int) -> None:
    told = "\n".join(phases_until_ready(hosting))
    assert "starting its workers" in told, told
    assert used() > before + TAKEN
    check_answers(hosting)


def test_a_killed_engine_core_is_an_error_and_a_restart(hosting: Hosting, before: int) -> None:
    hosting.ready()
    core_killed(hosting)
    check_answers(hosting)
    assert used() > before + TAKEN


def test_a_killed_proxy_gives_the_memory_back(hosting: Hosting, before: int) -> None:
    hosting.ready()
    assert used() > before + TAKEN
    proxy_killed(hosting)
    check_freed(before)


def test_an_end_in_order_gives_the_memory_back(hosting: Hosting, before: int) -> None:
    hosting.ready()
    assert used() > before + TAKEN
    ended_in_order(hosting)
    check_freed(before)
