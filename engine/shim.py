"""Stands between the proxy and an engine, and outlives both: when one ends, everything ends.

    python -I -S shim.py FOLDER -- PROGRAM ARGUMENT...

It starts PROGRAM and waits. stdin is the lifeline, a pipe whose other end only the proxy holds:
however the proxy dies, `kill -9` included, the kernel closes that end. Then, or when PROGRAM ends
by itself, the shim kills every process that PROGRAM left, removes FOLDER (see run_folder.py) and
the files in /dev/shm that only those processes used, and ends as PROGRAM did. vLLM, killed, leaves
processes that hold the GPU's memory, and shared memory that stays until the next boot.

On Linux it is the reaper of all orphans below it, so that no process gets away by setsid() or a
second fork. Elsewhere only PROGRAM's process group is reached. One file, stdlib only, few imports:
it starts beside each engine, and shares no code with what may be upgraded while it runs.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import stat
import sys
import time

PROC = "/proc"
SHARED = "/dev/shm/"  # noqa: S108  read for names; nothing is made there
RECORD = "record"
DIE_SECONDS = 10.0
"""How long killed processes may take until they are given up."""
LOOKS = (2.0, 3.0, 5.0, 10.0, 30.0)
"""Seconds from one look at the processes to the next; the last one repeats."""
LOOK_SECONDS = 0.5
"""What one look may take: meanwhile the lifeline is not watched."""

TRACKER = b"resource_tracker"
TRACKER_SECONDS = 2.0
"""How long Python's resource tracker may live on to remove what the processes it served named."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
NOT_STARTED = 127

Mapping = tuple[int, int]
"""What tells a file in /dev/shm from a later one of the same name: device, inode."""


class Process:
    """One line of the process table. `start`: clock ticks from boot; with `pid` it is unique."""

    __slots__ = ("group", "parent", "pid", "session", "start", "state", "title")

    def __init__(self, pid: int, line: bytes) -> None:
        before, _, after = line.rpartition(b")")  # the title may hold anything, ")" too
        fields = after.split()
        self.pid = pid
        self.title = before.partition(b"(")[2].decode("utf-8", "replace")
        self.state = fields[0].decode()
        self.parent, self.group, self.session = (int(field) for field in fields[1:4])
        self.start = int(fields[19])

    def unkillable(self) -> str:
        return (
            f"process {self.pid} ({self.title}, state {self.state}) cannot be killed: "
            "it keeps what it holds, a GPU's memory too, until it ends"
        )


def look(pid: int) -> Process | None:
    """Return the process with this id; None if there is none, or no /proc."""
    try:
        return Process(pid, read(f"{PROC}/{pid}/stat"))
    except (OSError, IndexError, ValueError):  # it ended: before, or while it was read
        return None


def look_around() -> dict[int, Process]:
    """Return all processes by id; {} where there is no /proc."""
    try:
        names = os.listdir(PROC)
    except OSError:
        return {}
    found = (look(int(name)) for name in names if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def below(table: dict[int, Process], roots: set[int], spared: set[int]) -> list[Process]:
    """Return the processes `roots` and all their descendants, but none of `spared`."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = set(roots)
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        waiting.update(child for child in children.get(pid, ()) if child not in found)
    return [table[pid] for pid in found - spared if pid in table]


def kill(process: Process) -> None:
    """Send SIGKILL to exactly this process, never to a later one with its id."""
    handle = -1
    try:
        if hasattr(os, "pidfd_open"):
            handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    except OSError:
        pass  # a kernel without it, or no more file descriptors: by id then
    try:
        again = look(process.pid)
        if again is None or again.start != process.start:
            return
        if handle >= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it is gone; or it became another user's, and is named when it stays
    finally:
        if handle >= 0:
            os.close(handle)


def tracks(pid: int) -> bool:
    """Say whether a process is multiprocessing's resource tracker."""
    try:
        return TRACKER in read(f"{PROC}/{pid}/cmdline")
    except OSError:
        return False


def find_shared_files(pid: int) -> dict[Mapping, str]:
    """Return the files in /dev/shm that a process has mapped or open, with their names."""
    found: dict[Mapping, str] = {}
    try:
        maps = read(f"{PROC}/{pid}/maps")
        for line in maps.split(b"\n") if b" " + SHARED.encode() in maps else ():
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].startswith(SHARED.encode()):
                major, _, minor = fields[3].partition(b":")
                device = os.makedev(int(major, 16), int(minor, 16))
                found[device, int(fields[4])] = os.fsdecode(fields[5])[len(SHARED) :]
        for number in os.listdir(f"{PROC}/{pid}/fd"):
            path = f"{PROC}/{pid}/fd/{number}"
            try:
                target = os.readlink(path)
                if target.startswith(SHARED):
                    entry = os.stat(path)
                    found[entry.st_dev, entry.st_ino] = target[len(SHARED) :]
            except OSError:
                continue  # it was closed meanwhile
    except (OSError, ValueError):
        return found  # it ended, or is another user's
    return found


