"""`parallel_tool_calls: false`: the first call of a choice alone, whatever the backend sends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    TOOL,
    TWO,
    G,
    Json,
    Said,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    end,
    message,
    role,
    say,
    stream,
)
from tests.corpus import fixtures
from tests.fold import comparable, fold
from tests.replay import replay

ONE = TWO | {"parallel_tool_calls": False}
FIRST, SECOND = ("f", '{"a":1}'), ("g", '{"b":2}')


def calls(said: Said) -> list[tuple[str, str]]:
    return [(name, arguments) for _, name, arguments in said.calls]


def piece(index: int | None, **function: Any) -> Json:
    """Return a chunk with a piece of a call; `id` and `name` open it."""
    found: Json = {"index": index} if index is not None else {}
    if "name" in function:
        found |= {"id": function.pop("id", f"call_{function['name']}"), "type": "function"}
    return chunk({"tool_calls": [found | {"function": function}]})


def whole(request: Json, *given: Json, reason: str = "tool_calls") -> Said:
    part = message(None, tool_calls=list(given))
    return body(completion(choice(message=part, finish_reason=reason)), request)


PIECES = {
    "one after the other": [
        piece(0, name="f", arguments=""),
        piece(0, arguments='{"a":1}'),
        piece(1, name="g", arguments='{"b":'),
        piece(1, arguments="2}"),
    ],
    "interleaved": [
        piece(0, name="f", arguments='{"a":'),
        piece(1, name="g", arguments='{"b":'),
        piece(0, arguments="1}"),
        piece(1, arguments="2}"),
    ],
    "without index": [
        piece(None, name="f", arguments='{"a":1}'),
        piece(None, name="g", arguments='{"b":2}'),
    ],
    "at one index": [
        piece(0, name="f", arguments='{"a":1}'),
        piece(0, name="g", arguments='{"b":2}'),
    ],
}


@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("reason", ["tool_calls", "stop", "length"])
def test_only_the_first_of_a_stream_is_kept(pieces: list[Json], reason: str) -> None:
    said = stream([role(), *pieces, end(reason)], ONE)
    assert calls(said) == [FIRST]
    assert said.repairs["tool_calls_parallel"] == 1
    assert said.choice["finish_reason"] == "tool_calls"
    several = stream(
        [role(), *pieces, end()], TWO, waived=["4.index"]
    )  # the checker's own mutant: nothing is dropped
    assert calls(several) == [FIRST, SECOND]
    assert "tool_calls_parallel" not in several.repairs


@pytest.mark.parametrize("wanted", [None, True])
def test_all_are_kept_where_they_may_be(wanted: bool | None) -> None:
    given = [call("f", '{"a":1}', id="call_1"), call("g", '{"b":2}', id="call_2")]
    said = whole(TWO | {"parallel_tool_calls": wanted}, *given)
    assert calls(said) == [FIRST, SECOND]


def test_a_body_is_its_stream() -> None:
    given = [call("f", '{"a":1}', id="call_1"), call("g", '{"b":2}', id="call_2")]
    more = [*given, call("f", "{}", id="call_3")]
    one = whole(ONE, *more)
    parts = [chunk({"tool_calls": [{"index": n, **x}]}) for n, x in enumerate(more)]
    streamed = stream([role(), *parts, end("tool_calls")], ONE)
    assert calls(one) == calls(streamed) == [FIRST]
    assert one.repairs["tool_calls_parallel"] == streamed.repairs["tool_calls_parallel"] == 2


def test_each_choice_has_one() -> None:
    asked = ONE | {"n": 2}
    parts = [
        chunk({"tool_calls": [{"index": n, **call(name, "{}", id=f"{at}{n}")}]}, index=at)
        for n, name in enumerate("fg")
        for at in (0, 1)
    ]
    said = stream([role(), role(1), *parts, end("tool_calls"), end("tool_calls", index=1)], asked)
    found = [[x["function"]["name"] for x in c["message"]["tool_calls"]] for c in choices(said)]
    assert found == [["f"], ["f"]]


def choices(said: Said) -> list[Json]:
    found: list[Json] = said.answer["choices"]
    return found


def test_a_limit_that_cuts_the_only_call_is_a_length() -> None:
    pieces = [role(), say("Hm"), piece(0, name="f", arguments='{"a":')]
    said = stream([*pieces, end("length")], ONE)
    assert said.choice["finish_reason"] == "length"


def test_a_function_call_is_one() -> None:
    """OpenAI's older form has no place for a second; its name would be joined to the first's."""
    functions = [TOOL["function"], G["function"]]
    asked = ask(functions=functions)
    given = [call("f", '{"a":1}', id="call_1"), call("g", '{"b":2}', id="call_2")]
    part = message(None, tool_calls=given)
    one = body(completion(choice(message=part, finish_reason="tool_calls")), asked, waived=WAIVED)
    pieces = PIECES["one after the other"]
    streamed = stream([role(), *pieces, end("tool_calls")], asked, waived=WAIVED)
    for said in (one, streamed):
        assert said.message["function_call"] == {"name": "f", "arguments": '{"a":1}'}
        assert said.choice["finish_reason"] == "function_call"
        assert said.repairs["tool_calls_parallel"] == 1


WAIVED = ("keys", "1.calls", "3.null", "8.content", "types")
"""The checker knows tools alone."""


def test_a_real_llama_cpps_calls() -> None:
    """Three calls although one was wanted (b11549): a body and a stream alike."""
    found = {x.key: replay(x).body for x in fixtures() if "parallel_false" in x.key}
    assert len(found) == 2
    (streamed,) = (fold(data) for key, data in found.items() if key.endswith(".sse"))
    (given,) = (json.loads(data) for key, data in found.items() if key.endswith(".json"))
    assert comparable(streamed) == comparable(given)
    assert len(given["choices"][0]["message"]["tool_calls"]) == 1
    assert given["choices"][0]["finish_reason"] == "tool_calls"
