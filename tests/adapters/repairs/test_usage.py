"""Contract rule 10: a usage in other places, words and types, and counts that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    USAGE,
    Json,
    Said,
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
from tests.fold import fold
from tests.replay import exchange
from wellspoken.adapters.translate import StreamTranslator

ASKED = ask(stream_options={"include_usage": True})


def without_usage(*choices: Json, **more: Any) -> Json:
    given = completion(*choices, **more)
    del given["usage"]
    return given


def usage(said: Said) -> tuple[int, int]:
    found = said.answer["usage"]
    return found["prompt_tokens"], found["completion_tokens"]


IN_CHOICE = [{"usage": USAGE}, {"delta": {"usage": USAGE}}]
IN_VENDORS: list[Json] = [
    {"x_groq": {"id": "req_1", "usage": USAGE}},
    {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}},
    {"meta": {"billed_units": {"input_tokens": 5.0, "output_tokens": 2.0}}},
    {"stats": {"input_tokens": 5, "total_output_tokens": 2, "tokens_per_second": 43.7}},
    {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 5, "outputTokenCount": 2}},
    {"token_usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}},
    {"metrics": {"inputTokens": 5, "outputTokens": 2, "latencyMs": 340}},
    {
        "x_info": {
            "limits": {"total_tokens": 9},
            "tokenUsage": {"inputTokens": 5, "outputTokens": 2},
        }
    },
    {"x": {"billed_units": {"input_tokens": 1, "output_tokens": 2}, "last_usage": USAGE}},
]


@pytest.mark.parametrize("more", IN_CHOICE)
def test_a_usage_in_the_choice(more: Json) -> None:
    last = end()
    last["choices"][0] |= more
    whole = choice()
    whole |= more if "usage" in more else {"message": {**whole["message"], **more["delta"]}}
    for said in (body(without_usage(whole)), stream([role(), say("Hi"), last], ASKED)):
        assert usage(said) == (5, 2)
        assert said.repairs["usage_in_choice"] == 1
        assert "usage_missing" not in said.repairs and "extra_field_dropped" not in said.repairs


@pytest.mark.parametrize("more", IN_VENDORS, ids=lambda more: next(iter(more)))
def test_a_usage_in_a_vendors_object(more: Json) -> None:
    for said in (
        body(without_usage(**more)),
        stream([role(), say("Hi"), {**end(), **more}], ASKED),
    ):
        assert usage(said) == (5, 2)
        assert said.repairs["usage_in_vendor_object"] == 1
        assert "usage_missing" not in said.repairs
    beside = body(completion(**more))
    assert usage(beside) == (5, 2) and "usage_in_vendor_object" not in beside.repairs


@pytest.mark.parametrize(
    "more", [{"x": {"usage": {}}}, {"limits": {"total_tokens": 9}}, {"x": {"tokens": ["a"]}}]
)
def test_an_object_without_counts_is_no_usage(more: Json) -> None:
    said = body(without_usage(**more))
    assert "usage_missing" in said.repairs and "usage_in_vendor_object" not in said.repairs


TIMINGS: list[tuple[Json, tuple[int, int]]] = [
    ({"timings": {"prompt_n": 4, "cache_n": 6, "predicted_n": 3, "x": 1.5}}, (10, 3)),
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
    ({"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}, (5, 2)),
    ({"prompt_tokens": 5, "output_tokens": 2}, (5, 2)),
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


@pytest.mark.parametrize("number", [b"1e999", b"-1e999", b"9" * 5000, b'"\\ud800"'])
@pytest.mark.parametrize("name", ["cached_tokens", "x"])
def test_a_detail_that_no_number_holds_takes_nothing_with_it(name: str, number: bytes) -> None:
    """The Structs only pass over details."""
    told = {**USAGE, "prompt_tokens_details": {name: "PLACE"}}
    last = {**chunk({}), "choices": [], "usage": told}
    parts = [{**part, "usage": None} for part in (role(), say("Hi"), end())]
    sent = [
        json.dumps(x).encode().replace(b'"PLACE"', number) for x in (completion(usage=told), last)
    ]
    assert usage(body(sent[0])) == (5, 2)
    assert usage(stream([*parts, sent[1]], ASKED)) == (5, 2)


@pytest.mark.parametrize(("given", "wanted"), [("1", 1), (2.0, 2), (None, None)])
def test_a_detail_of_another_type_does_not_pass_as_it_came(given: Any, wanted: int | None) -> None:
    """The mutant that notes nothing sends a stream's usage on with a text or null as a count."""
    told = {**USAGE, "prompt_tokens_details": {"audio_tokens": 3, "cached_tokens": given}}
    last = {**chunk({}), "choices": [], "usage": told}
    parts = [{**part, "usage": None} for part in (role(), say("Hi"), end())]
    for said in (stream([*parts, last], ASKED), body(completion(usage=told))):
        details = said.answer["usage"]["prompt_tokens_details"]
        assert details == {"audio_tokens": 3} | ({"cached_tokens": wanted} if wanted else {})
        assert all(type(count) is int for count in details.values())


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


