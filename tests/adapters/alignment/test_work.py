"""Entries that do not tile a text take work that grows with its size alone, and all are kept.

What is counted is states, which no machine's speed changes. Mutants: a budget of 400,000 states
whatever the size is (119 KB took 2.9 s), and `find_begins` that looks at every row each time.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from tests.answers import Json, bare, choice, completion, entry, lp, scored
from tests.replay import body
from wellspoken.adapters.stages import tiling

WORDS = "the quick brown fox jumps over a lazy dog and then it was 😀 é 世界".split()
MOST = 50_000  # states of an answer of 12 KB

Answer = tuple[str, list[Json]]


def words(count: int) -> list[str]:
    drawn = random.Random(1)
    return [f" {drawn.choice(WORDS)}" for _ in range(count)]


def shuffle(count: int) -> list[str]:
    found = words(count)
    random.Random(7).shuffle(found)
    return found


def answers(count: int) -> dict[str, Answer]:
    """Return answers of `count` entries each, none of which spells its text."""
    given, mixed = words(count), shuffle(count)
    text = "".join(given)
    alternatives = [("a" * n, -1.0) for n in range(1, 6)]
    control = ("<think>", *mixed[1:6], "</think>")
    return {
        "one token": ("a" * count + "b", [bare("a")] * count),
        "alike tokens": ("a" * 2 * count + "b", [bare("a" * (n % 4 + 1)) for n in range(count)]),
        "shuffled": (text, list(map(bare, mixed))),
        "known bytes": (text, [bare(x, bytes=list(x.encode())) for x in mixed]),
        "wrong": (text, [bare(f" w{n}") for n in range(count)]),
        "U+FFFD": ("é" * count + "x", [bare("\ufffd")] * count),
        "U+FFFD and text": ("é" * count, [bare("\ufffd"), bare("é")] * (count // 2)),
        "no text": ("é" * count + "x", [*[bare("")] * (count - 1), bare("y")]),
        "text now and then": (text, [bare(x if n % 2 else "") for n, x in enumerate(given)]),
        "alternatives": ("a" * 3 * count, [entry("zz", top=alternatives) for _ in range(count)]),
        "byte tokens": (text, [bare(f"<0x{ord(x[1]) % 256:02X}>") for x in mixed]),
        "raw spelling": (text, [bare(f"Ġ{x.strip()}") for x in mixed]),
        "token ids": (text, [bare(f"token_id:{n}") for n in range(count)]),
        "control tokens": (text, [bare((control * count)[n]) for n in range(count)]),
        "pairs": ("ab" * count, [bare("a"), bare("x")] * (count // 2)),
    }


def translate_answer(text: str, entries: list[Json]) -> list[Json]:
    """Return the entries that the client gets."""
    given = completion(choice(text, logprobs=lp(*entries)))
    outcome = body(scored(5), 200, "application/json", json.dumps(given).encode())
    said = json.loads(outcome.body)["choices"][0]
    assert said["message"]["content"] == text
    found: list[Json] = said["logprobs"]["content"]
    return found


@pytest.fixture
def count_states(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], int]:
    """Return what counts the states of an answer whose entries are all kept."""
    stages: list[tiling.TilingStage] = []
    begin = tiling.TilingStage._end

    def end(stage: tiling.TilingStage, *given: object) -> None:
        stages.append(stage)
        begin(stage, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(tiling.TilingStage, "_end", end)

    def count(answer: Answer) -> int:
        stages.clear()
        translate_answer(*answer)
        (stage,) = stages
        return stage.granted - stage.budget.left

    return count


@pytest.mark.parametrize("name", answers(2))
def test_states_grow_with_the_size_alone(name: str, count_states: Callable[[Answer], int]) -> None:
    for count in (40, 80, 160):  # the last one is about 12 KB
        text, entries = answer = answers(count)[name]
        size = len(text.encode()) + len(entries)
        # The last step before the end may look at some more than are left.
        assert count_states(answer) <= tiling.FLOOR + (tiling.EACH + 1) * size
    assert count_states(answer) < MOST


@pytest.mark.parametrize("name", ["shuffled", "wrong", "one token", "no text", "raw spelling"])
def test_no_number_is_lost(name: str) -> None:
    text, entries = answers(160)[name]
    given = [{**each, "logprob": -n / 100} for n, each in enumerate(entries)]
    said = translate_answer(text, given)
    assert [row["logprob"] for row in said] == [row["logprob"] for row in given]
