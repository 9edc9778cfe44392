"""What a server told once: who waits, how long it holds, and answers that come too late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from wellspoken.proxy.upstream import memory
from wellspoken.proxy.upstream.memory import Memory


def one() -> tuple[str, ...]:
    return ("one",)


def two() -> tuple[str, ...]:
    return ("two",)


Ask = Callable[[], Coroutine[None, None, str | None]]


def telling(*answers: str | None) -> tuple[Ask, list[str | None]]:
    """Return what gives these answers in turn, and those that it has given."""
    given: list[str | None] = []

    async def ask() -> str | None:
        given.append(answers[len(given)])
        return given[-1]

    return ask, given


async def test_it_is_asked_once_of_each_server() -> None:
    ask, given = telling("a", "b")
    known = Memory("")
    assert [await known.recall(one, ask) for _ in range(3)] == ["a"] * 3
    assert await known.recall(two, ask) == "b"
    assert given == ["a", "b"]


async def test_many_wait_for_one_asking_and_any_may_leave() -> None:
    """Mutant: not shielded, so that the first that leaves takes the answer with it."""
    go = asyncio.Event()
    asked: list[int] = []

    async def ask() -> str:
        asked.append(1)
        await go.wait()
        return "a"

    known = Memory("")
    waiting = [asyncio.create_task(known.recall(one, ask)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait({waiting[0]})
    go.set()
    assert waiting[0].cancelled()
    assert await asyncio.gather(*waiting[1:]) == ["a", "a"]
    assert asked == [1]


@pytest.mark.parametrize(("again", "soon", "asked"), [(3600.0, 600.0, 1), (3600.0, -1.0, 2)])
async def test_what_was_not_told_is_asked_again_sooner(
    monkeypatch: pytest.MonkeyPatch, again: float, soon: float, asked: int
) -> None:
    """`soon` below 0 stands for the time that it takes. Mutant: as long as what was told."""
    monkeypatch.setattr(memory, "AGAIN", again)
    monkeypatch.setattr(memory, "SOON", soon)
    ask, given = telling(None, "a")
    known = Memory("nothing")
    assert await known.recall(one, ask) == "nothing"
    assert await known.recall(one, ask) == ("nothing" if asked == 1 else "a")
    assert len(given) == asked


async def test_an_asking_that_breaks_off_is_not_repeated_at_once() -> None:
    """Though another server may stand there since. Mutant: it is another, so it is asked."""
    losses = [0]

    async def ask() -> None:
        losses[0] += 1

    known = Memory("nothing")
    for _ in range(3):
        assert await known.recall(lambda: ("one", losses[0]), ask) == "nothing"
    assert losses == [1]
    losses[0] += 1  # it was lost by another request
    assert await known.recall(lambda: ("one", losses[0]), ask) == "nothing"
    assert losses == [3]


async def test_the_late_answer_of_a_server_is_not_the_next_ones() -> None:
    """Mutant: whatever comes is kept."""
    late = asyncio.Event()

    async def ask_one() -> str:
        await late.wait()
        return "old"

    ask_two, _ = telling("new")
    known = Memory("")
    first = asyncio.create_task(known.recall(one, ask_one))
    await asyncio.sleep(0)
    assert await known.recall(two, ask_two) == "new"
    late.set()
    await first
    assert await known.recall(two, ask_two) == "new"
