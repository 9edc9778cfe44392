"""Contract rule 4: which pieces of a stream are one tool call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    TOOL,
    TWO,
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
    stream,
)
from tests.linear import linear
from tests.replay import exchange
from wellspoken.adapters.events import End, Event, Fault, Finish, ToolDelta
from wellspoken.adapters.stages.tool_calls import ToolCallStage


def test_a_call_after_a_role_chunk_opens_the_choice_with_null() -> None:
    called = chunk({"tool_calls": [{"index": 0, **call()}]})
    said = stream([role(), called, end("tool_calls")], ask(tools=[TOOL]))
    assert said.message["content"] is None


def streamed(*deltas: list[Json], request: Json = TWO) -> Said:
    parts = [chunk({"tool_calls": delta}) for delta in deltas]
    return stream([chunk(message(None)), *parts, end("tool_calls")], request)


def bare(name: str, arguments: Any, **more: Any) -> Json:
    given = {"index": 0, **call(name, arguments), **more}
    if "id" not in more:
        del given["id"]
    return given


def piece(arguments: str, index: int = 0) -> Json:
    return {"index": index, "function": {"arguments": arguments}}


def test_two_whole_calls_at_one_index_without_ids() -> None:
    for second in ("f", "g"):
        said = streamed([bare("f", '{"a":"}{"}')], [bare(second, '{"b":2}')])
        assert [x[1:] for x in said.calls] == [("f", '{"a":"}{"}'), (second, '{"b":2}')]
        assert len({x[0] for x in said.calls}) == 2
        assert said.repairs["tool_call_index_repeated"] == 1


def test_a_name_on_every_piece_is_one_call() -> None:
    said = streamed(*[[bare("f", part)] for part in ('{"a":"', '}{\\"', '}"', "}", "")])
    assert [x[1:] for x in said.calls] == [("f", '{"a":"}{\\"}"}')]


def test_an_empty_object_in_a_head_waits_for_what_follows() -> None:
    said = streamed([bare("f", {}, id="call_1")], [piece('{"x"')], [piece(":1}")])
    assert said.calls == [("call_1", "f", '{"x":1}')]
    for deltas in (
        [[bare("f", {}, id="call_1")]],
        [[bare("f", {}, id="call_1")], [piece("")]],
        [[bare("f", {}, id="call_1")], [bare("f", {}, id="call_1")]],
    ):
        assert streamed(*deltas).calls == [("call_1", "f", "{}")]
    said = streamed([bare("f", {}, id="a"), bare("g", {}, id="b", index=1)])
    assert said.calls == [("a", "f", "{}"), ("b", "g", "{}")]
    part = message(None, tool_calls=[call(arguments={}), call("g", {}, id="b")])
    said = body(completion(choice(message=part, finish_reason="tool_calls")), TWO)
    assert said.calls == [("call_1", "f", "{}"), ("b", "g", "{}")]


def test_empty_objects_of_two_ids_are_two_calls() -> None:
    """Ollama's older form; the mutant that waits for what takes their place has one."""
    said = streamed([bare("f", {}, id="a")], [bare("f", {}, id="b")])
    assert said.calls == [("a", "f", "{}"), ("b", "f", "{}")]
    said = streamed([bare("f", {})], [bare("f", {"x": 1})])
    assert [x[1:] for x in said.calls] == [("f", "{}"), ("f", '{"x":1}')]


@pytest.mark.parametrize("objects", [[{}, {"x": 1}], [{"x": 1}, {}]])
def test_objects_of_which_one_alone_has_an_id_are_two_calls(objects: list[Json]) -> None:
    """Mutants: `same` is also of a call that told no id, in either of its two places."""
    said = streamed([bare("f", objects[0])], [bare("f", objects[1], id="a")])
    assert [json.loads(x[2]) for x in said.calls] == objects


def test_an_empty_object_beside_the_reason_and_without_one() -> None:
    head = {"tool_calls": [bare("f", {}, id="call_1")]}
    for parts in ([chunk(head, "tool_calls")], [chunk(head)]):
        assert stream([chunk(message(None)), *parts], TWO).calls == [("call_1", "f", "{}")]


