"""Short completions to spoil in one place, and what the translation makes of them, checked."""

from __future__ import annotations

import json
from typing import Any

from tests.conformance import check_completion_body, check_completion_stream
from tests.corpus import Dialect, checked_request
from tests.fold import fold_completion
from tests.replay import SPLITS, Outcome
from tests.replay import body as translate
from tests.replay import stream as translate_pieces

Json = dict[str, Any]
HEAD = {
    "id": "cmpl-0123456789",
    "object": "text_completion",
    "created": 1_741_570_283,
    "model": "m",
}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
PROMPT = "Say: "


def ask(**more: Any) -> Json:
    return {"model": "m", "prompt": PROMPT, "logprobs": 2, **more}


def piece(text: Any, logprobs: Any = None, reason: Any = None, **more: Any) -> Json:
    choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": reason}
    return {**HEAD, "choices": [{**choice, **more}]}


def arrays(tokens: Any, numbers: Any, tops: Any = None, **more: Any) -> Json:
    return {"tokens": tokens, "token_logprobs": numbers, "top_logprobs": tops, **more}


def body(text: Any, logprobs: Any, request: Json | None = None) -> Json:
    """Return the choice that a body's text and logprobs become, checked."""
    request = request or ask()
    raw = json.dumps({**piece(text, logprobs, "stop"), "usage": USAGE}).encode()
    outcome = translate(request, 200, "application/json", raw, "completions")
    assert outcome.status == 200, outcome
    assert check_completion_body(outcome.body, checked_request(request)) == []
    choice: Json = json.loads(outcome.body)["choices"][0]
    return choice


def sse(*chunks: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def streamed(
    *chunks: Any, request: Json | None = None, dialect: Dialect = "completions"
) -> tuple[Outcome, Json]:
    """Return what a stream becomes and the choice that it folds to, checked, however it is cut."""
    request = {**(request or ask()), "stream": True}
    raw = sse(*chunks) + b"data: [DONE]\n\n"
    outcome = translate_pieces(request, [raw], dialect)
    assert outcome.status == 200, outcome
    assert check_completion_stream(outcome.body, checked_request(request)) == []
    for split in SPLITS.values():
        assert translate_pieces(request, split(raw), dialect) == outcome
    return outcome, fold_completion(outcome.body)["choices"][0]


def rows(choice: Json) -> list[tuple[Any, ...]]:
    """Return (token, number, alternatives) of each position."""
    given = choice["logprobs"]
    names = ("tokens", "token_logprobs", "top_logprobs")
    return list(zip(*(given[name] for name in names), strict=True))


Rows = list[tuple[str, float | None, Json | None]]
SPLIT: Rows = [
    ("bytes:\\xc3", -0.2, {"bytes:\\xc3": -0.2}),
    ("bytes:\\xa9", -0.3, {"bytes:\\xa9": -0.3}),
    ("\\xf0", -0.1, {"\\xf0": -0.1}),
]
"""A character in two tokens, and a text that is spelled like a byte."""


def translate_rows(text: str, rows: Rows, **more: Any) -> Outcome:
    """Translate a completion whose arrays are these rows: token, logprob, alternatives."""
    tokens, numbers, tops = ([*column] for column in zip(*rows, strict=True))
    request = {"model": "m", "prompt": "ab", "logprobs": 3, **more.pop("request", {})}
    answer = {**piece(text, arrays(tokens, numbers, tops), "stop"), "usage": USAGE, **more}
    return translate(request, 200, "application/json", json.dumps(answer).encode(), "completions")


def arrays_in(outcome: Outcome) -> Json:
    """Return the arrays of a translated body's choice."""
    found: Json = json.loads(outcome.body)["choices"][0]["logprobs"]
    return found
