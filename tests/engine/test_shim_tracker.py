"""Shared memory and semaphores that a killed engine no longer has mapped: only Python's resource
tracker, a process of the engine's own, knows their names (multiprocessing, CPython 3.11).

Seen with vLLM 0.32.0: killed with its proxy, it left /dev/shm/sem.mp-*.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.processes import Shim, lives, runtime
from tests.engine.test_shim import DRIVER
from tests.waiting import SECONDS, block_until
from wellspoken.engine import shim
from wellspoken.engine.run_folder import RunFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/shm is Linux's")

ENGINE = """
import os, sys, time
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory(create=True, size=4096)
name = block.name
block.close()  # no longer mapped, and still there
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{name} {resource_tracker._resource_tracker._pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
if len(sys.argv) > 2:
    os.kill(os.getpid(), 9)
time.sleep(600)
"""


@pytest.fixture
def place() -> Iterator[RunFolder]:
    with runtime():
        made = RunFolder.make("kid")
        yield made
        made.clear(lambda line: None)


@pytest.mark.parametrize("crash", [False, True], ids=["lifeline", "crash"])
def test_what_only_the_tracker_knows_goes_too(
    place: RunFolder, tmp_path: Path, crash: bool
) -> None:
    said = tmp_path / "said"
    more = ("crash",) if crash else ()
    # The tracker may have hardly begun: a busy machine takes its time to start a Python.
    driver = DRIVER.format(patches=f"shim.TRACKER_SECONDS = shim.DIE_SECONDS = {SECONDS}")
    with Shim(place, sys.executable, "-c", ENGINE, str(said), *more, driver=driver) as running:
        block_until(said.exists)
        name, tracker = said.read_text().split()
        if not crash:
            assert (Path("/dev/shm") / name).exists()
            running.cut()
        running.wait()
        assert not (Path("/dev/shm") / name).exists()
        assert not lives(int(tracker))


STUCK = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "resource_tracker"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(child.pid))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""


def test_a_tracker_that_does_not_end_is_killed(place: RunFolder, tmp_path: Path) -> None:
    """Whatever calls itself so gets a moment only."""
    said = tmp_path / "said"
    with Shim(place, sys.executable, "-c", STUCK, str(said)) as running:
        block_until(said.exists)
        began = time.monotonic()
        running.cut()
        running.wait()
        assert shim.TRACKER_SECONDS <= time.monotonic() - began < shim.TRACKER_SECONDS + SECONDS
    assert not lives(int(said.read_text()))
    assert not place.folder.exists()
