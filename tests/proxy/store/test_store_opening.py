"""A store before it is open, one that opens late, and one that cannot be opened."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fakes.database import Memory, capture, row
from tests.proxy.store.conftest import EVERYTHING, URL, MakeStore, value
from tests.waiting import until
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store import completions
from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.queue import FAILS
from wellspoken.proxy.store.retention import Retention
from wellspoken.proxy.store.sqlite.file import SqliteDatabase


async def test_it_may_be_used_before_it_is_open(make_store: MakeStore) -> None:
    store = make_store()
    store.start()
    assert await store.add(capture(0)) == ""
    assert await store.get("", "c0") is not None


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
    make_store: MakeStore,
    tmp_path: Path,
    metrics: StoreMetrics,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path], None],
) -> None:
    path = tmp_path / "store.db"
    spoil(path)
    store = make_store()
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
    make_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    database = Memory()
    database.failure = Unavailable("locked by another process")
    store = make_store(database)
    await store.open()
    assert store.trouble == "locked by another process"
    assert await store.add(capture(0)) == ""
    with pytest.raises(Unavailable, match="locked"):
        await store.get("", "c0")
    database.failure = None
    await until(lambda: not store.trouble)
    assert await store.get("", "c0") is not None
    assert "what is to be stored waits" in caplog.text


async def test_an_unreachable_postgres_is_no_trouble(
    make_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    """On a port where nobody listens: rows wait in the spool, over a restart too."""
    first = make_store(url=URL)
    await first.open()
    assert (first.trouble, first.refuses) == ("", "")
    assert first.down
    assert await first.add(capture(0)) == ""
    with pytest.raises(Unavailable):
        await first.get("", "c0")
    await first.close()
    database = Memory()
    second = make_store(database, url=URL)
    await second.open()
    assert await second.get("", "c0") is not None
    assert len([each for each in caplog.records if "go to the spool" in each.message]) == 1
    assert "canary" not in caplog.text


async def test_a_postgres_that_hangs_at_the_start_holds_nobody_up(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hangs(Memory):
        async def open(self) -> None:
            await self.gate.wait()

    monkeypatch.setattr(completions, "OPEN_SECONDS", 0.05)
    database = Hangs()
    database.gate.clear()
    kept = make_store(database, url=URL, durability="commit")
    await asyncio.wait_for(kept.open(), 60)
    assert await asyncio.wait_for(kept.add(capture(0)), 60) == ""
    assert not database.attempts
    database.gate.set()
    await until(lambda: not kept.down)
    assert await kept.get("", "c0") is not None


async def test_nobody_waits_for_ever_for_a_database_that_does_not_open(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hanging(Memory):
        async def open(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(completions, "READY_SECONDS", 0.05)
    made = make_store(Hanging())
    made.start()
    assert await made.add(capture(0)) == ""
    with pytest.raises(Unavailable, match="still being opened"):
        await made.get("", "c0")
    monkeypatch.setattr(completions, "FLUSH_SECONDS", 0.05)


async def test_an_opening_that_fails_in_itself_does_not_stop_the_end(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_store()

    def broken(retention: Retention) -> None:
        raise RuntimeError("what nobody foresaw")

    monkeypatch.setattr(Retention, "start", broken)
    await made.open()
    await made.add(capture(0))
    await made.close()
    with sqlite3.connect(made._config.path or "") as db:
        assert db.execute("SELECT count(*) FROM completion").fetchone() == (1,)
    db.close()


async def test_the_end_waits_for_an_opening_to_let_go(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The thread that opens the file goes on, whatever is cancelled."""
    begun, go_on = threading.Event(), threading.Event()
    prepare = SqliteDatabase._prepare

    def wait_and_prepare(file: SqliteDatabase) -> None:
        begun.set()
        assert go_on.wait(60)
        prepare(file)

    monkeypatch.setattr(SqliteDatabase, "_prepare", wait_and_prepare)
    store = make_store()
    store.start()
    await until(begun.is_set)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    go_on.set()
    await closing
    made = {path.name for path in tmp_path.iterdir()}
    assert "store.db" in made and "store.db-wal" not in made  # the last to close takes it away


async def test_an_answer_waits_until_the_store_is_open(make_store: MakeStore) -> None:
    opening, database = asyncio.Event(), Memory()
    opened = database.open

    async def slowly() -> None:
        await opening.wait()
        await opened()

    database.open = slowly  # type: ignore[method-assign]
    store = make_store(database)
    store.start()
    adding = asyncio.create_task(store.add(capture(0)))
    await asyncio.sleep(0.05)
    assert not adding.done()
    opening.set()
    assert await adding == ""
