"""Retention: what goes and what stays, beside traffic, beside others, and while things fail."""

from __future__ import annotations

import asyncio
import logging
import math
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.waiting import until
from wellspoken.proxy.store import retention
from wellspoken.proxy.store.database import Unavailable
from wellspoken.proxy.store.retention import BATCH, Retention
from wellspoken.proxy.store.rows import Query, Row
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

NOW = 1_000_000


def row(created: int, size: int = 100, owner: str = "") -> Row:
    return Row(f"chatcmpl-{created}", owner, created, "m", "req", {}, bytes(size), b"", b"")


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[SqliteDatabase]:
    made = SqliteDatabase(tmp_path / "store.db")
    await made.open()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_PAUSE", 0.0)
    monkeypatch.setattr(retention, "time", lambda: NOW)


@pytest.fixture
def batches(database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each transaction deletes, as they are deleted."""
    found: list[int] = []
    prune = database.prune

    async def counted(**wanted: Any) -> list[Row]:
        rows = await prune(**wanted)
        found.extend([len(rows)] if rows else [])
        return rows

    monkeypatch.setattr(database, "prune", counted)
    return found


async def _created(database: SqliteDatabase) -> list[int]:
    return [found.created for found in await database.find(Query(owner=None, limit=100_000))]


async def test_what_is_too_old_goes_whoever_owns_it(
    database: SqliteDatabase, batches: list[int]
) -> None:
    ages = [NOW - age for age in (400, 301, 300, 299, 0)]
    await database.insert([row(at, owner=owner) for at in ages for owner in ("a", "b")])
    keeping = Retention(database, max_age=300)
    assert await keeping.round() == 4
    assert await _created(database) == sorted(ages[2:] * 2)
    assert await keeping.round() == 0
    assert batches == [4]


async def test_the_oldest_go_while_all_is_too_much(database: SqliteDatabase) -> None:
    await database.insert([row(NOW - at) for at in range(10)])
    assert await Retention(database, max_size=450).round() == 6
    assert await _created(database) == [NOW - 3, NOW - 2, NOW - 1, NOW]
    assert await database.size() == (4, 400)
    assert await Retention(database, max_size=400).round() == 0


async def test_age_and_size_together(database: SqliteDatabase) -> None:
    await database.insert([row(NOW - at) for at in range(10)])
    both = Retention(database, max_age=6, max_size=250)
    assert await both.round() == 8
    assert await _created(database) == [NOW - 1, NOW]


async def test_many_go_in_batches(database: SqliteDatabase, batches: list[int]) -> None:
    await database.insert([row(at) for at in range(3 * BATCH + 7)])
    keeping = Retention(database, max_age=1)
    assert await keeping.round() == 3 * BATCH + 7
    assert batches == [BATCH, BATCH, BATCH, 7]


async def test_two_proxies_delete_each_row_once(database: SqliteDatabase, tmp_path: Path) -> None:
    second = SqliteDatabase(tmp_path / "store.db")
    await second.open()
    await database.insert([row(at) for at in range(2000)])
    done = await asyncio.gather(*(Retention(one, max_age=1).round() for one in (database, second)))
    assert sum(done) == 2000
    assert await _created(second) == []
    await second.close()


async def test_what_deleted_rows_leave_elsewhere_is_told(
    database: SqliteDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a version that put large answers into a directory or a bucket."""
    old = structs.replace(row(2), answer=b"@ab/0123456789abcdef")
    await database.insert([row(1), old, row(3)])
    assert await Retention(database, max_age=10).round() == 3
    (said,) = caplog.messages
    assert said.startswith("deleted from the database") and said.endswith(": chatcmpl-2")


async def test_it_runs_in_the_background_and_ends(
    database: SqliteDatabase, batches: list[int]
) -> None:
    await database.insert([row(1)])
    keeping = Retention(database, max_age=10, interval=0.01)
    keeping.start()
    keeping.start()
    await until(lambda: batches == [1])
    await database.insert([row(2)])
    await until(lambda: batches == [1, 1])
    await keeping.close()
    await keeping.close()
    await database.insert([row(3)])
    await asyncio.sleep(0.05)
    assert await _created(database) == [3]


@pytest.mark.parametrize("max_age", [0.0, math.inf])
async def test_nothing_runs_where_nothing_is_to_go(
    database: SqliteDatabase, max_age: float
) -> None:
    before = asyncio.all_tasks()
    keeping = Retention(database, max_age=max_age)
    keeping.start()
    assert asyncio.all_tasks() == before
    await keeping.close()


class _Broken:
    """A database whose `prune` fails as the list says, and then deletes nothing."""

    def __init__(self, failures: list[Exception]) -> None:
        self.failures = failures
        self.calls = 0

    async def prune(self, **wanted: object) -> list[Row]:
        self.calls += 1
        if self.failures:
            raise self.failures.pop(0)
        return []


async def test_failures_are_counted_and_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "_REST", (0.01, 0.02))
    broken = _Broken([Unavailable("PostgreSQL is down"), KeyError("a bug"), Unavailable("again")])
    counted: list[str] = []
    keeping = Retention(
        broken,  # type: ignore[arg-type]
        max_age=1,
        interval=0.01,
        count=counted.append,
    )
    keeping.start()
    await until(lambda: broken.calls >= 6)
    await keeping.close()
    assert counted == ["retention"] * 3
    assert caplog.messages == [
        "retention: PostgreSQL is down; next try in 0.01 s",
        "retention: next try in 0.02 s",
        "retention: again; next try in 0.02 s",
    ]
    assert [bool(record.exc_info) for record in caplog.records] == [False, True, False]
    assert {record.levelno for record in caplog.records} == {logging.WARNING, logging.ERROR}


async def test_a_file_that_is_locked_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process holds the write lock for longer than ours waits."""
    monkeypatch.setattr(retention, "_REST", (0.05, 0.05))
    database = SqliteDatabase(tmp_path / "store.db", busy=0.05)
    await database.open()
    await database.insert([row(1)])
    other = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    counted: list[str] = []
    keeping = Retention(database, max_age=10, interval=0.01, count=counted.append)
    keeping.start()
    await until(lambda: len(counted) >= 2)
    assert await _created(database) == [1]
    other.execute("ROLLBACK")
    other.close()

    async def gone() -> bool:
        return not await _created(database)

    await until(gone)
    await keeping.close()
    await database.close()


async def test_a_page_does_not_wait_for_it(database: SqliteDatabase, batches: list[int]) -> None:
    """Pages are read while 4,000 rows go: half of them at least within a batch of these."""
    for at in range(0, 4000, 2000):
        await database.insert([row(at + more, 500) for more in range(2000)])
    await database.insert([row(NOW + at) for at in range(100)])
    query = Query(owner="", limit=20, descending=True, messages=False)
    going = asyncio.create_task(Retention(database, max_age=10).round())
    waited: list[int] = []
    while not going.done():
        before = len(batches)
        assert len(await database.find(query)) == 20
        waited.append(len(batches) - before)
        await asyncio.sleep(0.002)
    assert await going == 4000
    assert len(batches) > 8 and len(waited) > 5
    assert sorted(waited)[len(waited) // 2] <= 1
