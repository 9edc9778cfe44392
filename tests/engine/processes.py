"""What the tests of the process layer share: places of their own, engines, and who lives."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import SECONDS, block_until
from wellspoken.engine import shim
from wellspoken.engine.child import SHIM
from wellspoken.engine.run_folder import RunFolder

FAMILY = """
import os, signal, sys, time
folder = sys.argv[1]

def here(name):
    open(f"{folder}/{name}.new", "w").write(str(os.getpid()))
    os.rename(f"{folder}/{name}.new", f"{folder}/{name}")

def rest():
    while True:
        time.sleep(1)

def child(name, work=rest):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        here(name)
        work()

def in_session_of_its_own():
    os.setsid()
    rest()

def daemon():
    os.setsid()
    child("daemon")
    os._exit(0)

def family():
    child("child", lambda: (child("grandchild"), rest()))
    child("stubborn")
    child("leader", in_session_of_its_own)
    child("doomed", daemon)
    here("main")
    while not all(os.path.exists(f"{folder}/{name}") for name in ("grandchild", "daemon")):
        time.sleep(0.01)
"""
"""The beginning of an engine: `family()` leaves it with `MEMBERS`, each of which writes its id."""
MEMBERS = ("main", "child", "grandchild", "stubborn", "leader", "daemon")


@contextlib.contextmanager
def runtime() -> Iterator[Path]:
    """Give places a root of their own in here, with a path as short as a real one."""
    folder = Path(tempfile.mkdtemp(prefix="ws", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        try:
            yield folder / "wellspoken"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def lives(pid: int) -> bool:
    process = shim.look(pid)
    return process is not None and process.state != "Z"


def family(folder: Path) -> dict[str, int]:
    """Wait for all of an engine's `FAMILY`; return their ids by name."""
    block_until(lambda: all((folder / name).exists() for name in MEMBERS))
    return {name: int((folder / name).read_text()) for name in MEMBERS}


def living(members: dict[str, int]) -> list[str]:
    return [name for name, pid in members.items() if lives(pid)]


class Shim:
    """A shim with an engine, run as the proxy runs it."""

    def __init__(self, place: RunFolder, *argv: str, driver: str | None = None) -> None:
        run = ["-I", "-S", str(SHIM)] if driver is None else ["-c", driver]
        self.process = subprocess.Popen(
            [sys.executable, *run, str(place.folder), "--", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def __enter__(self) -> Shim:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self.process.pid

    def cut(self) -> None:
        """End the lifeline, as the proxy's end does."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        return self.process.wait(SECONDS)

    def log(self) -> str:
        """Return what was said until the end of the log."""
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        if self.process.poll() is None:
            self.cut()
            try:
                self.wait()
            except subprocess.TimeoutExpired:
                os.killpg(self.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.process.wait()
