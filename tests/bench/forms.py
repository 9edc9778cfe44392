"""The wire forms of an answer: five servers' chunks and bodies, byte for byte as they send them.

vllm-0.4.2        arrays in bodies, streamed the maps alone (the sampled token is to be found)
llama-cpp-python  the same arrays in every chunk, JSON with blanks and \\u escapes
vllm-0.32         chat logprobs without `refusal`, the sampled token first
llama.cpp         chat logprobs with token ids, other key order, no `refusal`
openai            conforming: what goes out is what came in
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.bench.data import Answer, Position
from tests.conformance import ChoiceFacts, Facts, Request, Row

ID = "chatcmpl-7Qb1d4vXn2LkW0sTzR5yHc"
CREATED = 1_795_171_090
MODEL = "bench"
PROMPT_TOKENS = 11
DONE = b"data: [DONE]\n\n"

Json = dict[str, Any]
Order = Callable[[Position], list[tuple[str, float]]]


def own_first(position: Position) -> list[tuple[str, float]]:
    """vLLM's map: the sampled token, then the others; k + 1 of them if it is outside the top k."""
    own = (position.token, position.logprob)
    return [own, *(row for row in position.top if row != own)]


def own_first_cut(position: Position) -> list[tuple[str, float]]:
    """vLLM's list: the same, no more than k."""
    return own_first(position)[: len(position.top)]


def best_first(position: Position) -> list[tuple[str, float]]:
    """The top k, without the sampled token if it is not one of them."""
    return list(position.top)


def entries(positions: tuple[Position, ...], order: Order, ids: bool = False) -> list[Json]:
    """Return chat entries."""
    return [
        {
            **_named(position.token, position.logprob, ids),
            "top_logprobs": [_named(*row, ids) for row in order(position)],
        }
        for position in positions
    ]


def _named(token: str, logprob: float, ids: bool) -> Json:
    data = list(token.encode())
    if ids:
        return {"id": hash_id(token), "token": token, "bytes": data, "logprob": logprob}
    return {"token": token, "logprob": logprob, "bytes": data}


def hash_id(token: str) -> int:
    """Return a number in the range of token ids; nothing reads it."""
    return sum(token.encode()) * 31 % 32_000


def arrays(positions: tuple[Position, ...], order: Order) -> Json:
    """Return the completions endpoint's arrays."""
    offsets, at = [], 0
    for position in positions:
        offsets.append(at)
        at += len(position.token)
    return {
        "text_offset": offsets,
        "token_logprobs": [position.logprob for position in positions],
        "tokens": [position.token for position in positions],
        "top_logprobs": [dict(order(position)) for position in positions],
    }


@dataclass(frozen=True)
class Stream:
    """A stream: whole server-sent events, what they hold, and the JSON of those with a token."""

    events: list[bytes]
    chunks: list[bytes]
    size: int


@dataclass(frozen=True)
class Form:
    """One server's way to write an answer; `order` is the order of its alternatives."""

    name: str
    order: Order
    chunks: Callable[[Answer, Order], Iterator[Json]]
    whole: Callable[[Answer, Order], Json]
    dumps: Callable[[Json], str]

    def stream(self, answer: Answer) -> Stream:
        """Return the answer as this server streams it, one token an event."""
        given = [(self.dumps(chunk).encode(), chunk) for chunk in self.chunks(answer, self.order)]
        tokens = [data for data, chunk in given if _holds_token(chunk)]
        events = [b"data: " + data + b"\n\n" for data, _ in given]
        return Stream([*events, DONE], tokens, len(answer.positions))

    def body(self, answer: Answer) -> bytes:
        """Return the answer as this server sends it whole."""
        return self.dumps(self.whole(answer, self.order)).encode()

    def facts(self, answer: Answer, usage: bool = True) -> Facts:
        """Return what the conformance checker has to find in the translation."""
        rows = None
        if answer.k:
            rows = tuple(
                Row(position.logprob, tuple(value for _, value in self.order(position)))
                for position in answer.positions
            )
        counts = (PROMPT_TOKENS, len(answer.positions)) if usage else None
        return Facts({0: ChoiceFacts(rows, {}, answer.text)}, counts, ID)


def asked(answer: Answer, model: str = MODEL) -> Request:
    """Return the request that such an answer is for."""
    return Request(model=model, logprobs=answer.k > 0, k=answer.k)


def _holds_token(chunk: Json) -> bool:
    return bool(chunk["choices"] and chunk["choices"][0]["delta"].get("content"))


def _compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _usage(answer: Answer) -> Json:
    size = len(answer.positions)
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + size,
        "completion_tokens": size,
    }


def _chunk(delta: Json, logprobs: Json | None, reason: str | None = None, **more: Any) -> Json:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return _top("chat.completion.chunk", [choice | more])


def _top(kind: str, choices: list[Json], **more: Any) -> Json:
    return {
        "id": ID,
        "object": kind,
        "created": CREATED,
        "model": MODEL,
        "choices": choices,
        **more,
    }


def _body(answer: Answer, message: Json, logprobs: Json | None, **more: Any) -> Json:
    content = {"role": "assistant", "content": answer.text, **message}
    choice = {"index": 0, "message": content, "logprobs": logprobs, "finish_reason": "stop"}
    return _top("chat.completion", [choice | more], usage=_usage(answer))


