"""Answers that pass as they are, a stream as it comes."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Final

from msgspec import structs

from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.metrics.passing import PassingUsage
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.relay.send import send_request
from wellspoken.proxy.relay.way import Way
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

_IDLE: Final = re.compile(
    rb"(?>\s+|:[^\n]*\n|event: ?ping\r?\n|"
    rb"data: ?(?:\{\s*\"type\"\s*:\s*\"ping\"\s*\})?[ \t\r]*\n)*+"
)
"""A read of a stream that brought nothing but blanks, comments and pings."""
STREAMS = frozenset({"text/event-stream", "application/x-ndjson", "application/jsonl"})
"""Content types of answers that pass through as they come."""

LookOn = Callable[[bytes], None]
"""Is given an answer as it passes, in pieces."""


async def send_untouched(
    call: Call, way: Way, make: Callable[[Target, str], Awaitable[BackendRequest]]
) -> Reply | EventStream:
    """Return a backend's answer as it is (`"oai_compat": false`).

    `make` gives what a server is sent, under the model's name there.
    """

    async def attempt(target: Target, model: str) -> UpstreamResponse:
        request = structs.replace(await make(target, model), untouched=True)
        return await send_request(call, target, request)

    response = await way.send(attempt)
    return await pass_through(call, response, call.routing.streams and response.status < 400)


async def pass_through(
    call: Call, response: UpstreamResponse, streams: bool, look_on: LookOn | None = None
) -> Reply | EventStream:
    """Pass an answer on as it is, with its status and content type: as it comes, or whole.

    `look_on` is given its bytes. An error loses the backend's key. Raises UpstreamError: then
    nothing was sent.
    """
    if streams:
        return await _pass_stream(call, response, look_on)
    data = await call.read_whole(response)
    if look_on is not None:
        look_on(data)
    counts = PassingUsage()
    counts.body(data)
    call.count_passing(counts.usage)
    data = call.routing.hide(data) if response.status >= 400 else data
    kind = response.content_type_header.encode("utf-8", "replace")
    return call.reply(response.status, data, content_type=kind)


async def _pass_stream(
    call: Call, response: UpstreamResponse, look_on: LookOn | None
) -> EventStream:
    kind = response.content_type_header.encode("utf-8", "replace")
    stream = call.stream(response.status, kind)
    counts, moved = PassingUsage(), False

    def move() -> bool:
        nonlocal moved
        before, moved = moved, False
        return before

    def take(data: bytes) -> bool:
        nonlocal moved
        began = perf_counter()
        moved = moved or not _IDLE.fullmatch(data)
        counts.feed(data)
        if look_on is not None:
            look_on(data)
        call.timing.end_work(began, leaves=True)
        paused = stream.put(data)
        call.note_first_piece()
        return paused

    response.measure(move)
    try:
        while await response.pump(take):
            await stream.drain()
        call.note_end()
        await stream.end()
    except BaseException as error:
        if not stream.left:
            stream.stop()
            raise
        stream.abort()
        if not isinstance(error, UpstreamError):
            raise
        # Nothing of ours may be added to an untouched answer: a cut one is passed on cut.
        call.note_failure(error)
        call.note_fault(error.fault)
    finally:
        call.count_passing(counts.usage, counts.pieces)
        response.close()
    return stream
