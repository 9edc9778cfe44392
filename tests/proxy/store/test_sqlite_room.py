"""The loop beside large batches, the log's length, and the room that a SQLite file gives back."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.clock import own_time
from tests.proxy.store.conftest import row
from tests.waiting import SECONDS, until
from wellspoken.proxy.store.rows import Query
from wellspoken.proxy.store.sqlite import file, queries
from wellspoken.proxy.store.sqlite.file import SqliteDatabase


@pytest.fixture
def database(file_database: SqliteDatabase) -> SqliteDatabase:
    return file_database


async def test_the_loop_goes_on_beside_a_large_batch(database: SqliteDatabase) -> None:
    for first in range(0, 3 * 3000, 3000):  # rounds, of which one may meet a machine that stands
        longest, whole, pages = await read_beside(database, first)
        assert pages > 5
        if longest < max(1.0, whole / 2):
            return
    raise AssertionError(f"a page took {longest:.2f} s beside a batch of {whole:.2f} s")


async def read_beside(database: SqliteDatabase, first: int) -> tuple[float, float, int]:
    """Return the seconds of the slowest page beside a batch, those of the batch, and the pages."""
    rows = [row(at, size=20_000) for at in range(first, first + 3000)]
    longest, last = 0.0, (began := own_time())
    writing = asyncio.create_task(database.insert(rows))
    pages = 0
    while not writing.done():
        await database.find(Query(owner="ann", limit=20))
        pages += 1
        now = own_time()
        longest, last = max(longest, now - last), now
    await writing
    return longest, last - began, pages


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
        await asyncio.to_thread(started.wait, SECONDS)
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
    waits = []
    assert database._writer is not None
    database._writer.set_trace_callback(
        lambda statement: waits.append(statement) if "checkpoint(RESTART)" in statement else None
    )
    for at in range(20):
        await database.insert([row(each, size=4000) for each in range(at * 20, at * 20 + 20)])
    assert 1 <= len(waits) <= 8  # about 2 MB were written: a wait for each 500 kB
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


async def test_the_log_moves_into_the_file_beside_the_writer(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "LOG_MOVED", 500_000)
    for at in range(0, 500, 50):
        await database.insert([row(each, size=4000) for each in range(at, at + 50)])
        await until(lambda: database._mover is None or not database._mover.is_alive())
    assert database.path.stat().st_size > 1_000_000
    assert Path(f"{database.path}-wal").stat().st_size < 2_000_000
