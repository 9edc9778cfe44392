"""Usage, choices, reasons and calls that were once repaired wrongly, one test for each finding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.answers import (
    TWO,
    USAGE,
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
from tests.linear import linear
from tests.replay import exchange
from wellspoken.adapters.events import Call, End, Event, Finish
from wellspoken.adapters.stages.calls import Calls

ASKED = ask(stream_options={"include_usage": True})
LONG = "1" * 5_000


# --- usage --------------------------------------------------------------------------------------


def without_usage(*choices: Json, **more: Any) -> Json:
    given = completion(*choices, **more)
    del given["usage"]
    return given


def usage(said: Said) -> tuple[int, int]:
    found = said.answer["usage"]
    return found["prompt_tokens"], found["completion_tokens"]


def test_a_usage_in_the_choice_or_in_x_groq() -> None:
    last = end()
    last["choices"][0]["usage"] = USAGE
    groq = {"x_groq": {"id": "req_1", "usage": USAGE}}
    for said in (
        body(without_usage(choice(usage=USAGE))),
        body(without_usage(**groq)),
        stream([role(), say("Hi"), last], ASKED),
        stream([role(), say("Hi"), {**end(), **groq}], ASKED),
    ):
        assert usage(said) == (5, 2)
        assert said.repairs["usage_misplaced"] == 1
        assert "usage_missing" not in said.repairs


TIMINGS: list[tuple[Json, tuple[int, int]]] = [
    ({"timings": {"prompt_n": 4, "cache_n": 6, "predicted_n": 3, "x": 1.5}}, (10, 3)),
    ({"timings": {"prompt_n": 4, "predicted_n": 3}}, (4, 3)),
    ({"prompt_eval_count": 4, "eval_count": 3}, (4, 3)),
]


@pytest.mark.parametrize(("more", "wanted"), TIMINGS)
def test_counts_in_other_words_serve_where_there_is_no_usage(
    more: Json, wanted: tuple[int, int]
) -> None:
    said = body(without_usage(**more, x=1))
    assert usage(said) == wanted and said.repairs["usage_from_timings"] == 1
    said = stream([role(), {**say("Hi"), **more}, {**end(), **more}], ASKED)
    assert usage(said) == wanted and said.repairs["usage_from_timings"] == 1
    said = body(completion(**more, x=1))
    assert usage(said) == (5, 2) and "usage_from_timings" not in said.repairs


GIVEN: list[tuple[Json, tuple[int, int]]] = [
    ({"prompt_tokens": "5", "completion_tokens": "2", "total_tokens": "7"}, (5, 2)),
    ({"prompt_tokens": 5.0, "completion_tokens": "2.0"}, (5, 2)),
    ({"input_tokens": 5, "output_tokens": 2}, (5, 2)),
    ({"completion_tokens": 2, "total_tokens": 7}, (5, 2)),
    ({"prompt_tokens": 5, "total_tokens": 7}, (5, 2)),
]


@pytest.mark.parametrize(("given", "wanted"), GIVEN)
def test_counts_of_other_types_and_names(given: Json, wanted: tuple[int, int]) -> None:
    assert usage(body(completion(usage=given))) == wanted


def test_a_count_beyond_all_counts_does_not_pass() -> None:
    last = {**chunk({}), "choices": [], "usage": {**USAGE, "prompt_tokens": 2**70}}
    parts = [{**part, "usage": None} for part in (role(), say("Hi"), end())]
    assert usage(stream([*parts, last], ASKED)) == (5, 2)


def test_details_under_their_newer_names() -> None:
    given = {
        "input_tokens": 5,
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    said = body(completion(usage=given))
    assert said.answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 1}
    assert said.repairs["usage_renamed"] == 3


@pytest.mark.parametrize(
    "later",
    [
        {},
        {"prompt_tokens": None, "completion_tokens": None, "total_tokens": None},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 5},
        {"completion_tokens": 2},
    ],
)
def test_a_later_usage_that_tells_less_takes_nothing_away(later: Json) -> None:
    parts = [role(), say("Hi"), {**end(), "usage": USAGE}, {**chunk({}), "choices": []}]
    parts[-1]["usage"] = later
    assert usage(stream(parts, ASKED)) == (5, 2)


def test_zeros_beside_a_text_are_no_count() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    said = body(completion(usage=zeros))
    assert usage(said) == (1, 1) and said.repairs["usage_constant"] == 1
    said = body(completion(usage={**zeros, "prompt_tokens": 9, "total_tokens": 9}))
    assert usage(said) == (9, 1)
    said = body(completion(choice(""), usage={**zeros, "prompt_tokens": 9, "total_tokens": 9}))
    assert usage(said) == (9, 0)


def test_a_hundred_that_is_true_is_kept() -> None:
    hundred: Json = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    detailed = {**hundred, "completion_tokens_details": {"reasoning_tokens": 98}}
    thought = message(reasoning_content="So.")
    hidden = completion(choice(message=thought), usage=hundred)
    for said in (
        body(completion(usage=detailed)),
        body(hidden),
        body(hidden, ask()),
        body(hidden, ask(metadata={})),
    ):
        assert usage(said) == (100, 100)
        assert "usage_constant" not in said.repairs
    assert body(completion(usage=hundred)).repairs["usage_constant"] == 1


# --- choices and reasons ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indexes", "wanted"),
    [
        ((0, 0), "ab"),
        ((None, 1), "ab"),
        ((1, None), "ab"),
        (("1", "0"), "ba"),
        ((1.0, 0), "ba"),
        ((1, 0), "ba"),
        (("²", LONG), "ab"),
    ],
)
def test_the_choices_of_a_body_are_numbered(indexes: tuple[Any, Any], wanted: str) -> None:
    given = [choice(text, index=n, x=1) for text, n in zip("ab", indexes, strict=True)]
    for one in given:
        if one["index"] is None:
            del one["index"]
    said = body(completion(*given), ask(n=2))
    assert [x["message"]["content"] for x in said.answer["choices"]] == list(wanted)
    assert [x["index"] for x in said.answer["choices"]] == [0, 1]


def test_the_text_indexes_of_a_stream_count_by_value() -> None:
    parts = [role(), say("a"), role(1), say("b", index=1), end(), end(index=1)]
    for part in parts:
        part["choices"][0]["index"] = str(part["choices"][0]["index"])
    said = stream(parts, ask(n=2))
    assert [x["message"]["content"] for x in said.answer["choices"]] == ["a", "b"]
    assert said.repairs["choice_index_text"] == 6


WHERE: list[Callable[[Json], Json]] = [
    lambda told: {**chunk({}), "choices": [{"index": 0, "delta": {}, **told}]},
    lambda told: chunk(told),
    lambda told: {**chunk({}), **told},
]


@pytest.mark.parametrize("where", WHERE, ids=["choice", "delta", "beside"])
@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"stop_type": "limit"}, "length"),
        ({"done_reason": "length"}, "length"),
        ({"stopped_limit": True, "stopped_eos": False}, "length"),
        ({"stop_type": "none", "done_reason": None, "stopped_limit": True}, "length"),
    ],
)
def test_a_reason_in_other_words_is_read_wherever_it_stands(
    where: Callable[[Json], Json], told: Json, reason: str
) -> None:
    blank = where({"stop_type": "none"})
    said = stream([role(), say("Hi"), blank, where(told)])
    assert said.choice["finish_reason"] == reason
    assert "extra_field_dropped" not in said.repairs
    assert "finish_reason_missing" not in said.repairs


def test_a_reason_in_the_delta() -> None:
    said = stream([role(), say("Hi"), chunk({"finish_reason": "length"})])
    assert said.choice["finish_reason"] == "length"
    assert said.repairs["finish_reason_misplaced"] == 1


@pytest.mark.parametrize("where", WHERE, ids=["choice", "delta", "beside"])
@pytest.mark.parametrize("key", ["stop_type", "done_reason"])
def test_a_failure_in_other_words_is_a_failure(where: Callable[[Json], Json], key: str) -> None:
    said = stream([role(), say("Hi"), where({key: "abort"})])
    assert said.error is not None and said.error["code"] == "upstream_abort"


# --- calls --------------------------------------------------------------------------------------


def calls(said: Said) -> list[tuple[str, str, str]]:
    found = said.message["tool_calls"]
    return [(x["id"], x["function"]["name"], x["function"]["arguments"]) for x in found]


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
        assert [x[1:] for x in calls(said)] == [("f", '{"a":"}{"}'), (second, '{"b":2}')]
        assert len({x[0] for x in calls(said)}) == 2
        assert said.repairs["tool_call_index_repeated"] == 1


def test_a_name_on_every_piece_is_one_call() -> None:
    said = streamed(*[[bare("f", part)] for part in ('{"a":"', '}{\\"', '}"', "}", "")])
    assert [x[1:] for x in calls(said)] == [("f", '{"a":"}{\\"}"}')]


def test_an_empty_object_in_a_head_waits_for_what_follows() -> None:
    said = streamed([bare("f", {}, id="call_1")], [piece('{"x"')], [piece(":1}")])
    assert calls(said) == [("call_1", "f", '{"x":1}')]
    for deltas in (
        [[bare("f", {}, id="call_1")]],
        [[bare("f", {}, id="call_1")], [piece("")]],
        [[bare("f", {}, id="call_1")], [bare("f", {}, id="call_1")]],
    ):
        assert calls(streamed(*deltas)) == [("call_1", "f", "{}")]
    said = streamed([bare("f", {}, id="a"), bare("g", {}, id="b", index=1)])
    assert calls(said) == [("a", "f", "{}"), ("b", "g", "{}")]
    part = message(None, tool_calls=[call(arguments={}), call("g", {}, id="b")])
    said = body(completion(choice(message=part, finish_reason="tool_calls")), TWO)
    assert calls(said) == [("call_1", "f", "{}"), ("b", "g", "{}")]


def test_an_empty_object_beside_the_reason_and_without_one() -> None:
    head = {"tool_calls": [bare("f", {}, id="call_1")]}
    for parts in ([chunk(head, "tool_calls")], [chunk(head)]):
        assert calls(stream([chunk(message(None)), *parts], TWO)) == [("call_1", "f", "{}")]


def test_two_calls_of_one_id_have_two() -> None:
    one, two = call("f", "{}", id="call_0"), call("g", "{}", id="call_0")
    part = message(None, tool_calls=[one, two])
    for said in (
        body(completion(choice(message=part, finish_reason="tool_calls")), TWO),
        streamed([{"index": 0, **one}], [{"index": 1, **two}]),
        streamed([{"index": 0, **one}], [{"index": 0, **two}]),
        streamed([one], [two]),
    ):
        assert [x[1] for x in calls(said)] == ["f", "g"]
        assert calls(said)[0][0] == "call_0" != calls(said)[1][0]
        assert said.repairs["tool_call_id_repeated"] == 1


def through(events: list[Event]) -> list[Event]:
    """Return what a fresh calls stage makes of these events, one at a time."""
    stage = Calls(exchange(TWO))
    return [x for event in events for x in stage([event])]


@pytest.mark.parametrize("named", [False, True], ids=["before its name", "a name on each"])
def test_many_pieces_take_linear_time(named: bool) -> None:
    name = "f" if named else None

    def pieces(count: int) -> list[str]:
        return ['{"a": [', *["{},"] * count, "{}", "]", "}"]

    def work(count: int) -> list[Event]:
        events: list[Event] = [Call(0, 0, None, name, text) for text in pieces(count)]
        return through([*events, Call(0, 0, "call_1", "f", ""), Finish(0, "tool_calls"), End(True)])

    written = [event for event in linear(work, 10_000) if type(event) is Call]
    assert "".join(event.arguments for event in written) == "".join(pieces(10_000))
    assert {event.n for event in written} == {0}


def test_many_calls_take_linear_time() -> None:
    def work(count: int) -> list[Event]:
        return through([Call(0, n, f"call_{n}", "f", "{}") for n in range(count)])

    out = linear(work, 5_000)
    assert [event.n for event in out if type(event) is Call] == list(range(5_000))
