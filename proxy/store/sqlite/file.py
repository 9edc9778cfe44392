"""Stored completions in one SQLite file: a writer thread, reader threads, a write-ahead log.

One connection writes, in a thread of its own; others read beside it, so that a page never waits for
a batch. Several processes may use one file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.migrations import migrations
from wellspoken.proxy.store.rows import Position, Query, Row
from wellspoken.proxy.store.sqlite import queries
from wellspoken.proxy.store.sqlite.reserve import Reserve
from wellspoken.proxy.store.sqlite.trouble import explain_error

T = TypeVar("T")
_File = tuple[int, int] | None

APPLICATION = 0x77656C6C
"""Tells our files from other programs' ("well" as PRAGMA application_id)."""
READERS = 2
WRITE_CACHE, READ_CACHE = 32 * 1024 * 1024, 8 * 1024 * 1024
LOG_MOVED = 8 * 1024 * 1024
"""How long the log gets before it is moved into the file; longer means fewer waits for the disk."""
PAGES = 64 * 1024
"""What a transaction writes into the log beside its rows, about."""
LOG_BYTES = 64 * 1024 * 1024
"""At this length readers are waited for, since the log cannot begin anew while they use it."""
SPARE = 8
"""The file shrinks when more than one page in so many is free; until then new rows take them."""
SHRUNK_PAGES = 1024
"""How many free pages one `prune` gives back to the disk, so that it stays short."""


