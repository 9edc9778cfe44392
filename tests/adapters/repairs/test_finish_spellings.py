"""Contract rule 1: every spelling of a finish reason, and words that no table has."""

from __future__ import annotations

import json
import re
from typing import Any, get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.answers import (
    CALL_DELTA,
    CALLED,
    WITH_TOOL,
    ask,
    body,
    choice,
    chunk,
    completion,
    end,
    message,
    role,
    say,
    stream,
)
from tests.examples import examples
from wellspoken.adapters.events import Reason
from wellspoken.adapters.repairs.finish_reasons import FAILURES, REASONS

ENUM = ("stop", "length", "tool_calls", "content_filter", "function_call")


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


FAILING = (
    *("timeout", "timedout", "deadline", "network", "connection", "disconnect", "overload"),
    *("quota", "ratelimit", "retry", "retries", "unavailable", "crash", "preempt", "memory", "oom"),
    *("resourceexhaust", "kill", "fatal", "panic", "shutdown", "evict", "unloaded", "dead", "died"),
    *("error", "fail", "abort", "cancel", "interrupt", "exception", "malformed", "invalid"),
    *("unexpected",),
)
"""Of what makes a reason that is in no table a failure, the letters; a drawn one may have them."""


@settings(max_examples=examples(150), deadline=None, database=None)
@given(REASON_VALUES, st.booleans())
@example("Memory", False)
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
        spelled = json.dumps(given, ensure_ascii=False).lower().replace("-", "_")
        code = whole.error["code"].removeprefix("upstream_")
        letters = re.sub("[^a-z]", "", spelled)
        assert code in spelled or (code == "failure" and any(word in letters for word in FAILING))
    else:
        assert whole.choice["finish_reason"] in ENUM
        assert whole.choice["finish_reason"] == streamed.choice["finish_reason"]
        assert (whole.choice["finish_reason"] == "tool_calls") <= called
