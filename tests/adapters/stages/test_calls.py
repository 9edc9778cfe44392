"""Contract rule 4: tool calls, whatever their shape, body and stream."""

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
    data,
    end,
    message,
    role,
    say,
    stream,
)
from tests.fold import payloads
from tests.replay import exchange
from wellspoken.adapters.events import End, Fault, Text, ToolDelta
from wellspoken.adapters.stages.tool_calls import ToolCallStage
from wellspoken.adapters.translate import StreamTranslator

ONE = ask(tools=[TOOL])
WANTED = [("call_1", "f", '{"a":1}')]


def whole(*given: Any, request: Json = ONE) -> Said:
    part = message(None, tool_calls=list(given))
    return body(completion(choice(message=part, finish_reason="tool_calls")), request)


def streamed(*deltas: Any, request: Json = ONE, waived: tuple[str, ...] = ()) -> Said:
    """Each delta is the list of calls of one chunk."""
    parts = [chunk({"tool_calls": delta}) for delta in deltas]
    return stream([chunk(message(None)), *parts, end("tool_calls")], request, waived=waived)


def deltas(said: Said) -> list[Json]:
    """Return the deltas as they left, the role's and the end's left out."""
    parts = said.chunks
    found = [part["choices"][0]["delta"] for part in parts]
    return [delta for delta in found if "tool_calls" in delta]


