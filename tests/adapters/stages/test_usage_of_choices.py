"""Counts of single choices: which hold of the answer, and what is made of those of some alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import USAGE, Json, ask, choice, completion, entries, say
from tests.replay import exchange
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.translate import StreamTranslator, translate_body

TIMINGS = {"cache_n": 3, "prompt_n": 2, "predicted_n": 2}  # USAGE by other words
PAIR = (choice("Hi."), choice("Hello.", index=1))


def counts(asked: Exchange) -> tuple[int | None, int | None, str]:
    told = asked.result.usage
    assert told is not None
    return told.prompt, told.completion, asked.result.usage_source


def answered(*choices: Json, request: Json | None = None, **more: Any) -> tuple[Exchange, Json]:
    asked = exchange(ask(n=2) if request is None else request)
    given = completion(*choices, **more)
    answer = translate_body(asked, 200, "application/json", json.dumps(given).encode())
    assert answer.status == 200
    found: Json = json.loads(answer.body)
    told = found["usage"]
    assert (told["prompt_tokens"], told["completion_tokens"]) == counts(asked)[:2]
    return asked, found


def test_a_bodys_usage_that_is_its_timings_is_of_its_first_choice() -> None:
    """llama.cpp b7376 and b11549; the second choice has twice the bytes."""
    asked, _ = answered(*PAIR, timings=TIMINGS)
    assert counts(asked) == (5, 6, "estimate")
    assert asked.notes.counts == {"usage_of_one_choice": 1, "extra_field_dropped": 1}


def test_the_entries_count_all_choices() -> None:
    scored = [choice("Hi.", logprobs=entries("Hi", ".")),
              choice("Hello.", index=1, logprobs=entries("Hel", "lo", "."))]  # fmt: skip
    asked, _ = answered(*scored, request=ask(n=2, logprobs=True), timings=TIMINGS)
    assert counts(asked) == (5, 5, "tokens")


@pytest.mark.parametrize(
    ("choices", "timings"),
    [
        (PAIR, {**TIMINGS, "predicted_n": 1}),  # a sum, as a later llama.cpp may tell
        (PAIR, {"predicted_ms": 1.5}),
        ((choice("Hi."), choice("", index=1)), TIMINGS),  # nothing was said but by the first
        ((choice("Hi."),), TIMINGS),
    ],
    ids=["sum", "no counts", "one text", "one choice"],
)
def test_other_usages_stand(choices: tuple[Json, ...], timings: Json) -> None:
    asked, _ = answered(*choices, request=ask(n=len(choices)), timings=timings)
    assert counts(asked) == (5, 2, "backend")
    assert "usage_of_one_choice" not in asked.notes.counts


def test_timings_without_a_usage_are_of_the_first_choice_too() -> None:
    asked, _ = answered(*PAIR, timings=TIMINGS, usage=None)
    assert counts(asked) == (5, 6, "estimate")
    assert asked.notes.counts.keys() == {"usage_missing", "extra_field_dropped"}


def test_a_first_choice_without_a_text_tells_nothing_of_the_others() -> None:
    said = choice("Hello world!", index=1)
    asked, _ = answered(choice(""), said, timings=TIMINGS)
    assert counts(asked) == (5, 3, "estimate")


@pytest.mark.parametrize(("prompts", "prompt"), [(["abcd" * 10, "b"], 11), (["a"], 5)])
def test_of_several_prompts_the_first_alone_is_counted(prompts: list[str], prompt: int) -> None:
    asked = exchange({"model": "m", "prompt": prompts, "n": 2 // len(prompts)})
    texts = [{"index": n, "text": x, "logprobs": None, "finish_reason": "stop"}
             for n, x in enumerate(("Hi.", "Hello."))]  # fmt: skip
    given = {**completion(), "object": "text_completion", "id": "cmpl-0123456789", "choices": texts}
    told = {**USAGE, "prompt_tokens": 5, "total_tokens": 7}
    data = json.dumps({**given, "usage": told, "timings": TIMINGS}).encode()
    answer = translate_body(asked, 200, "application/json", data, "completions")
    assert answer.status == 200, answer.body
    assert counts(asked) == (prompt, 6, "estimate")


def test_a_client_that_leaves_before_a_choice_was_counted_has_used_that_too() -> None:
    asked = exchange(ask(stream=True, n=2))
    translator = StreamTranslator(asked)
    last = {**say(""), "timings": TIMINGS}
    last["choices"][0]["finish_reason"] = "stop"
    for part in (say("Hi."), say("Hello.", index=1), last):
        translator.feed(b"data: " + json.dumps(part).encode() + b"\n\n")
    translator.count_so_far()
    assert counts(asked) == (5, 6, "estimate")