def test_zeros_give_way_to_a_vendors_object() -> None:
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    for more in IN_VENDORS:
        said = body(completion(usage=zeros, **more))
        assert usage(said) == (5, 2) and said.repairs["usage_in_vendor_object"] == 1
        assert "usage_constant" not in said.repairs


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


def test_a_usage_behind_the_end_that_came_with_it() -> None:
    """Where the end came alone, the client has had it by then."""
    chunks = [{**part, "usage": None} for part in (role(), say("Hi"), end())]
    late = {**chunk({}), "choices": [], "usage": USAGE}
    told = [*chunks, "[DONE]", late, say("no"), '"usage"']
    lines = [x if isinstance(x, str) else json.dumps(x) for x in told]
    translator = StreamTranslator(exchange({**ASKED, "stream": True}))
    out = translator.feed("".join(f"data: {line}\n\n" for line in lines).encode())
    notes = translator.exchange.notes.counts
    assert fold(out)["usage"] == USAGE and notes == {"usage_misplaced": 1}
    assert fold(out)["choices"][0]["message"]["content"] == "Hi"


def test_a_body_whose_usage_is_null_beside_timings() -> None:
    timings = {"prompt_n": 3, "cache_n": 2, "predicted_n": 2}
    said = body({**without_usage(), "usage": None, "timings": timings})
    assert usage(said) == (5, 2) and said.repairs["usage_from_timings"] == 1


def test_the_timings_of_one_slot_are_no_count_of_several_choices() -> None:
    timings = {"prompt_n": 3, "cache_n": 2, "predicted_n": 2}
    asked = ask(n=2)
    whole = completion(choice(), {**choice(), "index": 1})
    more = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
    assert usage(body({**whole, "usage": more, "timings": timings}, asked)) == (5, 3)
    del whole["usage"]
    said = body({**whole, "timings": timings}, asked)
    assert usage(said)[0] == 5 and "usage_missing" in said.repairs


def test_zeros_give_way_to_timings() -> None:
    """Ollama tells a usage of zeros with every chunk."""
    zeros = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    last = {**end(), "timings": {"prompt_n": 1, "cache_n": 4, "predicted_n": 2}}
    said = stream([role(), {**say("Hi"), "usage": zeros}, last], ASKED)
    assert usage(said) == (5, 2) and said.repairs["usage_from_timings"] == 1


def test_no_prompt_with_a_text_has_no_tokens() -> None:
    """Ollama before July 2024 says 0 of what its cache had (ollama/ollama issue #5370)."""
    given = {"prompt_tokens": 0, "completion_tokens": 2, "total_tokens": 2}
    details = {"prompt_tokens_details": {"cached_tokens": 0}}
    for said in (
        stream([role(), say("Hi"), end(), {**chunk({}), "choices": [], "usage": given}], ASKED),
        body(completion(usage={**given, **details})),
    ):
        assert usage(said)[0] > 0 and usage(said)[1] == 2
        assert said.repairs["usage_constant"] == 1
        assert "prompt_tokens_details" not in said.answer["usage"]
    asked = ask(messages=[{"role": "user", "content": ""}])
    assert usage(body(completion(usage=given), asked)) == (0, 2)


def test_what_was_not_in_the_cache_is_not_the_prompt() -> None:
    """llama.cpp before pull request #15827 counts that alone, and says no `cache_n`."""
    timings = {"timings": {"prompt_n": 1, "predicted_n": 2}}
    messages = [{"role": "user", "content": "x" * 400}]
    asked = ask(messages=messages, stream=True, stream_options={"include_usage": True})
    for said in (
        stream([role(), say("Hi"), {**end(), **timings}], asked),
        body(without_usage(**timings), ask(messages=messages)),
    ):
        assert usage(said)[0] >= 100 and usage(said)[1] == 2
        assert "usage_missing" in said.repairs


@pytest.mark.parametrize("zeros", [{"prompt_tokens": 0}, {"prompt_tokens": 5}])
@pytest.mark.parametrize("last", [end(), {**chunk({}), "choices": []}])
def test_zeros_give_way_to_timings_beside_them(zeros: Json, last: Json) -> None:
    timings = {"prompt_n": 3, "cache_n": 2, "predicted_n": 2}
    told = {"usage": {**zeros, "completion_tokens": 0}, "timings": timings}
    for said in (
        stream([role(), say("Hi"), end(), {**last, **told}], ASKED),
        body(completion(**told)),
    ):
        assert usage(said) == (5, 2) and said.repairs["usage_from_timings"] == 1
        assert said.answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_cached_tokens_go_with_the_prompt_that_they_are_part_of() -> None:
    """A prompt that the proxy has to estimate is not the one of which the backend tells a part."""
    given = {"completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 900}}
    said = body(completion(usage=given))
    assert said.answer["usage"]["completion_tokens"] == 2
    assert "prompt_tokens_details" not in said.answer["usage"]