def test_two_calls_of_one_id_have_two() -> None:
    one, two = call("f", "{}", id="call_0"), call("g", "{}", id="call_0")
    part = message(None, tool_calls=[one, two])
    for said in (
        body(completion(choice(message=part, finish_reason="tool_calls")), TWO),
        streamed([{"index": 0, **one}], [{"index": 1, **two}]),
        streamed([{"index": 0, **one}], [{"index": 0, **two}]),
        streamed([one], [two]),
    ):
        assert [x[1] for x in said.calls] == ["f", "g"]
        assert said.calls[0][0] == "call_0" != said.calls[1][0]
        assert said.repairs["tool_call_id_repeated"] == 1


def through(events: list[Event]) -> list[Event]:
    """Return what a fresh calls stage makes of these events, one at a time."""
    stage = ToolCallStage(exchange(TWO))
    return [x for event in events for x in stage([event])]


@pytest.mark.no_cover
@pytest.mark.parametrize("named", [False, True], ids=["before its name", "a name on each"])
def test_many_pieces_take_linear_time(named: bool) -> None:
    name = "f" if named else None

    def pieces(count: int) -> list[str]:
        return ['{"a": [', *["{},"] * count, "{}", "]", "}"]

    def work(count: int) -> list[Event]:
        events: list[Event] = [ToolDelta(0, 0, None, name, text) for text in pieces(count)]
        return through(
            [*events, ToolDelta(0, 0, "call_1", "f", ""), Finish(0, "tool_calls"), End(True)]
        )

    written = [event for event in linear(work, 10_000) if type(event) is ToolDelta]
    assert "".join(event.arguments for event in written) == "".join(pieces(10_000))
    assert {event.n for event in written} == {0}


@pytest.mark.no_cover
def test_many_calls_take_linear_time() -> None:
    def work(count: int) -> list[Event]:
        calls: list[Event] = [ToolDelta(0, n, f"call_{n}", "f", "{}") for n in range(count)]
        return through([*calls, End(True)])

    out = linear(work, 5_000)
    assert [event.n for event in out if type(event) is ToolDelta] == list(range(5_000))


def test_a_tool_index_in_a_body_is_counted_beside_another_deviation() -> None:
    told = message(None, tool_calls=[call(index=0, type="odd")])
    assert "tool_call_index_in_body" in body(completion(choice(message=told)), TWO).repairs


def test_a_function_call_is_not_counted_as_a_bad_tool_call() -> None:
    told = message(None, function_call={"name": "f", "arguments": "{}"})
    said = body(completion(choice(message=told)), ask(functions=[{"name": "f"}]))
    assert said.repairs.keys() <= {"finish_reason_stop_after_call", "finish_reason_call_kind"}


def test_a_call_in_both_forms_is_one_and_its_own_id_stays() -> None:
    """llama-cpp-python with a forced tool; the mutant that takes both makes two calls."""
    both = {"function_call": {"name": "f", "arguments": '{"a":1}'}}
    item = {"index": 0, **call("f", '{"a":1}', id="call__0_f_cmpl-1")}
    said = stream([role(), chunk({**both, "tool_calls": [item]}), end("tool_calls")], TWO)
    assert said.calls == [("call__0_f_cmpl-1", "f", '{"a":1}')]
    assert said.repairs["function_call_repeated"] == 1
    assert "function_call_renamed" not in said.repairs


def test_a_function_call_of_another_tool_stays_a_call() -> None:
    told = message(None, tool_calls=[call("f")], function_call={"name": "g", "arguments": "{}"})
    said = body(completion(choice(message=told, finish_reason="tool_calls")), TWO)
    assert [x[1] for x in said.calls] == ["f", "g"]


def test_a_new_id_with_each_piece_is_one_call_with_the_first() -> None:
    """vLLM to 0.8, TensorRT-LLM; the mutant that a new id opens a call makes six."""
    texts = ['{"a"', ":", "1", "}", "\n", ""]
    for index in ({}, {"index": 0}):
        pieces = [call("f", text, id=f"id_{n}", **index) for n, text in enumerate(texts)]
        said = streamed(*[[x] for x in pieces])
        assert said.calls == [("id_0", "f", '{"a":1}\n')]
        assert said.repairs["tool_call_head_repeated"] == 5


def test_a_head_like_the_call_before_it_begins_one_when_arguments_follow() -> None:
    """It comes with another id and no arguments, like a last blank piece, which begins none."""
    first, head = [call("f", "{}", id="a")], [call("f", "", id="b")]
    assert streamed(first, head).calls == [("a", "f", "{}")]
    assert streamed(first, head, [{"function": {"arguments": '{"a":1}'}}]).calls == [
        ("a", "f", "{}"),
        ("b", "f", '{"a":1}'),
    ]


