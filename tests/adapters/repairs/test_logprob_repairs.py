"""Contract rule 7: every nonstandard shape of chat logprobs comes out as one list of entries."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.answers import (
    HI,
    NO_TOPS,
    H,
    I,
    Rows,
    Tops,
    ask,
    body,
    both,
    choice,
    completion,
    end,
    entries,
    entry,
    message,
    role,
    say,
    scored,
    stream,
)

UNKNOWN = -9999.0


ARRAYS: dict[str, tuple[Any, Rows, Tops, dict[str, int]]] = {
    "vllm 0.3.3-0.4.2, llama-cpp-python 0.2.58-0.3.2": (
        {
            "tokens": ["H", "i"],
            "token_logprobs": [-1, -2],
            "top_logprobs": [{"J": -3, "H": -1}, {"i": -2}],
            "text_offset": [0, 1],
        },
        HI,
        [[("H", -1), ("J", -3)], [("i", -2)]],
        {"logprobs_legacy_arrays": 1},
    ),
    "no top_logprobs": (
        {"tokens": ["H", "i"], "token_logprobs": [-1, -2], "top_logprobs": None},
        HI,
        NO_TOPS,
        {"logprobs_legacy_arrays": 1, "logprobs_top_missing": 2},
    ),
    "together: token_ids beside the tokens": (
        {"tokens": ["H", "i"], "token_ids": [3, 4], "token_logprobs": [-1, -2]},
        HI,
        NO_TOPS,
        {"logprobs_legacy_arrays": 1, "logprobs_top_missing": 2, "logprobs_entry_id": 1},
    ),
    "mlx-lm: ids in place of tokens": (
        {"tokens": [3, 4], "token_logprobs": [-1, -2]},
        [("token_id:3", -1, None), ("token_id:4", -2, None)],
        NO_TOPS,
        {"logprobs_legacy_arrays": 1, "logprobs_top_missing": 2, "logprobs_token_integer": 2},
    ),
    "token_ids alone": (
        {"token_ids": [3, 4], "token_logprobs": [-1, -2]},
        [("token_id:3", -1, None), ("token_id:4", -2, None)],
        NO_TOPS,
        {"logprobs_legacy_arrays": 1, "logprobs_top_missing": 2, "logprobs_entry_id": 1},
    ),
    "no tokens: the alternative of the same number": (
        {"token_logprobs": [-1, -2], "top_logprobs": [{"J": -3, "H": -1}, {"i": -2}]},
        HI,
        [[("H", -1), ("J", -3)], [("i", -2)]],
        {"logprobs_legacy_arrays": 1, "logprobs_bytes_missing": 2},
    ),
    "vllm <= 0.4.2 streamed: top_logprobs alone": (
        {"top_logprobs": [{"J": -0.5, "H": -1}, {"i": -2}]},
        HI,
        [[("J", -0.5), ("H", -1)], [("i", -2)]],
        {"logprobs_top_only": 1, "logprobs_sampled_inferred": 2},
    ),
    "top_logprobs by token id": (
        {
            "tokens": ["H", "i"],
            "token_logprobs": [-1, -2],
            "top_logprobs": [{"11": -1, "12": -3}, {"13": -2}],
        },
        HI,
        [[("H", -1), ("token_id:12", -3)], [("i", -2)]],
        {
            "logprobs_legacy_arrays": 1,
            "logprobs_top_by_id": 2,
            "logprobs_bytes_missing": 2,
            "logprobs_bytes_unknown": 1,
            "logprobs_entry_id": 2,
        },
    ),
    "top_logprobs by token id, as objects": (
        {
            "tokens": ["H", "i"],
            "token_logprobs": [-1, -2],
            "top_logprobs": [
                {"11": {"logprob": -1, "rank": 1, "decoded_token": "H"}},
                {"13": {"logprob": -2, "rank": 1, "decoded_token": "i"}},
            ],
        },
        HI,
        [[("H", -1)], [("i", -2)]],
        {"logprobs_legacy_arrays": 1, "logprobs_bytes_missing": 2, "logprobs_entry_id": 1},
    ),
    "arrays too short, a key nobody knows": (
        {"tokens": ["H", "i"], "token_logprobs": [-1], "top_logprobs": [{"H": -1}], "x": 1},
        [("H", -1, H), ("i", UNKNOWN, I)],
        [[("H", -1)], []],
        {
            "extra_field_dropped": 1,
            "logprobs_legacy_arrays": 1,
            "logprobs_top_missing": 1,
            "logprobs_unknown": 1,
        },
    ),
    "a null among the top_logprobs": (
        {"tokens": ["H", "i"], "token_logprobs": [-1, -2], "top_logprobs": [None, {"i": -2}]},
        HI,
        [[], [("i", -2)]],
        {"logprobs_legacy_arrays": 1, "logprobs_top_missing": 1},
    ),
}

ENTRIES: dict[str, tuple[Any, Rows, Tops, dict[str, int]]] = {
    "no bytes, no alternatives": (
        {
            "content": [
                {"token": "H", "logprob": -1},
                {"token": "i", "logprob": -2, "top_logprobs": None},
            ],
            "refusal": None,
        },
        HI,
        NO_TOPS,
        {"logprobs_top_missing": 2, "logprobs_bytes_missing": 2},
    ),
    "null among the alternatives": (
        {"content": [{**entry("Hi", -1), "top_logprobs": [None]}], "refusal": None},
        [("Hi", -1, H + I)],
        [[]],
        {"logprobs_top_null_entry": 1},
    ),
    "bare tokens as alternatives": (
        {"content": [{**entry("Hi", -1), "top_logprobs": ["x"]}], "refusal": None},
        [("Hi", -1, H + I)],
        [[("x", UNKNOWN)]],
        {"logprobs_unknown": 1, "logprobs_bytes_missing": 1},
    ),
    "alternatives that are no list": (
        {"content": [{**entry("Hi", -1), "top_logprobs": "x"}], "refusal": None},
        [("Hi", -1, H + I)],
        [[]],
        {"shape_unusual": 1},
    ),
    "mistral.rs: one object a chunk": (
        {"token": "Hi", "logprob": -1, "bytes": "Hi", "top_logprobs": []},
        [("Hi", -1, H + I)],
        [[]],
        {"logprobs_single_entry": 1, "logprobs_bytes_string": 1},
    ),
    "one object as content": (
        {"content": entry("Hi", -1), "refusal": None},
        [("Hi", -1, H + I)],
        [[]],
        {"logprobs_single_entry": 1},
    ),
    "a bare list": ([entry("Hi", -1)], [("Hi", -1, H + I)], [[]], {"logprobs_bare_entries": 1}),
    "keys nobody knows": (
        {"content": [entry("Hi", -1, rank=1, color="red")], "refusal": None, "x": 1},
        [("Hi", -1, H + I)],
        [[]],
        {"extra_field_dropped": 2},
    ),
    "tgi 1.4 streamed: one number": (
        -1.5,
        [("Hi", -1.5, H + I)],
        [[]],
        {"logprobs_bare_floats": 1, "logprobs_bytes_missing": 1},
    ),
    "mlx-lm: id and logprob": (
        {"content": [{"id": 7, "logprob": -1, "top_logprobs": []}], "refusal": None},
        [("token_id:7", -1, None)],
        [[]],
        {"logprobs_entry_id": 1, "logprobs_bytes_unknown": 1},
    ),
    "a token that is no text": (
        {"content": [{**entry("Hi", -1), "token": 1.5}], "refusal": None},
        [("Hi", -1, H + I)],
        [[]],
        {"logprobs_token_respelled": 1},
    ),
    "an id as text": (
        {"content": [{"id": "7", "logprob": -1, "top_logprobs": []}], "refusal": None},
        [("token_id:7", -1, None)],
        [[]],
        {"logprobs_entry_id": 1, "logprobs_bytes_unknown": 1},
    ),
    "entries that are numbers or null": (
        {"content": [None, entry("Hi", -1)], "refusal": None},
        [("Hi", -1, H + I)],
        [[]],
        {"logprobs_unknown": 1, "logprobs_bytes_unknown": 1, "logprobs_outside_content": 1},
    ),
    "triples": (
        {"content": [[-1.0, 5, "H"], [-2.0, 6, "i"]], "refusal": None},
        HI,
        NO_TOPS,
        {"logprobs_bytes_missing": 2, "logprobs_entry_id": 1},
    ),
    "no refusal": (
        {"content": [entry("Hi", -1)]},
        [("Hi", -1, H + I)],
        [[]],
        {"logprobs_refusal_missing": 1},
    ),
    "unordered": (
        {"content": [entry("Hi", -1, [("x", -3), ("Hi", -1)])], "refusal": None},
        [("Hi", -1, H + I)],
        [[("Hi", -1), ("x", -3)]],
        {"logprobs_unordered": 1},
    ),
    "more than k": (
        {"content": [entry("Hi", -1, [("Hi", -1), ("x", -3), ("y", -4)])], "refusal": None},
        [("Hi", -1, H + I)],
        [[("Hi", -1), ("x", -3)]],
        {"logprobs_trimmed": 1},
    ),
}


@pytest.mark.parametrize("name", [*ARRAYS, *ENTRIES])
def test_a_shape_becomes_entries(name: str) -> None:
    given, rows, tops, repairs = {**ARRAYS, **ENTRIES}[name]
    for said in both(given):
        assert said.rows == rows
        assert said.tops == tops
        assert said.repairs == repairs


def test_numbers_without_tokens_keep_their_number_and_place() -> None:
    for said in both([-1.5, -2, None]):
        assert [row["logprob"] for row in said.entries] == [-1.5, -2, UNKNOWN]
        assert said.repairs["logprobs_bare_floats"] == 1
        assert said.repairs["logprobs_unknown"] == 1


@pytest.mark.parametrize("given", ["nope", {"a": 1}, True, ["x"], {"content": "x"}])
def test_what_holds_no_logprobs_is_null_and_counted(given: Any) -> None:
    for said in both(given):
        assert said.choice["logprobs"] is None
        assert said.repairs["extra_field_dropped"] == 1
        assert said.repairs["logprobs_missing"] == 1


@pytest.mark.parametrize("given", [None, {}, [], {"content": []}, {"content": [], "refusal": None}])
def test_logprobs_that_are_empty_are_null_and_counted(given: Any) -> None:
    for said in both(given):
        assert said.choice["logprobs"] is None
        assert said.repairs["logprobs_missing"] == 1


def test_a_missing_key_is_counted() -> None:
    whole, part = choice(), say("Hi")
    del whole["logprobs"]
    del part["choices"][0]["logprobs"]
    for said in (body(completion(whole), scored()), stream([role(), part, end()], scored())):
        assert said.repairs == {"logprobs_key_missing": 1, "logprobs_missing": 1}
    for said in (body(completion(whole)), stream([role(), part, end()])):
        assert said.repairs == {"logprobs_key_missing": 1}


@pytest.mark.parametrize("given", [entries("Hi"), {"token_logprobs": [None]}, -1.5])
def test_logprobs_nobody_asked_for_are_dropped(given: Any) -> None:
    for said in both(given, request=ask()):
        assert said.choice["logprobs"] is None
        assert said.repairs["logprobs_unasked"] == 1


def test_without_top_logprobs_there_are_no_alternatives() -> None:
    scores = {"content": [entry("Hi", -1, [("Hi", -1)])], "refusal": None}
    for said in both(scores, request=ask(logprobs=True)):
        assert said.tops == [[]]
        assert said.repairs == {"logprobs_trimmed": 1}


@pytest.mark.parametrize(
    "given",
    [
        {
            "tokens": ["H", "i"],
            "token_logprobs": [-1, None],
            "top_logprobs": [{"H": -1}, {"j": -1, "i": -2}],
        },
        {
            "content": [
                entry("H", -1, [("H", -1)]),
                {**entry("i", -1, [("j", -1), ("i", -2)]), "logprob": None},
            ],
            "refusal": None,
        },
        {
            "content": [entry("H", -1, [("H", -1)]), entry("i", -1, [("j", -1), ("i", -2)])],
            "refusal": None,
        },
    ],
    ids=["arrays, null", "entries, null", "entries, the best alternative's"],
)
def test_the_sampled_tokens_value_is_its_own(given: Any) -> None:
    """Cortex and llama.cpp PR #10627's example pair them wrongly."""
    for said in both(given):
        assert said.rows == HI


