"""Where an engine runs: a private folder for one start, and the end of what it leaves behind.

The folder is this user's alone and its path short, since the paths of unix sockets are. It is
locked (shared) by whoever made it and by the shim that runs in it, so that a sweep can tell those
in use, for which it never gets the lock alone, from what `kill -9` left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import tempfile
import time
from pathlib import Path

from wellspoken.engine import shim
from wellspoken.engine.failure import EngineError
from wellspoken.engine.log_relay import Log

PATH_BYTES = 59
"""The longest path of a folder: a unix socket's path has 100 bytes everywhere, and vLLM names some
of its own by 36 characters."""
NAME_BYTES = 12
RANDOM_BYTES = 9  # a hyphen and what mkdtemp adds
DIE_SECONDS = 5.0
UNSEEN_SECONDS = 60.0
"""How long after its shim's last note a process may have been started and still be its."""


class RunFolder:
    """A private folder (0700) for one start of one engine; make one with `RunFolder.make`.

    `socket` is where the engine shall listen; it is not created.
    """

    def __init__(self, folder: Path, lock: int) -> None:
        self.folder = folder
        self.socket = folder / "api.sock"
        self._lock: int | None = lock

    @classmethod
    def make(cls, name: str) -> RunFolder:
        """Make a folder whose name begins as `name` does. Raises EngineError where none can be."""
        short = re.sub(r"[^a-z0-9]+", "-", name.lower())[:NAME_BYTES].strip("-") or "engine"
        for base in _bases():
            try:
                return cls._make(base, short)
            except OSError as error:
                refused = error
        raise EngineError(
            f"there is no folder for the engine's socket: {refused}. "
            "Set XDG_RUNTIME_DIR or TMPDIR to a folder with a short path that can be written to."
        )

    @classmethod
    def _make(cls, base: Path, name: str) -> RunFolder:
        root = _root(base)
        try:
            held = _open_private(root, make=True)
        except OSError:
            # Somebody else's, or a link to somewhere: no sweep looks into what is made then.
            return cls._hold(Path(tempfile.mkdtemp(prefix=f"wellspoken-{name}-", dir=base)))
        try:
            fcntl.flock(held, fcntl.LOCK_EX)  # a sweep might take the folder before it is locked
            return cls._hold(Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root)))
        finally:
            os.close(held)

    @classmethod
    def _hold(cls, folder: Path) -> RunFolder:
        lock = -1
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            shim.Record().save(str(folder))
        except OSError:
            if lock >= 0:
                os.close(lock)
            with contextlib.suppress(OSError):  # scandir needs a file descriptor, rmdir does not
                os.rmdir(folder)
            shim.remove(str(folder))
            raise
        return cls(folder, lock)

    def clear(self, log: Log = lambda line: None) -> None:
        """Remove the folder, and whatever a killed shim left; nothing while the shim lives.

        May take some seconds where something is left: call it in a thread.
        """
        lock, self._lock = self._lock, None
        if lock is not None:
            _clear(self.folder, lock, log)


def sweep(log: Log) -> None:
    """End and remove what this user's engines left when their proxy and shim were both killed.

    `log` gets a line for each thing done. Blocks for some seconds if processes are left: call it in
    a thread. What is in use, or somebody else's, is not touched.
    """
    for base in _bases():
        try:
            held = _open_private(_root(base), make=False)
        except OSError:
            continue  # there is none, or it is not ours
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            stale = [_lock(Path(entry.path)) for entry in os.scandir(_root(base))]
        except OSError:
            continue  # a file system without locks: no place was made there
        finally:
            os.close(held)
        for folder, lock in filter(None, stale):
            _clear(folder, lock, log)


