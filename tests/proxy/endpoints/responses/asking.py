"""What the tests of /v1/responses share: questions, a backend's chat answers, and the events."""

from __future__ import annotations

import json
from typing import Any

from tests.conforming import MODEL
from tests.fakes.upstream import DONE, event, stream, whole
from tests.proxy.conftest import Proxy, envelope

Json = dict[str, Any]
PATH = "/v1/responses"
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 3},
}


def says(content: str | None = "Hello", reason: str = "stop", **message: Any) -> Any:
    """Return the script of a chat answer, a body."""
    told = {"role": "assistant", "content": content, "refusal": None, **message}
    choice = {"index": 0, "message": told, "logprobs": None, "finish_reason": reason}
    return whole(
        {
            "id": "chatcmpl-0123456789",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": MODEL,
            "choices": [choice],
            "usage": USAGE,
        }
    )


def streams(*texts: str, reason: str = "stop", end: bool = True) -> Any:
    """Return the script of a chat answer, a stream of these texts."""

    def chunk(delta: Json, reason: str | None = None, **more: Any) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return {
            "id": "chatcmpl-0123456789",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": MODEL,
            "choices": [choice],
            **more,
        }

    told = [event(chunk({"role": "assistant", "content": ""}))]
    told += [event(chunk({"content": text})) for text in texts]
    if not end:
        return stream(*told, end=False)
    usage = {**chunk({}), "choices": [], "usage": USAGE}
    return stream(*told, event(chunk({}, reason)), event(usage), DONE)


async def create(proxy: Proxy, status: int = 200, headers: Any = None, **asked: Any) -> Json:
    """Return the response, or the error object of a status that is none of success."""
    body = {"model": MODEL, "input": "Hi", **asked}
    async with proxy.session.post(proxy.url(PATH), json=body, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == status, text
        decoded: Json = json.loads(text) if status < 300 else envelope(text)
        return decoded


async def create_stream(proxy: Proxy, **asked: Any) -> list[Json]:
    """Return the events of a streamed response."""
    body = {"model": MODEL, "input": "Hi", "stream": True, **asked}
    async with proxy.session.post(proxy.url(PATH), json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    return events_of(text)


def events_of(text: str) -> list[Json]:
    """Return a stream's events; each has to bear its type's name."""
    events = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        name, data = lines
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


async def ask(proxy: Proxy, method: str, path: str, status: int = 200, headers: Any = None) -> Json:
    """Return the answer to a question about kept responses, or the error object."""
    url = proxy.url(f"{PATH}/{path}")
    async with proxy.session.request(method, url, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == status, text
        decoded: Json = json.loads(text) if status < 300 else envelope(text)
        return decoded


def text_of(response: Json) -> str:
    """Return the text of a response's messages."""
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts if part["type"] == "output_text")
