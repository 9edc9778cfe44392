"""Child processes: started on a core of their own, and what the kernel says they cost."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 120
_LISTENS = re.compile(r"listens on (http://\S+)")
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)")


class StartError(Exception):
    """A child did not come up; the text is what it said."""


@dataclass(frozen=True)
class Child:
    """A server that runs."""

    url: str
    pid: int


@dataclass(frozen=True)
class Cost:
    """What a process has used so far: CPU seconds (NaN where the kernel does not tell)."""

    cpu: float
    switches: int


def cores() -> tuple[set[int], set[int]] | None:
    """Return the core for the measured process and those for the rest; None without two cores."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    found = sorted(os.sched_getaffinity(0))
    return ({found[0]}, set(found[1:2])) if len(found) > 1 else None


@contextmanager
def pinned(where: set[int] | None) -> Iterator[None]:
    """Keep this process, and the children it starts meanwhile, on these cores."""
    if where is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, where)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def child(arguments: list[str], where: set[int] | None) -> Iterator[Child]:
    """Run `python ARGUMENTS` until the block ends; it says where it `listens on`."""
    hidden = ("OPENAI_", "WELLSPOKEN_")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not (name.upper().startswith(hidden) or name.upper().endswith("_PROXY"))
    }
    with tempfile.TemporaryFile() as log, pinned(where):
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            yield Child(_address(process, log.fileno(), arguments), process.pid)
        finally:
            process.kill()  # nothing here is worth an orderly end
            process.wait()


def _address(process: subprocess.Popen[bytes], log: int, arguments: list[str]) -> str:
    until = time.monotonic() + START_SECONDS
    while True:
        said = os.pread(log, 100_000, 0).decode("utf-8", "replace")
        found = _LISTENS.search(said)
        if found:
            return found[1]
        if process.poll() is not None or time.monotonic() > until:
            raise StartError(f"{' '.join(arguments)} did not start: {said.strip() or 'silence'}")
        time.sleep(0.02)


def cost(pid: int) -> Cost:
    """Return what the process has used: nanosecond clocks of its threads, else clock ticks."""
    folder = Path(f"/proc/{pid}")
    try:
        threads = list((folder / "task").iterdir())
        switches = sum(
            int(number)
            for thread in threads
            for number in _SWITCHES.findall((thread / "status").read_text())
        )
    except OSError:
        return Cost(math.nan, 0)
    try:
        spent = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
    except OSError:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        return Cost((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), switches)
    return Cost(spent / 1e9, switches)
