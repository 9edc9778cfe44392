"""One request to a backend, and what its answer is at first sight."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from wellspoken.adapters.events import Fault
from wellspoken.proxy.http.requests import TRACE_PARENT, TRACE_STATE, context_lines
from wellspoken.proxy.relay.waiting import entered_again
from wellspoken.proxy.upstream.failures import UpstreamError

if TYPE_CHECKING:
    from wellspoken.proxy.relay.call import Call, Tracing
    from wellspoken.proxy.relay.plan import Ask
    from wellspoken.proxy.upstream.client import Answer, Upstream
    from wellspoken.proxy.upstream.target import Target

KEY_REFUSED = (401, 403)
LARGE = 131_072  # bytes of a body whose translation takes more than a millisecond or two
UNSENT: Final = frozenset({"refused", "unreachable"})
"""Failures before a byte of the request was sent."""

Send = Callable[["Upstream", bytes | None], Awaitable["Answer"]]
"""Sends a request to a backend, with these header lines of a trace, or the client's where None."""

_SSE_STARTS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")


async def send(call: Call, target: Target, ask: Ask) -> Answer:
    """Send one request and return its answer once the head has come. Raises UpstreamError."""
    timeouts = call.state.config.timeouts
    request = call.request
    kind = "text/event-stream" if ask.stream else "application/json"
    authorization = b""
    if target.auth_pass and "Authorization" in request.headers:
        authorization = f"Authorization: {request.headers['Authorization']}\r\n".encode("ascii")
    return await reached(
        call,
        target,
        ask,
        lambda upstream, context: upstream.open(
            "POST",
            ask.path,
            ask.payload,
            extra=forward_headers(call, kind, context),
            authorization=authorization,
            first=timeouts.first_token_stream if ask.stream else timeouts.first_token_body,
            between=timeouts.between_chunks,
        ),
    )


async def reached(call: Call, target: Target, ask: Ask | None, send: Send) -> Answer:
    """Return the answer to what `send` sends; raises RequestError 503, UpstreamError.

    `ask` is what that is, None for what is not traced. Where the proxy's own engine turns out to be
    gone, so that nothing was sent, it is waited for and the request sent once more. What may have
    run is never repeated.
    """
    call.asks()
    tracing = call.hooks.tracing
    if tracing is not None and ask is not None:
        send = _traced(tracing, call, target, ask, send)
    if target.engine is None:
        return await send(target.connection(), None)
    upstream = target.upstream
    if upstream is not None:
        try:
            return await send(upstream, None)
        except UpstreamError as error:
            if error.reason not in UNSENT:
                raise
            call.upstream_failed(error)
    await entered_again(target)
    return await send(target.connection(), None)


def _traced(tracing: Tracing, call: Call, target: Target, ask: Ask, send: Send) -> Send:
    """Return what sends the same, each time in a span of its own that the backend's hang below."""
    times = 0

    async def sends(upstream: Upstream, _: bytes | None) -> Answer:
        nonlocal times
        times += 1
        span = tracing.asks(call, target, upstream.url, ask, resent=times > 1)
        try:
            answer = await send(upstream, span.lines)
        except BaseException as error:
            span.over()
            if isinstance(error, UpstreamError):
                span.note_failure(error)
            raise
        span.note_answer(answer)
        return answer

    return sends


def forward_headers(call: Call, accept: str, context: bytes | None = None) -> bytes:
    """Return the header lines that a backend gets because of the client's request.

    `context`: those of a trace in which the proxy takes part; without, the client's go on.
    """
    lines = f"Accept: {accept}\r\nx-request-id: {call.id}\r\n".encode("ascii")
    if context is None:
        context = context_lines(call.request.headers, (TRACE_PARENT, TRACE_STATE))
    return lines + context


async def opened(answer: Answer, limit: int) -> tuple[bool, bytes]:
    """Return whether an answer is a stream of events, and what of it was read to tell.

    What is no stream is read whole. Raises UpstreamError.
    """
    good = answer.status < 300
    if good and answer.content_type == "text/event-stream":
        return True, b""
    first = b""
    if good and answer.content_type != "application/json":
        first = await answer.chunk()
        if first.lstrip().startswith(_SSE_STARTS):
            return True, first
    return False, first + await answer.read(limit)


def clients_key(status: int) -> Fault:
    """Return the fault of a client whose own key, passed on to the backend, was refused there."""
    return Fault(
        status,
        "The backend refused the key in your Authorization header, which this proxy passes on. "
        "Send a key that the backend knows.",
        "invalid_request_error",
        code="invalid_api_key",
    )
