"""Contract rule 1: every spelling of a finish reason, a reason that is missing, and failures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import (
    DONE,
    TOOL,
    USAGE,
    Json,
    ask,
    body,
    call,
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
from tests.examples import examples
from tests.replay import exchange
from wellspoken.adapters.events import Reason
from wellspoken.adapters.repairs.finish_reasons import FAILURES, REASONS
from wellspoken.adapters.translate import StreamTranslator

ENUM = ("stop", "length", "tool_calls", "content_filter", "function_call")
CALLED = message(None, tool_calls=[call()])
WITH_TOOL = ask(tools=[TOOL])
CALL_DELTA = {"tool_calls": [{"index": 0, **call()}]}

SPELLINGS = {
    "eos_token": "stop",
    "eos": "stop",
    "stop_sequence": "stop",
    "stop_token": "stop",
    "stop_str": "stop",
    "end_turn": "stop",
    "word": "stop",
    "max_tokens": "length",
    "max_new_tokens": "length",
    "max_length": "length",
    "limit": "length",
    "model_length": "length",
    "repetition": "length",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function": "function_call",
    "content_filtered": "content_filter",
    "safety": "content_filter",
}
FAILED = (
    "abort",
    "aborted",
    "error",
    "canceled",
    "cancelled",
    "timeout",
    "parse_error",
    "insufficient_system_resource",
)


def test_the_enum_is_openais() -> None:
    assert get_args(Reason) == ENUM


def test_every_spelling_has_its_row_here() -> None:
    assert SPELLINGS == REASONS
    assert set(FAILED) == set(FAILURES)


@pytest.mark.parametrize("spelling", [s for s, r in SPELLINGS.items() if "call" not in r])
def test_a_spelling_becomes_the_enum(spelling: str) -> None:
    whole = body(completion(choice(finish_reason=spelling)))
    streamed = stream([role(), say("Hi"), end(spelling)])
    for said in (whole, streamed):
        assert said.choice["finish_reason"] == SPELLINGS[spelling]
        assert said.repairs == {f"finish_reason_{spelling}": 1}


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


@pytest.mark.parametrize(
    ("given", "repair"),
    [
        ("STOP", "finish_reason_case"),
        (" stop ", "finish_reason_case"),
        ("EOS_TOKEN", "finish_reason_eos_token"),
        ("End-Turn", "finish_reason_end_turn"),
        ("endTurn", "finish_reason_end_turn"),
        ("StopSequence", "finish_reason_stop_sequence"),
        ("stop sequence", "finish_reason_stop_sequence"),
        ({"type": "stop", "matched": 2}, "finish_reason_object"),
        ({"reason": "stop"}, "finish_reason_object"),
    ],
)
def test_case_and_objects(given: Any, repair: str) -> None:
    for said in (
        body(completion(choice(finish_reason=given))),
        stream([role(), say("Hi"), end(given)]),
    ):
        assert said.choice["finish_reason"] == "stop"
        assert said.repairs == {repair: 1}


@pytest.mark.parametrize("given", ["banana", 7, True, ["stop"], {"type": "banana"}, {"type": 7}])
@pytest.mark.parametrize(("limit", "reason"), [(None, "stop"), (2, "length"), (3, "stop")])
def test_an_unknown_reason_is_decided_by_the_answer(
    given: Any, limit: int | None, reason: str
) -> None:
    asked = ask(**({"max_tokens": limit} if limit else {}))
    for said in (
        body(completion(choice(finish_reason=given)), asked),
        stream([role(), say("H"), say("i"), end(given)], asked),
    ):
        assert said.choice["finish_reason"] == reason
        assert said.repairs["finish_reason_unknown"] == 1
        assert "finish_reason_missing" not in said.repairs


LIKE = {
    "content_filter": (
        *("guardrail_intervened", "PROHIBITED_CONTENT", "RECITATION", "BLOCKLIST", "sensitive"),
        *("FinishReason.IMAGE_SAFETY", "ERROR_TOXIC", "refusal", "contentFilterTriggered"),
        *("safety_check_failed", "aborted-by-filter", "contentfilter", "unsafe content"),
        *("MODEL_ARMOR", "flagged", "profanity", "nsfw", "pii", "hate", "self_harm", "jailbreak"),
    ),
    "length": (
        *("model_context_window_exceeded", "context_window_exceeded", "modelLengthExceeded"),
        *("maxPredictedTokensReached", "ERROR_LIMIT", "FinishReason.MAX_TOKENS", "context"),
        *("context_length_error", "MaximumOutput", "token-limit", "truncated", "time_limit"),
        *("token_budget", "budget_exhausted", "too_long"),
    ),
    "failure": (
        *("network_error", "timed_out", "TimeOut", "ENGINE_ERROR", "USER_CANCEL", "failed"),
        *("server_overloaded", "rate_limit_exceeded", "context canceled", "deadline_exceeded"),
        *("guardrail_timeout", "MALFORMED_FUNCTION_CALL", "out_of_memory", "HTTPError"),
        *("modelUnloaded", "RESOURCE_EXHAUSTED", "UNEXPECTED_TOOL_CALL", "killed", "engine_dead"),
        *("shutdown", "server shut down", "worker_died", "evicted", "fatal"),
    ),
}
"""What a reason that is in no table says by its words: the causes of a failure go before a filter,
this before a limit, and that before a bare error."""


@pytest.mark.parametrize(
    ("spelling", "kind"), [(s, kind) for kind, all in LIKE.items() for s in all]
)
def test_an_unheard_reason_is_read_by_its_words(spelling: str, kind: str) -> None:
    for said in (
        body(completion(choice(finish_reason=spelling))),
        stream([role(), say("Hi"), end(spelling)]),
    ):
        assert said.repairs == {f"finish_reason_like_{kind}": 1}
        if kind == "failure":
            assert said.error is not None and said.error["code"] == "upstream_failure"
        else:
            assert said.error is None and said.choice["finish_reason"] == kind


@pytest.mark.parametrize(
    "spelling",
    ["NO_ERROR", "unlimited", "climax", "harmony_end", "content_block_stop", "COMPLETE", "unload"],
)
def test_a_word_within_another_or_denied_says_nothing(spelling: str) -> None:
    said = body(completion(choice(finish_reason=spelling)))
    assert said.choice["finish_reason"] == "stop"
    assert said.repairs == {"finish_reason_unknown": 1}


def test_an_error_quotes_no_more_than_the_beginning_of_a_reason() -> None:
    said = body(completion(choice(finish_reason="error_" * 1000)))
    assert said.error is not None and len(said.error["message"]) < 250


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


@pytest.mark.parametrize(
    ("keys", "reason", "repair"),
    [
        ({"stop_type": "eos"}, "stop", "finish_reason_stop_type"),
        ({"stop_type": "limit"}, "length", "finish_reason_stop_type"),
        ({"done_reason": "length"}, "length", "finish_reason_done_reason"),
        ({"stopped_eos": True, "stopped_limit": False}, "stop", "finish_reason_stopped_flags"),
        ({"stopped_limit": True}, "length", "finish_reason_stopped_flags"),
        ({"stopped_word": True}, "stop", "finish_reason_stopped_flags"),
    ],
)
def test_a_reason_under_another_name(keys: Json, reason: str, repair: str) -> None:
    bare = {**choice(), **keys}
    del bare["finish_reason"]
    last = chunk({})
    del last["choices"][0]["finish_reason"]
    last["choices"][0] |= keys
    for said in (body(completion(bare)), stream([role(), say("Hi"), last])):
        assert said.choice["finish_reason"] == reason
        assert said.repairs[repair] == 1
        assert "finish_reason_missing" not in said.repairs
        assert "extra_field_dropped" not in said.repairs  # folded, not lost


@pytest.mark.parametrize("key", ["stop_type", "done_reason"])
def test_a_failure_under_another_name_is_a_failure(key: str) -> None:
    bare = {**choice(), key: "abort"}
    del bare["finish_reason"]
    said = body(completion(bare))
    assert (said.status, said.error and said.error["code"]) == (502, "upstream_abort")


@pytest.mark.parametrize("reason", FAILED)
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


REASON_TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from([*SPELLINGS, *FAILED, *ENUM, "", "null"]).flatmap(
        lambda s: st.sampled_from([s, s.upper(), s.title(), f" {s}\n", s.replace("_", "-")])
    ),
)
REASON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | REASON_TEXTS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "reason", "x"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@settings(max_examples=examples(150), deadline=None, database=None)
@given(REASON_VALUES, st.booleans())
def test_any_reason_is_of_the_enum_or_a_failure(given: Any, called: bool) -> None:
    asked = WITH_TOOL if called else ask()
    whole = body(
        completion(choice(message=CALLED if called else message(), finish_reason=given)), asked
    )
    opened = [chunk({**message(None), **CALL_DELTA})] if called else [role(), say("Hi")]
    streamed = stream([*opened, end(given)], asked)
    assert (whole.error is None) == (streamed.error is None)
    if whole.error is not None:
        assert streamed.error is not None and whole.error["code"] == streamed.error["code"]
        spelled = json.dumps(given).lower().replace("-", "_")
        assert whole.error["code"].removeprefix("upstream_") in spelled
    else:
        assert whole.choice["finish_reason"] in ENUM
        assert whole.choice["finish_reason"] == streamed.choice["finish_reason"]
        assert (whole.choice["finish_reason"] == "tool_calls") <= called


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
