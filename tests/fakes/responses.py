"""Responses to keep, alone and in chains, as the proxy makes them.

Constructed; the keys are those of openai-python's types (openai/types/responses).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from wellspoken.proxy.store.kept_responses import (
    KeptResponse,
    ResponseStore,
    context_of,
    history_of,
)

CREATED = 1_760_000_000


def id_of(number: int) -> str:
    return f"resp_{number:024x}00000000"


def said(number: int, role: str, text: str) -> dict[str, Any]:
    """Return a message, an item of a response's input (user) or of its output (assistant)."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {
        "type": "message",
        "id": f"msg_{role}_{number}",
        "role": role,
        "content": [{"type": kind, "text": text}],
    }


def response(
    number: int,
    previous: KeptResponse | None = None,
    *,
    owner: str = "",
    created: int = CREATED,
    text: str = "",
    output: list[dict[str, Any]] | None = None,
    **keys: Any,
) -> KeptResponse:
    """Return response `number`, which continues `previous`; `text` is said by both sides."""
    answer = {
        "id": id_of(number),
        "object": "response",
        "created_at": created + number,
        "status": "completed",
        "model": "m",
        "previous_response_id": None if previous is None else previous.id,
        "output": [said(number, "assistant", text or f"answer {number}")]
        if output is None
        else output,
        **keys,
    }
    return KeptResponse(
        id=id_of(number),
        owner=owner,
        request_id=f"req_{number}",
        created=created + number,
        model="m",
        answer=json.dumps(answer).encode(),
        input=json.dumps([said(number, "user", text or f"question {number}")]).encode(),
        history=b"[]" if previous is None else history_of(context_of(previous)),
    )


async def fill_chain(
    store: ResponseStore,
    turns: int,
    *,
    owner: str = "",
    first: int = 0,
    after: Callable[[int], Any] = lambda number: None,
    **keys: Any,
) -> KeptResponse:
    """Keep a chain, each response read before it is continued; return the last one as it is kept.

    `after` is told of each that was kept.
    """
    previous: KeptResponse | None = None
    for number in range(first, first + turns):
        assert await store.add(response(number, previous, owner=owner, **keys)) == ""
        previous = await store.get(owner, id_of(number))
        assert previous is not None
        after(number)
    assert previous is not None
    return previous


def texts(kept: KeptResponse) -> list[str]:
    """Return what was said up to the end of a response, item by item."""
    return [json.loads(bytes(item))["content"][0]["text"] for item in context_of(kept)]


def talk(turns: int, first: int = 0) -> list[str]:
    """Return what is said in a chain of so many turns."""
    numbers = range(first, first + turns)
    return [text for number in numbers for text in (f"question {number}", f"answer {number}")]
