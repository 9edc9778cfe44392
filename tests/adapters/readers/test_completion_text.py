"""Completions as servers send them: ends, indexes, and llama.cpp's own answer in their place."""

from __future__ import annotations

import json

import pytest

from tests.adapters.completions import PROMPT, ask, piece, sse, streamed
from tests.conformance import check_completion_body, check_completion_stream
from tests.corpus import checked_request
from tests.fold import fold_completion
from tests.replay import SPLITS
from tests.replay import body as translate
from tests.replay import stream as translate_pieces


def test_the_end_token_of_a_stream_is_no_text() -> None:
    """TGI's router/src/server.rs: the last chunk's text is its token's."""
    last = piece("</s>", None, "eos_token")
    outcome, choice = streamed(piece("Hi"), last, request={"model": "m", "prompt": PROMPT})
    assert choice["text"] == "Hi" and outcome.repairs["text_end_token"] == 1


@pytest.mark.parametrize(("text", "reason"), [("</s>", "stop"), (" end", "eos_token")])
def test_other_text_beside_a_reason_stays(text: str, reason: str) -> None:
    _, choice = streamed(
        piece("Hi"), piece(text, None, reason), request={**ask(), "logprobs": None}
    )
    assert choice["text"] == f"Hi{text}"


def test_a_single_choice_of_another_number_has_the_prompt() -> None:
    """Contract rule 5: a single choice 1 is choice 0, and its prompt the one there is."""
    _, choice = streamed(
        piece("Hi", index=1),
        piece("", None, "stop", index=1),
        request={"model": "m", "prompt": PROMPT, "echo": True},
    )
    assert (choice["index"], choice["text"]) == (0, "Say: Hi")


NATIVE = {"content": "Hi", "stop": True, "stopped_limit": True}


COUNTS = {"tokens_predicted": 1, "tokens_evaluated": 3}


def test_a_native_body_is_read_where_a_completion_was_asked_for() -> None:
    probs = [{"content": "Hi", "probs": [{"tok_str": "Hi", "prob": 0.5}]}]
    raw = json.dumps({**NATIVE, **COUNTS, "completion_probabilities": probs}).encode()
    outcome = translate(ask(), 200, "application/json", raw, "completions")
    assert check_completion_body(outcome.body, checked_request(ask())) == []
    answer = json.loads(outcome.body)
    assert answer["choices"][0]["text"] == "Hi" and answer["usage"]["total_tokens"] == 4
    assert outcome.repairs["native_answer"] == 1


@pytest.mark.parametrize("before", [b"", b": ping\n\n"])
def test_a_native_stream_is_read_where_a_completion_was_asked_for(before: bytes) -> None:
    request = {"model": "m", "prompt": PROMPT, "stream": True}
    raw = before + sse({"content": "Hi", "stop": False}, {**NATIVE, "content": "", **COUNTS})
    outcome = translate_pieces(request, [raw], "completions")
    assert check_completion_stream(outcome.body, checked_request(request)) == []
    choice = fold_completion(outcome.body)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("Hi", "length")
    for split in SPLITS.values():
        assert translate_pieces(request, split(raw), "completions") == outcome


def test_a_stream_without_an_event_is_not_waited_for_without_end() -> None:
    request = {"model": "m", "prompt": PROMPT, "stream": True}
    raw = b": ping\n\n" * 20_000 + sse(piece("Hi"), piece("", None, "stop"))
    outcome = translate_pieces(
        request, (raw[n : n + 9] for n in range(0, len(raw), 9)), "completions"
    )
    assert fold_completion(outcome.body)["choices"][0]["text"] == "Hi"