def test_a_head_with_a_new_id_after_pieces_without_a_name_begins_a_call() -> None:
    deltas = [[bare("f", "", id="a")], [piece("{}")], [bare("f", "", id="b")]]
    assert streamed(*deltas).calls == [("a", "f", "{}"), ("b", "f", "{}")]


def test_calls_without_arguments_in_order() -> None:
    """What other calls have waits, so that their indexes ascend; the mutant that writes the empty
    object at the end breaks rule 4.index."""
    heads = [[bare(name, "", id=name, index=n)] for n, name in enumerate("fgf")]
    last = [[piece('{"a"', 2)], [piece(":1}", 2)]]
    said = streamed(*heads[:2], [bare("f", "", id="h", index=2)], *last)
    assert said.calls == [("f", "f", "{}"), ("g", "g", "{}"), ("h", "f", '{"a":1}')]
    assert said.repairs == {"tool_arguments_empty": 2}


def test_heads_before_all_arguments() -> None:
    """The mutant that fills a call when the next one begins writes `{}{"a":1}`."""
    heads = [[bare(name, "", id=name, index=n)] for n, name in enumerate("fg")]
    said = streamed(*heads, [piece('{"a":1}', 0)], [piece('{"b":2}', 1)])
    assert said.calls == [("f", "f", '{"a":1}'), ("g", "g", '{"b":2}')]
    assert said.repairs == {}


def test_a_limit_before_the_arguments_leaves_the_last_call_open() -> None:
    """What the model would have said is not known; the mutant that fills all calls has `{}`."""
    heads = [chunk({"tool_calls": [bare(x, "", id=x, index=n)]}) for n, x in enumerate("fg")]
    said = stream([role(), *heads, end("length")], TWO)
    assert said.calls == [("f", "f", "{}"), ("g", "g", "")]
    part = message(None, tool_calls=[call("f", "")])
    cut = body(completion(choice(message=part, finish_reason="length")), TWO)
    assert cut.calls == [("call_1", "f", "")]


def test_what_waits_goes_out_before_a_failure() -> None:
    heads: list[Event] = [ToolDelta(0, 0, "a", "f", ""), ToolDelta(0, 1, "b", "g", "{")]
    out = through([*heads, Fault(502, "gone")])
    assert [x.name for x in out if type(x) is ToolDelta and x.name] == ["f", "g"]
    assert type(out[-1]) is Fault


WHOLE = '{"city":"Bern"}'


@pytest.mark.parametrize("head", [{"name": "f"}, {"id": "a", "name": "f"}, {}])
def test_arguments_that_say_all_so_far_are_one_call(head: Json) -> None:
    """Baidu Qianfan's (Hermes Agent PR #35718); the mutant that adds them up has `{{"city`."""
    texts = [WHOLE[:size] for size in (1, 5, 9, 15)]
    more = {key: head[key] for key in head if key != "name"}
    named = [{"index": 0, **more, "function": {**head, "arguments": x}} for x in texts]
    for piece_of in named:
        piece_of["function"].pop("id", None)
    said = streamed([bare("f", "", id="a")], *[[x] for x in named])
    assert said.calls == [("a", "f", WHOLE)]
    assert said.repairs["tool_arguments_cumulative"] == 3
    said = streamed([bare("f", "", id="a")], *[[x] for x in [*named, named[-1]]])
    assert said.calls == [("a", "f", WHOLE)]


def test_a_whole_call_again_behind_what_said_all_so_far_is_the_same() -> None:
    """Each delta has all calls so far, without ids; the mutant that asks for those has three."""
    first, second = (bare("f", WHOLE[:size]) for size in (5, 15))
    other = bare("g", "{}", index=1)
    said = streamed([first], [second], [second, other], [second, other])
    assert [x[1:] for x in said.calls] == [("f", WHOLE), ("g", "{}")]


def test_a_type_on_each_piece_is_told_once() -> None:
    """LMDeploy, vLLM to 0.8; the mutant that lets the piece pass breaks rule 4.open."""
    later = [{**piece(text), "type": "function"} for text in ('{"a"', ":1}")]
    said = streamed([bare("f", "", id="a")], *[[x] for x in later])
    assert said.calls == [("a", "f", '{"a":1}')]
    assert said.repairs == {"tool_call_head_repeated": 2}


