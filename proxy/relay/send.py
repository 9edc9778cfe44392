"""One request to a backend: the wait for an engine, the answer's head."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from functools import partial
from time import perf_counter
from typing import Final

from msgspec import structs

from wellspoken.adapters.events import Fault
from wellspoken.adapters.readers.sse import EventTooLarge, SSEDecoder
from wellspoken.engine.failure import NotReady
from wellspoken.proxy.http.requests import TRACE, client_lines
from wellspoken.proxy.limits.pace import NEVER, Pace
from wellspoken.proxy.relay.call import LARGE as LARGE
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.call import in_thread as in_thread
from wellspoken.proxy.relay.headers import LASTING
from wellspoken.proxy.relay.planning.plan import Amending, Amendment, BackendRequest
from wellspoken.proxy.upstream.client import Upstream, UpstreamResponse
from wellspoken.proxy.upstream.ejection import Visit
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target, not_ready

ANTHROPIC: Final = "/v1/messages"
ANTHROPIC_HEADERS: Final = ("anthropic-version", "anthropic-beta")
KEY_REFUSED: Final = (401, 403)
UNSENT: Final = frozenset({"refused", "unreachable"})
"""Failures before a byte of the request was sent."""

CUT: Final = "upstream_cut"
POLL: Final = 0.02
DOUBT: Final = 1.0
"""Seconds for which an engine that is being looked at holds requests up, at most."""

Send = Callable[["Upstream", bool], Awaitable["UpstreamResponse"]]
"""Sends a request to a backend; True: for the second time."""

_NOTHING: Final = re.compile(rb"\s*(null|\{\s*\"type\"\s*:\s*\"ping\"\s*\})?\s*")
"""Data of no answer: what Anthropic's servers send to keep a connection open, and the null with
which llama.cpp begins a stream of several prompts."""
_SSE_STARTS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")


class ClientKeyRefused(Exception):
    """The client's own key, passed on to the backend (`auth = "pass"`), was refused there."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.fault = Fault(
            status,
            "The backend refused the key in your Authorization header, which this proxy passes on. "
            "Send a key that the backend knows.",
            "invalid_request_error",
            code="invalid_api_key",
        )


