"""What can go wrong with a SQLite file, and what becomes of its room and its log."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.fakes.database import capture
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.rows import Query
from wellspoken.proxy.store.sqlite import file, queries
from wellspoken.proxy.store.sqlite.file import SqliteDatabase


@pytest.fixture
def database(file_database: SqliteDatabase) -> SqliteDatabase:
    return file_database


# What can go wrong.


@pytest.mark.parametrize(
    "content", [b"not a database at all\n" * 100, b"SQLite format 3\0" + b"?" * 4080]
)
async def test_what_is_no_database(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(Unusable) as error:
        await SqliteDatabase(path).open()
    assert "no SQLite database: move it away" in one_line(error, path)
    assert path.read_bytes() == content


async def test_a_damaged_file(path: Path) -> None:
    database = SqliteDatabase(path)
    await database.open()
    await database.insert([row(at, size=3000) for at in range(300)])
    await database.close()
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40 * 4096)
    with pytest.raises(Unusable) as error:
        await database.open()
        await database.find(Query(owner=None, limit=500))
    assert "damaged: restore a backup" in one_line(error, path)
    await database.close()


async def test_a_folder_in_place_of_the_file(path: Path) -> None:
    path.mkdir()
    with pytest.raises(Unusable) as error:
        await SqliteDatabase(path).open()
    assert "cannot be opened" in one_line(error, path)
    with pytest.raises(Unusable, match="cannot be opened"):
        await SqliteDatabase("/dev/null/store.db").open()


_AS_ANOTHER = """
import asyncio, os, sys, tempfile
from pathlib import Path
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.sqlite import file
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

async def tell(what, work):
    try:
        await work
        print(what, "passed", flush=True)
    except Unusable as error:
        print(what, error, flush=True)

async def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = SqliteDatabase(folder / "store.db")
        await database.open()
        await database.insert([row(1)])
        await database.close()
        os.chmod(database.path, 0o400)
        await tell("file", database.open())
        os.chmod(database.path, 0o600)
        os.chmod(folder, 0o500)
        await tell("folder", database.open())
        await tell("new", SqliteDatabase(folder / "new.db").open())
        os.chmod(folder, 0o700)
        await tell("again", database.open())
        assert await database.size() == (1, 30)
        await database.close()

if os.getuid() == 0:  # whom no mode stops; what nobody may read of Python is read before
    steps = file.migrations("sqlite")
    file.migrations = lambda engine: steps
    os.seteuid(65534)
asyncio.run(main())
"""


async def test_a_read_only_file_or_folder() -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _AS_ANOTHER, stdout=subprocess.PIPE
    )
    out, _ = await child.communicate()
    assert child.returncode == 0
    said = dict(line.split(" ", 1) for line in out.decode().splitlines())
    assert said.pop("again") == "passed"
    assert list(said) == ["file", "folder", "new"]
    for text in said.values():
        assert "make the file and its directory writable for this user" in text


async def test_a_full_disk(path: Path) -> None:
    """A limit on the size of files stands for a disk; with room again, all goes on."""
    code = """
import asyncio, resource, sys
from tests.proxy.store.conftest import one_line, row
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.sqlite import file
from wellspoken.proxy.store.sqlite.file import SqliteDatabase
async def main():
    database = SqliteDatabase(sys.argv[1])
    await database.open()
    written = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    try:
        while True:
            await database.insert([row(at, size=4000) for at in range(written, written + 50)])
            written += 50
    except Unusable as error:
        print(error)
    assert await database.size() == (written, written * 4000)
    assert await database.get("ann", "chatcmpl-3") is not None
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    await database.insert([row(at, size=4000) for at in range(written, written + 500)])
    assert await database.size() == (written + 500, (written + 500) * 4000)
    await database.close()
    print(written + 500)