def ours(known: dict[Mapping, str]) -> dict[Mapping, str]:
    """Return those that are there still, the same ones, and this user's plain files."""
    found = {}
    for key, name in known.items():
        try:
            entry = os.lstat(SHARED + name)
        except OSError:
            continue
        same = (entry.st_dev, entry.st_ino) == key and entry.st_uid == os.geteuid()
        if same and stat.S_ISREG(entry.st_mode) and "/" not in name and "\n" not in name:
            found[key] = name
    return found


def unlink_shared(known: dict[Mapping, str]) -> None:
    """Remove those of this user's files in /dev/shm that no living process has mapped or open."""
    idle = ours(known)
    for pid in look_around() if idle else ():
        for key in find_shared_files(pid):
            idle.pop(key, None)
    for name in ours(idle).values():
        try:
            os.unlink(SHARED + name)
        except OSError:
            pass  # its owner was faster


def remove(folder: str) -> None:
    """Remove a folder with all that is in it; links are not followed."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove(entry.path)
                else:
                    os.unlink(entry.path)
        os.rmdir(folder)
    except FileNotFoundError:
        pass  # somebody was faster
    except OSError as error:
        say(f"could not remove {folder}: {error.strerror}")


class Record:
    """What a later sweep needs to know in case the shim itself is killed; kept in the place.

    `space` is the namespace that the ids belong to; `seen` is when they were written, in clock
    ticks from boot; `processes` are pairs of id and start.
    """

    def __init__(self, shim: tuple[int, int] = (0, 0)) -> None:
        self.shim = shim
        self.here = here()
        self.seen = ticks()
        self.processes: set[tuple[int, int]] = set()
        self.shared: dict[Mapping, str] = {}

    def text(self) -> str:
        lines = [f"here {self.here}", f"shim {self.shim[0]} {self.shim[1]}", f"seen {self.seen}"]
        lines += [f"process {pid} {start}" for pid, start in sorted(self.processes)]
        lines += [f"shared {key[0]} {key[1]} {name}" for key, name in sorted(self.shared.items())]
        return "\n".join(lines) + "\n"

    def save(self, folder: str) -> None:
        """Write it to the folder, whole or not at all."""
        path = f"{folder}/{RECORD}"
        with open(path + ".new", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(self.text())
        os.replace(path + ".new", path)


def here() -> str:
    """Return what process ids depend on, this boot and their namespace; "" without /proc."""
    try:
        boot = read(f"{PROC}/sys/kernel/random/boot_id").decode().strip()
        return boot + " " + os.readlink(f"{PROC}/self/ns/pid")
    except OSError:
        return ""


def ticks() -> int:
    """Return the clock ticks from boot on, as the process table counts them; 0 without."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def say(line: str) -> None:
    """Write one line to the log, unless nobody takes it: the pipe may be full for good."""
    try:
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"{line}\n".encode(errors="replace"))
    except OSError:
        pass  # nobody is there to read it


