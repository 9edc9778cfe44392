"""Nothing is held without end by backends whose answers say nothing.

The limits are short here, and nothing depends on how much longer than that something takes: what is
waited for is the end, which without the limit would not come.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import ClientPayloadError

from tests.clock import hurry, skip
from tests.fakes.upstream import Pause, Script, Step, Upstream, chunk, event, head
from tests.proxy.conftest import Proxy, StartProxy, envelope
from tests.proxy.limits.test_held import piece
from tests.waiting import until


def endless(*beginning: bytes, again: bytes, kind: str = "text/event-stream") -> Script:
    """Return an answer that begins so, and then says the same again and again."""
    begun = [head(200, kind, chunked=True), *map(chunk, beginning)]
    drip: list[Step] = [chunk(again), Pause(0.02)]
    return [*begun, *drip * 2000]


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
IDLE = {
    "comments": b": ping\n\n",
    "pings": b'data: {"type": "ping"}\n\n',
    "roles": piece(role="assistant", content=""),
    "empty pieces": piece(content=""),
    "usage": event({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": None}),
}


async def end_of(proxy: Proxy, **more: Any) -> dict[str, Any]:
    """Return the error that a stream ends with, behind any number of events."""
    async with await proxy.chat(stream=True, **more) as response:
        text = await response.text()
        if response.status != 200:
            return envelope(text)
    events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert "[DONE]" not in events
    return envelope(events[-1])


@pytest.mark.parametrize("again", IDLE)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_stream_has_to_bring_tokens(
    upstream: Upstream, start_proxy: StartProxy, again: str, begun: bool
) -> None:
    beginning = [piece(role="assistant"), piece(content="Hi")] if begun else []
    upstream.scripts = [endless(*beginning, again=IDLE[again])]
    limited, other = "first_token_stream", "between_tokens"
    if begun:
        limited, other = other, limited
    proxy = await start_proxy(upstream, timeouts={limited: 60.0, other: 3600.0})
    asking = asyncio.create_task(end_of(proxy))
    await until(lambda: upstream.sent)  # its head is no longer waited for
    error = await hurry(asking)
    assert error["code"] == "backend_timeout"
    assert f"timeouts.{limited}" in error["message"] and "60 s" in error["message"]
    await upstream.requests[0].closed.wait()
    scraped = await proxy.metrics()
    reason = "token_timeout" if begun else "first_token_timeout"
    name = f'wellspoken_upstream_errors_total{{backend="default",reason="{reason}"}}'
    assert scraped[name] == 1


TOKENS: dict[str, dict[str, Any]] = {
    "content": {"content": "a"},
    "reasoning": {"reasoning_content": "a"},
    "refusal": {"refusal": "a"},
    "call": {
        "tool_calls": [
            {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "1"}}
        ]
    },
}


@pytest.mark.parametrize("name", TOKENS)
async def test_tokens_keep_it_going_until_the_total(
    upstream: Upstream, start_proxy: StartProxy, name: str
) -> None:
    upstream.scripts = [endless(piece(role="assistant"), again=piece(**TOKENS[name]))]
    timeouts = {"first_token_stream": 60.0, "between_tokens": 60.0, "total": 200.0}
    proxy = await start_proxy(upstream, timeouts=timeouts)

    async def go_on() -> None:  # a token may come each time
        await upstream.request()  # or the time to connect would be over
        while True:
            await asyncio.sleep(0.05)
            skip(10.0)

    going = asyncio.create_task(go_on())
    error = await end_of(proxy)
    going.cancel()
    assert "timeouts.total" in error["message"] and "200 s" in error["message"]
    await upstream.requests[0].closed.wait()


@pytest.mark.parametrize("again", [b": ping\n\n", PING, b"\n"])
async def test_a_stream_that_passes_has_to_bring_more_than_comments(
    upstream: Upstream, start_proxy: StartProxy, again: bytes
) -> None:
    upstream.scripts = [endless(b"event: x\ndata: {}\n\n", again=again)]
    proxy = await start_proxy(upstream, timeouts={"between_tokens": 0.4})
    async with await proxy.chat(stream=True, oai_compat=False) as response:
        with pytest.raises(ClientPayloadError):
            await response.read()
    await upstream.requests[0].closed.wait()


@pytest.mark.parametrize(
    ("beginning", "key"), [([], "total"), ([b'{"choices": '], "between_tokens")]
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [1, 200_000])  # a large request has a connection of its own
async def test_a_body_has_to_come_on(
    upstream: Upstream,
    start_proxy: StartProxy,
    beginning: list[bytes],
    key: str,
    stream: bool,
    size: int,
) -> None:
    """Blanks before a body keep the connection open while a model thinks; in it nothing does."""
    upstream.scripts = [endless(*beginning, again=b" ", kind="application/json")]
    timeouts = {"between_tokens": 0.4, "total": 1.5 if key == "total" else 60.0}
    proxy = await start_proxy(upstream, timeouts=timeouts)
    messages = [{"role": "user", "content": "a" * size}]
    async with await proxy.chat(stream=stream, messages=messages) as response:
        text = await response.text()
        if response.status == 200:  # the head has left
            text = text.rpartition("data: ")[2]
    assert f"timeouts.{key}" in envelope(text)["message"]
    await upstream.requests[0].closed.wait()
