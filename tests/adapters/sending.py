"""What a backend is sent for a client's request, or how the request is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.requests.completions import decode_completion
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.prepare import prepare, prepare_completion

Json = dict[str, Any]

USER: Json = {"role": "user", "content": "hi"}
NO_PARAMETERS: Json = {"type": "object", "properties": {}}
GONE: Any = object()
"""Stands for the value of a key that is not sent."""


def tool(name: str, **more: Any) -> Json:
    """Return a tool."""
    return {"type": "function", "function": {"name": name, **more}}


def chat(backend: Backend, **fields: Any) -> Json:
    """Return what is sent for a chat request."""
    body = json.dumps({"model": "m", "messages": [USER], **fields}).encode()
    sent: Json = json.loads(prepare(backend, decode_chat(body), model=None))
    return sent


def text(backend: Backend, **fields: Any) -> Json:
    """Return what is sent for a completions request."""
    body = json.dumps({"model": "m", "prompt": "Say", "max_tokens": 3, **fields}).encode()
    sent: Json = json.loads(prepare_completion(backend, decode_completion(body), model=None))
    return sent


def differs(sent: Json, expected: Json) -> list[str]:
    """Return the keys of `expected` that were sent with another value."""
    return [key for key, value in expected.items() if sent.get(key, GONE) != value]


def refused(backend: Backend, send: Any, **fields: Any) -> str | None:
    """Return the `param` of the 400 that a request gets, which has to say what to do."""
    with pytest.raises(RequestError) as error:
        send(backend, **fields)
    assert (error.value.status, error.value.code) == (400, "unsupported_parameter")
    assert backend.title in error.value.message
    assert error.value.message.rstrip().endswith(".") and error.value.message.count(". ")
    return error.value.param
