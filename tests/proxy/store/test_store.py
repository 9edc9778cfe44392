"""The store as the proxy sees it, on real SQLite files and a database that does as it is told."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import json, structs

from tests.fakes.database import Memory, capture, row
from tests.proxy.store.conftest import Connect, names, until, value
from wellspoken.proxy import config
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store import completions, failover, queue
from wellspoken.proxy.store.completions import CompletionStore, open_store
from wellspoken.proxy.store.database import Database, Unavailable, Unreadable, Unusable
from wellspoken.proxy.store.queue import FAILS
from wellspoken.proxy.store.retention import Retention
from wellspoken.proxy.store.rows import Position, Query
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

Make = Callable[..., CompletionStore]
EVERYTHING = Query(owner=None, limit=10_000)
URL = "postgresql://me:canary@127.0.0.1:1/nowhere"


@pytest.fixture
async def make(
    tmp_path: Path, metrics: StoreMetrics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Make]:
    """Make a store, on a SQLite file unless a database is given; keys are those of [store]."""
    for module in (failover, completions, queue):
        monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    made = []

    def start(database: Database | None = None, **keys: Any) -> CompletionStore:
        if "url" in keys:
            keys.setdefault("spool", str(tmp_path / "spool.db"))
        else:
            keys.setdefault("path", str(tmp_path / "store.db"))
        log = logging.getLogger("wellspoken")
        made.append(CompletionStore(config.Store(**keys), metrics, log, database=database))
        return made[-1]

    yield start
    for each in made:
        await each.close()


async def test_what_was_added_is_found_at_once(make: Make) -> None:
    store = make()
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


async def test_it_may_be_used_before_it_is_open(make: Make) -> None:
    store = make()
    store.start()
    assert await store.add(capture(0)) == ""
    assert await store.get("", "c0") is not None


async def test_a_stop_loses_nothing_of_ten_thousand(make: Make, tmp_path: Path) -> None:
    store = make()
    await store.open()
    for number in range(10_000):
        assert await store.add(capture(number)) == ""
    await store.close()
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("SELECT count(*) FROM completion").fetchone() == (10_000,)
    db.close()


async def test_rows_are_imported_past_the_queue(make: Make) -> None:
    store = make()
    await store.open()
    await store.insert([row(number, size=4000) for number in range(3)])
    found = await store.find(EVERYTHING)
    assert [(each.id, each.answer) for each in found] == [
        (each.id, each.answer) for each in (row(number, size=4000) for number in range(3))
    ]


async def test_an_answer_of_64_mb_comes_back(make: Make, connect: Connect) -> None:
    """As large as `limits.response` lets one be, and hardly made smaller by packing."""
    given = capture(0)
    text = os.urandom(32 << 20).hex().encode()
    given = structs.replace(given, answer=given.answer.replace(b'"text": "', b'"text": "' + text))
    store = make(connect())
    await store.open()
    assert await store.add(given) == ""
    found = await store.get("", "c0")
    assert found is not None and found.answer == given.answer and len(found.answer) > 64 << 20


async def test_what_lies_in_a_bucket_or_directory_of_old_is_told_and_never_lost(
    make: Make, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A database of a version that had store.large_to: the other rows can be read as ever."""
    database = SqliteDatabase(path)
    await database.open()
    old = structs.replace(row(0), answer=b"@ab/0123456789abcdef0123456789abcdef-0123456789abcdef")
    await database.insert([old, row(1)])
    await database.close()
    store = make()
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


async def test_what_is_too_old_goes(make: Make) -> None:
    before = make()
    await before.open()
    await before.add(capture(0))  # of 2023
    await before.close()
    store = make(max_age=3600.0)
    await store.open()
    for _ in range(500):
        if not await store.find(EVERYTHING):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it is still there")


