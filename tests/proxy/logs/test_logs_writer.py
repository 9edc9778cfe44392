"""How the log leaves the process: whole lines in order, no waiting, and losses that are told."""

from __future__ import annotations

import errno
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.clock import own_time
from tests.waiting import SECONDS
from wellspoken.proxy import logs
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.lifecycle.progress import EngineProgress
from wellspoken.proxy.logs import line_writer as logs_writer
from wellspoken.proxy.logs.line_writer import Descriptor, LogWriter

ROOT = Path(__file__).parents[3]


def lost(count: int) -> bytes:
    return b"lost %d\n" % count


@contextmanager
def writing(descriptor: int) -> Iterator[LogWriter]:
    """Run a writer on a descriptor."""
    output = Descriptor(descriptor)
    writer = LogWriter(output.write, lost)
    writer.start()
    try:
        yield writer
    finally:
        if writer.close(SECONDS):
            output.close()


def emptied(descriptor: int) -> bytes:
    """Read until the other side is closed."""
    parts = []
    while part := os.read(descriptor, 65_536):
        parts.append(part)
    return b"".join(parts)


def test_lines_leave_in_order_and_all(tmp_path: Path) -> None:
    wanted = [b"line %d\n" % n for n in range(5000)]
    with (tmp_path / "log").open("wb") as file, writing(file.fileno()) as writer:
        for line in wanted:
            writer.put(line)
        assert writer.flush(SECONDS)
        assert (tmp_path / "log").read_bytes() == b"".join(wanted)


def test_every_write_to_a_pipe_is_whole_lines_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    pieces: list[bytes] = []
    write = os.write

    def noted(descriptor: int, data: bytes) -> int:
        pieces.append(data)
        return write(descriptor, data)

    with writing(theirs) as writer:
        os.close(theirs)
        monkeypatch.setattr(os, "write", noted)
        for n in range(300):
            writer.put(b"%d" % n + b"x" * (n % 200) + b"\n")
        assert writer.flush(SECONDS)
    os.close(ours)
    assert len(pieces) > 1
    assert all(len(piece) <= select.PIPE_BUF and piece.endswith(b"\n") for piece in pieces)


def test_a_pipe_that_nobody_reads_holds_nobody_up() -> None:
    ours, theirs = os.pipe()
    line = b"y" * 999 + b"\n"
    count = 20_000  # more than what may wait, and more than what a pipe takes
    with writing(theirs) as writer:
        os.close(theirs)
        began, slow = own_time(), 0
        for _ in range(count):
            before = time.monotonic()
            writer.put(line)
            slow += time.monotonic() - before > 0.5
        # Each would wait, had one to: a machine that stands still now and then holds up a few.
        assert slow <= 5 and own_time() - began < 60
        assert not writer.flush(0.05)  # it is still full
        read: list[bytes] = []
        reader = threading.Thread(target=lambda: read.append(emptied(ours)))
        reader.start()
        assert writer.flush(SECONDS)
        writer.put(b"after\n")
    reader.join(120)
    os.close(ours)
    lines = read[0].split(b"\n")[:-1]
    assert set(lines) <= {line[:-1], b"after", *(one for one in lines if b"lost" in one)}
    told = sum(int(one.split()[1]) for one in lines if one.startswith(b"lost"))
    assert lines[-1] == b"after"
    assert told > 0
    assert lines.count(line[:-1]) + told == count
    assert lines.count(line[:-1]) * len(line) < 2 * logs_writer.MOST


def test_the_end_does_not_wait_for_a_pipe_that_nobody_reads() -> None:
    ours, theirs = os.pipe()
    writer = LogWriter(Descriptor(theirs).write, lost)
    writer.start()
    for _ in range(200):
        writer.put(b"z" * 999 + b"\n")
    began = own_time()
    assert not writer.close(0.2)
    assert own_time() - began < 30  # nobody reads it for as long as it waits
    os.close(theirs)
    emptied_by = threading.Thread(target=lambda: os.read(ours, 1 << 20))
    emptied_by.start()
    emptied_by.join()
    os.close(ours)  # what is left meets a broken pipe, and the thread ends
    writer.join(120)
    assert not writer.is_alive()


