"""The shim beside an engine: however one of them ends, nothing of the engine stays."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clock import own_time
from tests.engine.processes import FAMILY, Shim, family, lives, living, runtime
from tests.waiting import SECONDS, block_until
from wellspoken.engine import shim
from wellspoken.engine.child import SHIM
from wellspoken.engine.run_folder import RunFolder

MAPPED = """
import mmap
def mapped(path, size=4096):
    with open(path, "w+b") as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)
"""
DRIVER = """
import sys
from wellspoken.engine import shim
{patches}
shim.main(sys.argv[1], sys.argv[3:])
"""


PATIENT = DRIVER.format(patches=f"shim.DIE_SECONDS = {SECONDS}")
"""A shim that waits for a slow machine, until all are dead."""


@pytest.fixture
def place() -> Iterator[RunFolder]:
    with runtime():
        made = RunFolder.make("test")
        yield made
        made.clear()


@pytest.fixture
def shared() -> Iterator[Path]:
    path = Path(f"/dev/shm/wellspoken-test-{uuid.uuid4().hex}")
    yield path
    path.unlink(missing_ok=True)


def python(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(place: RunFolder, *argv: str, driver: str | None = None) -> tuple[int, str]:
    """Run an engine that ends by itself; return its exit code and its log."""
    with Shim(place, *argv, driver=driver) as it:
        return it.wait(), it.log()


@pytest.mark.parametrize("code", [0, 3, 255])
def test_it_ends_with_the_engines_exit_code(place: RunFolder, code: int) -> None:
    assert run(place, "sh", "-c", f"exit {code}") == (code, "")
    assert not place.folder.exists()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV", "SIGABRT", "SIGINT", "SIGPIPE"])
def test_it_ends_by_the_engines_signal_without_a_core_dump(
    place: RunFolder, tmp_path: Path, name: str
) -> None:
    code = (
        "import os, resource, signal\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
        f"if '{name}' != 'SIGKILL': signal.signal(signal.{name}, signal.SIG_DFL)\n"
        f"os.kill(os.getpid(), signal.{name})"
    )
    dumps = f'cd {tmp_path}; ulimit -S -c "$(ulimit -H -c)"; exec "$@"'  # the shim itself may
    argv = ["/bin/sh", "-c", dumps, "sh", sys.executable, "-I", "-S", str(SHIM)]
    argv += [str(place.folder), "--", *python(code)]
    lifeline, end = os.pipe()
    pid = os.posix_spawn(
        argv[0], argv, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, lifeline, 0)]
    )
    status = os.waitpid(pid, 0)[1]
    os.close(lifeline)
    os.close(end)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == getattr(signal, name)
    assert not os.WCOREDUMP(status)


def test_a_program_that_cannot_be_run_is_named(place: RunFolder) -> None:
    assert run(place, "/nowhere/at/all", "-x") == (
        127,
        "could not start /nowhere/at/all: No such file or directory\n",
    )


def test_the_engine_gets_no_stdin_and_the_signals_as_they_should_be(place: RunFolder) -> None:
    code = (
        "import os, signal, sys\n"
        "blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())\n"
        "ignored = [n for n in signal.valid_signals() if n not in (9, 13, 19, 25)"
        " and signal.getsignal(n) is signal.SIG_IGN]\n"
        "print(sys.stdin.read() == '', blocked, ignored, sorted(os.listdir('/proc/self/fd')),"
        " file=sys.stderr)"
    )
    assert run(place, *python(code)) == (0, "True set() [] ['0', '1', '2', '3']\n")
    again = RunFolder.make("test")
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a shell has it behind `&`
    try:
        # A program without a runtime of its own shows what it was given: Python ignores two itself.
        status, log = run(again, "sh", "-c", "grep SigIgn /proc/self/status >&2")
    finally:
        signal.signal(signal.SIGQUIT, before)
    known = sum(1 << number - 1 for number in signal.valid_signals())  # not the C library's own
    assert (status, int(log.split()[1], 16) & known) == (0, 0)


def test_what_the_engine_leaves_is_ended_with_it(place: RunFolder, tmp_path: Path) -> None:
    code = FAMILY + "family()\nwhile not os.path.exists(folder + '/go'): time.sleep(0.01)\nexit(5)"
    with Shim(place, *python(code, tmp_path)) as it:
        members = family(tmp_path)
        (tmp_path / "go").touch()
        assert it.wait() == 5
        assert living(members) == []


def test_all_end_at_once_when_the_lifeline_does(place: RunFolder, tmp_path: Path) -> None:
    code = FAMILY + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfamily()\nrest()"
    with Shim(place, *python(code, tmp_path), driver=PATIENT) as it:
        members = family(tmp_path)
        assert len(living(members)) == len(members)
        began = own_time()
        it.cut()
        assert it.wait() == -signal.SIGKILL
        assert own_time() - began < SECONDS / 2
        assert living(members) == []
        assert not place.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_the_main_process_alone(
    place: RunFolder, tmp_path: Path, number: signal.Signals
) -> None:
    code = FAMILY + (
        "def note(number, frame):\n    here('asked-' + str(os.getpid()))\n    exit(7)\n"
        "signal.signal(signal.SIGTERM, note)\n"
        "main = os.getpid()\n"
        "if os.fork() == 0:\n    here('other')\n    rest()\n"
        "here('main')\nrest()"
    )
    with Shim(place, *python(code, tmp_path)) as it:
        block_until(lambda: (tmp_path / "main").exists() and (tmp_path / "other").exists())
        os.kill(it.pid, number)
        assert it.wait() == 7
        main = (tmp_path / "main").read_text()
        assert [path.name for path in tmp_path.glob("asked-*")] == [f"asked-{main}"]


@pytest.mark.parametrize("delay", [0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1])
def test_a_sigterm_at_any_moment_of_the_start_ends_it(delay: float) -> None:
    with runtime():
        place = RunFolder.make("test")
        with Shim(place, "sleep", "77.5") as it:
            time.sleep(delay)
            os.kill(it.pid, signal.SIGTERM)
            assert it.wait() == -signal.SIGTERM
            place.clear()
            assert not place.folder.exists()


def test_an_engine_that_fills_its_log_does_not_hold_it_up(place: RunFolder) -> None:
    with Shim(place, *python("import os\nwhile True: os.write(2, b'x' * 65536)")) as it:
        time.sleep(0.5)
        it.cut()
        assert it.wait() == -signal.SIGKILL


def test_stdout_ends_when_the_engine_closes_it(place: RunFolder) -> None:
    with Shim(place, *python("import os, time; os.closerange(0, 100); time.sleep(60)")) as it:
        assert it.process.stdout is not None
        assert it.process.stdout.read() == b""
        assert it.process.poll() is None


def test_the_log_ends_with_the_last_of_the_engine(place: RunFolder, tmp_path: Path) -> None:
    with Shim(place, *python(FAMILY + "family()\nprint('last', file=sys.stderr)", tmp_path)) as it:
        members = family(tmp_path)
        assert it.log() == "last\n"
        assert living(members) == []
        assert it.wait() == 0


def test_two_hundred_descendants_end(place: RunFolder, tmp_path: Path) -> None:
    code = FAMILY + (
        "for n in range(10):\n"
        "    if os.fork() == 0:\n"
        "        if n % 2: os.setsid()\n"
        "        for m in range(19): child(f'{n}-{m}')\n"
        "        here(f'{n}')\n"
        "        rest()\n"
        "rest()"
    )
    with Shim(place, *python(code, tmp_path), driver=PATIENT) as it:
        block_until(lambda: len([p for p in tmp_path.iterdir() if p.suffix != ".new"]) == 200)
        pids = [int(path.read_text()) for path in tmp_path.iterdir()]
        it.cut()
        assert it.wait() == -signal.SIGKILL
        assert [pid for pid in pids if lives(pid)] == []


def test_those_that_fork_on_and_on_end(place: RunFolder, tmp_path: Path) -> None:
    code = FAMILY + (
        "here('main')\n"
        "for n in range(3):\n"
        "    if os.fork() == 0:\n"
        "        while True:\n"
        "            if os.fork() == 0:\n"
        "                time.sleep(0.2)\n"
        "                os._exit(0)\n"
        "            time.sleep(0.003)\n"
        "rest()"
    )
    with Shim(place, *python(code, tmp_path), driver=PATIENT) as it:
        block_until(lambda: (tmp_path / "main").exists())
        time.sleep(0.3)
        it.cut()
        assert it.wait() == -signal.SIGKILL
        left = [p for p in shim.look_around().values() if p.session == it.pid]
        assert [p.pid for p in left if p.state != "Z"] == []


def test_shared_memory_goes_with_its_last_user(
    place: RunFolder, shared: Path, tmp_path: Path
) -> None:
    other = shared.with_name(shared.name + "-other")
    unused = shared.with_name(shared.name + "-unused")
    unused.touch()
    code = (
        FAMILY
        + MAPPED
        + (
            "def work():\n    kept = [mapped(path) for path in sys.argv[2:]]\n"
            "    here('b')\n    rest()\n"
            "child('a', work)\nrest()"
        )
    )
    try:
        with Shim(place, *python(code, tmp_path, shared, other)) as it:
            block_until(lambda: (tmp_path / "b").exists())
            with other.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
                it.cut()
                assert it.wait() == -signal.SIGKILL
                assert (shared.exists(), other.exists(), unused.exists()) == (False, True, True)
    finally:
        other.unlink(missing_ok=True)
        unused.unlink()


def test_shared_memory_goes_although_all_crashed_together(
    place: RunFolder, shared: Path, tmp_path: Path
) -> None:
    code = (
        FAMILY
        + MAPPED
        + (
            "def work():\n    kept = mapped(sys.argv[2])\n    here('b')\n    rest()\n"
            "child('a', work)\nrest()"
        )
    )
    with Shim(place, *python(code, tmp_path, shared)) as it:
        block_until(lambda: (tmp_path / "b").exists())
        record = place.folder / shim.RECORD
        block_until(lambda: shared.name in record.read_text())  # after its first look
        os.kill(it.pid, signal.SIGSTOP)
        os.kill(int((tmp_path / "b").read_text()), signal.SIGKILL)
        (main,) = (p for p in shim.look_around().values() if p.parent == it.pid)
        os.kill(main.pid, signal.SIGKILL)
        os.kill(it.pid, signal.SIGCONT)
        assert it.wait() == -signal.SIGKILL
        assert not shared.exists()


def test_a_later_file_of_the_same_name_stays(shared: Path) -> None:
    shared.touch()
    old = shared.stat()
    shared.with_suffix(".new").touch()
    shared.with_suffix(".new").rename(shared)
    shim.unlink_shared({(old.st_dev, old.st_ino): shared.name})
    assert shared.exists()
    new = shared.stat()
    with shared.open("rb"):
        shim.unlink_shared({(new.st_dev, new.st_ino): shared.name})
        assert shared.exists()
    shim.unlink_shared({(new.st_dev, new.st_ino): shared.name})
    assert not shared.exists()


def test_somebody_elses_shared_memory_stays(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared.touch()
    entry = shared.stat()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: entry.st_uid + 1)
        shim.unlink_shared({(entry.st_dev, entry.st_ino): shared.name})
    assert shared.exists()


def test_the_folder_goes_but_not_what_it_links_to(place: RunFolder, tmp_path: Path) -> None:
    (place.folder / "deep" / "deeper").mkdir(parents=True)
    (place.folder / "deep" / "file").write_text("x")
    (tmp_path / "kept").touch()
    (place.folder / "deep" / "link").symlink_to(tmp_path)
    assert run(place, "true")[0] == 0
    assert not place.folder.exists()
    assert (tmp_path / "kept").exists()


def test_a_folder_that_is_no_place_is_left_alone(place: RunFolder, tmp_path: Path) -> None:
    (place.folder / shim.RECORD).unlink()
    code, log = run(place, "true")
    assert (code, log) == (
        127,
        f"{place.folder} is no place to run an engine in: No such file or directory\n",
    )
    assert place.folder.exists()


def test_a_folder_that_is_being_swept_is_left_alone(place: RunFolder) -> None:
    folder = Path(f"{place.folder}-other")
    folder.mkdir(0o700)
    sweeper = os.open(folder, os.O_RDONLY)
    fcntl.flock(sweeper, fcntl.LOCK_EX)
    argv = [sys.executable, "-I", "-S", str(SHIM), str(folder), "--", "true"]
    done = subprocess.run(argv, stderr=subprocess.PIPE, timeout=SECONDS)
    os.close(sweeper)
    assert (done.returncode, b"is no place" in done.stderr) == (127, True)


def test_it_says_how_it_is_used() -> None:
    argv = [sys.executable, "-I", "-S", str(SHIM), "/tmp", "true"]
    done = subprocess.run(argv, stderr=subprocess.PIPE, timeout=SECONDS)
    assert (done.returncode, done.stderr[:14]) == (1, b"usage: shim.py")


def test_what_cannot_be_killed_is_named_and_stays_on_record(
    place: RunFolder, tmp_path: Path
) -> None:
    """Nothing can be put into an uninterruptible sleep here: a shim that cannot kill is as good."""
    driver = DRIVER.format(patches="shim.DIE_SECONDS = 0.5\nshim.kill = lambda process: None")
    code = FAMILY + "child('leader', in_session_of_its_own)\nhere('main')\nrest()"
    with Shim(place, *python(code, tmp_path), driver=driver) as it:
        block_until(lambda: (tmp_path / "leader").exists() and (tmp_path / "main").exists())
        pid = int((tmp_path / "leader").read_text())
        it.cut()
        assert it.wait() == -signal.SIGKILL
        assert lives(pid)
        place.clear()  # what a sweep would do: it can kill
        log = it.log()
        assert f"process {pid} (python" in log and "cannot be killed" in log
        block_until(lambda: not lives(pid))
        assert not place.folder.exists()


def test_a_last_word_waits_for_no_reader(place: RunFolder, tmp_path: Path) -> None:
    driver = DRIVER.format(patches="shim.DIE_SECONDS = 0.5\nshim.kill = lambda process: None")
    code = FAMILY + (
        "child('leader', in_session_of_its_own)\nhere('main')\n"
        "while True: os.write(2, b'x' * 65536)"
    )
    with Shim(place, *python(code, tmp_path), driver=driver) as it:
        block_until(lambda: (tmp_path / "leader").exists() and (tmp_path / "main").exists())
        time.sleep(0.3)
        it.cut()
        assert it.wait() == -signal.SIGKILL
        place.clear()


def test_without_proc_and_prctl_the_group_is_ended(place: RunFolder, tmp_path: Path) -> None:
    """As on macOS: the main process ends with the lifeline, and all that stayed in its group."""
    driver = DRIVER.format(patches="shim.PROC = '/none'\nshim.prctl = lambda option, value: None")
    code = FAMILY + "child('child')\nhere('main')\nrest()"
    with Shim(place, *python(code, tmp_path), driver=driver) as it:
        block_until(lambda: (tmp_path / "child").exists() and (tmp_path / "main").exists())
        pids = [int((tmp_path / name).read_text()) for name in ("child", "main")]
        it.cut()
        assert it.wait() == -signal.SIGKILL
        block_until(lambda: not any(lives(pid) for pid in pids))
        assert not place.folder.exists()


def test_without_proc_the_exit_code_is_kept(place: RunFolder) -> None:
    driver = DRIVER.format(patches="shim.PROC = '/none'")
    assert run(place, "sh", "-c", "exit 9", driver=driver) == (9, "")


def test_an_id_that_was_used_again_is_not_killed() -> None:
    with subprocess.Popen(["sleep", "60"]) as innocent:
        process = shim.look(innocent.pid)
        assert process is not None
        process.start -= 1
        shim.kill(process)
        time.sleep(0.1)
        assert innocent.poll() is None
        process.start += 1
        shim.kill(process)
        assert innocent.wait() == -signal.SIGKILL
        shim.kill(process)  # it is gone: no error
