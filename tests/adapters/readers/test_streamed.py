"""A message behind deltas says again what they said: the client gets what is new of it."""

from __future__ import annotations

import json

import pytest

from tests.answers import (
    DONE,
    TOOL,
    TWO,
    USAGE,
    Json,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    data,
    end,
    entries,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.fold import fold_completion
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator

ASKED = ask(stream_options={"include_usage": True})


def whole(**said: object) -> Json:
    """Return the whole answer that ends a stream, with `said` as its message's keys."""
    told = {"index": 0, "message": message(**said), "finish_reason": "stop"}
    return completion({**told, "logprobs": None})


@pytest.mark.parametrize(
    ("deltas", "closing", "text"),
    [
        (["Hi", " you"], "Hi you", "Hi you"),
        (["Hi", " you"], "Hi you all", "Hi you all"),
        (["\n\nHi", " you "], "Hi you", "\n\nHi you "),
        (["Hi", " you"], "Hello", "Hi you"),
        ([], "Hi you", "Hi you"),
        (["Hi"], "", "Hi"),
    ],
)
def test_a_closing_answer_adds_what_is_new(deltas: list[str], closing: str, text: str) -> None:
    said = stream([role(), *map(say, deltas), whole(content=closing)], ASKED, done=False)
    assert said.message["content"] == text
    assert said.answer["usage"] == USAGE
    assert said.choice["finish_reason"] == "stop"
    assert said.repairs.get("message_repeated", 0) == bool(deltas and closing)


def test_a_message_beside_an_empty_delta_is_a_closing_one() -> None:
    last = chunk({"role": "assistant", "content": ""}, "stop")
    last["choices"][0]["message"] = message("Hi there")
    said = stream([role(), say("Hi"), last])
    assert said.message["content"] == "Hi there"
    last["choices"][0]["message"] = message("Other")
    assert stream([role(), say("Hi"), last]).message["content"] == "Hi"


def test_a_message_that_is_one_more_piece_stays_one() -> None:
    pieces = [
        {**chunk({}, None), "choices": [{"index": 0, "message": message(text)}]}
        for text in ("ha", "ha", "haha")
    ]
    said = stream([*pieces, chunk({}, "stop")])
    assert said.message["content"] == "hahahaha"
    assert "message_repeated" not in said.repairs


def test_of_several_choices_each_has_its_own_message() -> None:
    told = [{"index": n, "message": message(f"{n}!"), "finish_reason": "stop"} for n in (0, 1)]
    parts = [role(), role(1), say("0"), say("1", index=1), completion(*told)]
    said = stream(parts, ask(n=2))
    assert [x["message"]["content"] for x in said.answer["choices"]] == ["0!", "1!"]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_said_once(key: str) -> None:
    thought = [chunk({key: text}) for text in ("Let me", " see.")]
    said = stream([role(), *thought, say("Hi"), whole(content="Hi", **{key: "Let me see."})])
    assert said.message["reasoning_content"] == "Let me see."
    late = stream([role(), say("Hi"), whole(content="Hi", **{key: "Let me see."})])
    assert late.message["reasoning_content"] == "Let me see."


def test_calls_and_refusals_are_said_once() -> None:
    calling = chunk({"tool_calls": [{"index": 0, **call(arguments='{"a": 1}')}]})
    again = whole(content=None, tool_calls=[call(arguments='{"a":1}', id="call_2")])
    said = stream([role(), calling, again], ask(tools=[TOOL]))
    assert len(said.message["tool_calls"]) == 1
    assert said.message["tool_calls"][0]["function"]["arguments"] == '{"a": 1}'
    refused = stream([role(), chunk({"refusal": "No."}), whole(content=None, refusal="No.")])
    assert refused.message["refusal"] == "No."


def test_logprobs_are_not_said_again() -> None:
    closing = whole(content="Hi")
    closing["choices"][0]["logprobs"] = entries("Hi")
    said = stream([role(), say("Hi", logprobs=entries("Hi")), closing], scored())
    assert [entry["token"] for entry in said.entries] == ["Hi"]
    assert "logprobs_outside_content" not in said.repairs


LATE = ("7.chunk", "L.chunk", "L.offset")
"""What no one can hold whose backend has the entries behind their text."""
SCORES = entries("Hi", " you", " all")
CLOSED: dict[str, list[Json]] = {
    "behind deltas": [say("Hi"), say(" you all")],
    "behind a reason": [say("Hi you"), say(" all"), end()],
    "behind a reason beside text": [say("Hi"), chunk({"content": " you all"}, "stop")],
    "with more text": [say("Hi")],
    "behind reasoning": [chunk({"reasoning_content": "Hm"}), say("Hi you all")],
}


@pytest.mark.parametrize("deltas", CLOSED.values(), ids=CLOSED)
def test_logprobs_of_a_closing_answer_alone_are_the_contents(deltas: list[Json]) -> None:
    """The mutant that leaves them out, or has the reason leave before, has none."""
    rows = entries("<think>", "Hm", "</think>", "Hi", " you", " all", "<|im_end|>")
    for given in (SCORES, rows) if "reasoning" in str(deltas) else (SCORES,):
        closing = whole(content="Hi you all")
        closing["choices"][0]["logprobs"] = given
        said = stream([role(), *deltas, closing], scored(), waived=LATE)
        assert said.message["content"] == "Hi you all"
        assert [(x["token"], x["logprob"]) for x in said.entries] == [
            ("Hi", -0.5),
            (" you", -0.5),
            (" all", -0.5),
        ]
        assert said.choice["finish_reason"] == "stop"
        assert not said.repairs.keys() & {"logprobs_missing", "logprobs_incomplete"}


def test_a_closing_answer_without_text_has_an_empty_list() -> None:
    closing = whole(content="")
    closing["choices"][0]["logprobs"] = entries("<|im_end|>")
    said = stream([role(), end(), closing], scored())
    assert said.choice["logprobs"] == {"content": [], "refusal": None}


@pytest.mark.parametrize("n", [1, 2])
def test_a_reason_waits_for_the_end_and_content_never_does(n: int) -> None:
    translator = StreamTranslator(exchange({**ask(n=n), "stream": True}))
    for index in range(n):
        assert b'"Hi"' in translator.feed(data(role(index)) + data(say("Hi", index=index)))
        assert b'"stop"' not in translator.feed(data(end(index=index)))
    assert translator.feed(DONE).count(b'"stop"') == n


def test_text_behind_a_reason_that_waits_is_left_out() -> None:
    said = stream([role(), say("Hi"), end(), say(" you"), whole(content="Hi you")], scored())
    assert said.message["content"] == "Hi"
    assert said.repairs["text_after_finish"] == 1


def text_part(text: str, logprobs: Json | None = None, reason: str | None = None) -> Json:
    part = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}
    return {**chunk({}), "id": "cmpl-1", "object": "text_completion", "choices": [part]}


