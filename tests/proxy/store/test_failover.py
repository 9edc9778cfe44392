"""The relay: rows to the database or, while it is down, the spool, and their replay."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.fakes.database import Memory, row
from tests.proxy.store.conftest import held, names, rows, spool_of, value
from tests.waiting import until
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store import failover as module
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.failover import Failover
from wellspoken.proxy.store.spool import Spool

GONE = Unavailable("PostgreSQL cannot be reached")
Make = Callable[[], Failover]


@pytest.fixture
def database() -> Memory:
    return Memory()


@pytest.fixture
async def make(
    database: Memory, spool: Spool, metrics: StoreMetrics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Make]:
    """Make a relay over the database and the spool, as a process that starts does."""
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    made = []

    def start() -> Failover:
        relay = Failover(database, spool, metrics, logging.getLogger("wellspoken"))
        made.append(relay)
        relay.start()
        return relay

    yield start
    for relay in made:
        await relay.close()


async def test_while_the_database_is_there_nothing_is_spooled(
    make: Make, database: Memory, spool: Spool
) -> None:
    relay = make()
    await relay.write(rows(0, 3))
    await relay.wait_until_empty()
    assert database.ids == names(0, 3)
    assert spool.rows == 0


async def test_an_outage_loses_and_doubles_nothing(
    make: Make,
    database: Memory,
    spool: Spool,
    metrics: StoreMetrics,
    caplog: pytest.LogCaptureFixture,
) -> None:
    relay = make()
    await relay.write(rows(0, 10))
    database.failure = GONE
    for at in range(10, 700, 10):
        await relay.write(rows(at, at + 10))
    assert relay.down == str(GONE)
    assert relay.trouble == ""
    assert await held(spool) == names(10, 700)
    assert value(metrics, "rows", place="spool") == 690
    assert value(metrics, "bytes", place="spool") > 690 * 50
    with pytest.raises(Unavailable, match="cannot be reached"):
        await relay.wait_until_empty()
    database.failure = None
    await until(lambda: not relay.down)
    await relay.wait_until_empty()
    assert database.ids == names(0, 700)
    assert database.doubled == 0
    assert spool.rows == value(metrics, "rows", place="spool") == 0
    assert len([each for each in caplog.records if "spool" in each.message]) == 1


async def test_new_rows_need_not_wait_for_the_replay(
    make: Make, database: Memory, spool: Spool
) -> None:
    await spool.append(rows(0, 3000))
    relay = make()
    await relay.write([row(5000)])
    assert "c5000" in database.ids
    await relay.wait_until_empty()
    assert len(database.rows) == 3001


async def test_what_was_done_though_it_seemed_lost_is_not_doubled(
    make: Make, database: Memory
) -> None:
    relay = make()
    database.after = Unavailable("the connection was lost")
    await relay.write(rows(0, 5))
    database.after = None
    await until(lambda: not relay.down)
    await relay.wait_until_empty()
    assert database.ids == names(0, 5)
    assert database.doubled == 5  # given twice, and skipped


async def test_what_an_earlier_process_left_is_replayed(
    make: Make, database: Memory, spool: Spool
) -> None:
    await spool.append(rows(0, 5))
    await database.insert(rows(0, 3))  # it was killed between replay and removal
    relay = make()
    await relay.wait_until_empty()
    assert database.ids == names(0, 5)
    assert spool.rows == 0


async def test_what_another_process_leaves_later_is_replayed_too(
    make: Make, database: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.05)
    relay = make()
    await relay.wait_until_empty()
    other = spool_of(tmp_path)
    await other.append(rows(0, 3))
    await other.close()
    await until(lambda: len(database.rows) == 3)


async def test_two_processes_that_replay_one_spool_double_nothing(
    make: Make, database: Memory, spool: Spool
) -> None:
    await spool.append(rows(0, 2000))
    first, second = make(), make()
    await first.wait_until_empty()
    await second.wait_until_empty()
    assert database.ids == names(0, 2000)


async def test_a_database_that_hangs_is_not_waited_for(
    make: Make, database: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INSERT_SECONDS", 0.05)
    relay = make()
    database.gate.clear()
    await asyncio.wait_for(relay.write(rows(0, 5)), 60)
    assert "did not answer" in relay.down
    await relay.write(rows(5, 10))
    assert await held(spool) == names(0, 10)
    database.gate.set()
    await until(lambda: not relay.down)
    await relay.wait_until_empty()
    assert database.ids == names(0, 10)


async def test_a_database_that_somebody_must_repair_is_trouble(
    make: Make, database: Memory, metrics: StoreMetrics
) -> None:
    relay = make()
    database.failure = Unusable("no rights on table completion")
    await relay.write(rows(0, 5))
    assert relay.trouble == "no rights on table completion"
    database.failure = None
    await until(lambda: not relay.trouble)
    await relay.wait_until_empty()
    assert database.ids == names(0, 5)
    assert value(metrics, "failures_total", reason="unusable") >= 1


@pytest.mark.parametrize("error", [StoreError("no NUL in text"), ValueError("what is this")])
async def test_a_row_that_is_refused_does_not_block_the_replay(
    make: Make, database: Memory, metrics: StoreMetrics, spool: Spool, error: Exception
) -> None:
    await spool.append(rows(0, 50))
    database.refuses = lambda row: error if row.id == "c33" else None
    relay = make()
    await relay.wait_until_empty()
    assert database.ids == [name for name in names(0, 50) if name != "c33"]
    assert value(metrics, "dropped_total") == 1


async def test_a_refused_row_is_the_writers_matter_while_nothing_is_spooled(
    make: Make, database: Memory
) -> None:
    relay = make()
    database.refuses = lambda row: StoreError("no")
    with pytest.raises(StoreError, match="no"):
        await relay.write(rows(0, 1))
    assert not relay.down


async def test_unreadable_rows_are_removed_and_counted(
    make: Make, database: Memory, metrics: StoreMetrics, spool: Spool
) -> None:
    with sqlite3.connect(spool.path) as db:
        db.execute("INSERT INTO row (data) VALUES (x'c1')")
    db.close()
    await spool.append(rows(0, 2))
    relay = make()
    await relay.wait_until_empty()
    assert database.ids == names(0, 2)
    assert value(metrics, "dropped_total") == 1


async def test_a_full_spool_is_told_and_taken_up_again(
    database: Memory, metrics: StoreMetrics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    spool = spool_of(tmp_path, 50_000)
    await spool.open()
    relay = Failover(database, spool, metrics, logging.getLogger("wellspoken"))
    relay.start()
    database.failure = GONE
    taken = 0
    with pytest.raises(Unavailable, match="the spool is full"):
        while True:
            await relay.write([row(taken, size=5000)])
            taken += 1
    database.failure = None
    await until(lambda: not relay.down)
    await relay.write([row(taken, size=5000)])
    await relay.wait_until_empty()
    assert database.ids == names(0, taken + 1)
    await relay.close()
    await spool.close()


async def test_a_database_that_is_not_open_is_left_alone(make: Make, database: Memory) -> None:
    relay = make()
    relay.hold("not reached at the start")
    await relay.write(rows(0, 2))
    await asyncio.sleep(0.05)
    assert relay.down == "not reached at the start"
    assert not database.attempts
    database.failure = GONE
    relay.up()
    await asyncio.sleep(0.05)
    assert relay.down
    database.failure = None
    await until(lambda: not relay.down)
    await relay.wait_until_empty()
    assert database.ids == names(0, 2)


async def test_an_empty_spool_does_not_mean_that_the_database_is_back(
    make: Make, database: Memory
) -> None:
    relay = make()
    relay.hold("not reached at the start")
    database.failure = GONE
    relay.up()
    await until(lambda: relay.down != "not reached at the start")
    assert relay.down == str(GONE)
    database.failure = None
    await until(lambda: not relay.down)


async def test_a_long_replay_is_told_to_who_reads(
    make: Make, database: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await spool.append(rows(0, 5))
    database.gate.clear()
    relay = make()
    with monkeypatch.context() as patched:
        patched.setattr(module, "CAUGHT_UP_SECONDS", 0.05)
        with pytest.raises(Unavailable, match="5 rows of the spool are being replayed"):
            await relay.wait_until_empty()
    database.gate.set()
    await relay.wait_until_empty()


async def test_a_spool_that_fails_does_not_keep_rows_from_the_database(
    make: Make,
    database: Memory,
    spool: Spool,
    metrics: StoreMetrics,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SPOOL_SECONDS", 0.01)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.01)
    await spool.append(rows(0, 3))
    await spool.close()
    spool._close()
    kept = spool.path.read_bytes()
    spool.path.write_bytes(b"this is no database" * 100)
    relay = make()
    await until(lambda: bool(value(metrics, "failures_total", reason="spool")))
    for number in range(10, 20):
        await relay.write([row(number)])
        await asyncio.sleep(0.005)
    assert database.ids == names(10, 20)
    assert relay.down == ""
    with pytest.raises(Unavailable, match="not a database"):
        await relay.wait_until_empty()  # what it holds may be what is asked for
    database.failure = GONE
    with pytest.raises(Unusable, match="not a database"):
        await relay.write([row(20)])
    database.failure = None
    await until(lambda: not relay.down)
    await relay.write([row(20)])
    mended = spool.path.with_suffix(".mended")
    mended.write_bytes(kept)
    mended.replace(spool.path)  # at once: where there is no file it makes an empty one
    await until(lambda: not relay._spool_fails)  # once it was emptied, not once it was read
    await relay.wait_until_empty()
    assert sorted(database.ids) == sorted([*names(0, 3), *names(10, 21)])


async def test_a_spool_that_cannot_be_emptied_is_no_outage(
    make: Make, database: Memory, spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SPOOL_SECONDS", 0.01)

    async def full(numbers: object) -> None:
        raise Unusable("the disk is full")

    await spool.append(rows(0, 3))
    with monkeypatch.context() as patched:
        patched.setattr(spool, "remove", full)
        relay = make()
        await until(lambda: len(database.ids) == 3)
        for number in range(3, 20):
            await relay.write([row(number)])
            await asyncio.sleep(0.003)
        assert relay.down == ""
    await until(lambda: not spool.rows)
    await relay.wait_until_empty()
    assert database.ids == names(0, 20)
