"""Contract rule 10: one usage, from the best source there is, with counts that add up."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.answers import (
    USAGE,
    Json,
    Said,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    counted,
    data,
    end,
    entries,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.fold import payloads
from tests.replay import exchange
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.table import TokenTable
from wellspoken.adapters.tokens.vocabulary import Vocabulary, from_tiktoken_file
from wellspoken.adapters.translate import StreamTranslator, translate_body

ASKED = ask(stream_options={"include_usage": True})
HI = [role(), say("Hi"), end()]


def usage(said: Said) -> Json:
    found: Json = said.answer["usage"]
    return found


def both(**given: Any) -> list[Said]:
    """Return what comes of a usage in a body, and of one at a stream's end."""
    parts = [{**part, "usage": None} for part in HI]
    last = {**counted(), "usage": given}
    return [body(completion(usage=given)), stream([*parts, last], ASKED)]


CASES: dict[str, tuple[Json, Json, dict[str, int]]] = {
    "in order": (USAGE, USAGE, {}),
    "the total is the sum": ({**USAGE, "total_tokens": 9}, USAGE, {"usage_total_wrong": 1}),
    "no total": (
        {"prompt_tokens": 5, "completion_tokens": 2},
        USAGE,
        {"usage_total_wrong": 1},
    ),
    "no completion": (
        {"prompt_tokens": 5, "total_tokens": 7},
        USAGE,
        {"shape_unusual": 1},
    ),
    "floats": (
        {"prompt_tokens": 5.0, "completion_tokens": 2.0, "total_tokens": 7.0},
        USAGE,
        {"shape_unusual": 1},
    ),
    "details": (
        {
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
        {
            **USAGE,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 1},
        },
        {},
    ),
    "details null": (
        {**USAGE, "prompt_tokens_details": None},
        USAGE,
        {"usage_null_details": 1},
    ),
    "details that are none": (
        {**USAGE, "prompt_tokens_details": "x", "completion_tokens_details": {"x": 1, "y": None}},
        USAGE,
        {"extra_field_dropped": 2, "null_key_omitted": 1},
    ),
    "deepseek: cache hits": (
        {**USAGE, "prompt_cache_hit_tokens": 3, "prompt_cache_miss_tokens": 2},
        {**USAGE, "prompt_tokens_details": {"cached_tokens": 3}},
        {"usage_details_moved": 1, "extra_field_dropped": 1},
    ),
    "sglang: reasoning tokens": (
        {**USAGE, "reasoning_tokens": 1},
        {**USAGE, "completion_tokens_details": {"reasoning_tokens": 1}},
        {"usage_details_moved": 1},
    ),
    "keys nobody knows": (
        {**USAGE, "queue_time": 0.1, "nothing": None},
        USAGE,
        {"extra_field_dropped": 1},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_backends_counts(name: str) -> None:
    given, wanted, repairs = CASES[name]
    for said in both(**given):
        assert usage(said) == wanted
        assert said.repairs == repairs


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        7,
        {"prompt_tokens": "many"},
        {"prompt_tokens": True},
        {"prompt_tokens": -1, "completion_tokens": -1},
        {"prompt_tokens": 1e16},
        {"prompt_tokens": 10**16, "completion_tokens": 10**16, "total_tokens": 10**16},
    ],
    ids=json.dumps,
)
def test_a_usage_that_tells_nothing_is_missing(given: Any) -> None:
    said = body(completion(usage=given))
    assert usage(said) == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    assert said.repairs["usage_missing"] == 1


def asked_of(vocabulary: Vocabulary | None = None, **more: Any) -> Exchange:
    found = exchange(ask(**more))
    if vocabulary is not None:
        found = replace(found, tokens=TokenTable(vocabulary))
    return found


def answered(asked: Exchange, given: Json) -> Json:
    answer = translate_body(asked, 200, "application/json", json.dumps(given).encode())
    found: Json = json.loads(answer.body)["usage"]
    return found


def without_usage(*choices: Json) -> Json:
    given = completion(*choices)
    del given["usage"]
    return given


def byte_tokens() -> Vocabulary:
    """A vocabulary of single bytes, which can count."""
    lines = [base64.b64encode(bytes([n])) + b" %d" % n for n in range(256)]
    return from_tiktoken_file(b"\n".join(lines))


def test_the_sources_in_order() -> None:
    many = without_usage(choice("Hi there", logprobs=entries("Hi", " there")))
    asked = asked_of(logprobs=True)
    assert answered(asked, many)["completion_tokens"] == 2
    asked = asked_of(byte_tokens(), logprobs=True)
    assert answered(asked, many)["completion_tokens"] == 8
    asked = asked_of()
    assert answered(asked, without_usage(choice("Hi there")))["completion_tokens"] == 2
    assert asked.result.usage_source == "estimate"
    asked = asked_of()
    answered(asked, completion())
    assert asked.result.usage_source == "backend"


