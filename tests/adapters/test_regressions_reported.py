"""Faults of the translation that fixtures and property tests found."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.replay import Outcome, body, stream

Json = dict[str, Any]
Rows = list[tuple[str, float | None, Json | None]]


def completion(text: str, rows: Rows, **more: Any) -> Outcome:
    """Translate a completion whose arrays are these rows: token, logprob, alternatives."""
    tokens, numbers, tops = ([*column] for column in zip(*rows, strict=True))
    arrays = {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops}
    request = {"model": "m", "prompt": "ab", "logprobs": 3, **more.pop("request", {})}
    answer = {
        "id": "cmpl-uqkvlQyYK7bGYrRHQ0",
        "object": "text_completion",
        "created": 1_741_570_283,
        "model": "m",
        "choices": [{"index": 0, "text": text, "logprobs": arrays, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
        **more,
    }
    return body(request, 200, "application/json", json.dumps(answer).encode(), "completions")


def arrays_of(outcome: Outcome) -> Json:
    found: Json = json.loads(outcome.body)["choices"][0]["logprobs"]
    return found


def chat(message: Json, scored: Any = None, **request: Any) -> Outcome:
    """Translate a chat answer of one message; `vocabulary` is the configured tokenizer's."""
    vocabulary = request.pop("vocabulary", None)
    choice = {"index": 0, "message": message, "logprobs": scored, "finish_reason": "stop"}
    answer = {
        "id": "chatcmpl-uqkvlQyYK7bGYrRHQ0",
        "object": "chat.completion",
        "created": 1_741_570_283,
        "model": "m",
        "choices": [choice],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }
    asked = {"model": "m", "messages": [{"role": "user", "content": "x"}], **request}
    raw = json.dumps(answer).encode()
    return body(asked, 200, "application/json", raw, "chat", vocabulary)


def message(content: Any, **more: Any) -> Json:
    return {"role": "assistant", "content": content, "refusal": None, **more}


SPLIT: Rows = [
    ("bytes:\\xc3", -0.2, {"bytes:\\xc3": -0.2}),
    ("bytes:\\xa9", -0.3, {"bytes:\\xa9": -0.3}),
    ("\\xf0", -0.1, {"\\xf0": -0.1}),
]


def test_a_text_that_spells_an_escape_keeps_its_entries() -> None:
    assert arrays_of(completion("é\\xf0", SPLIT))["token_logprobs"] == [-0.2, -0.3, -0.1]


def test_it_keeps_them_beside_another_deviation() -> None:
    outcome = completion("é\\xf0", SPLIT, unheard_of=3)
    assert arrays_of(outcome)["token_logprobs"] == [-0.2, -0.3, -0.1]


def test_openais_own_spelling_is_no_deviation_beside_another() -> None:
    rows = [row for row in SPLIT if row[0] != "\\xf0"]
    assert "logprobs_raw_escapes" not in completion("é", rows, unheard_of=3).repairs


def test_alternatives_that_differ_keep_their_numbers() -> None:
    top = {"a": -0.5, "\ufffd": -1.5, "-\ufffd": -2.5}
    assert [*arrays_of(completion("a", [("a", -0.5, top)]))["top_logprobs"][0].values()] == [
        -0.5,
        -1.5,
        -2.5,
    ]


def test_an_unknown_value_in_an_echoed_text_is_not_null() -> None:
    rows: Rows = [("a", None, None), ("b", None, {"b": None}), ("c", -0.3, {"c": -0.3})]
    outcome = completion("abc", rows, request={"echo": True, "logprobs": 0})
    assert arrays_of(outcome)["token_logprobs"] == [None, -9999.0, -0.3]


def test_an_answer_that_begins_as_its_prompt_does_is_not_taken_for_one_alone() -> None:
    rows: Rows = [("é", None, None), *SPLIT[:2]]
    outcome = completion("éé", rows, request={"echo": True, "prompt": "é"})
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
    assert stream(request, [raw], "completions").repairs == {}


def test_escapes_are_lower_case() -> None:
    upper = "bytes:\\xC3"
    rows: Rows = [(upper, -0.2, {upper: -0.2}), *SPLIT[1:2]]
    assert arrays_of(completion("é", rows))["tokens"][0] == "bytes:\\xc3"


def test_mistrals_thinking_does_not_vanish_uncounted() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    outcome = chat(message([thinking, {"type": "text", "text": "Paris."}]))
    told = json.loads(outcome.body)["choices"][0]["message"]
    assert told.get("reasoning_content") == "Hm." or "extra_field_dropped" in outcome.repairs


@pytest.mark.parametrize("content", [42, [{"type": "text", "text": "Paris."}]])
def test_a_content_that_is_not_null_is_not_counted_as_null(content: Any) -> None:
    assert "content_null" not in chat(message(content)).repairs


def test_a_tool_index_in_a_body_is_counted_beside_another_deviation() -> None:
    call = {"index": 0, "id": "call_1", "type": "odd", "function": {"name": "f", "arguments": "{}"}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    outcome = chat(message(None, tool_calls=[call]), tools=tools)
    assert "tool_call_index_in_body" in outcome.repairs


def test_asked_for_token_ids_stay_with_a_vocabulary() -> None:
    row = {"token": "token_id:1", "logprob": -0.25, "bytes": None, "top_logprobs": []}
    outcome = chat(
        message("Paris"),
        {"content": [row], "refusal": None},
        logprobs=True,
        return_tokens_as_token_ids=True,
        vocabulary={"Paris": 1},
    )
    (entry,) = json.loads(outcome.body)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["bytes"]) == ("token_id:1", list(b"Paris"))


def test_a_function_call_is_not_counted_as_a_bad_tool_call() -> None:
    call = {"name": "f", "arguments": "{}"}
    outcome = chat(message(None, function_call=call), functions=[{"name": "f"}])
    assert outcome.repairs.keys() <= {"finish_reason_stop_after_call", "finish_reason_call_kind"}
