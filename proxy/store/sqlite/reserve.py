"""Room that is kept beside the file for what makes room: also a delete has to write first."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

SIZE = 16 * 1024 * 1024
"""More than the log gets before it is moved into the file, which grows by no more then."""
_STEP = bytes(1024 * 1024)
_LACKING = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""What SQLite makes of a full disk, a quota, and a limit of file sizes."""

T = TypeVar("T")


class Reserve:
    """A file that takes room on the disk, and gives it back once there is no other."""

    def __init__(self, database: Path) -> None:
        self.path = Path(f"{database}-reserve")

    def keep(self) -> None:
        """Take the room, or what there is of it; never raises."""
        with suppress(OSError), open(self.path, "ab", 0, opener=_open) as file:
            # Written, since room that is only promised is none on every file system.
            while file.tell() < SIZE and file.write(_STEP) == len(_STEP):
                pass

    def use(self, work: Callable[[], T], reuse_log: Callable[[], None]) -> T:
        """Do some work, on a full disk in the room that is kept; in the writer's thread.

        `reuse_log` moves the log into the file, so that it begins anew and need not grow.
        """
        try:
            return work()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code not in _LACKING or not self.release():
                raise
        try:
            reuse_log()
            return work()
        finally:
            reuse_log()
            self.keep()

    def release(self) -> bool:
        """Give the room back; return whether there was any."""
        try:
            size = self.path.stat().st_size
            self.path.unlink()
        except OSError:
            return False
        return size > 0


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
