"""Calls with the habits of several servers at once: index, ids, names, arguments, what is again."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from tests.answers import Json, ask, chunk, stream_of

NAMES = ("get", "get_weather", "f", "roll_dice")
ASKED = ask(tools=[{"type": "function", "function": {"name": name}} for name in NAMES])
ARGUMENTS = (
    "{}",
    '{"a":1}',
    '{"a": "}{\\"", "b": [1, {"c": "x"}]}',
    '{"city":"Bern"}',
    '{"n": 12}',
)
HABITS = {
    "index": ("right", "zero", "none", "one", "text"),
    "id": ("first", "each", "fresh", "none", "empty"),
    "name": ("first", "each", "null", "pieces"),
    "arguments": ("pieces", "whole", "head", "so far", "object"),
    "last": ("", "blank", "again"),
}
Piece = tuple[str | None, object]
"""A name and arguments."""


def draw_pieces(dice: random.Random, ways: dict[str, str], name: str, text: str) -> list[Piece]:
    """Return a call in pieces."""
    ends = sorted({dice.randint(1, len(text) - 1) for _ in range(dice.randint(0, 3))})
    cut = [text[a:b] for a, b in itertools.pairwise([0, *ends, len(text)])]
    parts: list[object] = ["", *cut]
    if ways["arguments"] == "whole":
        parts = [text]
    elif ways["arguments"] == "object":
        parts = [json.loads(text)]
    elif ways["arguments"] == "head":
        parts = ["", text]
    elif ways["arguments"] == "so far":
        parts = ["", *itertools.accumulate(cut)]
    rest = {"each": name, "null": ""}.get(ways["name"])
    names: list[str | None] = [name, *[rest] * (len(parts) - 1)]
    if ways["name"] == "pieces" and len(name) > 1 and not parts[0]:
        at = dice.randint(1, len(name) - 1)
        names, parts = [name[:at], name[at:], *names[1:]], ["", *parts]
    if ways["last"] and ways["arguments"] != "object":
        parts.append("" if ways["last"] == "blank" else text)
        names.append(name if ways["name"] == "each" else None)
    return list(zip(names, parts, strict=True))


def label(ways: dict[str, str], call: int, at: int, count: itertools.count[int]) -> Json:
    """Return what tells a piece's call: its index and its id."""
    indexes = {"right": call, "zero": 0, "one": call + 1, "text": str(call)}
    ids = {"each": f"c{call}", "fresh": f"x{next(count)}", "empty": ""}
    if at == 0:
        ids["first"] = f"c{call}"
    found = {"index": indexes.get(ways["index"]), "id": ids.get(ways["id"])}
    return {key: value for key, value in found.items() if value is not None}


def is_told(ways: dict[str, str]) -> bool:
    """Say whether a whole call that comes again can be told from one more of the same."""
    named = ways["name"] == "each" and ways["last"] == "again"
    return not (named and (ways["arguments"] == "whole" or ways["id"] == "fresh"))


@pytest.mark.parametrize("begin", range(0, 600, 150))
def test_calls_come_out_as_they_were_made(begin: int) -> None:
    for seed in range(begin, begin + 150):
        dice = random.Random(seed)
        ways = {habit: dice.choice(each) for habit, each in HABITS.items()}
        calls = [(dice.choice(NAMES), dice.choice(ARGUMENTS)) for _ in range(dice.randint(1, 3))]
        size, count = dice.choice((1, 1, 3)), itertools.count()
        if not is_told(ways):
            continue
        items: list[Json] = []
        for n, call in enumerate(calls):
            for at, (name, arguments) in enumerate(draw_pieces(dice, ways, *call)):
                function = {"arguments": arguments} | ({} if name is None else {"name": name})
                items.append(
                    {**label(ways, n, at, count), "type": "function", "function": function}
                )
        groups = [items[at : at + size] for at in range(0, len(items), size)]
        parts = [chunk({"tool_calls": group}) for group in groups]
        said = stream_of(*parts, asked=ASKED, reason="tool_calls")
        found = [(name, json.loads(arguments)) for _, name, arguments in said.calls]
        assert found == [(name, json.loads(text)) for name, text in calls], (seed, ways)