asyncio.run(main())
"""
    command = [sys.executable, "-c", code, str(path)]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    out, _ = await child.communicate()
    assert child.returncode == 0
    text, written = out.decode().splitlines()
    assert text.startswith(f"{path}: ") and "space" in text
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("SELECT count(*) FROM completion").fetchone() == (int(written),)
    db.close()


async def test_a_full_file_system_is_called_one(database: SqliteDatabase) -> None:
    """SQLite's own limit on pages gives the error of a full disk."""
    assert database._writer is not None
    database._writer.execute("PRAGMA max_page_count = 100")
    with pytest.raises(Unusable) as error:
        await database.insert([row(at, size=4000) for at in range(200)])
    assert "the disk is full: free some space" in one_line(error, database.path)
    assert await database.size() == (0, 0)
    database._writer.execute("PRAGMA max_page_count = 100000")
    await database.insert([row(at, size=4000) for at in range(200)])
    assert await database.size() == (200, 800_000)


async def test_a_lock_that_another_process_keeps(database: SqliteDatabase) -> None:
    await database.insert([row(1)])
    hasty = SqliteDatabase(database.path, busy=0.1)
    await hasty.open()
    other = sqlite3.connect(database.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable) as error:
        await hasty.insert([row(2)])
    assert "another process keeps it locked" in one_line(error, database.path)
    with pytest.raises(Unavailable):
        await hasty.delete("ann", "chatcmpl-1")
    assert await hasty.size() == (1, 30)  # who reads does not wait
    waiting = asyncio.create_task(database.insert([row(2)]))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    other.execute("ROLLBACK")
    await waiting
    other.close()
    await hasty.insert([row(3)])
    assert await hasty.size() == (3, 90)
    await hasty.close()


async def test_a_row_that_cannot_be_stored_is_no_broken_store(database: SqliteDatabase) -> None:
    """The writer leaves out such a row, and waits with all others for a store that is broken."""
    with pytest.raises(StoreError, match="cannot hold") as error:
        await database.insert([row(1), row(2, model="\ud800")])
    assert type(error.value) is StoreError
    assert database._writer is not None
    database._writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)
    with pytest.raises(StoreError, match="larger than SQLite takes") as error:
        await database.insert([row(1), row(2, size=200_000)])
    assert type(error.value) is StoreError
    assert await database.size() == (0, 0)
    await database.insert([row(1)])


async def test_tables_that_are_gone_are_a_broken_store(database: SqliteDatabase) -> None:
    with sqlite3.connect(database.path) as db:
        db.execute("DROP TABLE listed")
    db.close()
    with pytest.raises(Unusable, match=r"no such table: .*listed"):
        await database.insert([row(1)])


# The loop, and the room that is given back.


async def test_the_loop_goes_on_beside_a_large_batch(database: SqliteDatabase) -> None:
    rows = [row(at, size=20_000) for at in range(3000)]
    longest, last = 0.0, time.monotonic()
    writing = asyncio.create_task(database.insert(rows))
    pages = 0
    while not writing.done():
        await database.find(Query(owner="ann", limit=20))
        pages += 1
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    await writing
    assert pages > 5
    assert longest < 1.0


