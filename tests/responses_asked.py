"""Requests for responses, and the chat requests that they become."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from wellspoken.adapters.requests import chat_bounds
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.as_chat import ResponseChat, make_chat
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import ResponseRequest, parse_response

SUFFIX = "0123456789abcdef"
FUNCTION = {
    "type": "function",
    "name": "get_time",
    "description": "The time.",
    "parameters": {"type": "object", "properties": {"tz": {"type": "string"}}},
}
CALL = {"type": "function_call", "call_id": "call_1", "name": "get_time", "arguments": '{"tz":""}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "noon"}


def body(**keys: Any) -> bytes:
    """Return a request's bytes: a text, and what else is asked."""
    return json.dumps({"model": "tiny", "input": "Hi"} | keys).encode()


def ask(*, strict: bool = True, **keys: Any) -> ResponseRequest:
    """Return a request that is checked."""
    request = parse_response(body(**keys))
    check_response(request, strict)
    return request


def chat(
    *,
    history: list[dict[str, Any]] | None = None,
    found: dict[str, dict[str, Any]] | None = None,
    stored: bool = True,
    strict: bool = True,
    **keys: Any,
) -> ResponseChat:
    """Return the chat request that it becomes, which chat's own bounds accept."""
    made = make_chat(
        ask(strict=strict, **keys),
        [Raw(json.dumps(item).encode()) for item in history or ()],
        {id: Raw(json.dumps(item).encode()) for id, item in (found or {}).items()},
        suffix=SUFFIX,
        clock=lambda: 1_700_000_000,
        stored=stored,
    )
    chat_bounds.check(made, strict=strict)
    return made


def value(made: ResponseChat, key: str) -> Any:
    """Return a value of the chat request, None where it has none."""
    return json.loads(bytes(made.fields.get(key, b"null")))


def messages(**keys: Any) -> list[dict[str, Any]]:
    """Return the messages of the chat request."""
    found: list[dict[str, Any]] = value(chat(**keys), "messages")
    return found


def refuse(**keys: Any) -> RequestError:
    """Return the error that a request is refused with, by whatever looks at it."""
    with pytest.raises(RequestError) as raised:
        chat(**keys)
    assert raised.value.status == 400
    return raised.value
