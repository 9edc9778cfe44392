"""`echo` with logprobs: those that leave the prompt out fail, and a prompt's nulls stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.completions import (
    PROMPT,
    SPLIT,
    USAGE,
    Json,
    Rows,
    arrays,
    arrays_in,
    ask,
    piece,
    sse,
    streamed,
    translate_rows,
)
from tests.linear import linear
from tests.replay import body as translate
from tests.replay import stream as translate_pieces

ECHO = ask(echo=True)


def failed(request: Json, *chunks: Any) -> tuple[Any, dict[str, int]]:
    outcome = translate_pieces({**request, "stream": True}, [sse(*chunks)], "completions")
    assert outcome.fault is not None
    return outcome.fault["code"], outcome.repairs


def test_logprobs_that_leave_the_prompt_out_fail() -> None:
    given = arrays([" Hi", " you"], [-0.5, -1.0])
    raw = json.dumps({**piece("Say: Hi you", given, "stop"), "usage": USAGE}).encode()
    outcome = translate(ECHO, 200, "application/json", raw, "completions")
    assert outcome.status == 502 and outcome.repairs["echo_unscored"] == 1
    assert json.loads(outcome.body)["error"]["code"] == "echo_ignored"


@pytest.mark.parametrize(
    "chunks",
    [
        [piece("Say: Hi", arrays(["Hi"], [-0.5]))],
        [piece("Say: "), piece("Hi", arrays(["Hi"], [-0.5]))],
        [piece("Say:"), piece(" Hi"), piece(" you", arrays(["ĠHi", "Ġyou"], [-0.5, -1.0]))],
    ],
    ids=["in one chunk", "the prompt first", "raw and late"],
)
def test_streamed_logprobs_that_leave_the_prompt_out_fail(chunks: list[Json]) -> None:
    code, repairs = failed(ECHO, *chunks)
    assert code == "echo_ignored" and repairs["echo_unscored"] == 1


def test_an_answer_that_repeats_its_prompt_is_scored() -> None:
    given = arrays(["Say", ":", " ", "Say"], [None, -1.0, -2.0, -0.5], None)
    outcome, choice = streamed(piece("Say: Say", given), piece("", None, "stop"), request=ECHO)
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -2.0, -0.5]
    assert "echo_unscored" not in outcome.repairs


def test_an_echo_without_any_logprobs_is_null() -> None:
    _, choice = streamed(piece("Say: "), piece("Hi"), piece("", None, "stop"), request=ECHO)
    assert (choice["text"], choice["logprobs"]) == ("Say: Hi", None)


@pytest.mark.no_cover
def test_an_echo_that_has_to_wait_is_linear() -> None:
    def work(size: int) -> bytes:
        raw = sse(piece(PROMPT), *[piece("x") for _ in range(size)], piece("", None, "stop"))
        return translate_pieces({**ECHO, "stream": True}, [raw], "completions").body

    assert linear(work, 1500).count(b'"x"') == 1500


def test_an_echoed_null_is_no_repair_on_the_tolerant_path_either() -> None:
    """SGLang: `metadata` beside the choices is unknown to the strict Structs."""
    given = arrays(["<s>", "Say", ":", " "], [None, -1.0, -2.0, -0.5], [None, {}, {}, {}])
    raw = {**piece("Say: ", given, "length"), "usage": USAGE, "metadata": {"weight_version": "1"}}
    outcome = translate(ECHO, 200, "application/json", json.dumps(raw).encode(), "completions")
    assert outcome.repairs == {"extra_field_dropped": 1}


def test_an_unknown_value_in_an_echoed_text_is_not_null() -> None:
    rows: Rows = [("a", None, None), ("b", None, {"b": None}), ("c", -0.3, {"c": -0.3})]
    outcome = translate_rows("abc", rows, request={"echo": True, "logprobs": 0})
    assert arrays_in(outcome)["token_logprobs"] == [None, -9999.0, -0.3]


def test_an_answer_that_begins_as_its_prompt_does_is_not_taken_for_one_alone() -> None:
    rows: Rows = [("é", None, None), *SPLIT[:2]]
    outcome = translate_rows("éé", rows, request={"echo": True, "prompt": "é"})
    assert outcome.status == 200


def test_a_held_echo_is_no_order_of_the_backend() -> None:
    pieces = [(0, "a", None), (1, "bc", None), (0, "ac", None), (0, "", "stop"), (1, "", "stop")]
    head = {"id": "cmpl-uqkvlQyYK7bGYrRHQ0", "object": "text_completion", "created": 1_741_570_283}
    chunks = [
        {"index": n, "text": text, "logprobs": None, "finish_reason": reason}
        for n, text, reason in pieces
    ]
    written = [json.dumps({**head, "model": "m", "choices": [chunk]}) for chunk in chunks]
    raw = "".join(f"data: {one}\n\n" for one in [*written, "[DONE]"]).encode()
    request = {"model": "m", "prompt": ["aa", "b"], "echo": True, "stream": True}
    assert translate_pieces(request, [raw], "completions").repairs == {}


@pytest.mark.parametrize(
    ("tokens", "numbers", "code"),
    [
        (["token_id:1", "token_id:2", "token_id:3"], [None, -1.0, -0.5], None),
        (["token_id:3"], [-0.5], "echo_ignored"),
        (["<s>", "Say", ":", " ", "Hi"], [None, -1.0, -2.0, -1.0, -0.5], None),
        (["<s>", "Hi"], [-1.0, -0.5], "echo_ignored"),
        (["Hi"], [None], "echo_ignored"),
    ],
    ids=["ids", "ids of the answer", "after a begin of text", "a begin alone", "the answer's null"],
)
def test_logprobs_of_a_prompt_that_the_text_lacks(
    tokens: list[str], numbers: list[float | None], code: str | None
) -> None:
    """vLLM's `return_token_ids`: a token without number is a prompt's first.

    Mutants: `_name_ids` always False; `_begin` without `entries[1:]`, or without the number.
    """
    given = arrays(tokens, numbers, [number and {} for number in numbers])
    raw = json.dumps({**piece("Hi", given, "stop"), "usage": USAGE}).encode()
    outcome = translate(ECHO, 200, "application/json", raw, "completions")
    body = json.loads(outcome.body)
    assert outcome.repairs["echo_missing"] == 1
    if code is None:
        assert body["choices"][0]["text"] == "Say: Hi"
        assert body["choices"][0]["logprobs"]["token_logprobs"] == numbers
    else:
        assert (outcome.status, body["error"]["code"]) == (502, code)