def test_native_probabilities_beside_the_choices() -> None:
    """The hybrid of llama.cpp PR #10627: its own key at the top, of the one choice there is."""
    native = [{"content": "Hi", "probs": [{"tok_str": "Hi", "prob": 0.5}]}]
    said = body(completion(choice("Hi"), completion_probabilities=native), scored(1))
    assert said.entries[0]["top_logprobs"][0]["logprob"] == math.log(0.5)
    assert said.repairs["logprobs_native_probabilities"] == 1
    new = [{"id": 5, "token": "Hi", "bytes": H + I, "logprob": -1.0, "top_logprobs": []}]
    said = body(completion(choice("Hi"), completion_probabilities=new), scored(1))
    assert said.rows == [("Hi", -1.0, H + I)]


def test_probabilities_of_an_unknown_choice_are_no_ones() -> None:
    given = completion(choice(), choice(index=1), completion_probabilities=[entry("Hi")])
    said = body(given, scored(n=2))
    assert said.choice["logprobs"] is None


REFUSED = {"content": None, "refusal": [entry("No", -1, [("No", -1), ("x", -2), ("y", -3)])]}


def test_a_refusals_own_entries_stay_with_it() -> None:
    """OpenAI gives a refusal's logprobs in `refusal`, with `content` null."""
    part = message(None, refusal="No")
    whole = body(completion(choice(message=part, logprobs=REFUSED)), scored(2))
    chunk = {**say(""), "choices": [{**say("")["choices"][0], "delta": {"refusal": "No"}}]}
    chunk["choices"][0]["logprobs"] = REFUSED
    streamed = stream([role(), chunk, end()], scored(2))
    for said in (whole, streamed):
        assert said.message["refusal"] == "No"
        kept = said.choice["logprobs"]
        assert kept["content"] in (None, [])
        assert [(x["token"], x["logprob"]) for x in kept["refusal"]] == [("No", -1)]
        assert len(kept["refusal"][0]["top_logprobs"]) == 2
        assert said.repairs["logprobs_trimmed"] == 1


def test_a_refusals_entries_nobody_asked_for_are_dropped() -> None:
    part = message(None, refusal="No")
    said = body(completion(choice(message=part, logprobs=REFUSED)))
    assert said.choice["logprobs"] is None
    assert said.repairs == {"logprobs_unasked": 1}
