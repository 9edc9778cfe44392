"""What could not reach PostgreSQL: a local file of rows, replayed in order once it is back.

The file is SQLite's, readable by its user only, and may be shared by several processes: rows are
replayed before they are removed, and a row that the database has already is skipped there, so that
neither a process killed in between nor two that replay the same rows double anything.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit, urlunsplit

from msgspec import DecodeError, msgpack

from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.rows import Row
from wellspoken.proxy.store.sqlite.file import (
    absolute,
    connect,
    make_file,
    transaction,
    write_ahead,
)

T = TypeVar("T")

SCHEMA = 1
"""The file's `user_version`."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS row (number INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL)"
)
_ENDS = "SELECT min(number), max(number) FROM row"
FULL = "the spool is full"
_KEPT_PAGES = 256  # of 4 KiB, which an empty file may have
_SHRUNK_PAGES = 16 * 1024  # as many are given back at a time

# Not a full disk: an open file can be read then, and one that is opened wants to write.
_BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR)

_encode = msgpack.Encoder().encode
_row_of = msgpack.Decoder(Row).decode


def default_path(url: str) -> Path:
    """Return where the spool of a database lies unless `store.spool` says it.

    Processes with the same database share it; the name tells nothing of the password. Raises
    Unusable where there is no home directory.
    """
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    where = f"{user}{parts.netloc.rpartition('@')[2]}"
    known = urlunsplit(parts._replace(netloc=where, query="", fragment=""))
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = f"spool-{sha256(known.encode()).hexdigest()[:16]}.db"
    try:
        return Path(state).expanduser() / "wellspoken" / name
    except RuntimeError as error:
        raise Unusable("there is no home directory for the spool: set store.spool") from error


class Spool:
    """Rows in a file, in the order in which they came; every method raises Unavailable or Unusable.

    `limit`: bytes that the file may take. `sync`: whether `append` waits for the disk. `rows` and
    `size` are what it holds, as of the last call.
    """

    def __init__(self, path: str | Path, limit: int, *, sync: bool, busy: float = 5.0) -> None:
        self.path = absolute(path)
        self.rows = self.size = 0
        self._limit = limit
        self._sync = sync
        self._busy = busy
        self._db: sqlite3.Connection | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def open(self) -> None:
        """Open the file, or make it."""
        await self._do(self._open)

    async def close(self) -> None:
        """Let go of the file; never raises."""
        if self._thread is None:
            return
        with suppress(Unavailable, Unusable):
            await self._do(self._close)
        self._thread.shutdown(wait=False)
        self._thread = None

    async def append(self, rows: Sequence[Row]) -> None:
        """Add rows, committed on return. Raises Unavailable(FULL) where they have no room."""

        def work(db: sqlite3.Connection) -> None:
            encoded = [(_encode(row),) for row in rows]
            if self._measure(db) + sum(len(data) for (data,) in encoded) > self._limit:
                raise Unavailable(f"{FULL} (store.spool_size)")
            db.executemany("INSERT INTO row (data) VALUES (?)", encoded)

        await self._change(work)

    async def first(self, rows: int, size: int) -> list[tuple[int, Row | None]]:
        """Return the oldest rows with their numbers: at most `rows` and, from the second on, at
        most `size` bytes. None stands for what cannot be read."""

        def work(db: sqlite3.Connection) -> list[tuple[int, Row | None]]:
            found: list[tuple[int, Row | None]] = []
            total = 0
            for number, data in db.execute("SELECT number, data FROM row ORDER BY number"):
                total += len(data)
                if len(found) == rows or (found and total > size):
                    break
                found.append((number, _read(data)))
            return found

        return await self._change(work)

    async def remove(self, numbers: Sequence[int]) -> None:
        """Delete rows by their numbers."""

        def work(db: sqlite3.Connection) -> None:
            db.executemany("DELETE FROM row WHERE number = ?", [(number,) for number in numbers])

        await self._change(work)

    async def _change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run_change() -> T:
            if self._db is None:
                self._open()
            db = self._db
            assert db is not None
            with transaction(db, "IMMEDIATE"):
                result = work(db)
                first, last = db.execute(_ENDS).fetchone()
            self._count_rows(db, first, last)
            if not self.rows:
                self._shrink(db)
            return result

        return await self._do(run_change)

    async def _do(self, work: Callable[[], T]) -> T:
        def run_guarded() -> T:
            try:
                return work()
            except UnicodeError:
                raise  # a row's, and not the file's
            except (sqlite3.Error, OSError, ValueError) as error:
                explained = _explain_error(error, self.path)
                if _code(error) in _BROKEN:
                    self._close()  # what is repaired or replaced is found by opening it anew
                raise explained from error

        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "store-spool")
        return await asyncio.get_running_loop().run_in_executor(self._thread, run_guarded)

    def _open(self) -> None:
        make_file(self.path)
        db = connect(self.path, self._busy)
        try:
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            write_ahead(db, self._busy)
            db.execute("PRAGMA secure_delete = ON")  # what was deleted in the store is nowhere
            db.execute(f"PRAGMA synchronous = {'FULL' if self._sync else 'NORMAL'}")
            with transaction(db, "IMMEDIATE"):
                (version,) = db.execute("PRAGMA user_version").fetchone()
                if version > SCHEMA:
                    raise Unusable(f"{self.path} was written by a newer version of this program")
                db.execute(_TABLE)
                db.execute(f"PRAGMA user_version = {SCHEMA}")
                first, last = db.execute(_ENDS).fetchone()
        except BaseException:
            db.close()
            raise
        self._db = db
        self._count_rows(db, first, last)

    def _count_rows(self, db: sqlite3.Connection, first: int, last: int | None) -> None:
        # Rows leave from the front, so that this counts them without reading them.
        self.rows = last - first + 1 if last is not None else 0
        self.size = self._measure(db) if self.rows else 0

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    @staticmethod
    def _shrink(db: sqlite3.Connection) -> None:
        """Give the space of a replayed outage back."""
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        if free > _KEPT_PAGES:
            # In parts, since rows may wait; `execute` would free one page only.
            db.executescript(f"PRAGMA incremental_vacuum({_SHRUNK_PAGES})")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    @staticmethod
    def _measure(db: sqlite3.Connection) -> int:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
        return int((pages - free) * size)


def _read(data: bytes) -> Row | None:
    try:
        return _row_of(data)
    except (DecodeError, UnicodeDecodeError):
        return None


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _explain_error(error: Exception, path: Path) -> Unavailable | Unusable:
    if isinstance(error, OSError):
        return Unusable(f"cannot open {path}: {error.strerror}")
    if _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return Unavailable(f"{path} is locked by another process")
    return Unusable(f"{path}: {error}")
