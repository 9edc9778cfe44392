"""A message behind deltas says again what they said: the client gets what is new of it."""

from __future__ import annotations

import pytest

from tests.answers import (
    TOOL,
    USAGE,
    Json,
    ask,
    call,
    chunk,
    completion,
    entries,
    message,
    role,
    say,
    scored,
    stream,
)

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