@pytest.mark.parametrize(
    ("vocabulary", "logprobs", "source"),
    [(True, False, "tokenizer"), (False, True, "tokens"), (False, False, "estimate")],
)
def test_the_source_of_the_completion_is_told(
    vocabulary: bool, logprobs: bool, source: str
) -> None:
    """The prompt is the backend's here, so the source is that of what was counted."""
    asked = asked_of(byte_tokens() if vocabulary else None, logprobs=logprobs)
    given = completion(choice(logprobs=entries("Hi") if logprobs else None))
    given["usage"] = {"prompt_tokens": 5}
    assert answered(asked, given)["prompt_tokens"] == 5
    assert asked.result.usage_source == source
    assert asked.result.usage is not None and asked.result.usage.prompt == 5


def test_calls_and_reasoning_are_counted() -> None:
    part = message(None, tool_calls=[call(arguments='{"a":1}')], reasoning_content="So.")
    asked = asked_of(byte_tokens())
    given = without_usage(choice(message=part, finish_reason="tool_calls"))
    assert answered(asked, given)["completion_tokens"] == len('So.f{"a":1}')


def test_the_prompt_is_estimated_by_its_bytes() -> None:
    asked = exchange({"model": "m", "messages": [{"role": "user", "content": "x" * 41}]})
    assert answered(asked, without_usage())["prompt_tokens"] == 11


def test_a_stream_has_usage_only_when_asked() -> None:
    said = stream([*HI, counted()])
    assert "usage" not in said.answer
    assert said.repairs == {"usage_unasked": 1}
    said = stream(HI, ASKED)
    assert usage(said) == {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    assert said.repairs["usage_missing"] == 1


def test_usage_is_null_on_all_chunks_but_the_last() -> None:
    said = stream([*HI, counted()], ASKED)
    parts = said.chunks
    assert [part["usage"] for part in parts[:-1]] == [None, None, None]
    assert (parts[-1]["choices"], parts[-1]["usage"]) == ([], USAGE)
    assert said.repairs == {"usage_null_missing": 3}


def test_a_null_that_nobody_asked_for_is_omitted() -> None:
    said = stream([{**part, "usage": None} for part in HI])
    assert b"usage" not in said.raw
    assert said.repairs == {"null_key_omitted": 3}


@pytest.mark.parametrize("asked", [ASKED, ask()], ids=["asked", "unasked"])
def test_usage_on_every_chunk_is_given_once_the_last(asked: Json) -> None:
    """vLLM's continuous_usage_stats; LangChain sums what it sees."""
    parts = [{**part, "usage": {**USAGE, "completion_tokens": n}} for n, part in enumerate(HI)]
    said = stream([*parts, counted()], asked)
    assert said.raw.count(b'"prompt_tokens"') == (1 if asked is ASKED else 0)
    if asked is ASKED:
        assert usage(said) == USAGE
    assert said.repairs["usage_misplaced"] == 3
    assert said.repairs["usage_repeated"] == 3


def test_usage_beside_the_last_choice_moves_behind_it() -> None:
    said = stream([role(), say("Hi"), {**end(), "usage": USAGE}], ASKED)
    assert usage(said) == USAGE
    last = json.loads(list(payloads(said.raw))[-2])
    assert (last["choices"], last["usage"]) == ([], USAGE)


def test_a_usage_chunk_without_choices() -> None:
    last = counted()
    del last["choices"]
    said = stream([*HI, last], ASKED)
    assert usage(said) == USAGE
    assert said.repairs["choices_missing"] == 1


def test_a_constant_is_no_count() -> None:
    """KoboldCpp <= 1.76 always says 100, 100, 200."""
    constant = {"prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}
    said = body(completion(usage=constant))
    assert usage(said)["completion_tokens"] == 1
    assert said.repairs["usage_constant"] == 1
    said = body(completion(choice("x" * 100), usage=constant))
    assert usage(said) == constant
    assert said.repairs == {}
    almost = {**constant, "prompt_tokens": 99, "total_tokens": 199}
    assert usage(body(completion(usage=almost))) == almost


def test_a_stream_of_logprobs_is_counted_by_its_entries() -> None:
    parts = [role(), say("Hi", logprobs=entries("H", "i")), end()]
    said = stream(parts, scored(stream_options={"include_usage": True}))
    assert usage(said)["completion_tokens"] == 2


def test_a_usage_before_the_end_of_a_cut_stream_is_a_clean_end() -> None:
    """A usage chunk tells that the answer is over (rule 1)."""
    said = stream([role(), say("Hi"), counted()], ASKED, done=False)
    assert said.error is None
    assert said.choice["finish_reason"] == "stop"


def test_a_failed_answer_has_no_usage() -> None:
    translator = StreamTranslator(exchange({**ASKED, "stream": True}))
    translator.feed(data(role()) + data(say("Hi")))
    out = translator.feed(data(chunk({}, "error"))) + translator.close()
    assert b'"error"' in out and b"prompt_tokens" not in out
