"""Contract rule 7: a logprob is a finite number from -9999.0 to 0, whatever was sent as one."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import (
    H,
    I,
    ask,
    body,
    both,
    choice,
    completion,
    end,
    entries,
    entry,
    role,
    say,
    scored,
    stream,
)
from tests.examples import examples
from tests.replay import exchange
from wellspoken.adapters.events import UNKNOWN
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.logprobs import logprobs
from wellspoken.adapters.repairs.numbers import holds_probabilities, logprob
from wellspoken.adapters.tokens.table import digits, is_plain, token_id

NUMBERS: list[tuple[Any, float, str | None]] = [
    (-0.5, -0.5, None),
    (0.0, 0.0, None),
    (-9999.0, UNKNOWN, None),
    (0.0005, 0.0, "logprobs_positive"),
    (-10_000.5, UNKNOWN, "logprobs_below_floor"),
    (-3.4028234663852886e38, UNKNOWN, "logprobs_not_finite"),
    (-math.inf, UNKNOWN, "logprobs_not_finite"),
    (math.inf, UNKNOWN, "logprobs_not_finite"),
    (math.nan, UNKNOWN, "logprobs_not_finite"),
    ("-inf", UNKNOWN, "logprobs_string"),
    ("-Infinity", UNKNOWN, "logprobs_string"),
    ("NaN", UNKNOWN, "logprobs_string"),
    ("-1.5", -1.5, "logprobs_string"),
    ("low", UNKNOWN, "logprobs_string"),
    (None, UNKNOWN, "logprobs_unknown"),
    (True, UNKNOWN, "logprobs_unknown"),
    ([], UNKNOWN, "logprobs_unknown"),
]


@pytest.mark.parametrize(("number", "wanted", "repair"), NUMBERS, ids=repr)
def test_a_number_is_finite_and_not_above_0(number: Any, wanted: float, repair: str | None) -> None:
    given = {"content": [{**entry("Hi"), "logprob": number}], "refusal": None}
    for said in both(given):
        assert said.rows == [("Hi", wanted, H + I)]
        assert set(said.repairs) >= ({repair} if repair else set())
        assert (said.repairs == {}) == (repair is None)


@settings(max_examples=examples(200), deadline=None, database=None)
@given(st.one_of(st.floats(), st.integers(), st.text(max_size=5), st.none()))
def test_any_number_is_of_the_scale(number: Any) -> None:
    context = Context(exchange(ask()))
    found = logprob(number, context)
    assert UNKNOWN <= found <= 0 and math.isfinite(found)
    if isinstance(number, int | float) and UNKNOWN <= number <= 0:
        assert found == number and context.notes.counts == {}
    else:
        assert context.notes.counts != {}


def test_probabilities_become_logs() -> None:
    """Any value above 0.001 tells that the whole answer holds probabilities."""
    rows = [entry("H", 0.5, [("H", 0.5), ("x", 0.25)]), entry("i", 0.0004, [("i", 0.0004)])]
    for said in both({"content": rows, "refusal": None}):
        assert said.rows == [("H", math.log(0.5), H), ("i", math.log(0.0004), I)]
        assert said.tops == [
            [("H", math.log(0.5)), ("x", math.log(0.25))],
            [("i", math.log(0.0004))],
        ]
        assert said.repairs == {"logprobs_probabilities": 1}


def test_a_probability_of_0_is_unknown_and_of_1_is_0() -> None:
    rows = [entry("H", 1.0), entry("i", 0.0)]
    for said in both({"content": rows, "refusal": None}):
        assert said.rows == [("H", 0.0, H), ("i", UNKNOWN, I)]


def test_probabilities_are_known_from_the_first_that_tells() -> None:
    parts = [role(), say("H", logprobs={"content": [entry("H", 0.7)], "refusal": None})]
    tiny = {"content": [entry("i", 0.0002)], "refusal": None}
    said = stream([*parts, say("i", logprobs=tiny), end()], scored())
    assert said.rows == [("H", math.log(0.7), H), ("i", math.log(0.0002), I)]
    assert said.repairs == {"logprobs_probabilities": 2}


def test_probabilities_of_one_choice_are_those_of_all() -> None:
    first = choice("H", logprobs={"content": [entry("H", 0.0003)], "refusal": None})
    second = choice("i", index=1, logprobs={"content": [entry("i", 0.7)], "refusal": None})
    said = body(completion(first, second), scored(n=2))
    assert said.rows == [("H", math.log(0.0003), H)]


def test_prob_and_top_probs_are_probabilities_however_small() -> None:
    """llama.cpp with post_sampling_probs."""
    top = [{"id": 5, "token": "Hi", "bytes": H + I, "prob": 0.0005}]
    row = {"id": 5, "token": "Hi", "bytes": H + I, "prob": 0.0005, "top_probs": top}
    for said in both({"content": [row], "refusal": None}):
        assert said.rows == [("Hi", math.log(0.0005), H + I)]
        assert said.tops == [[("Hi", math.log(0.0005))]]
        assert said.repairs == {"logprobs_probabilities": 1, "logprobs_entry_id": 1}


@pytest.mark.parametrize(
    "given",
    [
        [[0.0, 5, "Hi"]],
        {"content": [[0.0, 5, "Hi"]]},
        {"content": [{"token": "Hi", "logprob": 0.0, "id": 5, "bytes": [72, 105]}]},
        {"content": [{**entry("Hi", 0.0), "top_logprobs": [{"token": "x", "id": 6}]}]},
        {"content": [{**entry("Hi", 0.0), "top_logprobs": [[-1.0, 6, "x"]]}]},
        {"tokens": ["Hi"], "token_logprobs": [0.0], "token_ids": [5], "text_offset": [3]},
    ],
    ids=json.dumps,
)
def test_ids_bytes_and_offsets_are_no_probabilities(given: Any) -> None:
    assert not holds_probabilities(given)


@pytest.mark.parametrize(
    "given",
    [
        0.7,
        [-1.0, 0.7],
        {"token": "a", "logprob": 0.7},
        {"content": [entry("a", -0.5, [("b", 0.2)])]},
        {"tokens": ["a"], "token_logprobs": [0.7]},
        {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": 0.7}]},
        {"probs": []},
    ],
    ids=json.dumps,
)
def test_a_value_above_a_rounding_error_is_a_probability(given: Any) -> None:
    assert holds_probabilities(given)


def test_the_repair_itself_knows_probabilities() -> None:
    context = Context(exchange(ask()))
    found = logprobs(0.5, "Hi", context)
    assert found is not None and found[0][0].logprob == math.log(0.5)
    assert context.probabilities


LONG = "1" * 5_000


def test_a_placeholder_of_too_many_digits_is_text() -> None:
    assert token_id("token_id:" + LONG) is None and is_plain("token_id:" + LONG)
    assert token_id("token_id:12") == 12 == digits("12")
    said = body(completion(choice(LONG, logprobs=entries(LONG), x=1)), scored())
    assert said.rows[0][0] == LONG


@pytest.mark.parametrize("given", ["²", LONG, True, [1], {"a": 1}])
def test_an_entrys_id_that_is_none_is_left_out(given: Any) -> None:
    row = entry("Hi", id=given)
    assert body(completion(choice(logprobs={"content": [row], "refusal": None})), scored()).rows


def test_an_int_beyond_every_float_is_an_unknown_logprob() -> None:
    row = {**entry("Hi"), "logprob": -(10**400)}
    said = body(completion(choice(logprobs={"content": [row], "refusal": None})), scored())
    assert said.entries[0]["logprob"] == UNKNOWN


@pytest.mark.parametrize("rows", [["Hi"], ["H", "i"], ["Hi", {"token": ""}]])
def test_entries_that_are_strings_are_tokens(rows: list[Any]) -> None:
    said = body(completion(choice(logprobs={"content": rows})), scored())
    assert "".join(token for token, _, _ in said.rows) == "Hi"
    assert {value for _, value, _ in said.rows} == {UNKNOWN}
