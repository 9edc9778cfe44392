"""cortex.llamacpp's deviations one by one, body and stream.

Constructed after src/llama_engine.cc and src/llama_server_context.cc of janhq/cortex.llamacpp at
a73aa5a (2025-03) and, for probabilities, at 9f3429d (2024-11-01).
"""

from __future__ import annotations

import json
import math
import sys
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from tests.answers import Json, Said, ask, body, stream
from tests.replay import exchange
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.servers.known.cortex import CORTEX
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.adapters.translate import translate_body

EPSILON = sys.float_info.epsilon
USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
SCORED = ask(logprobs=True, top_logprobs=2)
COUNTED = ask(stream_options={"include_usage": True})


def value(p: float) -> float:
    """Return what the server makes of a probability since 48db294."""
    return math.log(p + EPSILON)


def candidate(token: str, number: float) -> Json:
    return {"bytes": list(token.encode()), "logprob": number, "token": token}


def entry(token: str, *top: tuple[str, float]) -> Json:
    """Return an entry: whichever token was sampled, its value is the best candidate's."""
    rows = [candidate(*one) for one in top]
    return {**candidate(token, rows[0]["logprob"]), "top_logprobs": rows}


def whole(text: str, *entries: Json) -> Json:
    """Return a body; `logprobs` is absent where there are none."""
    message = {"content": text, "role": "assistant"}
    choice: Json = {"finish_reason": "stop", "index": 0, "message": message}
    if entries:
        choice["logprobs"] = {"content": list(entries)}
    head = {"created": 1_760_000_000, "id": "x8hbt2lKfGqQ5vYd0aZs", "model": "_"}
    tail = {"object": "chat.completion", "system_fingerprint": "_", "usage": USAGE}
    return {"choices": [choice], **head, **tail}


def chunk(number: int, text: str, reason: str = "", **more: Any) -> Json:
    """Return a chunk with an id of its own."""
    delta = {"content": text, "role": "assistant"}
    choice = {"delta": delta, "finish_reason": reason, "index": 0, **more}
    head = {"created": 1_760_000_000, "id": f"r{number:019d}", "model": "_"}
    return {"choices": [choice], **head, "object": "chat.completion.chunk"}


def chunks(*pieces: tuple[str, Json | None], finish: bool = True) -> list[Json]:
    """Return the chunks of these pieces of text, the empty one behind them and the last one."""
    numbers = count(1)
    parts = []
    for text, given in (*pieces, ("", None)):
        more: Json = {} if given is None else {"logprobs": {"content": [given]}}
        parts.append(chunk(next(numbers), text, **more))
    return [*parts, chunk(next(numbers), "", "stop")] if finish else parts


def both(*pieces: tuple[str, Json]) -> list[Said]:
    """Return what comes of entries in a body and in a stream of these pieces of text."""
    text = "".join(said for said, _ in pieces)
    return [
        body(whole(text, *(given for _, given in pieces)), SCORED),
        stream(chunks(*pieces), SCORED),
    ]


def test_a_stream_has_one_id_one_role_and_one_reason() -> None:
    said = stream(chunks(("Par", None), ("is", None)))
    parts = said.chunks
    assert len({(part["id"], part["model"]) for part in parts}) == 1
    choices = [part["choices"][0] for part in parts]
    assert ["role" in choice["delta"] for choice in choices] == [True, False, False, False]
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert said.message["content"] == "Paris"
    names = ("finish_reason_empty", "id_changes", "role_repeated", "model_not_requested")
    assert [said.repairs[name] for name in names] == [3, 3, 3, 1]


@pytest.mark.parametrize(("limit", "reason"), [(None, "stop"), (3, "stop"), (2, "length")])
def test_usage_in_the_last_chunks_place(limit: int | None, reason: str) -> None:
    """No chunk has a reason then; it is told from the counts."""
    asked = {**COUNTED, "max_tokens": limit}
    parts = [{**part, "usage": None} for part in chunks(("Par", None), ("is", None), finish=False)]
    details = {"completion_tokens_details": {"reasoning_tokens": 0}}
    last = {**chunk(9, ""), "choices": [], "usage": {**USAGE, **details}}
    said = stream([*parts, last], asked)
    assert (said.choice["finish_reason"], said.message["content"]) == (reason, "Paris")
    assert said.answer["usage"] == {**USAGE, **details}
    assert said.repairs["finish_reason_missing"] == 1


def test_a_cut_stream_is_a_failure() -> None:
    """A failed inference ends the stream without [DONE]; a reason is not made up."""
    said = stream(chunks(("Par", None), finish=False), done=False)
    assert said.error is not None and said.error["code"] == "upstream_cut"
    assert said.raw.endswith(b'"code":"upstream_cut"}}\n\n')


