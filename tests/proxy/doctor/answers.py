"""Answers for the doctor's judges: conforming ones, and mutants by what is to be said of them.

Constructed after OpenAI's API reference with the builders of tests/conforming.py; the deviations
are those of servers named in adapters/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.conforming import (
    CREATED,
    MODEL,
    TEXT,
    USAGE,
    body,
    call,
    choice,
    chunk,
    entries,
    finish,
    logprobs,
    message,
    role,
    sse,
)
from tests.conforming_completions import PROMPT as CONFORMING_PROMPT
from tests.conforming_completions import body as text_body
from tests.conforming_completions import choice as text_choice
from tests.conforming_completions import columns
from wellspoken.proxy.doctor.probe import ProbeContext, ProbeResponse
from wellspoken.proxy.doctor.probe_requests import NAMED, PROMPT

CONTEXT = ProbeContext(MODEL, listed=True, text=TEXT, now=CREATED)
Answers = list[ProbeResponse]


@dataclass(frozen=True)
class Case:
    """Conforming answers to a probe's requests, and mutants by a part of what is said of them."""

    good: Answers
    bad: dict[str, Answers]
    context: ProbeContext = CONTEXT
    lacks: Answers = field(default_factory=list)
    unclear: Answers = field(default_factory=list)


def said(value: Any, status: int = 200, **headers: str) -> ProbeResponse:
    """Return a JSON answer, or bytes as they are."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    base = {
        "content-type": "application/json",
        "content-length": str(len(data)),
        "x-request-id": "req_1",
    }
    more = {name.replace("_", "-"): text for name, text in headers.items()}
    return ProbeResponse(status, {**base, **more}, data, 0.1)


def streamed(chunks: Sequence[Any], *, done: bool = True) -> ProbeResponse:
    """Return a streamed answer."""
    return raw(sse(list(chunks), done=done))


def raw(data: bytes, content_type: str = "text/event-stream; charset=utf-8") -> ProbeResponse:
    """Return a stream's bytes as they are."""
    return ProbeResponse(200, {"content-type": content_type, "x-request-id": "req_1"}, data, 0.1)


def error(
    param: str | None = None, code: Any = None, status: int = 400, **more: Any
) -> ProbeResponse:
    """Return an error of OpenAI's form, with what `more` adds to it."""
    inner = {"message": "No.", "type": "invalid_request_error", "param": param, "code": code}
    return said({"error": {**inner, **more}}, status)


def short(content: str, reason: str) -> list[ProbeResponse]:
    """Return a body of three tokens."""
    counted = {"prompt_tokens": 19, "completion_tokens": 3, "total_tokens": 22}
    return [said(body(choice(message=message(content), finish_reason=reason), usage=counted))]


def without(found: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != key}


def texted(content: str, reason: str = "stop", **more: Any) -> ProbeResponse:
    """Return a body with this text."""
    return said(body(choice(message=message(content), finish_reason=reason, **more)))


ENTRY = {"id": MODEL, "object": "model", "created": CREATED, "owned_by": "openai"}
SCORED = choice(logprobs=logprobs())
ALONE = [entry | {"top_logprobs": []} for entry in entries()]


def scored(*changed: dict[str, Any], **more: Any) -> list[ProbeResponse]:
    """Return a body with logprobs whose first entries are replaced."""
    found = [*changed, *entries(len(changed))]
    return [said(body(choice(logprobs={"content": found, "refusal": None, **more})))]


FIRST = entries(0, 1)[0]
FLAT = [role(), chunk({"content": "Hi "}), chunk({"content": "é😀!"}), finish()]
BARE = {"role": "assistant", "content": ""}
COUNTED = [c | {"usage": None} for c in FLAT]
LAST = chunk({}, top={"choices": [], "usage": USAGE})
STREAM_SCORED = [
    role(),
    chunk({"content": "Hi"}, logprobs=logprobs(0, 1)),
    chunk({"content": " é"}, logprobs=logprobs(1, 3)),
    chunk({"content": "😀!"}, logprobs=logprobs(3)),
    finish(),
]
TWO = [
    role(),
    role(1),
    chunk({"content": "a"}),
    chunk({"content": "b"}, 1),
    finish(),
    finish("stop", 1),
]


def called(**more: Any) -> dict[str, Any]:
    """Return a call of the function that is asked for."""
    function = {"name": NAMED, "arguments": '{"tz": "UTC"}'}
    return {"id": "call_1", "type": "function", "function": function, **more}


def calls(*found: Any, reason: str = "tool_calls") -> list[ProbeResponse]:
    """Return a body with calls."""
    spoken = message(None, tool_calls=list(found))
    return [said(body(choice(message=spoken, finish_reason=reason)))]


CALLED = [
    role(content=None),
    call(0, "", id="call_1", name=NAMED),
    call(0, '{"tz":'),
    call(0, '"UTC"}'),
    finish("tool_calls"),
]
START = len(PROMPT)
ROWS = columns(
    (" there", -0.5, {" there": -0.5, " was": -1.0}, START),
    (" é", -0.25, {" é": -0.25, "!": -2.0}, START + 6),
)
ECHOED = columns(
    ("Once", 0.0, {}, 0),
    (" upon", -1.0, {" upon": -1.0}, 4),
    (" a time", -2.0, {" a time": -2.0}, 9),
    ("!", -0.5, {"!": -0.5}, START),
)
ECHOED["token_logprobs"][0] = ECHOED["top_logprobs"][0] = None
TEXTLESS = text_choice() | {"text": None}
VECTORS = [{"object": "embedding", "index": n, "embedding": [0.5, -1.0]} for n in (0, 1)]
EMBEDDED = {
    "object": "list",
    "data": VECTORS,
    "model": MODEL,
    "usage": {"prompt_tokens": 3, "total_tokens": 3},
}


def text(found: dict[str, Any] | None = None, **more: Any) -> list[ProbeResponse]:
    """Return a completion with these keys of its choice, or of its own."""
    return [said(text_body(text_choice(**(found or {})), **more))]


def rows(found: dict[str, Any], content: str = " there é") -> list[ProbeResponse]:
    """Return a completion with these arrays."""
    return text({"text": content, "logprobs": found})


assert CONFORMING_PROMPT != PROMPT  # its offsets would not be these
LONG = ProbeContext(MODEL, listed=True, text=TEXT * 9, now=CREATED)
