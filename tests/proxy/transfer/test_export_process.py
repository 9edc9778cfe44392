"""An export as a process: its memory, how it is interrupted, and what it draws on a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import structs

from tests.proxy.storing import CREATED, fill, row
from tests.proxy.transfer.commands import EXPORT, on_terminal, peak

MANY = 60_000
_NEVER_DONE = """
import sys, time
from wellspoken.proxy.cli.main import main
from wellspoken.proxy.transfer.export_command import Pages
read = Pages._read
def read_most(pages):
    while pages.tally.lines > 50_000:
        time.sleep(0.05)
    return read(pages)
Pages._read = read_most
sys.exit(main(sys.argv[1:]))
"""

_INTERRUPTED_OFTEN = """
import os, random, signal, sys, threading
from wellspoken.proxy.store.rows import Query
from wellspoken.proxy.transfer import open_store

wanted = open_store.settings(None, sys.argv[1], made=False)
pause = random.Random(1)

def read_on(ready):
    with open_store.open_for_command(wanted) as runner:
        ready.set()
        while True:
            runner.find(Query(owner=None, limit=1))

for number in range(100):
    ready = threading.Event()
    def send():
        ready.wait()
        threading.Event().wait(pause.random() / 200)
        os.kill(os.getpid(), signal.SIGINT)
    sender = threading.Thread(target=send)
    sender.start()
    try:
        read_on(ready)
    except KeyboardInterrupt:
        sender.join()
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 60,000 completions, which are one but for id and time."""
    db, one = tmp_path_factory.mktemp("many") / "chats.db", row(0)
    fill(
        db,
        (
            structs.replace(one, id=f"chatcmpl-{n:024x}", created=CREATED + n // 2)
            for n in range(MANY)
        ),
    )
    return db


def test_memory_does_not_grow_with_the_store(many: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ("--store", str(many), "--format", "full", "-o", str(out))
    small = peak("export", *options, "--until", "2025-10-09T09:43:20Z")
    assert out.read_bytes().count(b"\n") == MANY // 10
    large = peak("export", *options)
    assert out.read_bytes().count(b"\n") == MANY
    assert large < 100
    # The C library keeps up to 14 MB more, however many rows; these would be 26 as text alone.
    assert large - small < 20


def test_long_rows_come_a_few_at_a_time(tmp_path: Path) -> None:
    """24 answers of 2 MiB cost a few of them, not a page of them."""
    db, out = tmp_path / "chats.db", tmp_path / "out.jsonl"
    fill(db, (row(n, text=os.urandom(1 << 20).hex()) for n in range(24)))
    size = peak("export", "--store", str(db), "-o", str(out))
    assert out.stat().st_size > 48 << 20
    assert size < 75


def test_an_interrupt_leaves_whole_lines(many: Path, tmp_path: Path) -> None:
    """However late it comes: what is exported here ends in no other way."""
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", _NEVER_DONE, "export", "--store", str(many), "-o", str(out)],
        stderr=subprocess.PIPE,
    )
    while not (out.exists() and out.stat().st_size > 1_000_000):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    lines = out.read_bytes().splitlines(keepends=True)
    assert len(lines) < MANY
    assert lines[-1].endswith(b"\n") and json.loads(lines[-1])
    text = said.decode()
    told = re.fullmatch(r"wellspoken: interrupted after \d+ completions, (\d+) lines .*\n", text)
    assert told is not None and len(lines) - 64 <= int(told[1]) <= len(lines)


def test_an_interrupt_never_meets_the_loop(many: Path) -> None:
    """Where it did, one of some hundred ended as another error, with a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", _INTERRUPTED_OFTEN, str(many)], capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_interrupt_ends_it_while_nobody_reads(many: Path) -> None:
    process = subprocess.Popen(
        [*EXPORT, "--store", str(many)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    time.sleep(0.5)  # now the pipe is full
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 130
    assert b"Traceback" not in process.stderr.read()
    process.stdout.close()
    process.stderr.close()


def test_a_reader_that_has_seen_enough_ends_it_quietly(many: Path) -> None:
    """As `| head` does."""
    process = subprocess.Popen(
        [*EXPORT, "--store", str(many)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    assert json.loads(process.stdout.readline())
    process.stdout.close()
    assert process.wait(timeout=120) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_progress_is_drawn_on_a_terminal_and_wiped_off(many: Path) -> None:
    code, seen = on_terminal(
        "export", "--store", str(many), "--format", "evals", stdout=subprocess.DEVNULL
    )
    assert code == 0
    drawn = re.findall(
        rb"\r\[([#.]{24})\] +(\d+)%  ([\d,]+) completions, ([\d,]+) lines\x1b\[K", seen
    )
    assert len(drawn) > 2
    shares = [int(share) for _, share, _, _ in drawn]
    assert shares == sorted(shares) and shares[0] < 50 < shares[-1] <= 100
    left = re.sub(rb"\r\[[^\r]*\x1b\[K", b"", seen)
    assert left == b"\r\x1b[Kwellspoken: 60000 completions, 60000 lines as evals\r\n"
