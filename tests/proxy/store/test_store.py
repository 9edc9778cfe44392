"""The store as the proxy sees it, on real SQLite files and a database that does as it is told."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from msgspec import json, structs

from tests.fakes.database import Memory, capture, row
from tests.proxy.store.conftest import EVERYTHING, URL, Connect, MakeStore, names, value
from tests.waiting import until
from wellspoken.proxy import config
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store import queue
from wellspoken.proxy.store.completions import open_store
from wellspoken.proxy.store.database import Unavailable, Unreadable, Unusable
from wellspoken.proxy.store.rows import Position
from wellspoken.proxy.store.sqlite.file import SqliteDatabase


async def test_what_was_added_is_found_at_once(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    for number in range(20):
        assert await store.add(capture(number, size=5000)) == ""
        found = await store.get("", f"c{number}")
        assert found is not None
        assert json.decode(found.answer)["text"] == "x" * 5000
        assert found.metadata == {"n": str(number)}
        assert json.decode(found.parameters) == {"model": "m"}
        assert found.messages == b"[]"
    await store.add(capture(20))
    assert [each.id for each in await store.find(EVERYTHING)] == names(0, 21)
    await store.add(capture(21))
    changed = await store.set_metadata("", "c21", {"a": "b"})
    assert changed is not None and changed.metadata == {"a": "b"}
    await store.add(capture(22))
    assert isinstance(await store.position("", "c22"), Position)
    await store.add(capture(23))
    assert await store.delete("", "c23") is not None
    assert await store.get("", "c23") is None
    assert await store.get("another", "c0") is None


async def test_a_stop_loses_nothing_of_ten_thousand(make_store: MakeStore, tmp_path: Path) -> None:
    store = make_store()
    await store.open()
    for number in range(10_000):
        assert await store.add(capture(number)) == ""
    await store.close()
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("SELECT count(*) FROM completion").fetchone() == (10_000,)
    db.close()


async def test_rows_are_imported_past_the_queue(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    await store.insert([row(number, size=4000) for number in range(3)])
    found = await store.find(EVERYTHING)
    assert [(each.id, each.answer) for each in found] == [
        (each.id, each.answer) for each in (row(number, size=4000) for number in range(3))
    ]


async def test_an_answer_of_64_mb_comes_back(make_store: MakeStore, connect: Connect) -> None:
    """As large as `limits.response` lets one be, and hardly made smaller by packing."""
    given = capture(0)
    text = os.urandom(32 << 20).hex().encode()
    given = structs.replace(given, answer=given.answer.replace(b'"text": "', b'"text": "' + text))
    store = make_store(connect())
    await store.open()
    assert await store.add(given) == ""
    found = await store.get("", "c0")
    assert found is not None and found.answer == given.answer and len(found.answer) > 64 << 20


async def test_what_lies_in_a_bucket_or_directory_of_old_is_told_and_never_lost(
    make_store: MakeStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A database of a version that had store.large_to: the other rows can be read as ever."""
    database = SqliteDatabase(path)
    await database.open()
    old = structs.replace(row(0), answer=b"@ab/0123456789abcdef0123456789abcdef-0123456789abcdef")
    await database.insert([old, row(1)])
    await database.close()
    store = make_store()
    await store.open()
    assert await store.get("", "c1") == structs.replace(row(1), seq=2)
    for call in (store.get("", "c0"), store.find(EVERYTHING)):
        with pytest.raises(Unreadable, match=r"^the answer of c0 cannot be read: it lies in the "):
            await call
    assert len(await store.positions(EVERYTHING)) == 2
    assert not caplog.messages
    await store.delete("", "c0")
    assert caplog.messages == [
        "deleted from the database, but not from where store.large_to was: c0"
    ]


async def test_what_is_too_old_goes(make_store: MakeStore) -> None:
    before = make_store()
    await before.open()
    await before.add(capture(0))  # of 2023
    await before.close()
    store = make_store(max_age=3600.0)
    await store.open()

    async def gone() -> bool:
        return not await store.find(EVERYTHING)

    await until(gone)


async def test_a_full_disk_is_trouble_until_there_is_room(make_store: MakeStore) -> None:
    database = Memory()
    store = make_store(database)
    await store.open()
    database.failure = Unusable("the disk is full")
    await store.add(capture(0))
    await until(lambda: store.trouble == "the disk is full")
    with pytest.raises(Unusable, match="the disk is full"):
        await store.get("", "c0")
    database.failure = None
    await until(lambda: not store.trouble)
    assert await store.get("", "c0") is not None


async def test_full_means_refuse_only_where_it_says_so(make_store: MakeStore) -> None:
    for policy, expected in (("refuse", "the store's queue is full"), ("block", "")):
        database = Memory()
        database.gate.clear()
        store = make_store(database, queue=1, full=policy)
        await store.open()
        assert store.refuses == ""
        await store.add(capture(0))
        assert store.refuses == expected
        database.gate.set()
        await store.get("", "c0")
        assert store.refuses == ""


async def test_what_cannot_be_written_at_the_end_is_told(
    make_store: MakeStore,
    metrics: StoreMetrics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "HURRY_SECONDS", 0.05)
    database = Memory()
    store = make_store(database)
    await store.open()
    database.failure = Unusable("the disk is full")
    for number in range(7):
        await store.add(capture(number))
    await store.close()
    assert "7 completions could not be stored and are lost" in caplog.text
    assert value(metrics, "dropped_total") == 7
    assert await store.add(capture(8)) == "the store is closed"


async def test_without_a_spool_rows_wait_in_memory(
    make_store: MakeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    database = Memory()
    store = make_store(database, url=URL, spool=str(tmp_path / "file" / "spool.db"))
    await store.open()
    assert [each.message.partition(":")[0] for each in caplog.records] == ["no spool"]
    database.failure = Unavailable("gone")
    assert await store.add(capture(0)) == ""
    await until(lambda: store.trouble == "gone")
    database.failure = None
    await until(lambda: not store.trouble)
    assert await store.get("", "c0") is not None


async def test_what_is_left_at_the_end_goes_to_the_spool(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "HURRY_SECONDS", 0.05)
    database = Memory()
    database.gate.clear()
    first = make_store(database, url=URL)
    await first.open()
    for number in range(600):
        await first.add(capture(number))
    hurry = asyncio.Event()
    hurry.set()
    await asyncio.wait_for(first.close(hurry), 60)
    database.gate.set()
    second = make_store(database, url=URL)
    await second.open()
    assert {each.id for each in await second.find(EVERYTHING)} == set(names(0, 600))


async def test_a_store_for_commands_has_no_spool(tmp_path: Path) -> None:
    kept = open_store(config.Store(url=URL, spool=str(tmp_path / "spool.db")))
    await kept.open()
    assert kept.trouble
    with pytest.raises(Unavailable):
        await kept.find(EVERYTHING)
    await kept.close()
    assert not (tmp_path / "spool.db").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("env:NOT_THERE_AT_ALL", "store.url: the variable NOT_THERE_AT_ALL is not set"),
        ("file:/not/there", "store.url: cannot read /not/there"),
    ],
)
def test_a_url_that_is_not_there_is_told(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        open_store(config.Store(url=url))