AGAIN = {
    "the index counts": ([bare("f", "{}"), bare("g", WHOLE, index=1)], bare("g", WHOLE, index=1)),
    "others come in pieces": ([bare("f", WHOLE[:5]), bare("f", WHOLE[5:])], bare("f", WHOLE)),
    "others have a head": ([bare("f", ""), bare("f", WHOLE)], bare("f", WHOLE)),
    "others have a head, new ids": (
        [bare("f", "", id="a"), bare("f", WHOLE, id="b")],
        bare("f", WHOLE, id="c"),
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_a_whole_call_again_is_told_by_how_another_would_begin(name: str) -> None:
    """The mutant that asks for the first one's id has one more."""
    items, again = AGAIN[name]
    once = streamed(*[[x] for x in items])
    twice = streamed(*[[x] for x in items], [again])
    assert [x[1:] for x in twice.calls] == [x[1:] for x in once.calls]
    assert twice.repairs["tool_call_repeated"] == 1


def test_the_same_call_behind_a_head_of_its_own_is_another() -> None:
    """The mutant that does not look at the head loses it."""
    for own in ({}, {"id": "b"}):
        first = [bare("f", "", id="a"), bare("f", WHOLE)]
        said = streamed(*[[x] for x in [*first, bare("f", "", **own), bare("f", WHOLE)]])
        assert [x[1:] for x in said.calls] == [("f", WHOLE)] * 2


def test_a_value_that_begins_as_its_object_does_is_no_repetition() -> None:
    """It closes one object more than it opens; the mutant that does not look loses `{"a":`."""
    said = streamed([bare("f", "", id="a")], [piece('{"a":')], [piece('{"a":1}}')])
    assert said.calls == [("a", "f", '{"a":{"a":1}}')]
    assert said.repairs == {}


@pytest.mark.parametrize("said", ["{", '{"city', '{"city"', '{"city":"Be', '{"n":1 '])
def test_a_piece_that_is_all_so_far_adds_nothing(said: str) -> None:
    """What says all so far may have nothing new; the mutant that asks for more has `{{`."""
    rest = '":"Bern"}' if said == '{"city' else WHOLE[len(said) :]
    rest = rest if said != '{"n":1 ' else "}"
    found = streamed([bare("f", "", id="a")], *[[piece(x)] for x in (said, said, said + rest)])
    assert found.calls == [("a", "f", said + rest)]
    assert found.repairs["tool_arguments_cumulative"] == 2


@pytest.mark.parametrize("said", ['{"a":', '{"a":[', '{"a":[1,'])
def test_a_piece_that_is_all_so_far_may_be_a_value(said: str) -> None:
    """The mutant that takes every piece like that for nothing new loses one."""
    closing = "1" + ("]}" if "[" in said else "}")
    found = streamed([bare("f", "", id="a")], *[[piece(x)] for x in (said, said, closing * 2)])
    assert found.calls == [("a", "f", said * 2 + closing * 2)]


def test_whole_arguments_once_more_are_nothing_new() -> None:
    """GLM and others (opencode PR #17339); the mutant that asks for a name has two objects."""
    again = '{"city": "Bern"}'
    for texts in ([WHOLE, WHOLE], [WHOLE[:5], WHOLE[5:], again], [WHOLE, WHOLE, again]):
        said = streamed([bare("f", "", id="a")], *[[piece(text)] for text in texts])
        assert said.calls == [("a", "f", WHOLE)]
        assert said.repairs["tool_call_repeated"] >= 1


def test_calls_whose_pieces_come_by_turns_are_written_one_after_the_other() -> None:
    """The mutant that holds back for calls without arguments alone breaks rule 4.index."""
    one, two = bare("f", WHOLE[:5], id="a"), bare("g", WHOLE[:9], id="b", index=1)
    third = bare("f", "{}", id="c", index=2)
    turns = [[one], [two], [piece(WHOLE[5:9])], [third], [piece(WHOLE[9:], 1)], [piece(WHOLE[9:])]]
    said = streamed(*turns)
    assert said.calls == [("a", "f", WHOLE), ("b", "g", WHOLE), ("c", "f", "{}")]
    assert said.repairs == {}
    said = streamed(*[[bare(x, "", id=x, index=n)] for n, x in enumerate("fg")], *turns[2:3])
    assert said.calls == [("f", "f", WHOLE[5:9]), ("g", "g", "{}")]
    said = streamed(*turns[:2])  # never whole: all of it all the same
    assert said.calls == [("a", "f", WHOLE[:5]), ("b", "g", WHOLE[:9])]


WHOLES = ['{"a":"}{"}', "{}", "[1]", json.dumps('{"a": 1}'), json.dumps({"a": "}{" * 600})]


@pytest.mark.parametrize("whole", WHOLES)
@pytest.mark.parametrize("extra", ["}", '"}', "]}", "</tool_call>", '"a": 1}', " }\n"])
def test_what_is_behind_whole_arguments_is_left_out(whole: str, extra: str) -> None:
    """One more brace (langchain-qwq issue #30), what was said before (vLLM issue #17585); the
    mutant that goes on has no JSON."""
    head = bare("f", "", id="a")
    for pieces in ([whole + extra], [whole, extra], [whole[:1], whole[1:] + extra, extra, "\n"]):
        said = streamed([head], *[[piece(text)] for text in pieces])
        ((_, name, arguments),) = said.calls
        assert (name, arguments.rstrip()) == ("f", whole)
        assert said.repairs["tool_arguments_trailing"] >= 1
    told = message(None, tool_calls=[call("f", whole + extra)])
    said = body(completion(choice(message=told, finish_reason="tool_calls")), TWO)
    assert [x[1:] for x in said.calls] == [("f", whole + extra[: extra.startswith(" ")])]


@pytest.mark.parametrize(
    "given",
    [
        '{"a":1}{"b":2}',
        '{"a":1}, {"b":2}',
        '}{"a":1}',
        'city="Bern", n=1',
        "null",
        '{"a":1} \n',
        '{"a":"',
    ],
)
def test_what_may_be_more_or_is_no_json_stays_as_it_came(given: str) -> None:
    """A second value may be another call's, of a name that nobody told."""
    for size in (1, 3, 100):
        cut = [given[at : at + size] for at in range(0, len(given), size)]
        said = streamed([bare("f", "", id="a")], *[[piece(text)] for text in cut])
        assert [x[1:] for x in said.calls] == [("f", given)]
        assert "tool_arguments_trailing" not in said.repairs


@pytest.mark.parametrize("blank", [[], [piece("")]])
def test_an_empty_object_in_text_gives_way_to_the_arguments_behind_it(blank: list[Json]) -> None:
    """LiteLLM with Anthropic (issue #4537); the mutant that writes it at once has `{}{"city"`."""
    first, second = [bare("f", "{}", id="a")], [bare("g", "{}", id="b", index=1)]
    said = streamed(first, *[[x] for x in blank], [piece(WHOLE[:5])], [piece(WHOLE[5:])], second)
    assert said.calls == [("a", "f", WHOLE), ("b", "g", "{}")]
    assert said.repairs["tool_arguments_placeholder"] == 1
    for others, calls in (([], 1), ([piece("{}")], 1), ([bare("f", "{}", id="c")], 2)):
        found = streamed(first, *[[x] for x in [*others, *blank]])
        assert [x[2] for x in found.calls] == ["{}"] * calls
        assert "tool_arguments_placeholder" not in found.repairs


@pytest.mark.parametrize("size", range(1, 16))
def test_all_arguments_at_the_end_may_have_other_white_space(size: int) -> None:
    """vLLM's last chunk (issues #42167, #51697); the mutant that compares them as they are has
    the whole object behind its beginning."""
    for said, whole in (
        (WHOLE, '{"city": "Bern"}'),
        ('{ "city" :\n"Bern"}', WHOLE),
        ('{"a b":"c \\" d"}', '{ "a b": "c \\" d" }'),
    ):
        beginning = said[:size]
        found = streamed([bare("f", "", id="a")], [piece(beginning)], [piece(whole)])
        ((_, _, arguments),) = found.calls
        assert json.loads(arguments) == json.loads(whole)


def test_an_object_that_is_not_the_same_is_no_repetition() -> None:
    """The mutant that takes any whole object for all of the arguments loses this one."""
    said = streamed([bare("f", "", id="a")], *[[piece(x)] for x in ('{"a": [', '{"b":1}', "]}")])
    assert said.calls == [("a", "f", '{"a": [{"b":1}]}')]
