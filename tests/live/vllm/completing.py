"""One seeded completions request to vLLM itself and through the proxy, compared as in asking.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.conformance import Row, check_completion_body, check_completion_stream
from tests.corpus import checked_request
from tests.fold import fold_completion
from tests.live.vllm.asking import NO_CONTROLS, Answer, Asking, Given, conforms, facts
from tests.live.vllm.server import MODEL

PATH = "/v1/completions"


@dataclass(frozen=True)
class Completed:
    """Bodies and streams of one request, vLLM's own and the proxy's."""

    given: dict[int, Given]
    given_stream: dict[int, Given]
    raw: Any
    body: Any
    stream: Any
    client_stream: Answer
    repairs: str


def prompted(prompt: Any = "Hello world", **more: Any) -> dict[str, Any]:
    """Return a completions request, greedy and without control tokens unless `more` says so."""
    asked = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 12}
    return asked | {"logit_bias": NO_CONTROLS} | more


def completion_given(answer: Answer, *, streamed: bool) -> dict[int, Given]:
    """Read what vLLM gave, by choice, but for the tokens' ids."""
    found: dict[int, Given] = {}
    for part in answer.chunks if streamed else [answer.json]:
        for choice in part["choices"]:
            given = found.setdefault(choice["index"], Given())
            given.text += choice["text"]
            given.reason = choice.get("finish_reason") or given.reason
            given.stop_reason = choice.get("stop_reason") or given.stop_reason
            arrays = choice.get("logprobs")
            if arrays:
                tops = arrays["top_logprobs"]
                for at, value in enumerate(arrays["token_logprobs"]):
                    top = (tops[at] if at < len(tops) else None) or {}
                    given.rows.append(Row(value, tuple(top.values()), names=tuple(top)))
    return found


def essence(body: dict[str, Any]) -> list[Any]:
    """Return what the body of a completion and its stream must agree on."""
    keys = ("index", "text", "logprobs", "finish_reason")
    return [[choice[key] for key in keys] for choice in body["choices"]]


def agree(one: list[Any], other: list[Any]) -> None:
    """Assert that two answers are the same, and show the first difference."""
    for first, second in zip(one, other, strict=True):
        for mine, yours in zip(first, second, strict=True):
            if isinstance(mine, dict) and isinstance(yours, dict):
                for key in mine:
                    pairs = zip(mine[key], yours[key], strict=True)
                    wrong = [(at, a, b) for at, (a, b) in enumerate(pairs) if a != b]
                    assert not wrong, (key, wrong[:3], first[1])
            assert mine == yours, (mine, yours)


async def completed(ask: Asking, payload: dict[str, Any], **headers: str) -> Completed:
    """Ask for a body and a stream on both sides; check the proxy's against vLLM's numbers."""
    keep = frozenset(filter(None, headers.get("x_wellspoken_keep", "").split(",")))
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    raw = await ask.post(ask.direct, payload, PATH)
    raw_stream = await ask.post(ask.direct, payload | usage, PATH)
    # In a request of its own: beside `echo` it would take the prompt's text away (vLLM 0.32).
    ids = await ask.post(ask.direct, payload | {"return_token_ids": True}, PATH)
    assert [a.status for a in (raw, raw_stream, ids)] == [200] * 3, (raw.data, raw_stream.data)
    body = await ask.post(ask.proxy, payload, PATH, **headers)
    stream = await ask.post(ask.proxy, payload | usage, PATH, **headers)
    assert (body.status, stream.status) == (200, 200), (body.data, stream.data)
    scored = payload.get("logprobs") is not None
    given = completion_given(raw, streamed=False)
    given_stream = completion_given(raw_stream, streamed=True)
    for choice in ids.json["choices"]:
        before = choice["prompt_token_ids"] if payload.get("echo") else []
        for known_as in (given, given_stream):
            known_as[choice["index"]].ids = before + choice["token_ids"]
    asked = checked_request(payload, keep=keep)
    known = facts(given, raw.json["usage"], scored=scored)
    conforms(check_completion_body(body.data, asked, known), body)
    asked = checked_request(payload | usage, keep=keep)
    known = facts(given_stream, raw_stream.chunks[-1]["usage"], scored=scored)
    conforms(check_completion_stream(stream.data, asked, known), stream)
    folded = fold_completion(stream.data)
    if [one.text for one in given.values()] == [one.text for one in given_stream.values()]:
        agree(essence(folded), essence(body.json))
    return Completed(given, given_stream, raw.json, body.json, folded, stream, body.repairs)
