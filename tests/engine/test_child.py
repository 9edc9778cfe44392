"""The supervised child process, with small Python programs as children."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.engine.child import (
    LINE_BYTES,
    TAIL_LINES,
    Child,
    EngineError,
    LineCutter,
    log_to_stderr,
)


async def spawn(code: str, log: list[str]) -> Child:
    return await Child.spawn("kid", [sys.executable, "-c", code], log.append)


@given(st.lists(st.binary(max_size=60)), st.integers(1, 20))
def test_any_split_gives_the_same_lines_each_within_the_limit(
    chunks: list[bytes], limit: int
) -> None:
    def expected() -> Iterator[str]:
        for line in b"".join(chunks).split(b"\n"):
            text = line[:limit].decode("utf-8", "replace").rstrip("\r")
            if text or len(line) > limit:
                yield text + (" [cut]" if len(line) > limit else "")

    cutter = LineCutter(limit)
    lines = [line for chunk in chunks for line in cutter.feed(chunk)] + cutter.finish()
    assert lines == list(expected())


async def test_relays_stderr_with_the_name_and_keeps_the_last_lines() -> None:
    log: list[str] = []
    child = await spawn(
        f"import sys\nfor n in range({TAIL_LINES + 5}): print(n, file=sys.stderr)", log
    )
    assert await child.wait() == 0
    assert log == [f"kid: {n}" for n in range(TAIL_LINES + 5)]
    assert list(child.tail) == [str(n) for n in range(5, TAIL_LINES + 5)]


def test_the_log_goes_to_stderr_where_nobody_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_to_stderr("kid: a line")
    assert capsys.readouterr() == ("", "kid: a line\n")


async def test_a_line_without_end_does_not_pile_up() -> None:
    log: list[str] = []
    child = await spawn("import sys\nfor _ in range(400): sys.stderr.write('x' * 10_000)", log)
    assert await child.wait() == 0
    assert log == ["kid: " + "x" * LINE_BYTES + " [cut]"]


async def test_the_status_line_is_the_first_line_of_stdout() -> None:
    child = await spawn("import os; os.write(1, b'up\\nmore\\n')", [])
    assert await child.status_line() == b"up\n"
    assert await child.wait() == 0


@pytest.mark.parametrize("code", ["pass", "print('x' * 200_000)", "print('no newline', end='')"])
async def test_no_usable_status_line_is_empty(code: str) -> None:
    child = await spawn(code, [])
    assert await child.status_line() == b""
    await child.kill()


async def test_stop_sends_sigterm() -> None:
    child = await spawn("import time; print('up', flush=True); time.sleep(60)", [])
    await child.status_line()
    assert child.code is None
    assert await child.stop(grace=20) == -signal.SIGTERM
    assert child.code == -signal.SIGTERM


async def test_stop_kills_what_ignores_sigterm() -> None:
    log: list[str] = []
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True); time.sleep(60)"
    )
    child = await spawn(code, log)
    await child.status_line()
    assert await child.stop(grace=0.1) == -signal.SIGKILL
    assert log == ["kid: did not end 0.1 s after SIGTERM, killed"]


async def test_stop_after_the_end_returns_the_exit_code() -> None:
    child = await spawn("raise SystemExit(3)", [])
    assert await child.wait() == 3
    assert await child.stop(grace=1) == 3


async def test_a_cancelled_wait_leaves_the_other_waiters() -> None:
    child = await spawn("import time; time.sleep(60)", [])
    first, second = asyncio.create_task(child.wait()), asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    first.cancel()
    await child.kill()
    assert await second == -signal.SIGKILL


async def test_a_grandchild_that_holds_stderr_does_not_hold_up_the_end() -> None:
    code = (
        "import subprocess, sys\n"
        "kid = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(5)'])\n"
        "print(kid.pid, flush=True)"
    )
    child = await spawn(code, [])
    grandchild = int(await child.status_line())
    async with asyncio.timeout(4):
        assert await child.wait() == 0
    os.kill(grandchild, signal.SIGKILL)


async def test_stdin_stays_open_until_the_child_is_gone() -> None:
    child = await spawn("import sys; print('up', flush=True); sys.stdin.read(); print('eof')", [])
    await child.status_line()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(child.wait(), 0.3)
    await child.kill()


async def test_what_cannot_be_started_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match=r"could not start the kid process: .*ulimit"):
        await Child.spawn("kid", ["/nowhere/at/all"], print)


async def test_a_cancelled_spawn_leaves_no_child_and_no_open_pipe() -> None:
    async def nothing() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()

    await nothing()  # what asyncio itself opens once and keeps
    before = os.listdir("/proc/self/fd")
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    others = children.read_text() if children.exists() else ""  # a PostgreSQL of other tests
    code = "import time; time.sleep(60)"
    spawning = asyncio.create_task(Child.spawn("kid", [sys.executable, "-c", code], print))
    await asyncio.sleep(0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) <= len(before)
    assert not children.exists() or children.read_text() == others