def test_a_pipe_that_is_closed_loses_lines_and_nothing_else() -> None:
    ours, theirs = os.pipe()
    with writing(theirs) as writer:
        os.close(theirs)
        os.close(ours)
        writer.put(b"nobody\n")
        assert writer.flush(SECONDS)
        writer.put(b"nobody\n")
        assert writer.flush(SECONDS) and writer.is_alive()


@pytest.mark.parametrize("size", [10_500, 11_000])
def test_a_full_disk_loses_lines_and_tells_how_many(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [size]

    def filling(descriptor: int, data: bytes) -> int:
        """Take what there is room for, as a disk does, and then nothing."""
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = data[: room[0]]
        room[0] -= len(taken)
        return write(descriptor, taken)

    path = tmp_path / "log"
    with path.open("wb") as file, writing(file.fileno()) as writer:
        monkeypatch.setattr(os, "write", filling)
        for n in range(30):
            writer.put(b"%02d" % n + b"w" * 997 + b"\n")
        assert writer.flush(SECONDS)
        room[0] = 1 << 30
        writer.put(b"room\n")
        assert writer.flush(SECONDS)
    lines = path.read_bytes().split(b"\n")[:-1]
    assert [line[:2] for line in lines[:11]] == [b"%02d" % n for n in range(11)]
    assert [len(line) for line in lines[:10]] == [999] * 10
    torn = size < 11_000  # that line then has its own
    assert len(lines[10]) == (500 if torn else 999)
    assert lines[11:] == [b"room", b"lost 20" if torn else b"lost 19"]


def test_dev_full(tmp_path: Path) -> None:
    with open("/dev/full", "wb", buffering=0) as full, writing(full.fileno()) as writer:
        for _ in range(100):
            writer.put(b"no\n")
        assert writer.flush(SECONDS)
        assert writer.is_alive()


def test_a_pipe_that_others_made_nonblocking_gets_every_line() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    read: list[bytes] = []
    wanted = [b"%d" % n + b"v" * 500 + b"\n" for n in range(1000)]
    with writing(theirs) as writer:
        os.close(theirs)
        for line in wanted:
            writer.put(line)
        time.sleep(0.1)  # the pipe is full by now
        reader = threading.Thread(target=lambda: read.append(emptied(ours)))
        reader.start()
        assert writer.flush(SECONDS)
    reader.join(120)
    os.close(ours)
    assert read == [b"".join(wanted)]


def test_a_closed_stderr_whose_number_is_another_file_gets_nothing(tmp_path: Path) -> None:
    first = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    with writing(first) as writer:
        other = os.open(tmp_path / "connection", os.O_WRONLY | os.O_CREAT)
        os.dup2(other, first)
        writer.put(b"to the log\n")
        assert writer.flush(SECONDS)
    os.close(first)
    os.close(other)
    assert (tmp_path / "log").read_bytes() == b"to the log\n"
    assert (tmp_path / "connection").read_bytes() == b""


def test_a_line_may_be_put_while_another_is() -> None:
    """As a garbage collection does it, which runs a destructor that logs."""
    ours, theirs = os.pipe()
    with writing(theirs) as writer:
        os.close(theirs)

        class Odd(bytes):
            def __len__(self) -> int:
                writer.put(b"within\n")
                return super().__len__()

        for _ in range(200):
            writer.put(Odd(b"outer\n"))
        assert writer.flush(SECONDS)
    data = emptied(ours)
    os.close(ours)
    assert data.count(b"outer\n") == 200
    assert data.count(b"within\n") > 50


SEVERAL = """
import sys
from wellspoken.proxy import logs
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.lifecycle.progress import EngineProgress
logs.SECONDS = 120.0  # at its end, for a reader on a busy machine
log = logs.set_up(Log(), EngineProgress(sys.stderr))
for n in range(1200):
    log.put(log.lines.message("info", "m" * (n % 700), {"process": sys.argv[1], "n": n}))
    if n % 100 == 0:
        log.flush()
log.close()
"""


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_several_processes_write_to_one_stderr(kind: str, tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    target = theirs if kind == "pipe" else os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    children = [
        subprocess.Popen([sys.executable, "-c", SEVERAL, str(k)], stderr=target) for k in range(3)
    ]
    os.close(theirs)
    if target != theirs:
        os.close(target)
    data = emptied(ours)
    assert [one.wait(120) for one in children] == [0, 0, 0]
    os.close(ours)
    if kind == "file":
        data = (tmp_path / "log").read_bytes()
    found: dict[str, list[int]] = {}
    for line in data.decode().split("\n")[:-1]:
        told = json.loads(line)
        found.setdefault(told["process"], []).append(told["n"])
    assert found == {str(k): list(range(1200)) for k in range(3)}


ENDS = """
import logging, sys, threading
from wellspoken.proxy import logs
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.lifecycle.progress import EngineProgress
log = logs.set_up(Log(), EngineProgress(sys.stderr))
logging.getLogger("wellspoken").info("first")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start(); thread.join()
class Bad:
    def __del__(self): raise RuntimeError("can" "ary")
Bad()
import warnings; warnings.warn("careful")
logging.getLogger("wellspoken").info("last")
"""


def test_what_nobody_closes_is_flushed_and_all_of_it_is_json() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", ENDS], stderr=subprocess.PIPE, timeout=120
    )
    assert done.returncode == 0
    told = [json.loads(line) for line in done.stderr.decode().splitlines()]
    assert [line["message"] for line in (told[0], told[-1])] == ["first", "last"]
    failed, ignored, warned = told[1:-1]
    assert failed["level"] == "error" and "ZeroDivisionError" in failed["exception"]
    assert "RuntimeError" in ignored["exception"] and "canary" not in str(ignored)
    assert warned["logger"] == "py.warnings" and "careful" in warned["message"]


def test_a_stopped_terminal_holds_nobody_up() -> None:
    """As Ctrl-S does it; what was logged comes once it goes on."""
    ours, theirs = pty.openpty()
    try:
        with open(theirs, "w", closefd=False) as file:
            log = logs.set_up(Log(), EngineProgress(file))
            termios.tcflow(theirs, termios.TCOOFF)
            began = own_time()
            for n in range(1000):
                log.put(b"line %d\n" % n)
            log.line("engine: starts")
            log.put(b"")
            assert own_time() - began < 30  # it is stopped for as long as anything waits
            assert not log.flush(0.1)
            termios.tcflow(theirs, termios.TCOON)
            seen = b""
            while b"engine: starts\r\n" not in seen:
                assert select.select((ours,), (), (), SECONDS)[0]
                seen += os.read(ours, 65_536)
            log.close()
    finally:
        os.close(ours)
        os.close(theirs)
    assert seen.startswith(b"line 0\r\nline 1\r\n") and seen.count(b"\r\n") == 1001


def test_a_file_without_a_descriptor(tmp_path: Path) -> None:
    import io

    file = io.StringIO()
    log = logs.set_up(Log(format="text"), EngineProgress(file))
    log.put(b"one\n")
    log.line("vllm: two")
    log.close()
    assert file.getvalue() == "one\nvllm: two\n"
    log = logs.set_up(Log(format="text"), EngineProgress(file))
    file.close()
    log.put(b"three\n")
    log.close()


def test_the_log_keeps_up_with_ten_thousand_lines_a_second(tmp_path: Path) -> None:
    """Ten times what one process answers; nothing is lost, whatever the machine."""
    ours, theirs = os.pipe()
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(emptied(ours)))
    reader.start()
    line = b"u" * 400 + b"\n"
    with writing(theirs) as writer:
        os.close(theirs)
        for n in range(10_000):
            writer.put(line)
            if n % 100 == 0:
                time.sleep(0.002)
        assert writer.flush(SECONDS)
    reader.join(120)
    os.close(ours)
    assert read == [line * 10_000]


PAUSED = """
import sys, threading, time
from wellspoken.proxy.logs.line_writer import LogWriter
begin = threading.Event()
def write(lines):
    begin.wait()
    for line in lines:
        time.sleep(0.1)
        print(line.decode(), end="", flush=True)
    return 0
writer = LogWriter(write, lambda count: b"lost")
writer.start()
for n in range(10):
    writer.put(b"line\\n")
print("closing", flush=True)
begin.set()
writer.close(3.0)
"""


def test_a_machine_that_stands_still_at_the_end_loses_nothing() -> None:
    """One second is what is written, three are waited for, and four go by without anything."""
    command = [sys.executable, "-c", PAUSED]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"closing\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read() == b"line\n" * 10
