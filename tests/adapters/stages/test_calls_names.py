"""Contract rule 4: a call's name that comes in pieces, and calls that are no more than a name."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.answers import (
    TWO,
    Json,
    Said,
    ask,
    body,
    choice,
    chunk,
    completion,
    data,
    end,
    message,
    role,
    stream,
)
from tests.fold import payloads
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator

OFFERED = ("get_weather", "get_weather_now", "get", "weather", "bye_bye")
ASKED = ask(tools=[{"type": "function", "function": {"name": name}} for name in OFFERED])
NOTED = "tool_call_name_in_pieces"

Called = list[tuple[str, Any]]


def item(name: str | None, arguments: str | None = None, **more: Any) -> Json:
    """Return a piece of a call, with those keys alone that are given."""
    function = {"name": name, "arguments": arguments}
    return {**more, "function": {key: x for key, x in function.items() if x is not None}}


def streamed(*lists: list[Json], request: Json = ASKED, reason: str = "tool_calls") -> Said:
    """Return what the calls of these deltas come out as."""
    parts = [chunk({"tool_calls": items}) for items in lists]
    return stream([role(), *parts, end(reason)], request)


def called(said: Said) -> Called:
    """Return the calls that the client got, the arguments read."""
    return [(name, json.loads(arguments)) for _, name, arguments in said.calls]


PIECES = {
    "two": ["edit_ex", "isting_file"],
    "by letters": list("get_weather"),
    "the last is a tool of its own": ["get_", "weather"],
    "the first is a tool of its own": ["get", "_weather"],
    "one after the other alike": ["bye_", "bye"],
    "as far as it is known": ["get_", "get_weather"],
    "as far as it is known, thrice": ["ge", "get_wea", "get_weather"],
}


@pytest.mark.parametrize("more", [{}, {"index": 0}, {"index": 0, "id": "a"}, {"id": "a"}])
@pytest.mark.parametrize("name", PIECES)
def test_a_name_in_pieces_is_one_call(name: str, more: Json) -> None:
    """Continue PR #5849; the mutant that takes another name for another call makes several."""
    pieces = PIECES[name]
    asked = ask(
        tools=[*ASKED["tools"], {"type": "function", "function": {"name": "edit_existing_file"}}]
    )
    whole = pieces[-1] if pieces[-1].startswith(pieces[0]) else "".join(pieces)
    names = [[item(x, "", **more)] for x in pieces]
    arguments = [[item(None, x, **{**more, "id": None})] for x in ('{"a"', ":1}")]
    for lists in (
        [*names, *arguments],
        [*names[:-1], [item(pieces[-1], '{"a":1}', **more)]],
        [*names[:-1], [item(None, "", **more)], names[-1], *arguments],
        [list(itertools.chain(*names, *arguments))],
    ):
        said = streamed(*lists, request=asked)
        assert called(said) == [(whole, {"a": 1})]
        assert said.repairs[NOTED] == len(pieces) - 1
    assert called(streamed(*names, request=asked)) == [(whole, {})]


def test_the_arguments_may_begin_before_the_name_is_whole() -> None:
    lists = [[item("get_wea", '{"a"', index=0)], [item("ther", ":1}", index=0)]]
    assert called(streamed(*lists)) == [("get_weather", {"a": 1})]


def test_a_name_that_goes_on_from_the_one_before_it() -> None:
    """The mutant that joins what is not opened alone calls `_weather`."""
    for more in ({}, {"index": 0}):
        pieces = [item("get", '{"a":1}', **more), item("get", "", **more)]
        pieces += [item("_weather", "", **more), item(None, '{"b":1}', **more)]
        said = streamed(*[[x] for x in pieces])
        assert called(said) == [("get", {"a": 1}), ("get_weather", {"b": 1})]


def test_what_no_offered_tools_name_begins_with_is_two_names() -> None:
    """The mutant that joins whatever is not offered has one call."""
    for first, second in (("get_", "time"), ("weather", "get_weather"), ("get", "weather")):
        for more in ({}, {"index": 0}):
            said = streamed([item(first, "", **more)], [item(second, "{}", **more)])
            assert [name for name, _ in called(said)] == [first, second]
            assert NOTED not in said.repairs
    said = streamed([item("get", '{"a":1}')], [item("_weather", '{"a":2}')])
    assert [name for name, _ in called(said)] == ["get", "_weather"]