@pytest.mark.parametrize(("begin", "times"), [(0, 1), (2, 1), (None, 1), (4, 2)])
def test_a_last_text_that_says_all_again_for_its_logprobs(begin: int | None, times: int) -> None:
    """Where offsets say that it begins behind the others, it is a piece like them."""
    arrays: Json = {
        "tokens": ["Hi", " a"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"Hi": -0.5}, {" a": -0.25}],
    }
    if begin is not None:
        arrays["text_offset"] = [begin, begin + 2]
    for more in ({}, {"x": 1}):  # strict, tolerant
        last = text_part("Hi a", arrays, "stop")
        last["choices"][0] |= more
        parts = [text_part("Hi"), text_part(" a"), last]
        asked = {"model": "m", "prompt": "So", "logprobs": 1, "stream": True}
        translator = StreamTranslator(exchange(asked), "completions")
        out = b"".join([*map(translator.feed, map(data, parts)), translator.feed(DONE)])
        told = fold_completion(out)["choices"][0]
        assert told["text"] == "Hi a" * times
        assert told["logprobs"]["token_logprobs"] == [-0.5, -0.25]
        assert translator.exchange.notes.counts.get("message_repeated", 0) == (times == 1)


OWN = {"index": 0, **call("f", '{"a":1}', id="c1")}
NEXT = call("g", '{"b":2}', id="c2")


@pytest.mark.parametrize("cut", [None, '{"a"', ""])
@pytest.mark.parametrize("ids", [{}, {"id": "x"}, {"id": None}])
def test_a_closing_message_has_the_rest_of_the_calls(cut: str | None, ids: Json) -> None:
    """The mutant that takes none where some came loses one, and the end of another."""
    given = OWN if cut is None else {"index": 0, **call("f", cut, id="c1")}
    last = call("f", '{"a": 1}', **({"id": "c1"} | ids))
    told = {"role": "assistant", "content": None, "tool_calls": [last, NEXT]}
    final = completion({"index": 0, "message": told, "finish_reason": "tool_calls"})
    said = stream([role(), chunk({"tool_calls": [given]}), final], TWO)
    assert [(x[0], x[1], json.loads(x[2])) for x in said.calls] == [
        ("c1", "f", {"a": 1}),
        ("c2", "g", {"b": 2}),
    ]
    assert said.repairs["message_repeated"] == 1


def test_a_closing_message_with_other_arguments_adds_nothing() -> None:
    told = {"role": "assistant", "content": None, "tool_calls": [call("f", '{"z":1}', id="c1")]}
    final = completion({"index": 0, "message": told, "finish_reason": "tool_calls"})
    said = stream([role(), chunk({"tool_calls": [OWN]}), final], TWO)
    assert said.calls == [("c1", "f", '{"a":1}')]


def test_a_closing_message_tells_thinking_that_the_text_had() -> None:
    """The mutant that looks for it among the reasoning alone says it twice."""
    told = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm, so"}
    final = completion({"index": 0, "message": told, "finish_reason": "stop"})
    said = stream([role(), say("<think>\nHm, so\n</think>\nHi"), final])
    assert said.message.get("reasoning_content") is None
    said = stream([role(), say("Hi"), final])
    assert said.message["reasoning_content"] == "Hm, so"
    told["reasoning_content"] = "Hi"
    assert stream([role(), say("Hi"), final]).message["reasoning_content"] == "Hi"


def test_a_refusal_among_the_parts_of_a_content_is_one() -> None:
    """The mutant that reads texts alone loses it."""
    parts = [{"type": "text", "text": "Hm"}, {"type": "refusal", "refusal": "No."}]
    for said in (
        body(completion(choice(parts))),
        stream([role(), chunk({"content": parts}), end()]),
    ):
        assert (said.message["content"], said.message["refusal"]) == ("Hm", "No.")