def prctl(option: int, value: int) -> None:
    """Ask Linux for `option`; without it this shim reaches fewer processes, and that is all."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(option, *(ctypes.c_ulong(word) for word in (value, 0, 0, 0)))
    except (ImportError, OSError, AttributeError):
        pass


class Shim:
    """One engine and everything below it."""

    def __init__(self, folder: str, argv: list[str]) -> None:
        self.folder = folder
        self.argv = argv
        self.pid = os.getpid()
        itself = look(self.pid)
        self.record = Record((self.pid, itself.start if itself is not None else 0))
        self.engine = 0
        self.status: int | None = None  # of the engine's main process
        self.asked = False  # to let it end
        self.alone = False  # the proxy is gone, or wants all dead
        self.woken, wake = os.pipe()
        for end in (self.woken, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # it need only wake

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True

    def start(self) -> None:
        """Start the engine. A signal that comes meanwhile waits until it can get it."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.engine = os.fork()
        except OSError as error:
            say(f"could not start {self.argv[0]}: {error.strerror}")
            self.status = NOT_STARTED << 8
        if self.engine == 0 and self.status is None:
            self._become()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)  # whoever reads it must see the engine close it
        os.close(null)

    def _become(self) -> None:
        try:
            signal.set_wakeup_fd(-1)
            for number in signal.valid_signals():
                # Also what the proxy inherited: a shell ignores SIGINT and SIGQUIT behind `&`.
                if signal.getsignal(number) not in (signal.SIG_DFL, None):
                    signal.signal(number, signal.SIG_DFL)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self.pid:
                return  # the shim died before it could be told that: nobody watches
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execvpe(self.argv[0], self.argv, os.environ)  # noqa: S606  what the configuration says is run, by no shell
        except OSError as error:
            say(f"could not start {self.argv[0]}: {error.strerror}")
        finally:
            os._exit(NOT_STARTED)

    def watch(self) -> None:
        """Return when the engine's main process has ended, or the lifeline has."""
        looks = list(LOOKS)
        due = time.monotonic() + looks[0]
        while self.status is None and not self.alone:
            self._wait(due - time.monotonic(), [0])
            if self.asked and self._runs():
                self.asked = False
                os.kill(self.engine, signal.SIGTERM)  # not reaped, so the id is its own
            if time.monotonic() >= due:
                self._look(self.descendants())
                looks = looks[1:] or looks
                due = time.monotonic() + looks[0]

    def end(self) -> list[Process]:
        """Kill whatever is left; return what has not died `DIE_SECONDS` later."""
        deadline = time.monotonic() + DIE_SECONDS
        spared = time.monotonic() + TRACKER_SECONDS
        left = self.descendants()
        self._look(left)
        trackers = {process.pid for process in left if tracks(process.pid)}
        pause = 0.002
        while (left or self._runs()) and time.monotonic() < deadline:
            for process in left:
                # It ends by itself when those are dead, and knows names that nobody has mapped.
                if process.pid not in trackers or time.monotonic() >= spared:
                    kill(process)
            if self._runs():  # where there is no /proc nothing else is known
                os.kill(self.engine, signal.SIGKILL)
            self._wait(pause, [])
            pause = min(pause * 2, 0.05)
            left = self.descendants()
        return left

    def descendants(self) -> list[Process]:
        """Return all that came from the engine, wherever it went; [] without /proc."""
        table = look_around()
        seeds = {p.pid for p in table.values() if (p.pid, p.start) in self.record.processes}
        if os.getsid(0) == self.pid:
            seeds |= {p.pid for p in table.values() if p.session == self.pid}
        return below(table, seeds | {self.pid}, {self.pid})

    def _runs(self) -> bool:
        return self.engine > 0 and self.status is None

    def _wait(self, seconds: float, lifeline: list[int]) -> None:
        readable = select.select([*lifeline, self.woken], [], [], max(seconds, 0))[0]
        if self.woken in readable:
            os.read(self.woken, 4096)
        if 0 in readable:
            try:
                self.alone = not os.read(0, 4096)
            except OSError:
                self.alone = True
        self._reap()

    def _reap(self) -> None:
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self.engine:
                    self.status = ended[1]
        except ChildProcessError:
            pass  # nobody is left

    def _look(self, processes: list[Process]) -> None:
        """Note which processes there are and what they share."""
        deadline = time.monotonic() + LOOK_SECONDS
        self.record.seen = ticks()
        self.record.processes = {(process.pid, process.start) for process in processes}
        shared = self.record.shared
        for process in processes:
            if time.monotonic() < deadline:
                shared |= find_shared_files(process.pid)
        self.record.shared = ours(shared)
        self.save()

    def save(self) -> None:
        try:
            self.record.save(self.folder)
        except OSError as error:
            say(f"could not write to {self.folder}: {error.strerror}")


def leave(status: int | None) -> None:
    """End as the engine did: with its exit code, or by its signal (without a core dump)."""
    code = os.waitstatus_to_exitcode(status) if status is not None else -signal.SIGKILL
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def main(folder: str, argv: list[str]) -> None:
    try:
        # Shared with whoever made the place: while one of them lives no sweep can have it. The
        # lock also keeps systemd-tmpfiles away from a folder that seems forgotten.
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.stat(f"{folder}/{RECORD}")  # nothing but a place is ever removed
    except OSError as error:
        say(f"{folder} is no place to run an engine in: {error.strerror}")
        os._exit(NOT_STARTED)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    shim = Shim(folder, argv)
    shim.save()
    try:
        shim.start()
        shim.watch()
    finally:
        left = shim.end()
        for process in left:
            say(process.unkillable())
        if not left:  # otherwise a later sweep needs the record
            unlink_shared(shim.record.shared)
            remove(folder)
    if shim.alone and not os.path.exists(f"{PROC}/self/stat"):
        os.killpg(0, signal.SIGKILL)  # nobody asks how this ended
    leave(shim.status)


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit("usage: shim.py FOLDER -- PROGRAM ARGUMENT...")
    main(sys.argv[1], sys.argv[3:])