def corrupt(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


def newer(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA application_id = 0x77656c6c")
        db.execute("PRAGMA user_version = 999")
    db.close()


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("spoil", [corrupt, newer, folder])
async def test_a_file_that_cannot_be_used_is_one_line_and_no_end(
    make: Make,
    tmp_path: Path,
    metrics: StoreMetrics,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    path = tmp_path / "store.db"
    spoil(path)
    store = make()
    await store.open()
    assert str(path) in store.trouble
    assert await store.add(capture(0)) == FAILS
    for call in (store.get("", "c0"), store.find(EVERYTHING), store.insert([row(0)])):
        with pytest.raises(Unusable):
            await call
    await asyncio.sleep(0.1)  # it is tried again, and not told again
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert caplog.records[0].message.startswith("nothing is stored: ")
    assert "\n" not in caplog.records[0].message
    assert value(metrics, "dropped_total") == 1
    path.rmdir() if spoil is folder else path.unlink()
    await until(lambda: not store.trouble)
    assert await store.add(capture(1)) == ""
    assert await store.get("", "c1") is not None


async def test_a_file_that_another_process_holds_is_waited_for(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    database = Memory()
    database.failure = Unavailable("locked by another process")
    store = make(database)
    await store.open()
    assert store.trouble == "locked by another process"
    assert await store.add(capture(0)) == ""
    with pytest.raises(Unavailable, match="locked"):
        await store.get("", "c0")
    database.failure = None
    await until(lambda: not store.trouble)
    assert await store.get("", "c0") is not None
    assert "what is to be stored waits" in caplog.text


async def test_a_full_disk_is_trouble_until_there_is_room(make: Make) -> None:
    database = Memory()
    store = make(database)
    await store.open()
    database.failure = Unusable("the disk is full")
    await store.add(capture(0))
    await until(lambda: store.trouble == "the disk is full")
    with pytest.raises(Unusable, match="the disk is full"):
        await store.get("", "c0")
    database.failure = None
    await until(lambda: not store.trouble)
    assert await store.get("", "c0") is not None


async def test_full_means_refuse_only_where_it_says_so(make: Make) -> None:
    for policy, expected in (("refuse", "the store's queue is full"), ("block", "")):
        database = Memory()
        database.gate.clear()
        store = make(database, queue=1, full=policy)
        await store.open()
        assert store.refuses == ""
        await store.add(capture(0))
        assert store.refuses == expected
        database.gate.set()
        await store.get("", "c0")
        assert store.refuses == ""


async def test_what_cannot_be_written_at_the_end_is_told(
    make: Make,
    metrics: StoreMetrics,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "HURRY_SECONDS", 0.05)
    database = Memory()
    store = make(database)
    await store.open()
    database.failure = Unusable("the disk is full")
    for number in range(7):
        await store.add(capture(number))
    await store.close()
    assert "7 completions could not be stored and are lost" in caplog.text
    assert value(metrics, "dropped_total") == 7
    assert await store.add(capture(8)) == "the store is closed"


async def test_an_unreachable_postgres_is_no_trouble(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """On a port where nobody listens: rows wait in the spool, over a restart too."""
    first = make(url=URL)
    await first.open()
    assert (first.trouble, first.refuses) == ("", "")
    assert first.down
    assert await first.add(capture(0)) == ""
    with pytest.raises(Unavailable):
        await first.get("", "c0")
    await first.close()
    database = Memory()
    second = make(database, url=URL)
    await second.open()
    assert await second.get("", "c0") is not None
    assert len([each for each in caplog.records if "go to the spool" in each.message]) == 1
    assert "canary" not in caplog.text


async def test_a_postgres_that_hangs_at_the_start_holds_nobody_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hangs(Memory):
        async def open(self) -> None:
            await self.gate.wait()

    monkeypatch.setattr(completions, "OPEN_SECONDS", 0.05)
    database = Hangs()
    database.gate.clear()
    kept = make(database, url=URL, durability="commit")
    await asyncio.wait_for(kept.open(), 60)
    assert await asyncio.wait_for(kept.add(capture(0)), 60) == ""
    assert not database.attempts
    database.gate.set()
    await until(lambda: not kept.down)
    assert await kept.get("", "c0") is not None


async def test_without_a_spool_rows_wait_in_memory(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    database = Memory()
    store = make(database, url=URL, spool=str(tmp_path / "file" / "spool.db"))
    await store.open()
    assert [each.message.partition(":")[0] for each in caplog.records] == ["no spool"]
    database.failure = Unavailable("gone")
    assert await store.add(capture(0)) == ""
    await until(lambda: store.trouble == "gone")
    database.failure = None
    await until(lambda: not store.trouble)
    assert await store.get("", "c0") is not None


async def test_what_is_left_at_the_end_goes_to_the_spool(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "HURRY_SECONDS", 0.05)
    database = Memory()
    database.gate.clear()
    first = make(database, url=URL)
    await first.open()
    for number in range(600):
        await first.add(capture(number))
    hurry = asyncio.Event()
    hurry.set()
    await asyncio.wait_for(first.close(hurry), 60)
    database.gate.set()
    second = make(database, url=URL)
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


def test_a_url_is_read_from_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text(URL + "\n")
    monkeypatch.setenv("STORE", URL)
    for text in (URL, "env:STORE", f"file:{tmp_path / 'url'}"):
        assert config.store_url(config.Store(url=text)) == URL


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"path": "a.db", "url": URL}, "path and url exclude each other"),
        ({"path": " "}, "store.path: it is empty"),
        ({"path": URL}, "write url instead of path"),
        ({"url": "mysql://me:canary@h/d"}, "store.url: write postgresql://"),
        ({"url": "me:canary@h/d"}, "store.url: write postgresql://"),
        ({"path": "a.db", "spool": "b.db"}, "store.spool: only PostgreSQL"),
        ({"path": "a.db", "full": "wait"}, "store.full"),
        ({"path": "a.db", "durability": "fsync"}, "store.durability"),
        ({"path": "a.db", "queue": 0}, "store.queue"),
    ],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, Any], says: str) -> None:
    wanted = {"backend": [{"url": "http://localhost"}], "store": keys}
    with pytest.raises(ConfigError, match=says) as caught:
        config.load(None, wanted, {})
    assert "canary" not in str(caught.value)


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


async def test_nobody_waits_for_ever_for_a_database_that_does_not_open(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(Memory):
        async def open(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(completions, "READY_SECONDS", 0.05)
    made = make(Hanging())
    made.start()
    assert await made.add(capture(0)) == ""
    with pytest.raises(Unavailable, match="still being opened"):
        await made.get("", "c0")
    monkeypatch.setattr(completions, "FLUSH_SECONDS", 0.05)


async def test_an_opening_that_fails_in_itself_does_not_stop_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()

    def broken(retention: Retention) -> None:
        raise RuntimeError("what nobody foresaw")

    monkeypatch.setattr(Retention, "start", broken)
    await made.open()
    await made.add(capture(0))
    await made.close()
    with sqlite3.connect(made._config.path or "") as db:
        assert db.execute("SELECT count(*) FROM completion").fetchone() == (1,)
    db.close()


async def test_an_answer_waits_until_the_store_is_open(make: Make) -> None:
    opening, database = asyncio.Event(), Memory()
    opened = database.open

    async def slowly() -> None:
        await opening.wait()
        await opened()

    database.open = slowly  # type: ignore[method-assign]
    store = make(database)
    store.start()
    adding = asyncio.create_task(store.add(capture(0)))
    await asyncio.sleep(0.05)
    assert not adding.done()
    opening.set()
    assert await adding == ""