async def test_the_log_does_not_grow_for_ever_under_readers(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers that take turns, so that one is always there, keep SQLite from cutting its log."""
    monkeypatch.setattr(database, "_log_bytes", 1_000_000)
    monkeypatch.setattr(file, "LOG_BYTES", 1_000_000)
    started, done = threading.Event(), threading.Event()

    def take_turns() -> None:
        coming, going = (sqlite3.connect(database.path, isolation_level=None) for _ in range(2))
        while not done.is_set():
            coming.execute("BEGIN").execute("SELECT count(*) FROM total").fetchone()
            if going.in_transaction:
                going.execute("ROLLBACK")
                started.set()
            time.sleep(0.005)
            coming, going = going, coming
        coming.close()
        going.close()

    turns = asyncio.create_task(asyncio.to_thread(take_turns))
    try:
        await asyncio.to_thread(started.wait, 5)
        longest = 0
        for at in range(0, 1500, 50):  # 6 MB and more
            await database.insert([row(each, size=4000) for each in range(at, at + 50)])
            longest = max(longest, Path(f"{database.path}-wal").stat().st_size)
    finally:
        done.set()
        await turns
    assert longest < 3_000_000


async def test_a_reader_that_holds_on_delays_few_commits(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "LOG_BYTES", 500_000)
    database = SqliteDatabase(path, busy=0.3)
    await database.open()
    await database.insert([row(-1)])
    holding = sqlite3.connect(path, isolation_level=None)
    holding.execute("BEGIN").execute("SELECT count(*) FROM total").fetchone()
    slow = 0
    for at in range(20):
        begun = time.monotonic()
        await database.insert([row(each, size=4000) for each in range(at * 20, at * 20 + 20)])
        slow += time.monotonic() - begun > 0.25
    assert 1 <= slow <= 8  # about 2 MB were written: a wait for each 500 kB
    holding.execute("ROLLBACK")
    await database.insert([row(each, size=4000) for each in range(400, 600)])
    await database.insert([row(600)])
    assert Path(f"{path}-wal").stat().st_size <= 2_000_000
    holding.close()
    await database.close()


async def test_deleted_rows_leave_no_trace_in_the_file(database: SqliteDatabase) -> None:
    canary = b"canary" * 600
    kept = row(2)
    gone = row(1, metadata={"secret": "canary-value"})
    gone.answer, gone.messages = canary, canary
    await database.insert([gone, kept])
    await database.delete("ann", gone.id)
    await database.close()
    assert b"canary" not in database.path.read_bytes()
    await database.open()
    assert await database.size() == (1, 30)


async def test_new_rows_take_the_room_of_old_ones(database: SqliteDatabase) -> None:
    for start in range(0, 3000, 100):
        await database.insert([row(at, size=4000) for at in range(start, start + 100)])
        await database.prune(before=None, over=2_000_000, limit=500)
    await database.close()
    # 500 rows of 4 kB stay, 12 MB were written.
    assert database.path.stat().st_size < 4_000_000
    await database.open()
    assert await database.size() == (500, 2_000_000)


async def test_the_file_shrinks_in_small_steps(database: SqliteDatabase) -> None:
    await database.insert([row(at, size=4000) for at in range(3000)])
    assert database._writer is not None
    pages = [database._writer.execute("PRAGMA page_count").fetchone()[0]]
    while await database.prune(before=2900, over=None, limit=500):
        pages.append(database._writer.execute("PRAGMA page_count").fetchone()[0])
    for _ in range(3):
        await database.prune(before=2900, over=None, limit=500)
        pages.append(database._writer.execute("PRAGMA page_count").fetchone()[0])
    steps = [before - after for before, after in pairwise(pages)]
    assert all(0 <= step <= file.SHRUNK_PAGES for step in steps)
    assert max(steps) > 300
    await database.close()
    assert database.path.stat().st_size < 1_500_000
    with sqlite3.connect(database.path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()


async def test_no_list_keeps_what_is_gone(database: SqliteDatabase) -> None:
    """After every kind of change, the lists are those of the rows, and so are the totals."""
    rows = [
        row(at, owner=f"{at % 2}", metadata={"k": str(at % 3), f"l{at}": "x"}) for at in range(60)
    ]
    await database.insert(rows)
    await database.insert(rows)
    for at in range(0, 60, 7):
        await database.set_metadata(f"{at % 2}", f"chatcmpl-{at}", {"k": "new", "m": "y"})
    for at in range(0, 60, 5):
        await database.delete(f"{at % 2}", f"chatcmpl-{at}")
    await database.prune(before=9, over=None, limit=4)

    def check(db: sqlite3.Connection) -> tuple[set[tuple[object, ...]], set[tuple[object, ...]]]:
        whole = queries.find(db, Query(owner=None, limit=100))
        expected: set[tuple[object, ...]] = {
            (mark, each.created, each.seq) for each in whole for mark in queries._lists(each)
        }
        return set(db.execute("SELECT * FROM listed").fetchall()), expected

    found, expected = await database._read(check)
    assert found == expected
    assert len(expected) > 100
    count = len(await database.find(Query(owner=None, limit=100)))
    assert await database.size() == (count, 30 * count)


# What becomes of the file while it is open.


@pytest.mark.parametrize("gone", ["all", "file", "log", "replaced", "garbled"])
async def test_a_file_that_goes_away_is_told_until_a_restart(
    path: Path, database: SqliteDatabase, gone: str
) -> None:
    """SQLite itself goes on to write into a file that has no name any more."""
    await database.insert([row(1)])
    log, other = Path(f"{path}-wal"), path.with_name("other.db")
    second = SqliteDatabase(other)
    await second.open()
    await second.insert([row(9)])
    await second.close()
    if gone in ("all", "log"):
        log.unlink()
    if gone in ("all", "file"):
        path.unlink()
    if gone == "replaced":  # beside its log, which is not the new one's
        other.replace(path)
    if gone == "garbled":
        path.unlink()
        path.write_bytes(b"this is no database" * 1000)
    for number in (2, 3):
        with pytest.raises(Unusable, match=r"removed or replaced .* restart the proxy"):
            await database.insert([row(number)])
    await database.close()
    if gone == "garbled":
        with pytest.raises(Unusable, match="no SQLite database"):
            await database.open()
        path.unlink()
    await database.open()
    await database.insert([row(2)])
    found = await database.find(Query(owner="ann", limit=10))
    kept = {"log": [1], "replaced": [9]}.get(gone, [])
    assert sorted(one.id for one in found) == sorted(f"chatcmpl-{n}" for n in (*kept, 2))


async def test_a_file_that_is_put_back_is_written_again(
    path: Path, database: SqliteDatabase
) -> None:
    away = path.with_name("away.db")
    await database.insert([row(1)])
    path.rename(away)
    with pytest.raises(Unusable, match="removed or replaced"):
        await database.insert([row(2)])
    away.rename(path)
    await database.insert([row(2)])
    found = await database.find(Query(owner="ann", limit=10))
    assert [one.id for one in found] == ["chatcmpl-1", "chatcmpl-2"]


async def test_the_store_tells_of_a_file_that_went_away_and_loses_nothing_unsaid(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of any database that fails: not ready, in the log, and what waited is counted."""
    settings = config.Store(path=str(path), durability="commit")
    log = logging.getLogger("wellspoken")
    store = CompletionStore(settings, StoreMetrics(), log)
    await store.open()
    assert await store.add(capture(1)) == ""
    path.unlink()
    assert "not committed" in await store.add(capture(2))
    assert "removed or replaced" in store.trouble and "restart the proxy" in store.trouble
    await store.close()
    assert "removed or replaced" in caplog.text
    assert "1 completions could not be stored and are lost" in caplog.text


async def test_a_path_that_can_be_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Unusable, match="no regular file"):
        await SqliteDatabase(tmp_path / "pipe").open()
    with pytest.raises(StoreError, match="null byte"):
        await SqliteDatabase(tmp_path / "a\0b").open()
    with pytest.raises(Unusable, match="no such home directory"):
        SqliteDatabase("~nobody-of-this-name/store.db")


async def test_the_log_moves_into_the_file_beside_the_writer(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "LOG_MOVED", 500_000)
    for at in range(0, 500, 50):
        await database.insert([row(each, size=4000) for each in range(at, at + 50)])
        while database._mover is not None and database._mover.is_alive():
            await asyncio.sleep(0.001)
    assert database.path.stat().st_size > 1_000_000
    assert Path(f"{database.path}-wal").stat().st_size < 2_000_000


async def test_a_new_file_may_be_opened_by_several_at_once(tmp_path: Path) -> None:
    for each in range(10):
        databases = [SqliteDatabase(tmp_path / f"{each}.db") for _ in range(4)]
        await asyncio.gather(*[database.open() for database in databases])
        for database in databases:
            await database.close()
