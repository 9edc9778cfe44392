"""An engine as a child process, with small Python programs as engines."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import pytest
import uvloop

from tests.engine.processes import FAMILY, family, lives, living, runtime
from tests.waiting import SECONDS, block_until, until
from wellspoken.engine import child as children
from wellspoken.engine import shim
from wellspoken.engine.child import Child
from wellspoken.engine.failure import EngineError
from wellspoken.engine.kind import Command
from wellspoken.engine.log_relay import LINE_BYTES, LINES_A_SECOND, TAIL_LINES, LogRelay
from wellspoken.engine.run_folder import RunFolder

IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SLEEPS = "import time; print('up', flush=True); time.sleep(60)"

PARENT = """
import asyncio, os, sys
from wellspoken.engine.child import Child
from wellspoken.engine.kind import Command
from wellspoken.engine.run_folder import RunFolder

async def main():
    place = RunFolder.make("test")
    command = Command(tuple(sys.argv[1:]), os.environ)
    await Child.spawn("kid", command, print, folder=place.folder)
    print(place.folder, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def root() -> Iterator[Path]:
    with runtime() as folder:
        yield folder
        clear()


MADE: list[RunFolder] = []


def made() -> Path:
    """Return the folder of a place that `clear` clears."""
    MADE.append(RunFolder.make("test"))
    return MADE[-1].folder


def clear() -> None:
    while MADE:
        MADE.pop().clear()


async def spawn(
    code: str, log: list[str], *arguments: object, on_line: Callable[[str], None] | None = None
) -> Child:
    argv = (sys.executable, "-c", code, *map(str, arguments))
    command = Command(argv, os.environ, reports=on_line is None)
    return await Child.spawn("kid", command, log.append, folder=made(), on_line=on_line)


async def test_relays_stderr_with_the_name_and_keeps_the_last_lines() -> None:
    log: list[str] = []
    child = await spawn(
        f"import sys\nfor n in range({TAIL_LINES + 5}): print(n, file=sys.stderr)", log
    )
    assert await child.wait() == 0
    assert log[:100] == [f"kid: {n}" for n in range(min(TAIL_LINES, 100))]
    assert list(child.tail) == [str(n) for n in range(5, TAIL_LINES + 5)]


async def test_stdout_is_log_too_unless_it_reports() -> None:
    log: list[str] = []
    seen: list[str] = []
    code = "import os; os.write(1, b'one\\n'); os.write(2, b'two\\n'); os.write(1, b'three')"
    child = await spawn(code, log, on_line=seen.append)
    assert await child.status_line() == b""
    assert await child.wait() == 0
    assert seen == ["one", "two", "three"]
    assert log == ["kid: one", "kid: two", "kid: three"]


async def test_a_line_without_end_does_not_pile_up() -> None:
    log: list[str] = []
    child = await spawn("import sys\nfor _ in range(400): sys.stderr.write('x' * 10_000)", log)
    assert await child.wait() == 0
    assert log == ["kid: " + "x" * LINE_BYTES + " [cut]"]


@pytest.mark.parametrize("end", ["", "\\n", "\\r"])
async def test_a_flood_of_log_is_bounded_and_ends(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """15 MB in lines of 1000 bytes, or in one; the program is never held up for good."""
    monkeypatch.setattr(children, "LAST_WORDS_SECONDS", SECONDS)
    log: list[str] = []
    seen = 0

    def count(line: str) -> None:
        nonlocal seen
        seen += 1

    block = f"b'x' * {999 if end else 1000} + b'{end}'"
    code = f"import sys\nfor _ in range(15): sys.stdout.buffer.write(({block}) * 1000)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    child = await spawn(code, log, on_line=count)
    assert await child.wait() == 0
    seconds = time.monotonic() - began + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8_000  # KiB
    assert seen == (15_000 if end else 1)
    assert len(log) <= (LINES_A_SECOND + 1) * seconds
    left_out = sum(int(line.split()[1][1:]) for line in log if "left out" in line)
    if end == "\\n":
        assert len(log) - sum("left out" in line for line in log) + left_out == 15_000


async def test_the_status_line_is_the_first_line_of_stdout() -> None:
    child = await spawn("import os; os.write(1, b'up\\nmore\\n')", [])
    assert await child.status_line() == b"up\n"
    assert await child.wait() == 0


@pytest.mark.parametrize("code", ["pass", "print('x' * 200_000)", "print('no newline', end='')"])
async def test_no_usable_status_line_is_empty(code: str) -> None:
    child = await spawn(code, [])
    assert await child.status_line() == b""
    await child.kill()


async def test_the_environment_is_what_was_given_and_no_more() -> None:
    seen: list[str] = []
    argv = (sys.executable, "-c", "import os; print(sorted(os.environ.items()))")
    command = Command(argv, {"A": "1", "LC_ALL": "C.UTF-8"})
    child = await Child.spawn("kid", command, lambda line: None, folder=made(), on_line=seen.append)
    assert await child.wait() == 0
    assert seen == ["[('A', '1'), ('LC_ALL', 'C.UTF-8')]"]


async def test_stop_sends_sigterm() -> None:
    child = await spawn(SLEEPS, [])
    await child.status_line()
    assert child.code is None
    assert await child.stop(grace=20) == -signal.SIGTERM
    assert child.code == -signal.SIGTERM


async def test_stop_kills_what_ignores_sigterm() -> None:
    log: list[str] = []
    child = await spawn(IGNORES + SLEEPS, log)
    await child.status_line()
    assert await child.stop(grace=0.1) == -signal.SIGKILL
    assert log == ["kid: did not end 0.1 s after SIGTERM, killed"]


async def test_stop_after_the_end_returns_the_exit_code() -> None:
    child = await spawn("raise SystemExit(3)", [])
    assert await child.wait() == 3
    assert await child.stop(grace=1) == 3


async def test_a_killed_main_process_ends_the_rest(tmp_path: Path) -> None:
    child = await spawn(FAMILY + "family()\nrest()", [], tmp_path)
    members = await asyncio.to_thread(family, tmp_path)
    os.kill(members["main"], signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    assert living(members) == []


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_nothing_is_left_after_stop_and_kill(end: str, root: Path, tmp_path: Path) -> None:
    child = await spawn(FAMILY + "family()\nrest()", [], tmp_path)
    members = await asyncio.to_thread(family, tmp_path)
    code = await (child.stop(grace=20) if end == "stop" else child.kill())
    assert code == -(signal.SIGTERM if end == "stop" else signal.SIGKILL)
    assert living(members) == []
    assert list(root.iterdir()) == []


async def test_a_killed_shim_takes_its_group_along() -> None:
    code = "import os, time\npid = os.fork()\nif pid: print(pid, flush=True)\ntime.sleep(60)"
    child = await spawn(code, [])
    kid = int(await child.status_line())
    os.kill(child.pid, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    block_until(lambda: not lives(kid))


async def test_a_shim_that_hangs_is_killed_with_its_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(children, "SHIM_SECONDS", 0.2)
    log: list[str] = []
    child = await spawn("import os, time; print(os.getpid(), flush=True); time.sleep(60)", log)
    main = int(await child.status_line())
    os.kill(child.pid, signal.SIGSTOP)
    assert await child.kill() == -signal.SIGKILL
    block_until(lambda: not lives(main))
    assert log == ["kid: could not be ended within 0.2 s, killed with its shim"]


def test_nothing_is_left_when_this_process_is_killed(root: Path, tmp_path: Path) -> None:
    """`kill -9` of the proxy: all processes, the folder and the shared memory are gone in 5 s."""
    shared = Path(f"/dev/shm/wellspoken-test-{uuid.uuid4().hex}")
    code = FAMILY + (
        "import mmap\n"
        "def work():\n"
        "    with open(sys.argv[2], 'w+b') as file:\n"
        "        file.truncate(4096)\n"
        "        kept = mmap.mmap(file.fileno(), 4096)\n"
        "    here('mapped')\n"
        "    rest()\n"
        "child('user', work)\nfamily()\nrest()"
    )
    argv = [sys.executable, "-c", PARENT, sys.executable, "-c", code, str(tmp_path), str(shared)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        try:
            members = family(tmp_path)
            block_until(lambda: (tmp_path / "mapped").exists())
            assert parent.stdout is not None
            folder = Path(parent.stdout.readline().strip())
            assert folder.parent == root and len(living(members)) == len(members)
            members["user"] = int((tmp_path / "user").read_text())
            sessions = {p.session for p in shim.look_around().values() if p.parent == parent.pid}
            parent.kill()
            block_until(
                lambda: not living(members) and not folder.exists(),
                lambda: f"{living(members)}, {folder.exists()}",
            )
            assert not shared.exists()
            block_until(lambda: not any(lives(pid) for pid in sessions))
        finally:
            parent.kill()
            shared.unlink(missing_ok=True)


async def test_a_cancelled_wait_leaves_the_other_waiters() -> None:
    child = await spawn("import time; time.sleep(60)", [])
    first, second = asyncio.create_task(child.wait()), asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    first.cancel()
    await child.kill()
    assert await second == -signal.SIGKILL


async def test_a_program_that_cannot_be_run_is_named_in_the_log() -> None:
    log: list[str] = []
    folder = made()
    command = Command(("/nowhere/at/all",), {})
    child = await Child.spawn("kid", command, log.append, folder=folder)
    assert await child.wait() == 127
    assert log == ["kid: could not start /nowhere/at/all: No such file or directory"]
    assert list(child.tail) == ["could not start /nowhere/at/all: No such file or directory"]


async def test_what_cannot_be_started_is_an_engine_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/at/all")
    with pytest.raises(EngineError, match=r"could not start the kid process: .*ulimit"):
        await spawn("", [])


async def test_no_file_descriptors_for_it_is_an_engine_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many clients use them up, just when the engine has to be started again."""

    def pipe() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(EngineError, match=r"Too many open files.*open files"):
        await spawn("", [])


async def test_what_was_left_out_is_said_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is still open, or its relay still rests, when nobody waits for it any longer."""
    monkeypatch.setattr(children, "LAST_WORDS_SECONDS", 0.1)
    monkeypatch.setattr(children, "REST", 1e9)
    log: list[str] = []
    code = f"import os; os.write(2, b'x\\n' * {LINES_A_SECOND + 7})"
    child = await spawn(code, log)
    await until(lambda: log)
    await child.wait()
    assert log[LINES_A_SECOND:] == ["kid: [7 more lines in a second, left out]"]


@pytest.mark.parametrize("flood", ["\\n", "x\\n", "x\\r"])
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_flood_of_log_leaves_time_for_the_rest(
    run: Callable[[Coroutine[None, None, None]], None],
    flood: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its work takes a quarter of the time, however seldom this process gets a processor."""
    taken: list[tuple[float, float]] = []
    feed = LogRelay.feed

    def note(relay: LogRelay, data: bytes) -> None:
        began = time.monotonic()
        feed(relay, data)
        taken.append((began, time.monotonic()))

    monkeypatch.setattr(LogRelay, "feed", note)

    async def main() -> None:
        code = f"import os\nwhile True: os.write(2, b'{flood}' * 30_000)"
        child = await spawn(code, [])
        try:
            await until(lambda: len(taken) > 20)
        finally:
            await child.kill()

    run(main())
    worked = sum(ended - began for began, ended in taken[:-1])
    assert taken[-1][0] - taken[0][0] > 3 * worked  # without the pauses little more than `worked`


def opened() -> list[str]:
    return os.listdir("/proc/self/fd")


def offspring() -> set[int]:
    return {p.pid for p in shim.look_around().values() if p.parent == os.getpid()}


async def test_a_cancelled_spawn_leaves_no_child_and_no_open_pipe() -> None:
    async def nothing() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()

    await nothing()  # what asyncio itself opens once and keeps
    folder = made()
    before, others = opened(), offspring()  # a PostgreSQL of other tests
    command = Command((sys.executable, "-c", "import time; time.sleep(60)"), os.environ)
    spawning = asyncio.create_task(Child.spawn("kid", command, print, folder=folder))
    await asyncio.sleep(0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning
    await asyncio.sleep(0)
    assert len(opened()) <= len(before)
    assert offspring() == others


async def test_a_spawn_cancelled_while_it_fails_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/at/all")
    spawning = asyncio.create_task(spawn("", []))
    await asyncio.sleep(0)
    spawning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await spawning


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_a_whole_life_on_either_loop(run: Callable[[Coroutine[None, None, None]], None]) -> None:
    async def life() -> None:
        log: list[str] = []
        for _ in range(2):
            child = await spawn(SLEEPS, log)
            assert await child.status_line() == b"up\n"
            waiters = [asyncio.create_task(child.wait()) for _ in range(3)]
            assert await child.stop(grace=SECONDS) == -signal.SIGTERM
            assert await asyncio.gather(*waiters) == [-signal.SIGTERM] * 3
        child = await spawn(IGNORES + SLEEPS, log)
        await child.status_line()
        assert await child.stop(grace=0.1) == -signal.SIGKILL
        child = await spawn("import sys; print('bye', file=sys.stderr); sys.exit(4)", log)
        assert await child.wait() == await child.kill() == child.code == 4
        assert log == ["kid: did not end 0.1 s after SIGTERM, killed", "kid: bye"]

    async def nothing() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        await process.wait()

    run(nothing())  # what the loop itself opens once and keeps
    before = opened()
    run(life())
    clear()
    assert len(opened()) <= len(before)
