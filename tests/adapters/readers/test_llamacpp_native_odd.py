"""What POST /completion answers beside llama.cpp's own shape: errors, nonsense, the hybrid."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.native import (
    Json,
    body,
    counts,
    exchange,
    fault,
    last,
    piece,
    reasons,
    sse,
    texts,
    tokens,
)
from wellspoken.adapters.events import UNKNOWN, End, Start
from wellspoken.adapters.readers.llamacpp_answer import LlamaCppNative


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b'{"error":{"code":400,"message":"too much","type":"x"}}', 400, "too much"),
        (b'[{"content":"a"},{"error":{"code":503,"message":"gone"}}]', 503, "gone"),
        (b"<html><body>no</body></html>", 502, "no"),
        (b'{"embedding":[1]}', 502, '"content"'),
        (b"[]", 502, "empty list"),
        (b"[[1]]", 502, "no JSON object"),
        (b'"text"', 502, "no JSON object"),
    ],
)
def test_what_is_no_answer_is_a_fault(data: bytes, status: int, said: str) -> None:
    found = fault(LlamaCppNative(exchange()).body(data))
    assert found.status == status and said in found.message


@pytest.mark.parametrize("end", ["error: {0}\n\n", "event: error\ndata: {0}\n\n", "data: {0}\n\n"])
def test_an_error_in_a_stream_ends_it(end: str) -> None:
    reader = LlamaCppNative(exchange())
    error = json.dumps({"error": {"code": 500, "message": "Compute error."}})
    found = reader.feed(sse(piece("Hi")) + end.format(error).encode() + sse(last()))
    assert texts(found) == "Hi" and fault(found).status == 500
    assert reader.close() == []


def hybrid(logprobs: Json, **more: Any) -> Json:
    choice = {"text": "Hi", "index": 0, "finish_reason": None, "logprobs": logprobs}
    native = {"content": "Hi", "stopped_limit": True, "tokens_predicted": 1, "tokens_evaluated": 4}
    return {"choices": [choice], "object": "text_completion", "stop": True, **native, **more}


@pytest.mark.parametrize(
    ("token", "number", "value", "counted"),
    [
        ("Ho", -0.5, -0.5, None),
        ("Hi", -0.5, -2.0, "logprobs_own_from_alternative"),
        ("Ha", -0.5, UNKNOWN, "logprobs_unknown"),
        ("Ha", -9.0, -9.0, None),  # less than all alternatives: it can be its own
    ],
)
@pytest.mark.parametrize("chat", [False, True])
def test_a_hybrid_does_not_lend_the_best_alternatives_value(
    token: str, number: float, value: float, counted: str | None, chat: bool
) -> None:
    """Pull request #10627."""
    top = {"Ho": -0.5, "Hi": -2.0}
    given: Json = {
        "tokens": [token],
        "token_logprobs": [number],
        "top_logprobs": [top],
        "text_offset": [0],
    }
    if chat:
        rows = [{"token": x, "logprob": y, "bytes": list(x.encode())} for x, y in top.items()]
        entry = {"token": token, "logprob": number, "bytes": list(token.encode())}
        given = {"content": [{**entry, "top_logprobs": rows}]}
    asked = exchange(prompts=("four",))
    found = body(asked, hybrid(given, choices=[{**hybrid(given)["choices"][0], "text": token}]))
    assert tokens(found) == [(token, value)]
    assert (reasons(found), counts(found)) == ({0: "length"}, [(4, 1)])
    repairs = {"logprobs_own_from_alternative", "logprobs_unknown"} & set(asked.notes.counts)
    assert repairs == ({counted} if counted else set())
    assert asked.notes.counts["native_answer"] == 1
    assert "extra_field_dropped" not in asked.notes.counts
    assert ("text_offset_shifted" in asked.notes.counts) is not chat


def test_a_plain_completion_is_read_without_calling_it_native() -> None:
    """An endpoint behind /completion that speaks OpenAI's: nothing is mispaired there."""
    given = {"tokens": ["Ha"], "token_logprobs": [-0.5], "top_logprobs": [{"Ho": -0.5}]}
    choice = {"text": "Ha", "index": 0, "finish_reason": "stop", "logprobs": given}
    asked = exchange()
    found = body(asked, {"choices": [choice], "object": "text_completion"})
    assert "native_answer" not in asked.notes.counts
    assert (texts(found), reasons(found)) == ("Ha", {0: "stop"})


def test_native_events_among_hybrid_ones_are_one_answer() -> None:
    """The mutant with an envelope for each dialect changes the id within a stream (6.constant)."""
    other = {"id": "cmpl-other0123456789", "created": 1733150000, "model": "other"}
    for events in ([piece("Ha"), hybrid({}, **other)], [hybrid({}, **other), piece("Ha")]):
        asked = exchange(logprobs=False)
        found = LlamaCppNative(asked).feed(sse(*events))
        assert [type(event) for event in found].count(Start) == 1
        changed = {f"{key}_changes": 1 for key in other} if events[0] != hybrid({}, **other) else {}
        assert changed.items() <= asked.notes.counts.items()


def test_an_openai_like_end_is_one_too() -> None:
    """A proxy in between may add [DONE]; nothing is read after it."""
    reader = LlamaCppNative(exchange())
    found = reader.feed(sse(piece("Hi"), last("limit")) + b"data: [DONE]\n\n" + sse(piece("x")))
    assert texts(found) == "Hi" and found[-1] == End(True)
    assert reader.close() == []


def test_a_stream_that_ends_without_its_last_line_break_is_read() -> None:
    reader = LlamaCppNative(exchange())
    found = reader.feed(sse(piece("Hi"), last("limit")).rstrip(b"\n")) + reader.close()
    assert reasons(found) == {0: "length"} and found[-1] == End(True)


def test_an_event_that_is_too_large_ends_the_answer_with_what_came_before() -> None:
    reader = LlamaCppNative(exchange())
    found = reader.feed(sse(piece("Hi")) + b"data: " + b"x" * (64 << 20))
    assert texts(found) == "Hi" and fault(found).code == "upstream_event_too_large"


def test_an_error_event_that_is_no_json_keeps_its_words() -> None:
    reader = LlamaCppNative(exchange())
    assert "out of memory" in fault(reader.feed(b"event: error\ndata: out of memory\n\n")).message


def test_broken_utf8_and_lone_surrogates_are_read_leniently() -> None:
    data = json.dumps({"content": "@", "stop": True, "stop_type": "eos"}).encode()
    assert texts(LlamaCppNative(exchange()).body(data.replace(b"@", b"\xff"))) == "\ufffd"
    assert texts(LlamaCppNative(exchange()).body(data.replace(b"@", b"\\ud83d"))) == "\ufffd"


@pytest.mark.parametrize("key", ["content", "timings", "completion_probabilities"])
def test_deep_nesting_is_no_crash(key: str) -> None:
    data = b'{"content":"","stop":true,"%s":' % key.encode() + b"[" * 900 + b"]" * 900 + b"}"
    for asked in (exchange(), exchange(keep=frozenset({"timings"}))):
        assert LlamaCppNative(asked).body(data)[-1]
