"""Places: private, short, locked while in use; and what a sweep ends and leaves alone."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.processes import FAMILY, MEMBERS, Shim, family, lives, living, runtime
from tests.waiting import block_until
from wellspoken.engine import run_folder as places
from wellspoken.engine import shim
from wellspoken.engine.failure import EngineError
from wellspoken.engine.run_folder import PATH_BYTES, RunFolder, leftovers, read_record, sweep

MAKE = "from wellspoken.engine.run_folder import RunFolder; print(RunFolder.make('dead').folder)"


@pytest.fixture
def root() -> Iterator[Path]:
    with runtime() as folder:
        yield folder


@pytest.fixture
def innocent() -> Iterator[tuple[shim.Process, shim.Process]]:
    """A process that leads a session and another one in it: nobody's business."""
    argv = ["sh", "-c", "sleep 60 & wait"]
    with subprocess.Popen(argv, start_new_session=True) as process:
        block_until(lambda: members(process.pid))
        leader, (member,) = shim.look(process.pid), members(process.pid)
        assert leader is not None
        yield leader, member
        assert lives(leader.pid) and lives(member.pid)
        os.killpg(process.pid, signal.SIGKILL)


def members(session: int) -> list[shim.Process]:
    table = shim.look_around().values()
    return [p for p in table if p.session == session and p.pid != session and p.title == "sleep"]


def made_by_the_dead() -> RunFolder:
    """A place whose maker is gone, `kill -9` or not: the kernel took its lock."""
    out = subprocess.run([sys.executable, "-c", MAKE], capture_output=True, text=True, check=True)
    folder = Path(out.stdout.strip())
    return RunFolder(folder, os.open(folder, os.O_RDONLY))


def swept() -> list[str]:
    log: list[str] = []
    sweep(log.append)
    return log


@pytest.mark.parametrize("name", ["vllm", "A Name/ ../ of ünusual length and signs", "", "..", "-"])
def test_a_place_is_private_and_its_sockets_have_short_paths(root: Path, name: str) -> None:
    place = RunFolder.make(name)
    assert place.folder.parent == root
    assert stat.S_IMODE(root.stat().st_mode) == stat.S_IMODE(place.folder.stat().st_mode) == 0o700
    assert len(os.fsencode(place.folder)) <= PATH_BYTES
    assert place.socket.parent == place.folder and not place.socket.exists()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.folder / ("x" * 40)))
    place.clear()
    assert not place.folder.exists()
    place.clear()


def test_each_start_has_a_place_of_its_own(root: Path) -> None:
    assert RunFolder.make("vllm").folder != RunFolder.make("vllm").folder


def test_without_a_runtime_folder_it_is_made_among_temporary_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with runtime() as root:
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        monkeypatch.setattr(tempfile, "tempdir", str(root.parent))
        place = RunFolder.make("vllm")
        assert place.folder.parent == root.parent / f"wellspoken-{os.geteuid()}"
        place.clear()


def test_a_long_path_for_temporary_files_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "relative")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    place = RunFolder.make("vllm")
    assert place.folder.parent == Path(f"/tmp/wellspoken-{os.geteuid()}")
    place.clear()


def test_a_runtime_folder_that_others_can_enter_is_passed_over(root: Path) -> None:
    root.parent.chmod(0o755)
    place = RunFolder.make("vllm")
    assert root not in place.folder.parents
    place.clear()


