"""Logprob arrays of completions as sent: spaces, repetition, alternatives of any shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.completions import (
    Json,
    arrays,
    ask,
    body,
    piece,
    rows,
    streamed,
)
from tests.linear import linear
from tests.replay import body as translate
from wellspoken.adapters.events import Entry
from wellspoken.adapters.readers.streamed import Streamed
from wellspoken.adapters.tokens.table import NULL


def test_tokens_without_their_spaces_keep_their_numbers() -> None:
    tops = [{"Hi": -0.5, "Yo": -1.0}, {"you": -0.25}, {",": -0.125}, {"all": -2.0}]
    given = arrays(["Hi", "you", ",", "all"], [-0.5, -0.25, -0.125, -2.0], tops)
    assert rows(body(" Hi you, all", given)) == [
        (" Hi", -0.5, {" Hi": -0.5, "Yo": -1.0}),
        (" you", -0.25, {" you": -0.25}),
        (",", -0.125, {",": -0.125}),
        (" all", -2.0, {" all": -2.0}),
    ]


def test_a_streamed_token_without_its_space_keeps_its_number() -> None:
    chunks = [piece(f" {x}", arrays([x], [n])) for x, n in (("Hi", -0.5), ("you", -0.25))]
    outcome, choice = streamed(*chunks, piece("", None, "stop"))
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.25]
    assert choice["logprobs"]["tokens"] == [" Hi", " you"]
    assert outcome.repairs["logprobs_space_restored"] == 2


def test_a_text_without_the_space_gets_none() -> None:
    tokens = body("a b c", arrays(["a", "b", " ", "c"], [-1.0, -2.0, -3.0, -4.0]))["logprobs"]
    assert tokens["tokens"] == ["a", " b", " ", "c"]
    assert tokens["token_logprobs"] == [-1.0, -2.0, -3.0, -4.0]


@pytest.mark.no_cover
def test_a_long_answer_without_spaces_is_linear() -> None:
    def work(size: int) -> Json:
        words = [f"w{n % 97}" for n in range(size)]
        given = arrays(words, [-0.5] * size)
        return body(" ".join(words), given, ask(max_tokens=99_999))

    assert linear(work, 1000)["logprobs"]["tokens"][1] == " w1"


def test_repeated_arrays_are_read_once() -> None:
    tokens, numbers = ["the", " the", " the"], [-0.5, -0.25, -1.0]
    chunks = [piece(tokens[n], arrays(tokens[: n + 1], numbers[: n + 1])) for n in range(3)]
    outcome, choice = streamed(*chunks, piece("", arrays(tokens, numbers), "stop"))
    assert choice["logprobs"]["token_logprobs"] == numbers
    assert outcome.repairs["logprobs_repeated"] == 3


def test_repeated_white_space_is_read_once() -> None:
    """Mutant: `Streamed.again` looks at texts without white space alone; " x" is told twice."""
    tokens, numbers = ["\n", " x", " x", "</s>"], [-0.5, -0.25, -2.5, -9.5]
    chunks = [piece(tokens[n], arrays(tokens[: n + 1], numbers[: n + 1])) for n in range(3)]
    outcome, choice = streamed(*chunks, piece("", arrays(tokens, numbers), "stop"))
    assert choice["logprobs"]["token_logprobs"] == numbers[:3]
    assert outcome.repairs["logprobs_repeated"] == 3


def test_a_chunk_like_the_one_before_is_no_repetition() -> None:
    same = arrays(["a", "a"], [-0.0, -0.0])
    outcome, choice = streamed(piece("aa", same), piece("aa", same), piece("", None, "stop"))
    assert choice["text"] == "aaaa" and len(choice["logprobs"]["tokens"]) == 4
    assert "logprobs_repeated" not in outcome.repairs


def test_a_chunk_of_raw_spaces_behind_one_is_no_repetition() -> None:
    """Mutant: `Streamed.again` compares the tokens with the text as they are spelled."""
    one, two = arrays(["Ġ"], [-0.5]), arrays(["Ġ", "Ġ"], [-0.5, -0.25])
    outcome, choice = streamed(piece(" ", one), piece("  ", two), piece("", None, "stop"))
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.5, -0.25]
    assert "logprobs_repeated" not in outcome.repairs


def test_a_last_chunk_like_the_first_is_no_repetition() -> None:
    """Mutant: `Streamed.again` reads a control token behind the text as more than the text."""
    one, two = arrays(["a"], [-1.0]), arrays(["a", "</s>"], [-1.0, -0.5])
    outcome, choice = streamed(piece("a", one), piece("a", two), piece("", None, "stop"))
    assert choice["logprobs"]["token_logprobs"] == [-1.0, -1.0]
    assert "logprobs_repeated" not in outcome.repairs


@pytest.mark.no_cover
def test_a_chunk_of_many_tags_takes_linear_time() -> None:
    """Mutant: `Streamed.again` joins the tokens anew for each control token that ends them."""

    def work(size: int) -> bool:
        streamed = Streamed()
        rows = [Entry("<a>", -0.5, NULL, []) for _ in range(size)]
        streamed.add(rows[:1])
        return streamed.again(rows, "x")

    assert linear(work, 500)


def test_a_native_last_event_like_the_first_is_no_repetition() -> None:
    entry = {"id": 5, "token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": []}
    event = {"content": "a", "stop": False, "completion_probabilities": [entry]}
    last = {**event, "stop": True, "stop_type": "limit"}
    outcome, choice = streamed(event, last, dialect="llamacpp")
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.5]
    assert "native_logprobs_repeated" not in outcome.repairs


@pytest.mark.parametrize(
    "tops",
    [
        [[{"token": "Hi", "logprob": -0.5}, {"token": "Yo", "logprob": -1.0}]],
        [[["Hi", -0.5], ["Yo", -1.0]]],
        [{"Hi": {"logprob": -0.5}, "Yo": {"logprob": -1.0}}],
        [{"7": {"logprob": -0.5, "decoded_token": "Hi"}, "8": {"logprob": -1.0, "token": "Yo"}}],
        {"Hi": -0.5, "Yo": -1.0},
        [{"token": "Hi", "logprob": -0.5}, {"token": "Yo", "logprob": -1.0}],
    ],
    ids=["objects", "pairs", "map of objects", "by id", "one map", "objects of one token"],
)
def test_alternatives_of_any_shape_keep_their_numbers(tops: Any) -> None:
    choice = body("Hi", arrays(["Hi"], [-0.5], tops))
    assert rows(choice) == [("Hi", -0.5, {"Hi": -0.5, "Yo": -1.0})]


def test_one_object_a_token_is_its_alternative() -> None:
    tops = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0, "id": 9}]
    choice = body("ab", arrays(["a", "b"], [-0.5, -1.0], tops))
    assert rows(choice) == [("a", -0.5, {"a": -0.5}), ("b", -1.0, {"b": -1.0})]


def test_tokens_that_are_objects_are_read() -> None:
    tokens = [{"token": "a", "logprob": -0.5, "id": 4}, {"token": "b", "logprob": -1.0}]
    choice = body("ab", {"tokens": tokens})
    assert rows(choice) == [("a", -0.5, {"a": -0.5}), ("b", -1.0, {"b": -1.0})]


def test_ids_among_ids_are_ids() -> None:
    """mlx-lm: `tokens` are ids and the alternatives' names, too."""
    given = arrays([17, 5], [-0.5, -1.0], [{"17": -0.5, "3": -2.0}, {"5": -1.0}])
    assert rows(body("Hi you", given)) == [
        ("token_id:17", -0.5, {"token_id:17": -0.5, "token_id:3": -2.0}),
        ("token_id:5", -1.0, {"token_id:5": -1.0}),
    ]


