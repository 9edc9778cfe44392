"""Responses in memory: their bounds, their ends, whose they are, and what a chain of them takes."""

from __future__ import annotations

import asyncio
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec import json
from msgspec.structs import replace

from tests.documents import ROOT
from tests.examples import examples
from tests.fakes.responses import fill_chain, id_of, response, talk, texts
from wellspoken.proxy.config.tables import Backend, Config, Server
from wellspoken.proxy.store.kept_responses import KeptResponse, context_of
from wellspoken.proxy.store.memory_responses import (
    BYTES,
    COUNT,
    SECONDS,
    TOO_LARGE,
    UNSHARED,
    MemoryResponses,
    UnsharedResponses,
    open_responses,
)

BIG = 300_000
"""Bytes of a text whose response is read in a thread."""


@dataclass
class Clock:
    """A clock that tests move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


async def test_what_was_kept_is_read_and_deleted_once() -> None:
    store = MemoryResponses()
    kept = response(1)
    assert await store.add(kept) == ""
    assert await store.get("", kept.id) == kept
    assert await store.get("", id_of(2)) is None
    assert await store.delete("", kept.id)
    assert not await store.delete("", kept.id)
    assert await store.get("", kept.id) is None
    assert (len(store), store.size) == (0, 0)


async def test_owners_see_their_own_only() -> None:
    store = MemoryResponses()
    ours, theirs = response(1, owner="ann"), response(1, owner="bob", text="secret")
    for kept in (ours, theirs):
        assert await store.add(kept) == ""
    assert await store.get("ann", id_of(1)) == ours
    assert await store.get("", id_of(1)) is None
    assert not await store.delete("eve", id_of(1))
    assert await store.delete("ann", id_of(1))
    assert await store.get("bob", id_of(1)) == theirs


async def test_an_id_that_is_there_stays_as_it_is() -> None:
    store = MemoryResponses()
    first = response(1)
    assert await store.add(first) == ""
    size = store.size
    assert await store.add(response(1, text="another")) == ""
    assert await store.get("", id_of(1)) == first
    assert store.size == size


async def test_the_oldest_go_where_there_are_too_many() -> None:
    store = MemoryResponses(count=3)
    for number in range(5):
        assert await store.add(response(number)) == ""
    assert [await store.get("", id_of(n)) is not None for n in range(5)] == [False] * 2 + [True] * 3


async def test_the_oldest_go_where_they_take_too_much() -> None:
    one = MemoryResponses()
    await one.add(response(0, text="x" * 5000))
    store = MemoryResponses(most=3 * one.size)
    for number in range(5):
        assert await store.add(response(number, text="x" * 5000)) == ""
        assert store.size <= 3 * one.size
    assert [await store.get("", id_of(n)) is not None for n in range(5)] == [False] * 2 + [True] * 3


async def test_what_is_larger_than_all_is_not_kept_and_costs_nobody_else() -> None:
    store = MemoryResponses(most=100_000)
    await store.add(response(0))
    size = store.size
    assert await store.add(response(1, text="x" * 60_000)) == TOO_LARGE
    long = response(2, response(1, text="x" * 60_000))
    assert len(long.history) > 100_000
    assert await store.add(long) == TOO_LARGE
    assert (len(store), store.size) == (1, size)


async def test_each_ends_an_hour_after_it_was_kept() -> None:
    clock = Clock()
    store = MemoryResponses(clock=clock)
    first = await fill_chain(store, 1)
    clock.now += 3_599
    second = response(1, first)
    assert await store.add(second) == ""
    assert await store.get("", first.id) is not None
    clock.now += 1
    assert await store.get("", first.id) is None
    assert await store.get("", second.id) == second
    clock.now += 3_599
    assert not await store.delete("", second.id)
    assert (len(store), store.size) == (0, 0)


async def test_a_chain_takes_what_was_said_and_nothing_twice() -> None:
    """200 responses whose histories, each by itself, would be 100 times what was said."""
    store = MemoryResponses()
    sizes: list[int] = []
    tracemalloc.start()
    try:
        last = await fill_chain(
            store, 200, text="x" * 2000, after=lambda number: sizes.append(store.size)
        )
        told = len(context_of(last)), len(last.history)
        del last
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert told[0] == 400 and told[1] > 398 * 2000
    growth = [after - before for before, after in pairwise(sizes)]
    assert max(growth) <= 1.02 * growth[1]  # the first adds no turn
    assert held < 1.2 * store.size < 3 * told[1]


async def test_what_is_gone_from_the_middle_is_missed_by_nothing_after_it() -> None:
    store = MemoryResponses()
    last = await fill_chain(store, 9)
    for number in (4, 0, 7):
        assert await store.delete("", id_of(number))
    found = await store.get("", last.id)
    assert found == last
    assert texts(found) == talk(9)
    assert await store.add(response(9, found)) == ""
    again = await store.get("", id_of(9))
    assert again is not None and texts(again) == talk(10)
    for number in range(10):
        await store.delete("", id_of(number))
    assert (len(store), store.size) == (0, 0)


async def test_one_response_is_continued_twice() -> None:
    store = MemoryResponses()
    root = await fill_chain(store, 3)
    sizes = [store.size]
    for number in (10, 20):
        assert await store.add(response(number, root)) == ""
        sizes.append(store.size)
    turn = len(response(99, root).history) - len(root.history) + 255  # and its share of the list
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] - turn
    for number in (10, 20):
        found = await store.get("", id_of(number))
        assert found is not None and texts(found) == [*talk(3), *talk(1, number)]


async def test_a_chain_outlives_its_beginning() -> None:
    """A thousand turns, of which the newest ten are kept: each has its history, and no more is
    held than it takes."""
    store = MemoryResponses(count=10)
    last = await fill_chain(store, 1000)
    assert texts(last) == talk(1000)
    for number in range(990, 999):
        assert await store.delete("", id_of(number))
    assert len(last.history) < store.size
    assert await store.delete("", last.id)
    assert store.size == 0


@pytest.mark.parametrize(
    "history",
    [b"[]", b"[ ]", b'[{"a":1}]', b'[ {"a":1} , {"b":2} ]', b'[{"b":1},{"a":1}]', b'[{"a":1},{}]'],
)
async def test_a_history_that_is_no_kept_one_stays_what_it_is(history: bytes) -> None:
    """As where the response that is continued is gone, or somebody left out an item."""
    store = MemoryResponses()
    first = replace(response(0, output=[]), input=b'[{"a":1}]')
    assert await store.add(first) == ""
    second = replace(response(1, first), history=history)
    assert await store.add(second) == ""
    found = await store.get("", second.id)
    assert found is not None
    assert json.decode(found.history) == json.decode(history)


async def test_what_says_nothing_is_continued_too() -> None:
    store = MemoryResponses()
    empty = replace(response(0, output=[]), input=b"[]")
    assert await store.add(empty) == ""
    assert await store.add(response(1, empty)) == ""
    found = await store.get("", id_of(1))
    assert found is not None and texts(found) == talk(1, 1)


@pytest.mark.parametrize("which", [1, 2])
async def test_what_is_continued_may_go_while_large_ones_are_read(
    monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    """They are read in threads: the new one first, then what it continues."""
    store = MemoryResponses()
    root = await fill_chain(store, 2, text="x" * BIG)
    await store.add(response(10, await store.get("", id_of(0)), text="y" * BIG))
    threaded = asyncio.to_thread
    calls = 0

    async def delete_meanwhile(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == which:
            await store.delete("", root.id)
        return await threaded(*arguments)

    monkeypatch.setattr(asyncio, "to_thread", delete_meanwhile)
    assert await store.add(response(12, root, text="y" * BIG)) == ""
    assert calls == which
    for number, turns in ((10, 1), (12, 2)):
        found = await store.get("", id_of(number))
        assert found is not None
        assert texts(found) == ["x" * BIG] * 2 * turns + ["y" * BIG] * 2
        await store.delete("", found.id)
    await store.delete("", id_of(0))
    assert store.size == 0


async def test_two_continue_a_large_one_at_once() -> None:
    store = MemoryResponses()
    root = await fill_chain(store, 2, text="x" * BIG)
    await asyncio.gather(*(store.add(response(n, root, text="y" * BIG)) for n in (10, 11)))
    assert store.size < 2.2 * (4 * BIG) + 4 * BIG  # what was said before is there once
    for number in (10, 11):
        found = await store.get("", id_of(number))
        assert found is not None
        assert texts(found) == ["x" * BIG] * 4 + ["y" * BIG] * 2
        await store.delete("", found.id)
    for number in (0, 1):
        await store.delete("", id_of(number))
    assert store.size == 0


async def test_several_workers_without_a_store_keep_nothing_and_say_why() -> None:
    backend = (Backend(url="http://127.0.0.1:1"),)
    several = Config(backend=backend, server=Server(workers=2))
    store = open_responses(several, None)
    assert isinstance(store, UnsharedResponses)
    assert await store.add(response(0)) == store.why_not_kept == UNSHARED
    assert await store.get("", id_of(0)) is None
    assert not await store.delete("", id_of(0))
    alone = open_responses(Config(backend=backend), None)
    assert isinstance(alone, MemoryResponses)
    assert alone.why_not_kept == alone.refuses == ""


def test_the_guide_says_the_bounds() -> None:
    guide = (ROOT / "proxy/guides/stored-completions.md").read_text().replace("\n", " ")
    assert SECONDS == 3600 and f"the newest {COUNT:,} of one hour" in guide
    assert f"at most {BYTES >> 20} MiB" in guide


class Model(RuleBasedStateMachine):
    """The store beside a list of whole responses: whatever happens, the same is found in both."""

    COUNT, SECONDS, MOST = 8, 100.0, 40_000

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.store = MemoryResponses(
            count=self.COUNT, seconds=self.SECONDS, most=self.MOST, clock=self.clock
        )
        self.told: list[tuple[float, KeptResponse]] = []
        self.seen: list[KeptResponse] = []  # all that there ever were, which may be continued
        self.number = 0

    @rule(data=st.data(), owner=st.sampled_from(["", "ann"]), size=st.sampled_from([1, 400, 4000]))
    def keep(self, data: st.DataObject, owner: str, size: int) -> None:
        mine = [None, *(each for each in self.seen if each.owner == owner)]
        previous = data.draw(st.sampled_from(mine))
        output: list[Any] | None = data.draw(st.sampled_from([None, []]))
        self.number += 1
        kept = response(self.number, previous, owner=owner, text="x" * size, output=output)
        self.expire()
        problem = asyncio.run(self.store.add(kept))
        if problem:
            assert problem == TOO_LARGE
            assert kept.size > self.MOST / 2
            return
        self.seen.append(kept)
        self.told.append((self.clock.now + self.SECONDS, kept))
        gone = len(self.told) - len(self.store)
        if 0 < gone == len(self.told) - self.COUNT:
            del self.told[:gone]
        elif gone:  # the last that went was needed for the bytes
            freed = 2 * self.told[gone - 1][1].size + 1024 + 256 * self.number
            assert self.store.size + freed > self.MOST
            del self.told[:gone]

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.seen))
        self.expire()
        there = [each for each in self.told if each[1] is chosen]
        assert asyncio.run(self.store.delete(chosen.owner, chosen.id)) == bool(there)
        self.told = [each for each in self.told if each[1] is not chosen]

    @rule(seconds=st.sampled_from([1.0, 30.0, 150.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def expire(self) -> None:
        self.told = [each for each in self.told if each[0] > self.clock.now]

    @invariant()
    def finds_the_same(self) -> None:
        self.expire()
        there = {each.id: each for _, each in self.told}
        for kept in self.seen:
            found = asyncio.run(self.store.get(kept.owner, kept.id))
            assert found == there.get(kept.id)
        assert len(self.store) == len(there) <= self.COUNT
        assert self.store.size <= self.MOST

    def teardown(self) -> None:
        for kept in self.seen:
            asyncio.run(self.store.delete(kept.owner, kept.id))
        assert self.store.size == 0


@pytest.mark.hypothesis
def test_the_store_is_a_list_of_whole_responses() -> None:
    run_state_machine_as_test(
        Model, settings=settings(max_examples=examples(200), stateful_step_count=30)
    )