@pytest.mark.parametrize("trap", ["link", "open", "file"])
def test_a_root_that_is_not_ours_alone_is_not_used(root: Path, tmp_path: Path, trap: str) -> None:
    if trap == "link":
        tmp_path.chmod(0o700)
        root.symlink_to(tmp_path)
    elif trap == "file":
        root.touch()
    else:
        root.mkdir()
        root.chmod(0o770)
    before = root.lstat()
    place = RunFolder.make("vllm")
    assert place.folder.parent == root.parent
    assert stat.S_IMODE(place.folder.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []
    swept()
    assert place.folder.exists()
    place.clear()
    assert not place.folder.exists()
    assert root.lstat().st_mtime == before.st_mtime


def test_somebody_elses_root_is_not_used_nor_swept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = made_by_the_dead()
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(PermissionError):
        places._open_private(root, make=True)
    assert swept() == []
    assert theirs.folder.exists()


def test_nowhere_to_make_one_is_an_engine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_bases", lambda: [Path("/none/at/all")])
    with pytest.raises(EngineError, match=r"No such file .*Set XDG_RUNTIME_DIR or TMPDIR"):
        RunFolder.make("vllm")


def test_a_dead_makers_place_is_removed_a_living_ones_stays(root: Path) -> None:
    dead, living_one = made_by_the_dead(), RunFolder.make("alive")
    (dead.folder / "api.sock").touch()
    (root / "a-file").touch()
    assert swept() == []
    assert not dead.folder.exists()
    assert living_one.folder.exists()
    assert (root / "a-file").exists()


def test_a_living_shims_place_is_not_touched(root: Path, tmp_path: Path) -> None:
    place = made_by_the_dead()
    with Shim(place, sys.executable, "-c", FAMILY + "family()\nrest()", str(tmp_path)) as it:
        members = family(tmp_path)
        assert swept() == []
        place.clear()
        assert it.process.poll() is None
        assert len(living(members)) == len(members)
        assert place.folder.exists()
    assert living(members) == []


def test_what_a_killed_shim_leaves_is_ended(root: Path, tmp_path: Path) -> None:
    place = made_by_the_dead()
    shared = Path(f"/dev/shm/{place.folder.name}")
    code = FAMILY + (
        "import mmap\nfile = open(sys.argv[2], 'w+b')\nfile.truncate(4096)\n"
        "kept = mmap.mmap(file.fileno(), 4096)\nfamily()\nrest()"
    )
    with Shim(place, sys.executable, "-c", code, str(tmp_path), str(shared)) as it:
        try:
            members = family(tmp_path)
            noted = f"process {members['daemon']} "
            block_until(lambda: noted in (place.folder / shim.RECORD).read_text())
            late = len(living(members))
            os.kill(it.pid, signal.SIGKILL)
            it.process.wait()
            # Its parent's death ends the main process by itself, and nothing else.
            block_until(lambda: not lives(members["main"]))
            assert late == len(members) and len(living(members)) == len(members) - 1
            log = swept()
            assert living(members) == []
            assert not place.folder.exists() and not shared.exists()
            assert sorted(int(line.split()[2]) for line in log) == sorted(
                members[name] for name in MEMBERS if name != "main"
            )
            assert all("which an earlier engine left" in line for line in log)
            assert swept() == []
        finally:
            shared.unlink(missing_ok=True)


def test_what_a_shim_killed_early_leaves_in_its_session_is_ended(
    root: Path, tmp_path: Path
) -> None:
    """It had no time to note anything: the session tells."""
    place = RunFolder.make("early")
    with Shim(place, sys.executable, "-c", FAMILY + "child('child')\nrest()", str(tmp_path)) as it:
        block_until(lambda: (tmp_path / "child").exists())
        child = int((tmp_path / "child").read_text())
        os.kill(it.pid, signal.SIGKILL)
        it.process.wait()
        log: list[str] = []
        place.clear(log.append)
        assert not lives(child)
        assert not place.folder.exists()
        assert [line for line in log if f"process {child} " in line]


def recorded(root: Path, **changes: object) -> RunFolder:
    """A place of the dead whose record names what a shim that is gone is said to have had."""
    place = made_by_the_dead()
    record = shim.Record()
    for key, value in changes.items():
        setattr(record, key, value)
    record.save(str(place.folder))
    return place


def test_only_the_very_process_that_was_noted_is_killed(
    root: Path, innocent: tuple[shim.Process, shim.Process]
) -> None:
    """Ids are used again: the same id with another start, as a process or as a session."""
    leader, member = innocent
    recorded(root, processes={(leader.pid, leader.start - 1), (member.pid, member.start - 1)})
    recorded(root, shim=(leader.pid, leader.start - 1))
    assert swept() == []
    assert list(root.iterdir()) == []


def test_a_session_that_begins_long_after_the_last_note_is_another(root: Path) -> None:
    """Its leader has ended, so that its number is all there is to see of it."""
    code = (
        "import os, time\nif os.fork(): os._exit(0)\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.PIPE) as leader:
        assert leader.stdout is not None
        member = int(leader.stdout.readline())
        leader.wait()
        found = shim.look(member)
        assert found is not None and found.session == leader.pid
        hz = os.sysconf("SC_CLK_TCK")
        late = recorded(root, shim=(leader.pid, 1), seen=found.start - 61 * hz)
        early = recorded(root, shim=(leader.pid, found.start + 1))
        for place in (late, early):
            assert leftovers(read_record(place.folder)) == []
        assert swept() == [] and lives(member)
        recorded(root, shim=(leader.pid, 1), seen=found.start - 59 * hz)
        assert len(swept()) == 1 and not lives(member)


def test_another_boots_record_kills_nobody(
    root: Path, innocent: tuple[shim.Process, shim.Process]
) -> None:
    noted = {(process.pid, process.start) for process in innocent}
    recorded(root, processes=noted, here="another boot pid:[1]")
    recorded(root, processes=noted, here="")
    assert swept() == []
    assert list(root.iterdir()) == []


def test_a_shim_that_lives_without_its_lock_is_believed(
    root: Path, innocent: tuple[shim.Process, shim.Process]
) -> None:
    """Some file systems of networks know no locks."""
    leader, member = innocent
    record = shim.Record((leader.pid, leader.start))
    record.processes = {(member.pid, member.start)}
    assert leftovers(record) == []


def test_what_does_not_die_keeps_its_folder_for_the_next_sweep(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        found = shim.look(process.pid)
        assert found is not None
        place = recorded(root, processes={(found.pid, found.start)})
        with monkeypatch.context() as patch:
            patch.setattr(places, "DIE_SECONDS", 0.1)
            patch.setattr(shim, "kill", lambda process: None)
            log = swept()
        assert "cannot be killed" in log[-1] and place.folder.exists()
        assert len(swept()) == 1
        assert process.wait() == -signal.SIGKILL
        assert not place.folder.exists()


@pytest.mark.parametrize(
    "text", ["", "nonsense", "shim 1", "process a b", "shared 1 2", "here\n", "\0", "seen x"]
)
def test_a_broken_record_is_no_record(root: Path, text: str) -> None:
    place = made_by_the_dead()
    (place.folder / shim.RECORD).write_text(text)
    assert leftovers(read_record(place.folder)) == []
    assert swept() == []
    assert not place.folder.exists()


def test_a_record_is_read_as_it_was_written(root: Path) -> None:
    place = RunFolder.make("record")
    record = shim.Record((5, 6))
    record.processes = {(7, 8), (9, 10)}
    record.shared = {(1, 2): "psm_a b", (3, 4): os.fsdecode(b"\xff")}
    record.save(str(place.folder))
    assert vars(read_record(place.folder)) == vars(record)


def test_a_place_that_cannot_be_locked_is_not_left_behind(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file descriptor for the lock, as when many clients use them up."""
    RunFolder.make("first").clear()
    made: list[str] = []

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    def mkdtemp(prefix: str, dir: Path) -> str:
        made.append(str(dir / prefix))
        os.mkdir(made[-1], 0o700)
        monkeypatch.setattr(os, "open", refuse)
        monkeypatch.setattr(os, "scandir", refuse)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(places, "_bases", lambda: [root.parent])
    with pytest.raises(EngineError, match="Too many open files"):
        RunFolder.make("second")
    assert len(made) == 1 and not os.path.exists(made[0])


def test_a_file_system_without_locks_is_not_swept(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by_the_dead().clear()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert swept() == [] and root.is_dir()
