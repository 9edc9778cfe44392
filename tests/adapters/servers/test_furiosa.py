"""Furiosa-LLM's deviations one by one, body and stream, after furiosa-llm 2026.4.0's own source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import Json, Said, ask, body, chunk, stream
from tests.conformance import check_completion_body, check_completion_stream
from tests.corpus import checked_request
from tests.fold import fold_completion
from tests.replay import Outcome
from tests.replay import body as translate
from tests.replay import stream as translate_pieces
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.servers.known.furiosa import FURIOSA
from wellspoken.adapters.servers.prepare import prepare

SCORED = ask(logprobs=True, top_logprobs=2)
USAGE = {
    "prompt_tokens": 4,
    "total_tokens": 6,
    "completion_tokens": 2,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": None,
}
PLACE = "\ufffd"


def row(token: str, logprob: float) -> Json:
    """Return a token as the server spells it: its bytes are its text's."""
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}


def entry(token: str, logprob: float, *top: tuple[str, float]) -> Json:
    return {**row(token, logprob), "top_logprobs": [row(*one) for one in top]}


def whole(text: str, *entries: Json, **more: Any) -> Json:
    """Return a body with all the keys that the server writes."""
    message: Json = {"role": "assistant", "content": text, "reasoning": None, "tool_calls": []}
    choice = {
        "index": 0,
        "message": message,
        "logprobs": {"content": list(entries)} if entries else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": None,
    }
    head = {"id": "chatcmpl-0123456789", "object": "chat.completion", "created": 1_760_000_000}
    tail = {"usage": USAGE, "prompt_logprobs": None, "prompt_token_ids": None}
    return {**head, "model": "m", "choices": [{**choice, **more}], **tail}


def part(text: str, entry: Json | None = None, reason: str | None = None) -> Json:
    """Return a chunk, which has a choice's token_ids even where they are null."""
    delta = {"content": text}
    logprobs = {"content": [entry]} if entry else None
    return chunk(delta, reason, logprobs=logprobs, token_ids=None)


def both(text: str, *pieces: tuple[str, Json]) -> list[Said]:
    """Return what comes of the entries in a body and in a stream of these pieces of text."""
    opening = chunk({"role": "assistant", "content": ""}, stop_reason=None, token_ids=None)
    opening["prompt_token_ids"] = None
    *most, last = [part(*piece) for piece in pieces]
    last["choices"][0] |= {"finish_reason": "stop", "stop_reason": None}
    answered = whole(text, *(given for _, given in pieces))
    return [body(answered, SCORED), stream([opening, *most, last], SCORED)]


def test_plain_logprobs_lack_only_refusal() -> None:
    top = (("Hi", -0.25), ("Ho", -1.5))
    for said in both("Hi", ("Hi", entry("Hi", -0.25, *top))):
        assert said.choice["logprobs"] == {
            "content": [entry("Hi", -0.25, *top)],
            "refusal": None,
        }
        assert "logprobs_refusal_missing" in said.repairs


def test_a_split_character_has_its_bytes_from_the_content() -> None:
    pieces = [
        ("caf", entry("caf", -0.5, ("caf", -0.5))),
        ("", entry(PLACE, -0.25, (PLACE, -0.25), ("e", -1.5))),
        ("é", entry(PLACE, -0.125, (PLACE, -0.125))),
    ]
    for said in both("café", *pieces):
        assert said.rows == [
            ("caf", -0.5, [99, 97, 102]),
            ("", -0.25, None),
            ("é", -0.125, [195, 169]),
        ]
        assert said.tops[1] == [("", -0.25), ("e", -1.5)]
        assert said.joined == "café".encode()
        assert [195, 169] != list(PLACE.encode())


def test_the_end_of_text_has_no_entry() -> None:
    end = entry("<|im_end|>", -0.125, ("<|im_end|>", -0.125))
    for said in both("Hi", ("Hi", entry("Hi", -0.25)), ("", end)):
        assert said.rows == [("Hi", -0.25, [72, 105])]
        assert said.repairs["logprobs_outside_content"] == 1


def test_a_placeholders_own_bytes_are_not_the_tokens() -> None:
    """Text unknown: `token_id:N` stays the token, and the bytes of that text are not its bytes."""
    named = entry("token_id:9707", -0.25, ("token_id:9707", -0.25), ("token_id:1", -2.0))
    for said in both("Hi", ("Hi", named)):
        assert said.rows == [("token_id:9707", -0.25, None)]
        assert said.tops == [[("token_id:9707", -0.25), ("token_id:1", -2.0)]]
        assert said.repairs["logprobs_bytes_unknown"] == 3