BODIES: dict[str, tuple[Any, dict[str, int]]] = {
    "in order": (call(arguments='{"a":1}'), {}),
    "ollama, tgi: arguments as an object": (
        call(arguments={"a": 1}),
        {"tool_arguments_object": 1},
    ),
    "name and arguments on the call itself": (
        {"id": "call_1", "type": "function", "name": "f", "arguments": '{"a":1}'},
        {"tool_call_flat": 1},
    ),
    "parameters": (
        {"id": "call_1", "type": "function", "function": {"name": "f", "parameters": {"a": 1}}},
        {"tool_arguments_object": 1},
    ),
    "another type": (call(arguments='{"a":1}', type="tool"), {"tool_call_type": 1}),
    "no type": (
        {"id": "call_1", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"tool_call_incomplete": 1},
    ),
    "an index in a body": (call(arguments='{"a":1}', index=0), {"tool_call_index_in_body": 1}),
    "keys nobody knows": (call(arguments='{"a":1}', x=1, y=None), {"extra_field_dropped": 1}),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_call_is_openais(name: str) -> None:
    given, repairs = BODIES[name]
    said = whole(given)
    assert said.calls == WANTED
    assert said.repairs == repairs


def test_an_object_where_the_list_belongs() -> None:
    """TGI 2.0-3.1."""
    part = message(None, tool_calls=call(arguments='{"a":1}'))
    said = body(completion(choice(message=part, finish_reason="tool_calls")), ONE)
    assert said.calls == WANTED
    assert said.repairs == {"tool_calls_object": 1}


@pytest.mark.parametrize("given", ["f()", 3])
def test_what_is_no_call_is_dropped_and_counted(given: Any) -> None:
    said = body(completion(choice(message=message("Hi", tool_calls=given))), ONE)
    assert "tool_calls" not in said.message
    assert said.repairs == {"extra_field_dropped": 1}


def test_an_empty_list_is_omitted() -> None:
    """vLLM 0.4.3-0.11, KoboldCpp."""
    for said in (
        body(completion(choice(message=message("Hi", tool_calls=[])))),
        body(completion(choice(message=message("Hi", tool_calls=[], x=1)))),
        stream([role(), chunk({"content": "Hi", "tool_calls": []}), end()]),
    ):
        assert "tool_calls" not in said.message
        assert said.repairs["tool_calls_empty"] == 1


def test_calls_of_a_body_count_from_0_whatever_they_say() -> None:
    said = whole(call("f", index=4), call("g", index=2, id="call_2"), request=TWO)
    assert [name for _, name, _ in said.calls] == ["f", "g"]
    assert all("index" not in x for x in said.message["tool_calls"])


@pytest.mark.parametrize("given", [None, "", ...])
def test_an_id_that_is_missing_is_made(given: Any) -> None:
    one = call()
    if given is ...:
        del one["id"]
    else:
        one["id"] = given
    for said in (whole(one), streamed([{"index": 0, **one}])):
        assert said.calls == [("call_made00000001", "f", "{}")]
        assert said.repairs["tool_call_id_missing"] == 1


def test_an_id_that_is_a_number_is_text() -> None:
    assert whole(call(id=7)).calls[0][0] == "7"


def test_a_function_call_is_a_call_unless_functions_were_asked_for() -> None:
    part = message(None, function_call={"name": "f", "arguments": '{"a":1}'})
    given = completion(choice(message=part, finish_reason="function_call"))
    said = body(given, ONE)
    assert said.calls == [("call_made00000001", "f", '{"a":1}')]
    assert said.choice["finish_reason"] == "tool_calls"
    assert said.repairs["function_call_renamed"] == 1
    asked = body(given, ask(functions=[{"name": "f"}]))
    assert asked.message["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert asked.choice["finish_reason"] == "function_call"
    assert "function_call_renamed" not in asked.repairs


def test_a_function_call_with_an_object_and_unknown_keys() -> None:
    part = message(None, function_call={"name": "f", "arguments": {"a": 1}}, x=1)
    said = body(completion(choice(message=part, finish_reason="function_call")), ONE)
    assert [x[1:] for x in said.calls] == [("f", '{"a":1}')]
    assert said.repairs["tool_arguments_object"] == said.repairs["function_call_renamed"] == 1
    asked = body(
        completion(choice(message=part, finish_reason="function_call")),
        ask(functions=[{"name": "f"}]),
    )
    assert asked.message["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert "function_call_renamed" not in asked.repairs


@pytest.mark.parametrize("more", [{}, {"x": 1}], ids=["strict", "tolerant"])
@pytest.mark.parametrize("none", [None, "", " "])
def test_no_arguments_are_an_empty_object(none: str | None, more: Json) -> None:
    said = whole(call(arguments=none, **more))
    assert [(name, json.loads(given)) for _, name, given in said.calls] == [("f", {})]
    assert said.repairs["tool_arguments_empty"] == 1


def test_a_streamed_function_call() -> None:
    parts = [
        chunk({**message(None), "function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"arguments": '{"a"'}}),
        chunk({"function_call": {"arguments": ":1}"}}),
        end("function_call"),
    ]
    said = stream(parts, ask(functions=[{"name": "f"}]))
    assert said.message["function_call"] == {"name": "f", "arguments": '{"a":1}'}
    assert said.choice["finish_reason"] == "function_call"
    renamed = stream(parts, ONE)
    assert [x[1:] for x in renamed.calls] == [("f", '{"a":1}')]
    assert renamed.choice["finish_reason"] == "tool_calls"


HEAD = {"index": 0, **call(arguments="")}
PIECES: dict[str, tuple[list[Any], dict[str, int]]] = {
    "in order": (
        [
            [HEAD],
            [{"index": 0, "function": {"arguments": '{"a"'}}],
            [{"index": 0, "function": {"arguments": ":1}"}}],
        ],
        {},
    ),
    "no index": (
        [[call(arguments="")], [{"function": {"arguments": '{"a":1}'}}]],
        {"tool_call_index_missing": 1},
    ),
    "name and id repeated": (
        [[HEAD], [{"index": 0, **call(arguments='{"a":1}')}]],
        {"tool_call_head_repeated": 1},
    ),
    "name and id repeated, no index": (
        [[call(arguments='{"a"')], [call(arguments=":1}")]],
        {"tool_call_index_missing": 1, "tool_call_head_repeated": 1},
    ),
    "the index begins at 1": (
        [[{**HEAD, "index": 1}], [{"index": 1, "function": {"arguments": '{"a":1}'}}]],
        {"tool_call_index_renumbered": 1},
    ),
    "arguments before the name": (
        [
            [{"index": 0, "id": "call_1", "type": "function", "function": {"arguments": '{"a"'}}],
            [{"index": 0, "function": {"name": "f", "arguments": ":1}"}}],
        ],
        {},
    ),
    "arguments as an object": (
        [[{"index": 0, **call(arguments={"a": 1})}]],
        {"tool_arguments_object": 1},
    ),
    "nulls": (
        [
            [HEAD],
            [{"index": 0, "id": None, "function": {"name": None, "arguments": '{"a":1}'}}],
        ],
        {"tool_call_null": 1},
    ),
    "an empty piece": (
        [
            [HEAD],
            [{"index": 0, "function": {"arguments": ""}}],
            [{"index": 0, "id": "call_1"}],
            [{"index": 0, "function": {"arguments": '{"a":1}'}}],
        ],
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("request_", [ONE, TWO], ids=["one tool", "two tools"])
@pytest.mark.parametrize("name", PIECES)
def test_pieces_of_a_call(name: str, request_: Json) -> None:
    pieces, repairs = PIECES[name]
    said = streamed(*pieces, request=request_)
    assert said.calls == WANTED
    for repair, times in repairs.items():
        assert said.repairs[repair] == times
    heads = [x for delta in deltas(said) for x in delta["tool_calls"] if "id" in x]
    assert len(heads) == 1 and heads[0]["index"] == 0 and heads[0]["type"] == "function"


def test_two_calls_in_one_delta_and_two_without_index() -> None:
    second = call("g", id="call_2")
    for pieces in (
        [[{"index": 0, **call()}, {"index": 1, **second}]],
        [[call(), second]],
        [[{"index": 0, **call()}], [{"index": 0, **second}]],  # Ollama 0.5
        [[{"index": 3, **call()}], [{"index": 5, **second}]],
    ):
        said = streamed(*pieces, request=TWO)
        assert said.calls == [("call_1", "f", "{}"), ("call_2", "g", "{}")]
    assert streamed([{"index": 0, **call()}], [{"index": 0, **second}], request=TWO).repairs == {
        "tool_call_index_repeated": 1,
        "tool_call_index_renumbered": 1,
    }


def test_pieces_of_two_calls_in_turn() -> None:
    said = streamed(
        [{"index": 0, **call(arguments="{")}],
        [{"index": 1, **call("g", "[", id="call_2")}],
        [{"index": 0, "function": {"arguments": "}"}}],
        [{"index": 1, "function": {"arguments": "]"}}],
        request=TWO,
        waived=("4.index",),  # calls begin in order; their pieces may come in turn
    )
    assert said.calls == [("call_1", "f", "{}"), ("call_2", "g", "[]")]
    assert said.repairs == {}


def test_a_name_that_never_comes_is_the_only_offered_tools() -> None:
    nameless = {"id": "call_1", "type": "function", "function": {"arguments": '{"a":1}'}}
    for said in (whole(nameless), streamed([{"index": 0, **nameless}])):
        assert said.calls == WANTED
        assert said.repairs["tool_call_name_missing"] == 1


@pytest.mark.parametrize("asked", [TWO, ask()], ids=["two tools", "no tools"])
def test_a_name_that_never_comes_is_else_a_failure(asked: Json) -> None:
    nameless = {"id": "call_1", "type": "function", "function": {"arguments": "{}"}}
    said = whole(nameless, request=asked)
    assert (said.status, said.error and said.error["code"]) == (502, "tool_call_without_name")
    said = streamed([{"index": 0, **nameless}], request=asked)
    assert said.error is not None and said.error["code"] == "tool_call_without_name"
    said = stream([role(), chunk({"tool_calls": [{"index": 0, **nameless}]})], asked)
    assert said.error is not None and said.error["code"] == "tool_call_without_name"


def test_a_tool_forced_by_name_is_the_one_called() -> None:
    forced = {"type": "function", "function": {"name": "g"}}
    nameless = {"id": "call_1", "type": "function", "function": {"arguments": "{}"}}
    said = whole(nameless, request=ask(tools=[G], tool_choice=forced))
    assert said.calls == [("call_1", "g", "{}")]


def test_the_role_waits_for_what_opens_the_choice() -> None:
    """Its content is null when that is a call, which openai-python keeps as it is."""
    bare = chunk({"tool_calls": [{"index": 0, **call()}]})
    for parts in (
        [bare, end("tool_calls")],
        [chunk({"role": "assistant"}), bare, end("tool_calls")],
        [chunk({"role": "assistant", "content": None}), bare, end("tool_calls")],
    ):
        said = stream(parts, ONE)
        first = json.loads(next(payloads(said.raw)))["choices"][0]["delta"]
        assert {"role": "assistant", "content": None, "refusal": None}.items() <= first.items()
        assert said.calls == [("call_1", "f", "{}")]


def test_null_content_beside_a_call() -> None:
    parts = [chunk(message(None)), chunk({"content": None, "tool_calls": [HEAD]})]
    said = stream([*parts, end("tool_calls")], ONE)
    assert said.calls == [("call_1", "f", "{}")]


def test_text_before_a_call() -> None:
    said = stream(
        [role(), say("Hm."), chunk({"tool_calls": [{"index": 0, **call()}]}), end("tool_calls")],
        ONE,
    )
    assert said.message["content"] == "Hm."
    assert said.calls == [("call_1", "f", "{}")]
    assert said.repairs == {}


def test_arguments_are_out_before_the_next_event() -> None:
    translator = StreamTranslator(exchange({**ONE, "stream": True}))
    translator.feed(data(role()) + data(chunk({"tool_calls": [HEAD]})))
    piece = {"index": 0, "function": {"arguments": '{"city"'}}
    assert b'{\\"city\\"' in translator.feed(data(chunk({"tool_calls": [piece]})))


def test_the_stage_leaves_all_else_alone() -> None:
    stage = ToolCallStage(exchange(TWO))
    text: list[Any] = [Text(0, "Hi")]
    assert stage(text) == text
    waiting: list[Any] = [ToolDelta(0, 0, "call_1", None, "{")]
    assert stage(waiting) == []
    assert [type(x) for x in stage([Text(0, "Hi"), End(True)])] == [Text, Fault]