# vLLM 0.4.2


def _vllm_old_chunks(answer: Answer, order: Order) -> Iterator[Json]:
    yield _chunk({"role": "assistant"}, None)
    last = len(answer.positions) - 1
    for n, position in enumerate(answer.positions):
        logprobs = {"top_logprobs": [dict(order(position))]} if answer.k else None
        chunk = _chunk({"content": position.token}, logprobs, "stop" if n == last else None)
        yield chunk | {"usage": _usage(answer)} if n == last else chunk


def _arrays_or_none(answer: Answer, order: Order) -> Json | None:
    return arrays(answer.positions, order) if answer.k else None


def _vllm_old_body(answer: Answer, order: Order) -> Json:
    return _body(answer, {}, _arrays_or_none(answer, order), stop_reason=None)


# llama-cpp-python 0.2.58-0.3.2


def _python_chunks(answer: Answer, order: Order) -> Iterator[Json]:
    yield _chunk({"role": "assistant"}, None)
    for position in answer.positions:
        logprobs = arrays((position,), order) if answer.k else None
        yield _chunk({"content": position.token}, logprobs)
    yield _chunk({}, None, "stop")


def _python_body(answer: Answer, order: Order) -> Json:
    return _body(answer, {}, _arrays_or_none(answer, order))


# vLLM 0.32


def _vllm_chunks(answer: Answer, order: Order) -> Iterator[Json]:
    first = _chunk({"role": "assistant", "content": ""}, None)
    yield first | {"prompt_token_ids": None, "prompt_text": None}
    last = len(answer.positions) - 1
    for n, position in enumerate(answer.positions):
        logprobs = {"content": entries((position,), order)} if answer.k else None
        delta = {"content": position.token}
        if n < last:
            yield _chunk(delta, logprobs, token_ids=None)
        else:
            yield _chunk(delta, logprobs, "stop", stop_reason=None, token_ids=None)


def _vllm_body(answer: Answer, order: Order) -> Json:
    nulls = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
    logprobs = {"content": entries(answer.positions, order)} if answer.k else None
    more = {"stop_reason": None, "token_ids": None, "routed_experts": None}
    whole = _body(answer, nulls, logprobs, **more)
    last = ("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params")
    return whole | {"system_fingerprint": "vllm-0.32.0-ecd5bd6d", **dict.fromkeys(last)}


# llama.cpp


def _llamacpp_chunk(delta: Json, logprobs: Json | None, reason: str | None = None) -> Json:
    choice: Json = {"finish_reason": reason, "index": 0, "delta": delta}
    if logprobs is not None:
        choice["logprobs"] = logprobs
    return _llamacpp_top("chat.completion.chunk", choice)


def _llamacpp_top(kind: str, choice: Json) -> Json:
    return {
        "choices": [choice],
        "created": CREATED,
        "id": ID,
        "model": MODEL,
        "system_fingerprint": "b11549-1d1d9a9ed",
        "object": kind,
    }


def _llamacpp_chunks(answer: Answer, order: Order) -> Iterator[Json]:
    yield _llamacpp_chunk({"role": "assistant", "content": None}, None)
    for position in answer.positions:
        logprobs = {"content": entries((position,), order, True)} if answer.k else None
        yield _llamacpp_chunk({"content": position.token}, logprobs)
    yield _llamacpp_chunk({}, None, "stop") | {"timings": {"prompt_n": 1, "prompt_ms": 0.098}}


def _llamacpp_body(answer: Answer, order: Order) -> Json:
    choice: Json = {
        "finish_reason": "stop",
        "index": 0,
        "message": {"role": "assistant", "content": answer.text},
    }
    if answer.k:
        choice["logprobs"] = {"content": entries(answer.positions, order, True)}
    timings = {"prompt_n": 1, "prompt_ms": 0.098}
    return _llamacpp_top("chat.completion", choice) | {"usage": _usage(answer), "timings": timings}


# OpenAI


def _openai_chunks(answer: Answer, order: Order) -> Iterator[Json]:
    yield _chunk({"role": "assistant", "content": "", "refusal": None}, None)
    for position in answer.positions:
        logprobs = None
        if answer.k:
            logprobs = {"content": entries((position,), order), "refusal": None}
        yield _chunk({"content": position.token}, logprobs)
    yield _chunk({}, None, "stop")


def _openai_body(answer: Answer, order: Order) -> Json:
    logprobs = None
    if answer.k:
        logprobs = {"content": entries(answer.positions, order), "refusal": None}
    return _body(answer, {"refusal": None}, logprobs)


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form("vllm-0.4.2", own_first, _vllm_old_chunks, _vllm_old_body, _compact),
        Form("llama-cpp-python", own_first, _python_chunks, _python_body, json.dumps),
        Form("vllm-0.32", own_first_cut, _vllm_chunks, _vllm_body, _compact),
        Form("llama.cpp", best_first, _llamacpp_chunks, _llamacpp_body, _compact),
        Form("openai", best_first, _openai_chunks, _openai_body, _compact),
    )
}
