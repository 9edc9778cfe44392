"""What stderr shows while an engine starts: on a terminal one line at the bottom, else a log."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import SECONDS
from wellspoken.proxy.lifecycle import progress
from wellspoken.proxy.lifecycle.progress import EngineProgress
from wellspoken.proxy.terminal.width import count_columns

ROOT = Path(__file__).parents[3]
LOG = logging.getLogger("test_progress")


class Tty(io.StringIO):
    """A terminal of 80 columns, as far as one is asked for its kind."""

    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """Return what a terminal shows of this: its lines, with the cursor in the last one."""
    lines, column = [""], 0
    for part in re.findall(r"\r|\n|\x1b\[K|[^\r\n\x1b]+|\x1b", written):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        else:
            assert part != "\x1b", "an escape sequence that is not ours"
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return lines


def test_the_screen_is_one() -> None:
    assert screen("abc\rx\n\x1b[Kd") == ["xbc", "d"]
    assert screen("abc\r\x1b[Kd") == ["d"]
    with pytest.raises(AssertionError):
        screen("a\x1b[Ab")


def engine(reason: str, restarts: int = 0) -> Any:
    """Return what a supervisor shows of itself while it starts."""
    kind = SimpleNamespace(name="vllm", title="vLLM")
    return SimpleNamespace(
        kind=kind, state="starting", reason=reason, phase="", elapsed=0.0, restarts=restarts
    )


async def turns(number: int = 3) -> None:
    """Let other tasks run, beyond the interval that `quickly` sets."""
    for _ in range(number):
        await asyncio.sleep(0.01)


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look and draw a hundred times a second."""
    monkeypatch.setattr(progress, "INTERVAL", 0.01)


@pytest.mark.usefixtures("quickly")
async def test_a_line_is_drawn_anew_below_the_log() -> None:
    tty = Tty()
    shown = EngineProgress(tty)
    vllm = engine("it has not been started")
    following = asyncio.create_task(shown.follow(vllm, LOG))
    await turns()
    assert screen(tty.getvalue()) == ["vllm: starting"]
    vllm.phase, vllm.elapsed = "loading weights", 41.2
    await turns()
    assert screen(tty.getvalue()) == ["vllm: loading weights, 41 s"]
    shown.line("vllm: (APIServer pid=7) INFO a line")
    shown.line("another one")
    shown.line("two\nlines")
    drawn = ["vllm: (APIServer pid=7) INFO a line", "another one", "two", "lines"]
    assert screen(tty.getvalue()) == [*drawn, "vllm: loading weights, 41 s"]
    vllm.phase, vllm.elapsed = "warming up", 48.0
    await turns()
    assert screen(tty.getvalue()) == [*drawn, "vllm: warming up, 48 s"]
    vllm.state, vllm.phase, vllm.reason = "ready", "", ""
    shown.line("it is ready")
    assert screen(tty.getvalue()) == [*drawn, "it is ready", ""]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    shown.line("after it")
    assert screen(tty.getvalue())[-3:] == ["it is ready", "after it", ""]


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("letter", ["x", "漢"])
async def test_a_pause_is_told_and_cut_to_the_width(letter: str) -> None:
    """A letter may take two columns: what goes on below the line is never wiped off."""
    tty = Tty()
    shown = EngineProgress(tty)
    text = f"vLLM ended with exit code 1.\nIt said: {letter * 200}; it starts again in 4 s"
    following = asyncio.create_task(shown.follow(engine(text, restarts=1), LOG))
    await turns()
    [line] = screen(tty.getvalue())
    assert line.startswith(f"vllm: vLLM ended with exit code 1. It said: {letter * 3}")
    assert line.endswith(f"{letter}…") and 78 <= count_columns(line) <= 79
    shown.clear()
    assert screen(tty.getvalue()) == [""]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert screen(tty.getvalue()) == [""]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1mbold\x1b[0m", "bold"),
        ("\x1b[A\x1b[2Kover what stands above", "over what stands above"),
        ("\x1b]0;title\x07text", "text"),
        ("a\rb\x07\x08c\x9b", "abc"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("café 😀", "café 😀"),
        ("cut \x1b", "cut "),
    ],
)
def test_what_moves_the_cursor_is_taken_out(text: str, shown: str) -> None:
    for file in (Tty(), io.StringIO()):
        EngineProgress(file).line(text)
        assert file.getvalue() == shown + "\n"


@pytest.mark.usefixtures("quickly")
async def test_without_a_terminal_each_phase_is_a_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    file = io.StringIO()
    vllm = engine("it has not been started")
    following = asyncio.create_task(EngineProgress(file).follow(vllm, LOG))
    for phase in ("loading weights", "loading weights: 30 %", "loading weights: 90 %", "", "one"):
        vllm.phase = phase
        await turns()
    vllm.state = "ready"
    await turns()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    assert [record.getMessage() for record in caplog.records] == [
        "vllm: loading weights",
        "vllm: loading weights: 30 %",
        "vllm: one",
    ]
    assert file.getvalue() == ""


def test_threads_do_not_mix_their_lines() -> None:
    tty = Tty()
    shown = EngineProgress(tty)

    def write() -> None:
        for _ in range(200):
            shown.line("x" * 50)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert screen(tty.getvalue()) == ["x" * 50] * 800 + [""]


def test_a_reader_that_has_left_is_no_failure() -> None:
    """The relay of the engine's log must go on reading, or the engine would wait for it."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w", closefd=False) as file:
        shown = EngineProgress(file)
        shown.line("nobody reads this")
        shown.clear()
        null = os.open(os.devnull, os.O_WRONLY)  # what the file still holds goes nowhere
        os.dup2(null, write_end)
        os.close(null)
    os.close(write_end)
    closed = io.StringIO()
    shown = EngineProgress(closed)
    closed.close()
    shown.line("nor this")


RUN = """
import sys
from pathlib import Path
from tests.proxy.lifecycle.test_run_engine import Slow
from wellspoken.proxy.lifecycle import hosted as engines
from wellspoken.proxy.cli.main import main
engines.kind_of = lambda settings, *_: Slow(Path(settings.model), Path(sys.argv[1]))
sys.exit(main(sys.argv[2:]))
"""
SHOWN = re.compile(rb"\rllamacpp: loading weights, (\d+) s\x1b\[K")


def test_the_command_on_a_terminal(tiny_model: Path, tmp_path: Path) -> None:
    """A real llama.cpp that takes its time, from its start to SIGTERM."""
    ours, theirs = pty.openpty()
    go = tmp_path / "go"
    command = [sys.executable, "-c", RUN, str(go), "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--engine", "llamacpp", "--model", str(tiny_model), "--context", "512"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )
    os.close(theirs)
    seen = b""
    asked = False
    end = time.monotonic() + SECONDS
    try:
        while select.select([ours], [], [], max(end - time.monotonic(), 0))[0]:
            try:
                piece = os.read(ours, 65_536)
            except OSError:  # Linux says so when the other side is closed
                break
            seen += piece
            if len(set(SHOWN.findall(seen))) >= 2:
                go.touch()
            if b"    -d '" in seen and not asked:
                process.send_signal(signal.SIGTERM)
                asked = True
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        os.close(ours)
    written = seen.decode().replace("\r\n", "\n")
    assert go.exists()
    lines = screen(written)
    assert any(re.fullmatch(r"wellspoken 0\S+ listens on http://\S+:\d+", x) for x in lines)
    assert any(" is ready, with tiny-spm, after " in line for line in lines)
    assert not [line for line in lines if "loading weights," in line]
    assert lines[-1] == ""
