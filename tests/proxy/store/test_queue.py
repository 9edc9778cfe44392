"""The queue before a database: groups, order, bounds, failures, the end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.fakes.database import Memory, capture
from tests.proxy.store.conftest import Before, Items, names, value
from tests.waiting import until
from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store import queue as module
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.queue import ROWS, WriteQueue
from wellspoken.proxy.store.rows import Capture

LOG = logging.getLogger("wellspoken")
FULL = Unusable("the disk is full")
Make = Callable[..., WriteQueue]


@pytest.fixture
def database() -> Memory:
    return Memory()


@pytest.fixture
async def make(database: Memory, metrics: StoreMetrics) -> AsyncIterator[Make]:
    """Make a writer that works; keys are those of [store]."""
    made = []

    def start(**keys: Any) -> WriteQueue:
        wanted = config.Store(path="unused", **{"block": 300.0, **keys})
        writer = WriteQueue(wanted, metrics, LOG, write=database.insert)
        made.append(writer)
        writer.start()
        return writer

    yield start
    for writer in made:
        await writer.close(0.0)


async def add(writer: WriteQueue, first: int, end: int, **more: Any) -> None:
    for number in range(first, end):
        assert await writer.add(capture(number, **more)) == ""


async def test_rows_are_written_in_groups_and_in_order(make: Make, database: Memory) -> None:
    writer = make()
    await add(writer, 0, 600)
    await writer.barrier()
    assert database.ids == names(0, 600)
    assert [len(batch) for batch in database.batches] == [ROWS, ROWS, 600 - 2 * ROWS]


async def test_a_group_is_bounded_in_bytes(
    make: Make, database: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = make()
    await add(writer, 0, 10, size=1_000_000)
    await writer.barrier()
    assert [len(batch) for batch in database.batches] == [5, 5]
    await asyncio.sleep(0.05)
    monkeypatch.setattr(module, "SECONDS", 3600.0)
    await add(writer, 10, 11)
    await asyncio.sleep(0.05)
    assert database.attempts == 2  # what was written does not count for what comes


async def test_a_row_alone_waits_for_company_but_not_long(make: Make, database: Memory) -> None:
    writer = make()
    await add(writer, 0, 1)
    await asyncio.sleep(0)
    assert not database.attempts
    await add(writer, 1, 2)
    await until(lambda: len(database.rows) == 2)
    assert database.batches == [["c0", "c1"]]


async def test_the_barrier_waits_for_what_was_added_and_makes_it_happen(
    make: Make, database: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 3600.0)
    writer = make()
    await writer.barrier()  # nothing to wait for
    await add(writer, 0, 3)
    await writer.barrier()
    assert database.ids == names(0, 3)


async def test_the_barrier_waits_for_the_batch_that_is_being_written(
    make: Make, database: Memory
) -> None:
    writer = make()
    database.gate.clear()
    await add(writer, 0, 1)
    await until(lambda: database.attempts == 1)
    waiting = asyncio.create_task(writer.barrier())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    database.gate.set()
    await waiting
    assert database.ids == ["c0"]


async def test_commit_returns_when_its_batch_is_written(make: Make, database: Memory) -> None:
    writer = make(durability="commit")
    database.gate.clear()
    first = asyncio.create_task(writer.add(capture(0)))
    await until(lambda: database.attempts == 1)
    others = [asyncio.create_task(writer.add(capture(number))) for number in range(1, 9)]
    await asyncio.sleep(0.05)
    assert not first.done() and not any(other.done() for other in others)
    database.gate.set()
    assert await asyncio.gather(first, *others) == [""] * 9
    assert database.batches == [["c0"], names(1, 9)]


async def test_commit_waits_for_nobody_else(
    make: Make, database: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SECONDS", 3600.0)
    writer = make(durability="commit")
    assert await writer.add(capture(0)) == ""
    assert database.ids == ["c0"]


async def held(writer: WriteQueue, database: Memory) -> None:
    """Fill a queue of 4096 bytes with rows that are not written until the gate opens."""
    database.gate.clear()
    await add(writer, 0, 4, size=300)
    await until(lambda: database.attempts == 1)


async def test_a_full_queue_holds_requests_back_in_their_order(
    make: Make, database: Memory, metrics: StoreMetrics, before_rows: Before
) -> None:
    most = []
    before_rows(lambda items: most.append(value(metrics, "bytes", place="queue")))
    writer = make(queue=4096)
    await held(writer, database)
    waiting = [asyncio.create_task(writer.add(capture(n, size=300))) for n in range(4, 12)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    assert writer.full
    database.gate.set()
    assert await asyncio.gather(*waiting) == [""] * 8
    await writer.barrier()
    assert database.ids == names(0, 12)
    assert max(most) <= 4096


async def test_who_leaves_while_held_back_leaves_no_hole(make: Make, database: Memory) -> None:
    writer = make(queue=4096)
    await held(writer, database)
    waiting = [asyncio.create_task(writer.add(capture(n, size=300))) for n in range(4, 7)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    await asyncio.sleep(0.01)
    database.gate.set()
    assert await asyncio.gather(*waiting[1:]) == ["", ""]
    await writer.barrier()
    assert database.ids == [*names(0, 4), "c5", "c6"]


async def test_nobody_is_held_back_for_ever(
    make: Make, database: Memory, metrics: StoreMetrics
) -> None:
    writer = make(queue=4096, block=0.05)
    await held(writer, database)
    assert await writer.add(capture(4, size=300)) == "the store's queue is full"
    assert value(metrics, "dropped_total") == 1
    database.gate.set()
    await writer.barrier()
    assert database.ids == names(0, 4)


async def test_drop_drops_and_counts(make: Make, database: Memory, metrics: StoreMetrics) -> None:
    writer = make(queue=4096, full="drop")
    await held(writer, database)
    assert await writer.add(capture(4, size=300)) == "the store's queue is full"
    assert value(metrics, "dropped_total") == 1
    assert value(metrics, "rows", place="queue") == 4
    assert 0 < value(metrics, "bytes", place="queue") <= 4096
    database.gate.set()
    await writer.barrier()
    assert value(metrics, "bytes", place="queue") == 0
    await add(writer, 5, 6)


async def test_what_is_larger_than_the_queue_passes_alone(make: Make, database: Memory) -> None:
    writer = make(queue=4096)
    assert await writer.add(capture(0, size=10_000)) == ""
    after = asyncio.create_task(writer.add(capture(1)))
    await asyncio.wait_for(after, 60)
    await writer.barrier()
    assert database.batches == [["c0"], ["c1"]]


async def test_what_is_no_row_is_left_out_and_told_once(
    make: Make, database: Memory, metrics: StoreMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make()
    await add(writer, 0, 2)
    bad = [b'{"id": "bad"', b"", b"[]", b'{"id":"x","created":"y","model":"m"}']
    for answer in bad:
        await writer.add(Capture("", "req_bad", answer, b"{}"))
    await add(writer, 2, 4)
    await writer.barrier()
    assert database.ids == names(0, 4)
    assert value(metrics, "dropped_total") == len(bad)
    assert value(metrics, "failures_total", reason="row") == len(bad)
    assert len(caplog.records) == 1
    assert "req_bad: its answer cannot be stored" in caplog.text


@pytest.mark.parametrize(
    "error",
    [StoreError("no NUL in text"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogate")],
)
async def test_a_row_that_the_database_refuses_does_not_block_the_others(
    make: Make, database: Memory, metrics: StoreMetrics, error: Exception
) -> None:
    refused = {"c7", "c8", "c99"}
    database.refuses = lambda row: error if row.id in refused else None
    writer = make(durability="commit")
    told = await asyncio.gather(*(writer.add(capture(number)) for number in range(120)))
    assert {f"c{at}" for at, problem in enumerate(told) if problem} == refused
    assert database.ids == [name for name in names(0, 120) if name not in refused]
    assert value(metrics, "dropped_total") == 3


async def test_a_database_that_fails_is_tried_again_and_loses_nothing(
    make: Make,
    database: Memory,
    metrics: StoreMetrics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    writer = make()
    database.failure = FULL
    await add(writer, 0, 5)
    await until(lambda: database.attempts >= 3)
    assert writer.trouble == "the disk is full"
    with pytest.raises(Unusable, match="the disk is full"):
        await writer.barrier()
    await add(writer, 5, 9)
    assert len(caplog.records) == 1
    database.failure = None
    await until(lambda: not writer.trouble)
    await writer.barrier()
    assert database.ids == names(0, 9)
    assert database.doubled == 0
    assert value(metrics, "failures_total", reason="unusable") >= 3
    assert "written again" in caplog.text


async def test_who_waits_for_a_commit_is_told_of_a_failing_database(
    make: Make, database: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    writer = make(durability="commit")
    database.failure = FULL
    assert await writer.add(capture(0)) == f"not committed yet: {module.FAILS}"
    assert await writer.add(capture(1)) == f"not committed yet: {module.FAILS}"
    database.failure = None
    await until(lambda: len(database.rows) == 2)
    assert await writer.add(capture(2)) == ""


async def test_a_barrier_that_waits_is_told_of_a_failing_database(
    make: Make, database: Memory
) -> None:
    writer = make()
    database.gate.clear()
    await add(writer, 0, 1)
    waiting = asyncio.create_task(writer.barrier())
    await until(lambda: database.attempts == 1)
    database.failure = Unavailable("locked")
    database.gate.set()
    with pytest.raises(Unavailable, match="locked"):
        await waiting


async def test_a_fault_of_ours_costs_its_batch_and_no_more(
    make: Make,
    database: Memory,
    metrics: StoreMetrics,
    before_rows: Before,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before_rows(lambda items: 1 // (items[0].capture.request_id != "req_0"))
    writer = make(durability="commit")
    assert await writer.add(capture(0)) == "the store failed"
    assert await writer.add(capture(1)) == ""
    assert database.ids == ["c1"]
    assert value(metrics, "failures_total", reason="internal") == 1
    assert "ZeroDivisionError" in caplog.text


async def test_a_full_batch_is_made_while_another_is_written(
    make: Make, database: Memory, before_rows: Before
) -> None:
    packed: list[int] = []
    before_rows(lambda items: packed.append(len(items)))
    writer = make()
    database.gate.clear()
    await add(writer, 0, ROWS + 10)
    await until(lambda: database.attempts == 1)
    await asyncio.sleep(0.1)
    assert packed == [ROWS]  # ten are not enough
    await add(writer, ROWS + 10, 2 * ROWS + 20)
    await until(lambda: len(packed) == 2)
    assert database.attempts == 1
    database.gate.set()
    await writer.barrier()
    assert packed == [ROWS, ROWS, 20]
    assert database.ids == names(0, 2 * ROWS + 20)


async def test_work_that_breaks_off_does_not_end_the_writer(
    make: Make, database: Memory, before_rows: Before
) -> None:
    def broken(items: Items) -> None:
        if items[0].capture.request_id == "req_0":
            raise asyncio.CancelledError

    before_rows(broken)
    writer = make(durability="commit")
    assert await writer.add(capture(0)) == "the store failed"
    assert await writer.add(capture(1)) == ""
    assert database.ids == ["c1"]


async def test_a_write_that_breaks_off_does_not_end_the_writer(
    make: Make, database: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    writer = make()
    database.failure = asyncio.CancelledError()
    await add(writer, 0, 1)
    await until(lambda: database.attempts >= 2)
    database.failure = None
    await until(lambda: database.ids == ["c0"])


async def test_the_end_writes_what_waits(make: Make, database: Memory) -> None:
    writer = make()
    await add(writer, 0, 1000)
    assert await writer.close(20.0) == []
    assert database.ids == names(0, 1000)
    assert await writer.add(capture(1000)) == "the store is closed"


async def test_the_end_is_bounded_and_gives_back_what_is_left(make: Make, database: Memory) -> None:
    writer = make(durability="commit")
    database.gate.clear()
    adds = [asyncio.create_task(writer.add(capture(number))) for number in range(300)]
    await until(lambda: database.attempts == 1)
    left = await asyncio.wait_for(writer.close(0.05), 60)
    assert [row.id for row in left] == names(0, 300)
    assert set(await asyncio.gather(*adds)) == {"the store is closed"}


@pytest.mark.parametrize("hurried", [True, False], ids=["hurry", "failing"])
async def test_the_end_is_shorter_in_a_hurry_and_where_it_fails(
    make: Make, database: Memory, monkeypatch: pytest.MonkeyPatch, hurried: bool
) -> None:
    monkeypatch.setattr(module, "HURRY_SECONDS", 0.05)
    writer = make()
    hurry = asyncio.Event()
    if hurried:
        database.gate.clear()
        hurry.set()
    else:
        database.failure = FULL
    await add(writer, 0, 2)
    await until(lambda: database.attempts >= 1)
    left = await asyncio.wait_for(writer.close(3600.0, hurry), 60)
    assert [row.id for row in left] == ["c0", "c1"]


async def test_who_is_held_back_at_the_end_is_told(make: Make, database: Memory) -> None:
    writer = make(queue=4096)
    await held(writer, database)
    waiting = asyncio.create_task(writer.add(capture(4, size=300)))
    await asyncio.sleep(0.01)
    await writer.close(0.0)
    assert await asyncio.wait_for(waiting, 60) == "the store is closed"


async def test_what_is_measured(make: Make, metrics: StoreMetrics) -> None:
    writer = make()
    await add(writer, 0, 300)
    await writer.barrier()
    assert value(metrics, "batch_rows_count") == 2
    assert value(metrics, "batch_rows_sum") == 300
    assert value(metrics, "write_seconds_count") == 2
    assert value(metrics, "rows", place="queue") == 0


async def test_the_queue_tells_when_it_is_full(make: Make, database: Memory) -> None:
    writer = make(queue=1, full="refuse")
    assert not writer.full
    database.gate.clear()
    await add(writer, 0, 1)
    assert writer.full
    waiting: Awaitable[str] = asyncio.create_task(writer.add(capture(1)))  # admitted before
    database.gate.set()
    assert await waiting == ""
    await writer.barrier()
    assert not writer.full