class SqliteDatabase:
    """A `Database` in one SQLite file, which is made when it is missing, readable by its user only.

    What `Database` says of a method is not said here once more. `sync`: whether a commit
    waits for the disk, so that a power failure loses nothing that was committed. Without it the
    newest commits can be lost then, and the file stays whole; a killed process loses no commit
    either way. `busy`: seconds to wait for another process's lock.
    """

    name = "sqlite"

    def __init__(self, path: str | Path, *, sync: bool = False, busy: float = 5.0) -> None:
        self.path = absolute(path)
        self._sync = sync
        self._busy = busy
        self._log_bytes = LOG_BYTES
        self._reserve = Reserve(self.path)
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._local = threading.local()
        self._executors: tuple[ThreadPoolExecutor, ThreadPoolExecutor] | None = None
        self._mover: threading.Thread | None = None  # moves the log into the file, if one does now
        self._unmoved = 0  # bytes that the log got since, about
        self._files: tuple[_File, _File] = (None, None)  # the database and its log, once open

    async def open(self) -> None:
        """Open the file, or make it, and bring its schema up to date."""
        await self.close()
        writing = ThreadPoolExecutor(1, "store-write")
        executors = writing, ThreadPoolExecutor(READERS, "store-read")
        try:
            await self._in(writing, lambda: self._reserve.use(self._prepare, self._reuse_log))
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._close, *executors))
            raise
        self._executors = executors

    async def close(self) -> None:
        """Finish what has begun and let go of the file; never raises."""
        executors, self._executors = self._executors, None
        if executors is not None:
            await asyncio.shield(asyncio.to_thread(self._close, *executors))

    async def insert(self, rows: Sequence[Row]) -> None:
        """Write rows in one transaction; those that are there already are skipped.

        Raises StoreError itself for what no column holds, such as one of a gigabyte.
        """
        await self._write(lambda db: queries.insert(db, rows), sum(row.size for row in rows))

    async def get(self, owner: str, id: str) -> Row | None:
        return await self._read(lambda db: queries.get(db, owner, id))

    async def position(self, owner: str, id: str) -> Position | None:
        return await self._read(lambda db: queries.position(db, owner, id))

    async def find(self, query: Query) -> list[Row]:
        return await self._read(lambda db: queries.find(db, query))

    async def set_metadata(self, owner: str, id: str, metadata: dict[str, str]) -> Row | None:
        return await self._write(
            lambda db: queries.set_metadata(db, owner, id, metadata), room=True
        )

    async def delete(self, owner: str, id: str) -> Row | None:
        return await self._write(lambda db: queries.delete(db, owner, id), room=True)

    async def prune(self, *, before: int | None, over: int | None, limit: int) -> list[Row]:
        """See `Database.prune`.

        Fewer than `limit` where they are large, so that no more than 16 MiB are in memory: it is
        done when none come back. Also gives a part of what the file no longer needs to the disk.
        """
        rows = await self._write(lambda db: queries.prune(db, before, over, limit), room=True)
        with suppress(StoreError):  # the rows are gone; the room can be given back next time
            await self._in(self._threads()[0], self._shrink)
        return rows

    async def size(self) -> tuple[int, int]:
        return await self._read(queries.size)

    async def _write(
        self, work: Callable[[sqlite3.Connection], T], size: int = 0, *, room: bool = False
    ) -> T:
        """Do what writes, `size` bytes of rows; `room`: the reserve may be used for it."""

        def run_transaction() -> T:
            assert self._writer is not None
            # SQLite itself would go on to write into a file that has no name any more.
            if self._identify() != self._files:
                raise Unusable(
                    f"{self.path} or its log was removed or replaced while it was in use: put it "
                    "back, or restart the proxy, which then takes what is there"
                )
            with transaction(self._writer, "IMMEDIATE") as db:
                result = work(db)
            self._unmoved += size + PAGES
            self._bound_log(self._writer)
            return result

        run = (
            partial(self._reserve.use, run_transaction, self._reuse_log)
            if room
            else run_transaction
        )
        return await self._in(self._threads()[0], run)

    def _reuse_log(self) -> None:
        """Move all of the log into the file, so that it begins anew and need not grow."""
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    def _identify(self) -> tuple[_File, _File]:
        return _file(self.path), _file(Path(f"{self.path}-wal"))

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run_transaction() -> T:
            with transaction(self._reader(), "DEFERRED") as db:
                return work(db)

        return await self._in(self._threads()[1], run_transaction)

    def _threads(self) -> tuple[ThreadPoolExecutor, ThreadPoolExecutor]:
        if self._executors is None:
            raise Unavailable(f"{self.path} is not open")
        return self._executors

    async def _in(self, executor: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        def run_guarded() -> T:
            try:
                return work()
            except (sqlite3.Error, OSError, ValueError, OverflowError) as error:
                raise explain_error(error, self.path) from error

        return await asyncio.get_running_loop().run_in_executor(executor, run_guarded)

    def _prepare(self) -> None:
        if not stat.S_ISREG(make_file(self.path).st_mode):
            raise Unusable(f"{self.path} is no regular file: configure another path")
        if _is_foreign(self.path):
            raise _foreign_error(self.path)
        db = self._connect(WRITE_CACHE)
        try:
            with transaction(db, "DEFERRED"):  # of one moment: another process may be making it
                _check(db, self.path)
            # Takes effect before the first table only.
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            if write_ahead(db, self._busy) != "wal":
                raise Unusable(
                    f"{self.path}: its file system has no shared memory for SQLite's log: "
                    "configure a path on a local disk"
                )
            db.execute(f"PRAGMA synchronous = {'FULL' if self._sync else 'NORMAL'}")
            # A commit would wait for the disk then, and the rows behind it; see `_move_log`.
            db.execute("PRAGMA wal_autocheckpoint = 0")
            db.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
            # What a client deletes does not stay readable in the file.
            db.execute("PRAGMA secure_delete = ON")
            _migrate(db, self.path)
        except BaseException:
            db.close()
            raise
        self._writer = db
        self._files = self._identify()
        self._reserve.keep()

    def _bound_log(self, db: sqlite3.Connection) -> None:
        """Have the log moved, and begin it anew where readers, one always there, let it grow."""
        with suppress(OSError, sqlite3.Error):  # what was to be written is
            if self._unmoved > LOG_MOVED and (self._mover is None or not self._mover.is_alive()):
                self._unmoved = 0
                self._mover = threading.Thread(target=self._move_log, name="store-log")
                self._mover.start()
            size = os.stat(f"{self.path}-wal").st_size
            if size > self._log_bytes:
                # Not at every commit, if one reader holds on longer than `busy`.
                self._log_bytes = size + LOG_BYTES
                (held, _, _) = db.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
                if not held:
                    self._log_bytes = LOG_BYTES

    def _move_log(self) -> None:
        """Move the log into the file, beside the writer, who begins it anew when all is moved.

        Twice, for what was written meanwhile: the second time is short enough to catch up. What
        fails here stays in the log, is whole there, and is tried again some MiB later.
        """
        with suppress(sqlite3.Error):
            db = self._connect(READ_CACHE)
            with closing(db):
                for _ in range(2):
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._reserve.keep()

    def _shrink(self) -> None:
        """Cut free pages off the file while they are more than new rows will soon take."""
        db = self._writer
        assert db is not None
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        (free,) = db.execute("PRAGMA freelist_count").fetchone()
        spare = free - pages // SPARE
        if spare > 0:
            # A script, since `execute` ends this statement after its first page.
            db.executescript(f"PRAGMA incremental_vacuum({min(spare, SHRUNK_PAGES)})")

    def _reader(self) -> sqlite3.Connection:
        """Return this thread's connection to read with."""
        db: sqlite3.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._connect(READ_CACHE)
            self._readers.append(db)
            db.execute("PRAGMA query_only = ON")
            db.create_function("has_metadata", 2, queries.has_metadata, deterministic=True)
            self._local.db = db
        return db

    def _connect(self, cache: int) -> sqlite3.Connection:
        db = connect(self.path, self._busy)
        try:
            db.execute(f"PRAGMA cache_size = {-cache // 1024}")  # finds out what is no database
        except BaseException:
            db.close()
            raise
        return db

    def _close(self, writing: ThreadPoolExecutor, reading: ThreadPoolExecutor) -> None:
        reading.shutdown()
        writing.shutdown()
        if self._mover is not None:
            self._mover.join()
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, []
        self._local = threading.local()
        # The writer last: the last to close moves the log into the file.
        for db in (*readers, *([writer] if writer is not None else [])):
            with suppress(sqlite3.Error):
                db.close()
        # Beside another file our log would be taken for that one's, and garble it.
        if writer is None:
            return
        self._reserve.release()
        with suppress(OSError):
            (file, log), (ours, our_log) = self._identify(), self._files
            if file != ours and log is not None and log == our_log:
                os.unlink(f"{self.path}-wal")
                os.unlink(f"{self.path}-shm")


def absolute(path: str | Path) -> Path:
    """Return the path of a file as it stays, whatever it is seen from. Raises Unusable."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError as error:
        raise Unusable(f"{path}: there is no such home directory: write the whole path") from error


def make_file(path: Path) -> os.stat_result:
    """Make a file, and its folder, for its user alone, unless it is there; return what it is."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives the files beside it the mode of the first.
    made = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return os.fstat(made)
    finally:
        os.close(made)


def connect(path: Path, busy: float) -> sqlite3.Connection:
    """Return a connection for any thread that commits by itself; `busy`: seconds for a lock."""
    return sqlite3.connect(path, timeout=busy, isolation_level=None, check_same_thread=False)


def write_ahead(db: sqlite3.Connection, busy: float) -> str:
    """Let the file have a write-ahead log; return what it has.

    Of a new file that another process does it to in the same moment SQLite says so at once,
    whatever its timeout.
    """
    deadline = time.monotonic() + busy
    while True:
        try:
            return str(db.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _file(path: Path) -> _File:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def transaction(db: sqlite3.Connection, kind: str) -> Iterator[sqlite3.Connection]:
    """Run what is within in a transaction, committed at its end and undone where it fails."""
    db.execute(f"BEGIN {kind}")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite ends it by itself after some errors
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def _is_foreign(path: Path) -> bool:
    """Return whether the file is for sure another program's database.

    Of its header (SQLite's "Database File Format", sections 1.3 and 1.6): to open it would take
    what a crash left in the other program's log, or roll it back, and so change the file.
    """
    with open(path, "rb") as file:
        head = file.read(105)
    known = head.startswith(b"SQLite format 3\0") and head[21:24] == b"\x40\x20\x20"
    if len(head) < 105 or not known:
        return False
    application, empty = int.from_bytes(head[68:72]), head[100] == 13 and head[103:105] == b"\0\0"
    return not empty and application != APPLICATION


def _foreign_error(path: Path) -> Unusable:
    return Unusable(f"{path} is another program's database: move it, or configure another path")


def _check(db: sqlite3.Connection, path: Path) -> int:
    """Return the schema's number. Raises Unusable where the file is not ours, or too new."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if tables and application != APPLICATION:
        raise _foreign_error(path)
    newest = migrations("sqlite")[-1][0]
    if version > newest:
        raise Unusable(
            f"{path} has schema {version}, and this version of the program knows schemas up to "
            f"{newest}: run the newer version again, or configure another path"
        )
    return int(version)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """Take the steps that are missing, all or none."""
    if _check(db, path) == migrations("sqlite")[-1][0]:
        return  # nothing is written, which a full disk would not take
    with transaction(db, "IMMEDIATE"):
        # Inside, since another process may have been here a moment ago.
        version = _check(db, path)
        for number, sql in migrations("sqlite")[version:]:
            for statement in _statements(sql):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {number}")
        db.execute(f"PRAGMA application_id = {APPLICATION}")


def _statements(sql: str) -> Iterator[str]:
    """Split a script; `executescript` would commit the open transaction."""
    statement = ""
    for line in sql.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
