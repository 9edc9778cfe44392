"""An independent accumulator: an SSE stream of chunks -> the body it amounts to.

It knows nothing of the translation. It is lenient (any line ending, extra keys ignored): what is
wrong with a stream is the conformance checker's to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_LINE = re.compile(rb"\r\n|\n|\r")
_TEXTS = ("content", "refusal", "reasoning_content")
_ARRAYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


def payloads(stream: bytes) -> Iterator[bytes]:
    """Give the data of each SSE event, comments and other fields left out."""
    lines: list[bytes] = []
    for line in [*_LINE.split(stream.removeprefix(b"\xef\xbb\xbf")), b""]:
        if line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" "))
        elif not line and lines:
            yield b"\n".join(lines)
            lines = []


def chunks_of(stream: bytes) -> list[dict[str, Any]]:
    """Return the JSON of each event but the last, [DONE]."""
    return [json.loads(data) for data in payloads(stream) if data != b"[DONE]"]


def fold(stream: bytes) -> dict[str, Any]:
    """Return the chat.completion that the stream amounts to.

    An error event gives {"error": ...} beside what came before it. `usage` is the last one seen.
    """
    body, parts = _envelope(stream)
    choices: dict[int, dict[str, Any]] = {}
    for part in parts:
        fold_choice(choices, part)
    body["choices"] = [finished(choices[index]) for index in sorted(choices)]
    return body | {"object": "chat.completion"}


def fold_completion(stream: bytes) -> dict[str, Any]:
    """Return the text_completion that the stream amounts to, errors and usage as in `fold`."""
    body, parts = _envelope(stream)
    choices: dict[int, dict[str, Any]] = {}
    for part in parts:
        index = part.get("index", 0)
        empty = {"index": index, "text": "", "logprobs": None, "finish_reason": None}
        choice = choices.setdefault(index, empty)
        choice["text"] += part.get("text") or ""
        _add_arrays(choice, part.get("logprobs"))
        _add_reason(choice, part)
    body["choices"] = [choices[index] for index in sorted(choices)]
    return body | {"object": "text_completion"}


def _envelope(stream: bytes) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return what lies beside the chunks' choices, and those."""
    body: dict[str, Any] = {}
    parts: list[dict[str, Any]] = []
    for chunk in chunks_of(stream):
        for key, value in chunk.items():
            if key not in ("choices", "object") and value is not None:
                body[key] = value
        parts += chunk.get("choices", ())
    return body, parts


def fold_choice(choices: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    """Add one chunk's choice to what came before."""
    index = part.get("index", 0)
    if index not in choices:
        message = {"role": "assistant", "content": None, "refusal": None}
        choices[index] = {
            "index": index,
            "message": message,
            "logprobs": None,
            "finish_reason": None,
        }
    choice = choices[index]
    delta = part.get("delta") or {}
    message = choice["message"]
    for key in _TEXTS:
        if delta.get(key) is not None:
            message[key] = (message.get(key) or "") + delta[key]
    for call in delta.get("tool_calls") or ():
        _add_call(message.setdefault("tool_calls", []), call)
    if delta.get("function_call") is not None:
        _add_function(message.setdefault("function_call", {}), delta["function_call"])
    _add_logprobs(choice, part.get("logprobs"))
    _add_reason(choice, part)


def _add_reason(choice: dict[str, Any], part: dict[str, Any]) -> None:
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = (choice["finish_reason"] or "") + part["finish_reason"]


def _add_arrays(choice: dict[str, Any], part: dict[str, Any] | None) -> None:
    if part is None:
        return
    if choice["logprobs"] is None:
        choice["logprobs"] = {key: [] for key in _ARRAYS}
    for key in _ARRAYS:
        choice["logprobs"][key] += part[key]


def _add_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    index = part.get("index", 0)
    call = next((c for c in calls if c["index"] == index), None)
    if call is None:
        call = {"index": index, "function": {}}
        calls.append(call)
    for key in ("id", "type"):
        if part.get(key) is not None:
            call[key] = call.get(key, "") + part[key]
    _add_function(call["function"], part.get("function") or {})


def _add_function(function: dict[str, Any], part: dict[str, Any]) -> None:
    for key in ("name", "arguments"):
        if part.get(key) is not None:
            function[key] = function.get(key, "") + part[key]


def _add_logprobs(choice: dict[str, Any], part: dict[str, Any] | None) -> None:
    if part is None:
        return
    if choice["logprobs"] is None:
        choice["logprobs"] = {"content": None, "refusal": None}
    for key in ("content", "refusal"):
        if part.get(key) is not None:
            choice["logprobs"][key] = (choice["logprobs"][key] or []) + part[key]


def finished(choice: dict[str, Any]) -> dict[str, Any]:
    """Drop the streamed index of calls, which a body has not."""
    for call in choice["message"].get("tool_calls", ()):
        call.pop("index", None)
    return choice


def comparable(body: dict[str, Any], *, usage: bool = False) -> dict[str, Any]:
    """Return what a stream and a body of one answer must agree on.

    Left out: id, created, fingerprint, usage unless `usage`, made-up ids of calls, extensions. The
    same: no content and "" beside a call or a refusal.
    """
    out: dict[str, Any] = {key: body[key] for key in ("model", "error") if key in body}
    if usage and body.get("usage") is not None:
        out["usage"] = body["usage"]
    out["choices"] = [_comparable_choice(choice) for choice in body.get("choices", ())]
    return out


def _comparable_choice(choice: dict[str, Any]) -> dict[str, Any]:
    if "text" in choice:
        return {key: choice[key] for key in ("index", "text", "logprobs", "finish_reason")}
    message = {k: v for k, v in choice["message"].items() if v is not None}
    if message.get("content") == "" and message.keys() & {"tool_calls", "refusal", "function_call"}:
        del message["content"]
    if "tool_calls" in message:
        message["tool_calls"] = [
            {k: v for k, v in call.items() if k != "id"} for call in message["tool_calls"]
        ]
    return {
        "index": choice["index"],
        "message": message,
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
    }