def test_a_name_that_more_may_follow_is_written_when_something_else_comes() -> None:
    """The mutant that waits for the end has no arguments in time; that of no wait, two calls."""
    head = {"index": 0, "id": "a", "type": "function"}
    opening = data(chunk({"tool_calls": [item("get", "", **head)]}))
    more = data(chunk({"tool_calls": [item(None, '{"a":1}', index=0)]}))
    translator = StreamTranslator(exchange({**ASKED, "stream": True}))
    opened = translator.feed(data(role()) + opening)
    assert b"get" not in opened
    told = list(payloads(translator.feed(more)))
    deltas = [json.loads(x)["choices"][0]["delta"] for x in told]
    assert [x["tool_calls"][0]["function"] for x in deltas if "tool_calls" in x] == [
        {"name": "get", "arguments": ""},
        {"arguments": '{"a":1}'},
    ]
    assert told[-1] == more[6:-2]  # as it came
    for last in ([item("weather", "{}", index=1)], [item("get", "{}", index=1)]):
        said = streamed([item("get", "", index=0)], last)
        assert [name for name, _ in called(said)] == ["get", last[0]["function"]["name"]]


@pytest.mark.parametrize("reason", ["tool_calls", "stop", "length"])
def test_a_name_is_whole_at_the_end(reason: str) -> None:
    said = streamed([item("get", "", index=0, id="a")], reason=reason)
    assert [x["function"]["name"] for x in said.message["tool_calls"]] == ["get"]
    cut = stream([role(), chunk({"tool_calls": [item("get_wea", "", index=0, id="a")]})], ASKED)
    assert [x["function"]["name"] for x in cut.message["tool_calls"]] == ["get_wea"]


def test_a_name_goes_on_behind_a_reason_on_every_chunk() -> None:
    items = [item("get_", "", index=0), item("weather", "", index=0), item(None, "{}", index=0)]
    parts = [chunk({"tool_calls": [x]}, "tool_calls") for x in items]
    assert called(stream([role(), *parts], ASKED)) == [("get_weather", {})]
    assert called(stream([role(), *parts[:1]], ASKED)) == [("get_", {})]


def test_a_function_calls_name_in_pieces() -> None:
    asked = ask(functions=[{"name": "get_weather"}])
    parts = [{"name": "get_"}, {"name": "weather"}, {"arguments": "{}"}]
    said = stream([role(), *[chunk({"function_call": x}) for x in parts], end("stop")], asked)
    assert said.message["function_call"] == {"name": "get_weather", "arguments": "{}"}


@pytest.mark.parametrize("more", [{}, {"arguments": ""}, {"type": "function"}, {"id": None}])
def test_calls_of_one_list_that_say_a_name_alone(more: Json) -> None:
    """A body has two as well; the mutant that asks for arguments or an id has one."""
    alone = {**item("f", more.get("arguments")), **more}
    alone.pop("arguments", None)
    said = streamed([alone, alone], request=TWO)
    assert called(said) == [("f", {})] * 2
    told = message(None, tool_calls=[alone, alone])
    assert called(body(completion(choice(message=told)), TWO)) == [("f", {})] * 2
    other = streamed([{**alone, "id": "a"}, {**alone, "id": "b"}], request=TWO)
    assert [x["id"] for x in other.message["tool_calls"]] == ["a", "b"]


def test_calls_that_say_a_name_alone_one_after_the_other() -> None:
    """Two names are two; one name again is the same call (TensorRT-LLM's last blank piece)."""
    f, g = [item("f")], [item("g")]
    for lists, wanted in [([f, g], "fg"), ([f, f], "f"), ([f, g, f], "fgf"), ([[*f, *g]], "fg")]:
        said = streamed(*lists, request=TWO)
        assert called(said) == [(name, {}) for name in wanted]
    with_id = [item("f", "", id="a")]
    assert called(streamed([*with_id, *with_id], request=TWO)) == [("f", {})]
