"""Contract rule 1: a reason that is missing, comes twice or beside text, or is a failure."""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import (
    CALL_DELTA,
    CALLED,
    DONE,
    TOOL,
    USAGE,
    WITH_TOOL,
    ask,
    body,
    choice,
    chunk,
    completion,
    counted,
    data,
    end,
    message,
    role,
    say,
    stream,
)
from tests.replay import exchange
from wellspoken.adapters.repairs.finish_reasons import FAILURES
from wellspoken.adapters.translate import StreamTranslator


@pytest.mark.parametrize("spelling", ["tool_call", "tool_use", "function", "stop", "eos_token"])
def test_after_a_call_it_is_tool_calls(spelling: str) -> None:
    whole = body(completion(choice(message=CALLED, finish_reason=spelling)), WITH_TOOL)
    opened = chunk({**message(None), **CALL_DELTA})
    streamed = stream([opened, end(spelling)], WITH_TOOL)
    for said in (whole, streamed):
        assert said.choice["finish_reason"] == "tool_calls"
        assert said.message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert whole.repairs == streamed.repairs


def test_stop_passes_after_a_forced_tool() -> None:
    forced = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
    said = body(completion(choice(message=CALLED)), ask(tools=[TOOL], **forced))
    assert said.choice["finish_reason"] == "stop"
    assert said.repairs == {}


@pytest.mark.parametrize("reason", ["tool_calls", "tool_call", "function_call", "function"])
def test_tool_calls_without_a_call_is_stop(reason: str) -> None:
    for said in (
        body(completion(choice(finish_reason=reason))),
        stream([role(), say("Hi"), end(reason)]),
    ):
        assert said.choice["finish_reason"] == "stop"
        assert said.repairs["finish_reason_tool_calls_without_call"] == 1


def test_the_deprecated_functions_have_their_own_reason() -> None:
    asked = ask(functions=[{"name": "f"}])
    said = body(completion(choice(message=CALLED, finish_reason="tool_calls")), asked)
    assert said.choice["finish_reason"] == "function_call"
    assert said.message["function_call"] == {"name": "f", "arguments": "{}"}
    assert said.repairs["finish_reason_call_kind"] == 1


def test_an_unknown_reason_after_a_call_is_tool_calls() -> None:
    said = body(completion(choice(message=CALLED, finish_reason="banana")), WITH_TOOL)
    assert said.choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("given", [None, "", "null", "None"])
def test_a_missing_reason_after_a_clean_end(given: Any) -> None:
    for said in (
        body(completion(choice(finish_reason=given))),
        stream([role(), say("H"), say("i")]),
        stream([chunk({"content": "Hi"}, given)]),
        stream([say("Hi"), counted()], ask(stream_options={"include_usage": True}), done=False),
    ):
        assert said.choice["finish_reason"] == "stop"
        assert said.repairs["finish_reason_missing"] == 1


def test_a_missing_reason_at_the_limit_is_length() -> None:
    asked = ask(max_tokens=2)
    for said in (
        body(completion(choice(finish_reason=None)), asked),
        stream([role(), say("H"), say("i")], asked),
    ):
        assert said.choice["finish_reason"] == "length"
        assert said.repairs["finish_reason_missing"] == 1


def test_the_limit_is_known_by_the_logprob_entries() -> None:
    row = {"bytes": [72], "token": "H", "logprob": -1.0, "top_logprobs": []}
    part = say("HH", logprobs={"content": [row, row], "refusal": None})
    said = stream([role(), part], ask(logprobs=True, max_tokens=2))
    assert said.choice["finish_reason"] == "length"


def test_a_missing_reason_after_a_call_is_tool_calls() -> None:
    for said in (
        body(completion(choice(message=CALLED, finish_reason=None)), WITH_TOOL),
        stream([chunk({**message(None), **CALL_DELTA})], WITH_TOOL),
    ):
        assert said.choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("reason", sorted(FAILURES))
def test_a_failure_is_never_an_answer(reason: str) -> None:
    retry = False if reason == "parse_error" else None
    whole = body(completion(choice(finish_reason=reason)))
    assert (whole.status, whole.retry) == (502, retry)
    streamed = stream([role(), say("Hi"), end(reason)])
    for said in (whole, streamed):
        assert said.error is not None
        assert said.error["type"] == "server_error"
        assert said.error["code"] == f"upstream_{reason}"
        assert reason in said.error["message"]
        assert said.repairs[f"finish_reason_{reason}"] == 1
    assert streamed.raw.count(b'"error"') == 1
    assert DONE not in streamed.raw
    assert streamed.answer["choices"][0]["finish_reason"] is None