def test_a_tokens_value_is_its_own() -> None:
    """The best candidate's value is another token's."""
    rows = (("!", value(0.625)), (".", value(0.25)))
    for said in both((".", entry(".", *rows))):
        assert said.rows == [(".", value(0.25), [46])]
        assert said.tops == [[*rows]]
        assert said.repairs["logprobs_own_from_alternative"] == 1


def test_the_best_token_keeps_its_value() -> None:
    rows = (("!", value(0.625)), (".", value(0.25)))
    for said in both(("!", entry("!", *rows))):
        assert said.rows == [("!", value(0.625), [33])]
        assert "logprobs_own_from_alternative" not in said.repairs


def test_impossible_candidates_keep_the_epsilons_value() -> None:
    """log(0 + epsilon) is about -36; it is a number that the backend gave."""
    for said in both(("a", entry("a", ("a", value(1.0)), ("b", value(0.0))))):
        assert said.tops == [[("a", 0.0), ("b", math.log(EPSILON))]]
        assert -37 < said.tops[0][1][1] < -36


def test_a_certain_token_is_no_probability() -> None:
    """log(1 + epsilon) is above 0, and no more than a rounding error."""
    assert 0 < value(1.0) < 1e-15
    for said in both(("a", entry("a", ("a", value(1.0))))):
        assert said.rows == [("a", 0.0, [97])]
        assert "logprobs_probabilities" not in said.repairs


def test_probabilities_become_their_logs() -> None:
    pieces = [
        ("Par", entry("Par", ("Par", 0.75), ("It", 0.125))),
        ("is", entry("is", ("a", 0.625), ("is", 0.25))),
        ("!", entry("!", ("!", 1.0), ("?", 0.0))),
    ]
    for said in both(*pieces):
        assert [row[1] for row in said.rows] == [math.log(0.75), math.log(0.25), 0.0]
        assert said.tops == [
            [("Par", math.log(0.75)), ("It", math.log(0.125))],
            [("a", math.log(0.625)), ("is", math.log(0.25))],
            [("!", 0.0), ("?", -9999.0)],
        ]
        assert said.repairs["logprobs_probabilities"] >= 1


def test_the_trimmed_space_is_clipped_off_the_first_entry() -> None:
    given = entry(" Paris", (" Paris", value(0.75)), (" It", value(0.125)))
    for said in both(("Paris", given)):
        assert said.rows == [("Paris", value(0.75), list(b"Paris"))]
        assert said.tops == [[(" Paris", value(0.75)), (" It", value(0.125))]]
        assert said.repairs["logprobs_clipped"] == 1


def test_the_end_of_text_has_no_entry() -> None:
    end = entry("<|im_end|>", ("<|im_end|>", value(0.9375)))
    said = body(whole("a", entry("a", ("a", value(0.5))), end), SCORED)
    assert said.rows == [("a", value(0.5), [97])]
    assert said.repairs["logprobs_outside_content"] == 1


@pytest.mark.parametrize(
    ("status", "answered"),
    [(409, 409), (400, 400), (200, 502)],
)
def test_errors_are_a_message_alone(status: int, answered: int) -> None:
    said = body({"message": "Model has not been loaded"}, status=status)
    assert said.status == answered
    assert said.error is not None and said.error["message"] == "Model has not been loaded"


def test_a_null_reason_in_a_body() -> None:
    """Before 9f3429d no body had one."""
    given = whole("Paris")
    given["choices"][0]["finish_reason"] = None
    assert body(given).choice["finish_reason"] == "stop"
    assert body(given, ask(max_tokens=2)).choice["finish_reason"] == "length"


@pytest.mark.parametrize(("k", "asked"), [(None, 1), (0, 1), (3, 3)])
def test_logprobs_are_asked_for_by_openais_names(k: int | None, asked: int) -> None:
    """`n_probs` would make JSON the content of streams before 9f3429d."""
    given = json.dumps(ask(logprobs=True, top_logprobs=k, max_completion_tokens=4)).encode()
    sent = json.loads(prepare(CORTEX, decode_chat(given), model=None))
    assert (sent["logprobs"], sent["top_logprobs"], sent["max_tokens"]) == (True, asked, 4)
    assert not {"n_probs", "max_completion_tokens"} & sent.keys()


def test_the_best_alternatives_value_is_not_the_sampled_tokens() -> None:
    """src/llama_server_context.cc gives an entry probs[0], whatever was sampled."""
    given = whole("a", entry("a", ("b", -0.2), ("c", -2.0)))
    asked = exchange(SCORED)
    asked = replace(asked, pairs_best=CORTEX.pairs_best)
    answer = translate_body(asked, 200, "application/json", json.dumps(given).encode())
    (row,) = json.loads(answer.body)["choices"][0]["logprobs"]["content"]
    assert (row["token"], row["logprob"]) == ("a", -9999.0)
    assert asked.notes.counts["logprobs_own_unknown"] == 1
