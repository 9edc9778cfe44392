"""Responses in the store of completions: kept and continued beside these, on each engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec import json

from tests.fakes.database import Memory, capture, row
from tests.fakes.responses import CREATED, fill_chain, id_of, response, talk, texts
from tests.linear import linear
from tests.proxy.store.conftest import EVERYTHING, URL, Connect, MakeStore, names, value
from tests.waiting import until
from wellspoken.proxy.config.tables import Backend, Config, Server, Store
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.completions import open_store
from wellspoken.proxy.store.database import Unavailable, Unreadable
from wellspoken.proxy.store.database_responses import DatabaseResponses
from wellspoken.proxy.store.kept_responses import (
    KeptResponse,
    ResponseStore,
    find_items,
    is_response,
    owner_of_rows,
    response_of,
)
from wellspoken.proxy.store.memory_responses import MemoryResponses, open_responses
from wellspoken.proxy.store.retention import Retention
from wellspoken.proxy.store.rows import Query

OWNERS = ("", owner_of("a key"))


@pytest.mark.parametrize("owner", OWNERS)
async def test_a_response_comes_back_as_it_was(
    make_store: MakeStore, connect: Connect, owner: str
) -> None:
    store = make_store(connect())
    await store.open()
    responses = DatabaseResponses(store)
    text = 'é \u0000 \ud83d\ude00 "' + "x" * 200_000  # packed, and read in a thread
    first = response(1, owner=owner, metadata={"run": "7"})
    second = response(2, first, owner=owner, text=text)
    for kept in (first, second):
        assert await responses.add(kept) == ""
        assert await responses.get(owner, kept.id) == kept
    assert await responses.get(owner, id_of(3)) is None
    assert await responses.get("another", first.id) is None
    assert not await responses.delete("another", first.id)
    assert await responses.delete(owner, first.id)
    assert not await responses.delete(owner, first.id)
    assert await responses.get(owner, second.id) == second


@pytest.mark.parametrize("owner", OWNERS)
async def test_completions_and_responses_see_nothing_of_each_other(
    make_store: MakeStore, connect: Connect, owner: str
) -> None:
    """Whatever a completion's endpoint asks, with its key's owner, there is no response."""
    store = make_store(connect())
    await store.open()
    responses = DatabaseResponses(store)
    kept = response(1, owner=owner, metadata={"run": "7"})
    await responses.add(kept)
    await store.add(capture(1, owner=owner))
    queries: list[dict[str, Any]] = [{}, {"model": "m"}, {"descending": True}]
    for more in queries:
        found = await store.find(Query(owner=owner, limit=10, **more))
        assert [each.id for each in found] == ["c1"]
    assert await store.find(Query(owner=owner, limit=10, metadata={"run": "7"})) == []
    assert await store.get(owner, kept.id) is None
    assert await store.position(owner, kept.id) is None
    assert await store.set_metadata(owner, kept.id, {"a": "b"}) is None
    assert await store.delete(owner, kept.id) is None
    assert await responses.get(owner, "c1") is None
    assert not await responses.delete(owner, "c1")
    assert await responses.get(owner, kept.id) == kept
    everybodys = await store.find(EVERYTHING)
    assert sorted(each.id for each in everybodys if not is_response(each)) == ["c1"]
    assert [response_of(each) for each in everybodys if is_response(each)] == [kept]


async def test_a_chain_goes_on_in_another_process_without_its_middle(
    make_store: MakeStore, connect: Connect
) -> None:
    store = make_store(connect())
    await store.open()
    last = await fill_chain(DatabaseResponses(store), 5)
    await store.close()
    again = make_store(connect())
    await again.open()
    responses = DatabaseResponses(again)
    for number in (0, 3):
        assert await responses.delete("", id_of(number))
    found = await responses.get("", last.id)
    assert found == last and texts(found) == talk(5)
    assert await responses.add(response(5, found)) == ""
    further = await responses.get("", id_of(5))
    assert further is not None and texts(further) == talk(6)


async def test_what_one_worker_keeps_the_next_continues_at_once(
    make_store: MakeStore, connect: Connect
) -> None:
    """Rows are written some milliseconds after they are added; who reads has them written first."""
    stores = [make_store(connect()) for _ in range(2)]
    for store, other in zip(stores, reversed(stores), strict=True):
        await store.open()
        store.others = other.settle
    previous: KeptResponse | None = None
    for number in range(12):
        here, there = (DatabaseResponses(stores[(number + n) % 2]) for n in range(2))
        assert await here.add(response(number, previous)) == ""
        previous = await there.get("", id_of(number))
        assert previous is not None
    assert previous is not None and texts(previous) == talk(12)


async def test_the_oldest_go_with_the_completions(make_store: MakeStore, connect: Connect) -> None:
    """By age, as the response says when it was made, and by the size of all."""
    database = connect()
    store = make_store(database)
    await store.open()
    last = await fill_chain(DatabaseResponses(store), 8)
    await store.add(capture(0, created=CREATED + 2))
    await store.find(EVERYTHING)
    assert await database.prune(before=CREATED + 3, over=None, limit=100)
    assert [each.created - CREATED for each in await store.find(EVERYTHING)] == [3, 4, 5, 6, 7]
    rows, size = await database.size()
    assert rows == 5
    await Retention(database, max_size=size // 2).round()
    assert (await database.size())[1] <= size // 2
    left = await store.find(EVERYTHING)
    assert left and all(is_response(each) for each in left)
    found = await DatabaseResponses(store).get("", last.id)
    assert found == last and texts(found) == talk(8)


async def test_an_outage_loses_no_response(
    make_store: MakeStore, metrics: StoreMetrics, tmp_path: Path
) -> None:
    """They wait in the spool with the completions, and are replayed in order."""
    database = Memory()
    store = make_store(database, url=URL, spool=str(tmp_path / "spool.db"))
    await store.open()
    responses = DatabaseResponses(store)
    last = await fill_chain(responses, 3)
    database.failure = Unavailable("PostgreSQL cannot be reached")
    assert await responses.add(response(3, last)) == ""
    await store.add(capture(0))
    await until(lambda: value(metrics, "rows", place="spool") == 2)
    with pytest.raises(Unavailable):
        await responses.get("", last.id)
    database.failure = None
    await until(lambda: not store.down)
    found = await responses.get("", id_of(3))
    assert found is not None and texts(found) == talk(4)
    assert [id for owner, id in database.rows if owner == ""] == names(0, 1)
    assert value(metrics, "dropped_total") == 0


async def test_what_is_no_json_is_left_out_alone(
    make_store: MakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store()
    await store.open()
    responses = DatabaseResponses(store)
    good, bad = response(1), response(2)
    bad = KeptResponse(bad.id, "", "req_bad", 0, "m", b"{", bad.input)
    for kept in (bad, good):
        assert await responses.add(kept) == ""
    assert await responses.get("", good.id) == good
    assert await responses.get("", bad.id) is None
    assert "req_bad: its answer cannot be stored" in caplog.text


async def test_a_full_queue_refuses_responses_as_completions(make_store: MakeStore) -> None:
    database = Memory()
    database.gate.clear()
    store = make_store(database, full="refuse", queue=1, block=0.0)
    await store.open()
    responses = open_responses(Config(backend=(Backend(url="http://127.0.0.1:1"),)), store)
    assert isinstance(responses, DatabaseResponses)
    assert responses.refuses == responses.why_not_kept == ""
    assert await responses.add(response(1)) == ""
    assert responses.refuses == "the store's queue is full"
    assert await responses.add(response(2)) == "the store's queue is full"
    database.gate.set()
    assert await responses.get("", id_of(1)) == response(1)


async def test_several_workers_share_a_store(make_store: MakeStore) -> None:
    several = Config(backend=(Backend(url="http://127.0.0.1:1"),), server=Server(workers=8))
    assert isinstance(open_responses(several, make_store()), DatabaseResponses)


async def test_the_row_of_something_else_is_told(make_store: MakeStore) -> None:
    store = make_store()
    await store.open()
    other = row(1, owner=owner_of_rows(""))
    await store.insert([other])
    with pytest.raises(Unreadable, match="the parameters of c1 cannot be read"):
        await DatabaseResponses(store).get("", "c1")


def test_no_key_is_the_owner_of_what_responses_are_stored_under() -> None:
    assert {owner_of_rows("").strip("0123456789abcdef")} != {""}
    assert all(not is_response(capture(0, owner=owner).make_row()) for owner in OWNERS)
    assert all(is_response(response(0, owner=owner).make_row()) for owner in OWNERS)


def test_items_are_found_in_the_response_whose_own_they_are() -> None:
    kept = response(1, response(0))
    own = ["msg_user_1", "msg_assistant_1"]
    found = find_items(kept, [*own, "msg_user_0", "msg_user_2"])
    assert list(found) == own
    assert [json.decode(item)["id"] for item in found.values()] == own


@pytest.mark.parametrize("kind", ["database", "memory"])
def test_a_turn_costs_what_its_context_does(kind: str, tmp_path: Path) -> None:
    """Turn 200 of a chain against turn 50: read, continued and kept again, a hundred times."""
    chains = {
        turns: asyncio.run(fill_chain(MemoryResponses(), turns, text="some words " * 200))
        for turns in (50, 200)
    }

    async def take_turns(store: ResponseStore, kept: KeptResponse) -> None:
        await store.add(kept)
        for number in range(1000, 1100):
            previous = await store.get("", kept.id)
            assert previous is not None
            assert await store.add(response(number, previous)) == ""
            assert await store.delete("", id_of(number))

    async def run(turns: int) -> None:
        if kind == "memory":
            await take_turns(MemoryResponses(), chains[turns])
            return
        store = open_store(Store(path=str(tmp_path / f"{turns}.db")))
        await store.open()
        try:
            await take_turns(DatabaseResponses(store), chains[turns])
        finally:
            await store.close()

    linear(lambda turns: asyncio.run(run(turns)), 50)