def leftovers(record: shim.Record) -> list[shim.Process]:
    """Return the living processes of a dead shim; [] if that lives, or cannot be known.

    Those that it noted, with their descendants, and those still in its session or process group.
    An id counts only with the time of the start, since ids are used again.
    """
    if not record.here or record.here != shim.here():
        return []  # another boot, or another container
    table = shim.look_around()
    pid, start = record.shim
    owner = table.get(pid)
    if owner is not None and owner.start == start and owner.state != "Z":
        return []
    found = {p.pid for p in table.values() if (p.pid, p.start) in record.processes}
    if pid and (owner is None or owner.start == start):  # else its number means another session
        last = record.seen + UNSEEN_SECONDS * os.sysconf("SC_CLK_TCK")
        found |= {
            p.pid
            for p in table.values()
            if pid in (p.session, p.group) and start <= p.start <= last
        }
    return shim.below(table, found, {pid, os.getpid()})


def read_record(folder: Path) -> shim.Record:
    """Return what the shim noted in a folder; an empty record where nothing usable is there."""
    record = shim.Record()
    record.here, record.seen = "", 0
    try:
        text = (folder / shim.RECORD).read_text("utf-8", "surrogateescape")
        for line in text.splitlines():
            _take(record, *line.split(" ", 1))
    except (OSError, ValueError, TypeError):
        pass  # its maker was killed before it was whole
    return record


def _take(record: shim.Record, what: str, rest: str) -> None:
    if what == "here":
        record.here = rest
    elif what == "shared":
        device, inode, name = rest.split(" ", 2)
        record.shared[int(device), int(inode)] = name
    elif what == "seen":
        record.seen = int(rest)
    elif what == "shim":
        record.shim = _pair(rest)
    else:
        record.processes.add(_pair(rest))


def _pair(text: str) -> tuple[int, int]:
    pid, start = text.split(" ")
    return int(pid), int(start)


def _bases() -> list[Path]:
    """Return where a root may be: a folder of this user's, then those that everybody has."""
    found = []
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    if own.startswith("/"):
        with contextlib.suppress(OSError):
            _check_private(os.lstat(own))
            found.append(Path(own))
    with contextlib.suppress(FileNotFoundError):  # none that can be written to
        found.append(Path(tempfile.gettempdir()))
    found.append(Path("/tmp"))  # noqa: S108  the folder in it is made with mkdtemp, for its owner alone
    room = PATH_BYTES - NAME_BYTES - RANDOM_BYTES - 1
    return [base for base in dict.fromkeys(found) if len(os.fsencode(_root(base))) <= room]


def _root(base: Path) -> Path:
    if os.environ.get("XDG_RUNTIME_DIR") == str(base):
        return base / "wellspoken"
    return base / f"wellspoken-{os.geteuid()}"


def _check_private(entry: os.stat_result) -> None:
    if not stat.S_ISDIR(entry.st_mode) or entry.st_mode & 0o077 or entry.st_uid != os.geteuid():
        raise PermissionError("it is not a folder of this user alone")


def _open_private(root: Path, *, make: bool) -> int:
    """Return a file descriptor of a folder that only this user can enter. Raises OSError."""
    if make:
        with contextlib.suppress(FileExistsError):
            root.mkdir(0o700)
    held = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _check_private(os.fstat(held))
    except OSError:
        os.close(held)
        raise
    return held


def _lock(folder: Path) -> tuple[Path, int] | None:
    """Take a folder for oneself; None if it is in use, or is none."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return folder, lock


def _clear(folder: Path, lock: int, log: Log) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        record = read_record(folder)
        left = _end(record, log)
        if not left:  # else the record is needed once more
            if record.here == shim.here():
                shim.unlink_shared(record.shared)
            shim.remove(str(folder))
    except BlockingIOError:
        pass  # its shim lives, and clears it
    finally:
        os.close(lock)


def _end(record: shim.Record, log: Log) -> bool:
    """Kill what a shim left; say whether some of it lives on."""
    left = leftovers(record)
    for process in left:
        if process.state != "Z":
            log(f"killed process {process.pid} ({process.title}), which an earlier engine left")
    deadline = time.monotonic() + DIE_SECONDS
    while left and time.monotonic() < deadline:
        for process in left:
            shim.kill(process)
        time.sleep(0.02)
        # A dead one stays a zombie for as long as its new parent likes.
        left = [process for process in leftovers(record) if process.state != "Z"]
    for process in left:
        log(process.unkillable())
    return bool(left)