def test_an_id_takes_its_text_from_the_alternative_of_the_same_id() -> None:
    """mlx-lm's `_format_top_logprobs` since 0.30: {id, token, logprob}, raw vocabulary text."""
    tops = [
        [{"id": 17, "token": "Hi", "logprob": -0.5}],
        [{"id": 3, "token": "!", "logprob": -0.25}, {"id": 5, "token": "Ġyou", "logprob": -1.0}],
    ]
    assert rows(body("Hi you", arrays([17, 5], [-0.5, -1.0], tops))) == [
        ("Hi", -0.5, {"Hi": -0.5}),
        (" you", -1.0, {"!": -0.25, " you": -1.0}),
    ]


def test_an_object_of_native_probabilities_is_a_list_of_one() -> None:
    given = {"content": "Hi", "probs": [{"tok_str": "Hi", "prob": 0.5}]}
    raw = json.dumps({"content": "Hi", "stop": True, "completion_probabilities": given}).encode()
    outcome = translate(ask(), 200, "application/json", raw, "llamacpp")
    choice = json.loads(outcome.body)["choices"][0]
    assert choice["logprobs"]["token_logprobs"] == [pytest.approx(-0.6931471805599453)]


@pytest.mark.parametrize("offsets", [None, [-1, -1], ["0", None], [], 7])
def test_offsets_of_any_kind_are_made_anew(offsets: Any) -> None:
    """MLC-LLM sends null, SGLang -1."""
    choice = body("ab", arrays(["a", "b"], [-1.0, -2.0], text_offset=offsets))
    assert choice["logprobs"]["text_offset"] == [5, 6]


@pytest.mark.parametrize(("empty", "counted"), [({}, 1), (arrays([], [], [], text_offset=[]), 0)])
def test_logprobs_without_an_entry_add_none(empty: Json, counted: int) -> None:
    """vLLM 0.2.7 has {} on its last chunk."""
    chunks = [piece("a", arrays(["a"], [-1.0], [{"a": -1.0}])), piece("", empty, "stop")]
    outcome, choice = streamed(*chunks)
    assert choice["logprobs"]["tokens"] == ["a"]
    assert outcome.repairs.get("logprobs_empty", 0) == counted