def test_one_failed_choice_fails_the_whole_answer() -> None:
    said = body(completion(choice(), choice(index=1, finish_reason="abort")), ask(n=2))
    assert said.status == 502
    said = body(completion(choice(finish_reason="abort"), choice(index=1, x=1)), ask(n=2))
    assert said.status == 502
    assert said.repairs == {"finish_reason_abort": 1}  # the rest is not looked at
    said = stream([role(), role(1), say("Hi"), end("abort", index=1), end()], ask(n=2))
    assert said.error is not None and said.error["code"] == "upstream_abort"
    assert b'finish_reason":"stop' not in said.raw.replace(b" ", b"")


def test_a_stream_that_is_cut_fails() -> None:
    said = stream([role(), say("Hi")], done=False)
    assert said.error is not None
    assert (said.error["code"], said.error["type"]) == ("upstream_cut", "server_error")
    assert DONE not in said.raw


def test_a_stream_without_done_but_with_a_reason_is_complete() -> None:
    said = stream([role(), say("Hi"), end("length")], done=False)
    assert said.error is None
    assert said.choice["finish_reason"] == "length"
    assert said.repairs == {"done_missing": 1}


@pytest.mark.parametrize("given", [None, "banana"])
def test_no_token_and_no_reason_is_a_failure(given: Any) -> None:
    none = {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}
    whole = body(completion(choice("", finish_reason=given), usage=none))
    assert whole.error is not None and whole.error["code"] == "empty_answer"
    streamed = stream([role(), end(given)])
    assert streamed.error is not None and streamed.error["code"] == "empty_answer"


def test_nothing_at_all_is_a_failure() -> None:
    said = stream([])
    assert (said.status, said.error and said.error["code"]) == (502, "empty_answer")
    assert stream([], done=False).status == 502
    assert stream([counted()]).status == 502


def test_no_token_with_a_reason_is_an_empty_answer() -> None:
    for said in (body(completion(choice(""))), stream([role(), end()])):
        assert (said.message["content"], said.choice["finish_reason"]) == ("", "stop")
        assert said.repairs == {}


def test_a_reason_beside_text_moves_to_its_own_chunk() -> None:
    said = stream([role(), say("H"), chunk({"content": "i"}, "length")])
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hi", "length")
    assert said.repairs == {"delta_not_single": 1}


def test_a_reason_on_every_chunk_counts_once() -> None:
    said = stream([role(), chunk({"content": "H"}, "stop"), chunk({"content": "i"}, "length")])
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hi", "length")
    assert said.repairs["finish_reason_repeated"] == 1


def test_a_second_reason_is_dropped() -> None:
    said = stream([role(), say("Hi"), end("length"), end("stop")])
    assert said.choice["finish_reason"] == "length"
    assert said.repairs == {"finish_reason_repeated": 1}


def test_nothing_follows_the_reason() -> None:
    said = stream([role(), say("Hi"), end(), say("!"), end()])
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hi", "stop")
    assert said.repairs == {"text_after_finish": 1, "finish_reason_repeated": 1}


def test_the_reason_key_is_never_absent() -> None:
    bare = say("Hi")
    del bare["choices"][0]["finish_reason"]
    opened = role()
    del opened["choices"][0]["finish_reason"]
    said = stream([opened, bare, end()])
    assert said.repairs == {"finish_reason_absent": 2}


def test_what_a_client_has_is_not_taken_back() -> None:
    asked = exchange(ask(stream=True))
    translator = StreamTranslator(asked)
    first = translator.feed(data(role()) + data(say("Hi")))
    assert b'"Hi"' in first and not translator.done
    assert b"error" in translator.feed(data(end("error")))
    assert translator.done and translator.feed(data(say("x"))) == b""


def test_a_reason_on_every_chunk_loses_no_text() -> None:
    chunks = [
        chunk({"role": "assistant", "content": ""}, "stop"),
        chunk({"content": "Hello"}, "stop"),
        chunk({"content": " world"}, "stop"),
    ]
    said = stream(chunks)
    assert (said.message["content"], said.choice["finish_reason"]) == ("Hello world", "stop")


def test_usage_beside_text_does_not_make_a_cut_stream_complete() -> None:
    said = stream([role(), {**say("a"), "usage": USAGE}], done=False)
    assert said.error is not None and said.error["code"] == "upstream_cut"
