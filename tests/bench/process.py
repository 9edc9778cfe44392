"""Child processes: started on a core of their own, and what the kernel says they cost."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

START_SECONDS = 120
_LISTENS = re.compile(r"listens on (http://\S+)")
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)")


class StartError(Exception):
    """A child did not come up; the text is what it said."""


@dataclass(frozen=True)
class Program:
    """A server that can be run: it says where it `listens on`, or it was told to by this `url`."""

    command: list[str]
    url: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Child:
    """A server that runs."""

    url: str
    pid: int


@dataclass(frozen=True)
class Cost:
    """What a process has used so far: CPU seconds, and those for which it waited for a core.

    NaN and 0 where the kernel does not tell.
    """

    cpu: float
    switches: int
    waited: float = 0.0


@dataclass(frozen=True)
class Memory:
    """What is resident of a process, and the most that ever was, in MB (NaN likewise)."""

    now: float
    peak: float


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


def child(arguments: list[str], where: set[int] | None) -> AbstractContextManager[Child]:
    """Run `python ARGUMENTS` until the block ends; it says where it `listens on`."""
    return run(Program([sys.executable, *arguments]), where)


@contextmanager
def run(program: Program, where: set[int] | None, words: Path | None = None) -> Iterator[Child]:
    """Run a server on these cores until the block ends; `words`: for its log. Raises StartError."""
    with words.open("w+b") if words else tempfile.TemporaryFile() as log, pinned(where):
        process = start(program, log.fileno())
        try:
            yield Child(_address(process, log.fileno(), program), process.pid)
        finally:
            for pid in reversed(family(process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # nothing here is worth an orderly end
            process.wait()


def start(program: Program, log: int) -> subprocess.Popen[bytes]:
    """Start a server, whose words go to the file `log`."""
    hidden = ("OPENAI_", "WELLSPOKEN_")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not (name.upper().startswith(hidden) or name.upper().endswith("_PROXY"))
    }
    try:
        return subprocess.Popen(
            program.command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment | program.environment,
        )
    except OSError as error:
        raise StartError(f"{program.command[0]} did not start: {error.strerror}") from error


def _address(process: subprocess.Popen[bytes], log: int, program: Program) -> str:
    until = time.monotonic() + START_SECONDS
    while True:
        said = os.pread(log, 100_000, 0).decode("utf-8", "replace")
        if program.url and is_open(program.url):
            return program.url
        found = _LISTENS.search(said)
        if found and not program.url:
            return found[1]
        if process.poll() is not None or time.monotonic() > until:
            words = " ".join(program.command)
            raise StartError(f"{words} did not start: {said.strip()[-1000:] or 'silence'}")
        time.sleep(0.02)


def is_open(url: str) -> bool:
    """Return whether something listens there."""
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 80), 1).close()
    except OSError:
        return False
    return True


def family(pid: int) -> list[int]:
    """Return a process and all that it started, as far as the kernel tells, parents first."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended meanwhile
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def cost(pid: int) -> Cost:
    """Return what the process and all that it started have used."""
    each = [_cost(one) for one in family(pid)]
    sums = zip(*((one.cpu, one.switches, one.waited) for one in each), strict=True)
    return Cost(*map(sum, sums))


def _cost(pid: int) -> Cost:
    """Return what one process has used, threads that ended included but for their switches."""
    waited = switches = 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            waited += int((thread / "schedstat").read_text().split()[1])
            said = (thread / "status").read_text()
            switches += sum(map(int, _SWITCHES.findall(said)))
    except OSError:  # no Linux, or a thread has ended meanwhile
        pass
    return Cost(cpu_seconds(pid), switches, waited / 1e9)


def cpu_seconds(pid: int) -> float:
    """Return what a process has used of CPU, to the nanosecond; NaN where the kernel won't tell."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # as Linux's clock_getcpuclockid has it
    except OSError:
        return math.nan


def memory(pid: int) -> Memory:
    """Return what is resident of the process and of all that it started."""
    try:
        words = [Path(f"/proc/{one}/status").read_text() for one in family(pid)]
    except OSError:
        return Memory(math.nan, math.nan)
    now, peak = (sum(_kilobytes(name, word) for word in words) / 1e3 for name in ("RSS", "HWM"))
    return Memory(now, peak)


def _kilobytes(name: str, status: str) -> float:
    found = re.search(rf"^Vm{name}:\s+(\d+) kB", status, re.MULTILINE)
    return int(found[1]) * 1.024 if found else math.nan


def forget_peak(pid: int) -> None:
    """Let the most that was resident be what is now, where the kernel can do so."""
    with suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
