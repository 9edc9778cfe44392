"""The backend's bytes of an answer: a body or a stream, chat's or the completions endpoint's."""

from __future__ import annotations

from typing import Any

from msgspec import json

from tests.adapters.properties.runs.model import Case, Chunk, Octets

CREATED = 1_741_570_283
_encode = json.Encoder().encode


def write(case: Case) -> bytes:
    """Return the bytes of a body, or of a whole stream."""
    if not case.streamed:
        return _encode(_body(case))
    events = [b"data: " + _encode(part) + b"\n\n" for part in _parts(case)]
    return b"".join([*events, b"data: [DONE]\n\n"])


def _envelope(case: Case, kind: str) -> dict[str, Any]:
    head = "chatcmpl-" if case.shape == "chat" else "cmpl-"
    return {"id": head + "B9MBs8CjcvOU2j", "object": kind, "created": CREATED, "model": "m"}


def _body(case: Case) -> dict[str, Any]:
    size = len(case.tokens)
    usage = {"prompt_tokens": 5, "completion_tokens": size, "total_tokens": 5 + size}
    choice: dict[str, Any] = {"index": 0}
    if case.shape == "chat":
        choice["message"] = _message(case)
    else:
        choice["text"] = case.content
    lp = logprobs(case, list(range(size)), 0)
    choice |= {"logprobs": lp, "finish_reason": case.finish}
    kind = "chat.completion" if case.shape == "chat" else "text_completion"
    return {**_envelope(case, kind), "choices": [choice], "usage": usage}


def _message(case: Case) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": case.content, "refusal": None}
    if case.reasoning is not None:
        message["reasoning_content"] = case.reasoning
    if case.call is not None:
        function = {"name": case.call[0], "arguments": case.call[1]}
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
    return message


def _parts(case: Case) -> list[dict[str, Any]]:
    """Return the chunks, the one that tells the finish reason among them."""
    chunks = list(case.chunks)
    choices: list[dict[str, Any]] = []
    if case.shape == "chat" and "no-role" not in case.loose:
        delta = {"role": "assistant", "content": "", "refusal": None}
        choices.append(_choice(case, delta, None))
    last = Chunk([])
    if chunks and _ends(case, chunks[-1]):
        last = chunks.pop()
    offset = 0
    for chunk in [*chunks, last]:
        lp = logprobs(case, chunk.entries, offset)
        offset += sum(len(case.shown[n].name) for n in chunk.entries)
        if case.shape == "completions":
            choices.append({"index": 0, "text": chunk.text, "logprobs": lp, "finish_reason": None})
        else:
            choices.append(_choice(case, _delta(case, chunk), lp))
    choices[-1]["finish_reason"] = case.finish
    kind = "chat.completion.chunk" if case.shape == "chat" else "text_completion"
    return [{**_envelope(case, kind), "choices": [choice]} for choice in choices]


def _ends(case: Case, chunk: Chunk) -> bool:
    """Say whether the finish reason comes with the last event."""
    text = chunk.text or chunk.reasoning or chunk.call
    return ("finish-with-text" if text else "eos-with-finish") in case.loose


def _choice(case: Case, delta: dict[str, Any], lp: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "logprobs": lp, "finish_reason": None}


def _delta(case: Case, chunk: Chunk) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    if chunk.text or (chunk.entries and not chunk.reasoning and not chunk.call):
        delta["content"] = chunk.text or (None if "content-null" in case.loose else "")
    if chunk.reasoning:
        delta["reasoning_content"] = chunk.reasoning
    if chunk.call is not None:
        delta["tool_calls"] = [chunk.call]
    return delta


def logprobs(case: Case, places: list[int], offset: int) -> dict[str, Any] | None:
    """Return the wire's logprobs of some tokens; `offset`: characters before them."""
    if case.arrays:
        return _arrays(case, places, offset) if places or not case.streamed else None
    if not places and case.streamed and "empty-lists" not in case.loose:
        return None
    found: dict[str, Any] = {"content": [_entry(case, n) for n in places]}
    return found if "no-refusal" in case.loose else found | {"refusal": None}


def _entry(case: Case, n: int) -> dict[str, Any]:
    token, shown = case.tokens[n], case.shown[n]
    rows = [_row(name, octets, number) for name, octets, number in shown.top]
    return {**_row(shown.name, shown.octets, token.logprob), "top_logprobs": rows}


def _row(name: str, octets: Octets, number: float) -> dict[str, Any]:
    row: dict[str, Any] = {"token": name, "logprob": number}
    return row if octets == "absent" else row | {"bytes": octets}


def _arrays(case: Case, places: list[int], offset: int) -> dict[str, Any]:
    shown = [case.shown[n] for n in places]
    found: dict[str, Any] = {
        "tokens": [one.name for one in shown],
        "token_logprobs": [case.tokens[n].logprob for n in places],
        "top_logprobs": [{name: number for name, _, number in one.top} for one in shown],
    }
    if "offset-absent" in case.loose:
        return found
    at = 0 if "offset-zero" in case.loose else len(case.prompt) + offset
    offsets = []
    for one in shown:
        offsets.append(at)
        at += len(one.name)
    return found | {"text_offset": offsets}