def test_a_masked_token_is_minus_9999() -> None:
    given = entry("Hi", -9999.0, ("Ho", 0.0), ("Hi", -9999.0))
    for said in both("Hi", ("Hi", given)):
        assert said.rows == [("Hi", -9999.0, [72, 105])]
        assert said.tops == [[("Ho", 0.0), ("Hi", -9999.0)]]


SCORES = [None, {"9": {"logprob": -1e-07, "rank": 8063, "decoded_token": PLACE}}]


@pytest.mark.parametrize("asked", [True, False])
def test_the_prompts_keys_pass_if_they_were_asked_for(asked: bool) -> None:
    answered = {**whole("Hi", token_ids=[5]), "prompt_logprobs": SCORES, "prompt_token_ids": [1, 9]}
    said = body(answered, ask(prompt_logprobs=1, return_token_ids=True) if asked else ask())
    if asked:
        assert said.answer["prompt_logprobs"] == SCORES
        assert said.answer["prompt_token_ids"] == [1, 9]
        assert said.choice["token_ids"] == [5]
        assert b'"logprob":-1e-07' in said.raw.replace(b": ", b":")
    else:
        assert not {"prompt_logprobs", "prompt_token_ids"} & said.answer.keys()
        assert "token_ids" not in said.choice
        assert said.repairs["extra_field_dropped"] == 3


def test_null_keys_leave_no_trace() -> None:
    said = body(whole("Hi"))
    assert list(said.message) == ["role", "content", "refusal"]
    assert list(said.choice) == ["index", "message", "logprobs", "finish_reason"]


# --- /v1/completions ----------------------------------------------------------------------------

ASKED: Json = {"model": "m", "prompt": "Say", "max_tokens": 2, "logprobs": 1}


def arrays(tokens: list[str], numbers: list[float], tops: list[Json]) -> Json:
    """Return the arrays; every chunk counts its offsets from 0."""
    offsets = [sum(map(len, tokens[:n])) for n in range(len(tokens))]
    return {
        "text_offset": offsets,
        "token_logprobs": numbers,
        "tokens": tokens,
        "top_logprobs": tops,
    }


def text(said: str, logprobs: Json | None, reason: str | None, **more: Any) -> Json:
    choice = {"index": 0, "text": said, "logprobs": logprobs, "finish_reason": reason}
    nulls = {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
    head = {"id": "cmpl-0123456789", "object": "text_completion", "created": 1_760_000_000}
    return {**head, "model": "m", "choices": [{**choice, **nulls}], **more}


ROWS = [("He", -0.25, {"He": -0.25, "Ho": -1.5}), ("y", -0.5, {"!": -0.25, "y": -0.5})]


def completions() -> list[tuple[Json, Outcome]]:
    """Return (the answer, what was counted) of a body and of a stream, both of them checked."""
    tokens, numbers, tops = zip(*ROWS, strict=True)
    one = text("Hey", arrays([*tokens], [*numbers], [*tops]), "length", usage=USAGE)
    data = json.dumps(one).encode()
    answer = translate(ASKED, 200, "application/json", data, "completions")
    assert check_completion_body(answer.body, checked_request(ASKED), None) == []
    chunks = [text(t, arrays([t], [v], [top]), None, usage=None) for t, v, top in ROWS]
    chunks[-1]["choices"][0]["finish_reason"] = "length"
    pieces = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks]
    asked = {**ASKED, "stream": True}
    streamed = translate_pieces(asked, [*pieces, b"data: [DONE]\n\n"], "completions")
    assert check_completion_stream(streamed.body, checked_request(asked), None) == []
    return [(json.loads(answer.body), answer), (fold_completion(streamed.body), streamed)]


def test_completions_offsets_count_from_the_prompts_start() -> None:
    for answer, outcome in completions():
        found = answer["choices"][0]["logprobs"]
        assert found == {
            "tokens": ["He", "y"],
            "token_logprobs": [-0.25, -0.5],
            "top_logprobs": [{"He": -0.25}, {"!": -0.25, "y": -0.5}],
            "text_offset": [3, 5],
        }
        assert outcome.repairs["text_offset_shifted"] == 1


# --- what it is asked ---------------------------------------------------------------------------


def test_logprobs_always_name_a_number() -> None:
    """Without `top_logprobs` the server gives no logprobs at all."""
    request = decode_chat(json.dumps(ask(logprobs=True, max_completion_tokens=3)).encode())
    sent = json.loads(prepare(FURIOSA, request, model=None))
    assert (sent["top_logprobs"], sent["max_tokens"]) == (1, 3)
    assert "max_completion_tokens" not in sent


def test_one_choice_a_request_and_no_echo() -> None:
    assert (FURIOSA.several, FURIOSA.scores) == (False, "nobody")