def passing_request(
    call: Call, target: Target, path: str, make: Callable[[], bytes], stream: bool = False
) -> BackendRequest:
    """Return a request that passes through, with the headers that the endpoint's clients send.

    The client's key goes along only with `auth = "pass"`.
    """
    headers = call.request.headers
    names = list(ANTHROPIC_HEADERS) if path.startswith(ANTHROPIC) else []
    if target.settings.auth_pass:
        names.append("x-api-key")
    given = {name: ",".join(headers.getall(name)) for name in names if name in headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return BackendRequest(path, b"", stream, make, extra=lines.encode("ascii"))


async def send_request(call: Call, target: Target, request: BackendRequest) -> UpstreamResponse:
    """Send a request to a backend; return its answer once the head has come.

    A backend's key goes along, the client's own only with `auth = "pass"`. Raises RequestError 503
    while the engine is not there, UpstreamError, and ClientKeyRefused unless the answer is to leave
    `untouched`.
    """
    if call.hooks.tracing is None and target.engine is None:
        call.timing.note_sent()
        upstream = target.upstream or target.connection()
        body = call.body_of(request)  # awaited below, without a name by which it would be held
        response = await _open(call, target, request, upstream, await body)
    else:
        response = await reach(call, target, partial(_send_traced, call, target, request))
    if call.routing.visit is not None and target is call.routing.target:
        _note_health(call.routing.visit, response.status)
    if target.settings.auth_pass and response.status in KEY_REFUSED and not request.untouched:
        await response.read(call.state.config.limits.response)  # which keeps the connection
        raise ClientKeyRefused(response.status)
    return response


def _note_health(visit: Visit, status: int) -> None:
    if status >= 500 and status not in LASTING:
        visit.note_failure(str(status))
    elif status != 429:
        visit.note_head()


def _open(
    call: Call,
    target: Target,
    request: BackendRequest,
    upstream: Upstream,
    body: bytes,
    context: bytes | None = None,
) -> Awaitable[UpstreamResponse]:
    timeouts, stream = call.state.config.timeouts, request.stream
    authorization = b""
    if target.settings.auth_pass and "Authorization" in call.request.headers:
        given = call.request.headers["Authorization"]
        authorization = f"Authorization: {given}\r\n".encode("ascii")
    kind = "text/event-stream" if stream else "application/json"
    return upstream.open(
        request.method,
        request.path,
        body,
        extra=forward_headers(call, target, kind, context) + request.extra,
        authorization=authorization,
        first=timeouts.first_token_stream if stream else timeouts.first_token_body,
        between=timeouts.between_chunks,
        pace=begin_pace(call, stream),
        whole=not stream,
        may_leave=call.routing.may_leave,
    )


def begin_pace(call: Call, stream: bool) -> Pace:
    """Return the pace that the answer to a request that is sent now has to keep."""
    timeouts, now = call.state.config.timeouts, call.state.loop.time()
    first = timeouts.first_token_stream if stream else 0.0
    end = now + timeouts.total - (perf_counter() - call.began) if timeouts.total else NEVER
    return Pace(first, timeouts.between_tokens, timeouts.total, end, now)


async def _send_traced(
    call: Call, target: Target, request: BackendRequest, upstream: Upstream, again: bool
) -> UpstreamResponse:
    """Send in a span of its own, below which the backend's hang, if there are spans."""
    tracing = call.hooks.tracing
    if tracing is None:
        return await _open(call, target, request, upstream, await call.body_of(request))
    span = tracing.begin_request(call, target, upstream.url, request, resent=again)
    try:
        body = call.body_of(request)
        response = await _open(call, target, request, upstream, await body, span.lines)
    except BaseException as error:
        span.end()
        if isinstance(error, UpstreamError):
            span.note_failure(error)
        raise
    span.note_answer(response)
    return response


def forward_headers(call: Call, target: Target, accept: str, context: bytes | None = None) -> bytes:
    """Return the header lines that a backend gets because of the client's request.

    `context`: those of a trace in which the proxy takes part; without, the client's go on.
    """
    lines = f"Accept: {accept}\r\nx-request-id: {call.id}\r\n".encode("ascii")
    names = target.settings.forwards
    if context is not None:
        lines += context
    elif call.notable:
        names = (*TRACE, *names)
    return lines + client_lines(call.request.headers, names) if names else lines


async def reach(call: Call, target: Target, send: Send) -> UpstreamResponse:
    """Return the answer to what `send` sends. Raises RequestError 503, UpstreamError.

    Where the proxy's own engine turns out to be gone, so that nothing was sent, it is waited for
    and the request sent once more. What may have run is never repeated.
    """
    call.timing.note_sent()
    upstream = target.upstream
    if target.engine is None:
        return await send(upstream or target.connection(), False)
    if upstream is not None:
        try:
            return await send(upstream, False)
        except UpstreamError as error:
            if error.reason not in UNSENT or target.ejection is not None:
                raise  # another server may have it
            call.note_failure(error)
    await _wait_for_engine(target)
    target.engine.leave()  # the call is counted in already
    return await send(target.connection(), upstream is not None)


async def read_start(call: Call, response: UpstreamResponse) -> tuple[bool, bytes]:
    """Return whether an answer is a stream of events, and what of it was read to tell.

    What is no stream is read whole. Raises as `Call.read_whole` does.
    """
    good = response.status < 300
    if good and response.content_type == "text/event-stream":
        return True, b""
    first = b""
    if good and response.content_type != "application/json":
        first = await response.chunk()
        if first.lstrip().startswith(_SSE_STARTS):
            return True, first
    return False, first + await call.read_whole(response)


async def read_first_event(response: UpstreamResponse, data: bytes) -> bytes:
    """Return what a stream begins with, `data` of which was read: up to its first event's end.

    Neither a comment nor a ping, which keep a connection open, nor an event without data is one.
    Ends early where the stream does, and after as many bytes as an event may have. Raises
    UpstreamError.
    """
    decoder = SSEDecoder()
    pieces: list[bytes] = []
    left = decoder.cap
    while left > 0 and (data := data or await response.chunk()):
        pieces.append(data)
        left -= len(data)
        try:
            events = decoder.feed(data)
        except EventTooLarge:  # the answer's own reader tells the client
            break
        if any(event.error is not None or not _NOTHING.fullmatch(event.data) for event in events):
            break
        data = b""
    return b"".join(pieces)


async def send_accepted(
    call: Call, target: Target, request: BackendRequest, streams: bool
) -> tuple[UpstreamResponse, bool, bytes]:
    """Send a request; return its answer, whether that is a stream, and what of it was read.

    `streams`: it may be one. Where the server refuses what an amendment of the request changes,
    nothing was computed, and it is sent again. Raises as `send_request` and `read_start` do.
    """
    response, streamed, data = await _send_once(call, target, request, streams)
    left = request.amendments
    if request.amending is not None:
        if streamed:
            data = await read_first_event(response, data)
        if _answers(response, data):
            request.amending.note()
        else:
            left = await _find_amendments(request.amending, request, response)
    made: list[Amendment] = []
    while left or made:
        if streamed:
            data = await read_first_event(response, data)
        if _answers(response, data):
            for amendment in made:
                amendment.note("amended")
            for amendment in left:
                amendment.note("as it was")
            break
        refused = next((x for x in left if x.refused(response.status, data)), None)
        if refused is None:
            for amendment in made:
                amendment.note("in vain")
            break
        response.close()
        made.append(refused)
        left = tuple(other for other in left if other is not refused)
        request = structs.replace(request, payload=refused.payload(), make=None)
        response, streamed, data = await _send_once(call, target, request, streams)
    return response, streamed, data


async def _send_once(
    call: Call, target: Target, request: BackendRequest, streams: bool
) -> tuple[UpstreamResponse, bool, bytes]:
    response = await send_request(call, target, request)
    if streams:
        return response, *await read_start(call, response)
    return response, False, await call.read_whole(response)


async def _find_amendments(
    amending: Amending, request: BackendRequest, response: UpstreamResponse
) -> tuple[Amendment, ...]:
    try:
        return await amending.find(request.body())
    except BaseException:  # nobody reads on what a stream may still send
        response.close()
        raise


def _answers(response: UpstreamResponse, data: bytes) -> bool:
    """Say whether an answer is none of a refusal's.

    It may speak of errors, but in a server's own there are no choices.
    """
    return response.status < 300 and (b'"choices"' in data or b"error" not in data)


async def enter_engine(call: Call, target: Target) -> None:
    """Wait for the target's engine, if it has one, which then runs until the call is over.

    Raises RequestError 503 where it cannot be waited for.
    """
    if target.engine is not None and call.routing.engine is None:
        began = perf_counter()
        try:
            await _wait_for_engine(target)
        finally:
            call.timing.end_wait(began)
        call.routing.engine = target.engine


async def _wait_for_engine(target: Target) -> None:
    """Count a request in at the target's engine, once it can be sent there."""
    engine = target.engine
    assert engine is not None
    while True:
        try:
            await engine.enter()
        except NotReady as error:
            why = target.settings.hide_places(str(error))
            raise not_ready(why, error.retry_after) from error
        if target.doubt is None and target.upstream is not None:
            return
        there = False
        try:
            if target.doubt is not None:
                await asyncio.wait({target.doubt}, timeout=DOUBT)
            there = target.upstream is not None and engine.state == "ready"
        finally:
            if not there:
                engine.leave()
        if there:
            return
        await asyncio.sleep(POLL)  # it has ended, and is only just being seen to


def suspect_server(call: Call, target: Target, fault: Fault) -> None:
    """Note of a server that an answer of it ended too early; look at an engine before the next."""
    if fault.code == CUT:
        target.look()
        if call.routing.visit is not None:
            call.routing.visit.note_failure("cut")
