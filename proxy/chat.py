"""POST /v1/chat/completions: one request's way through the proxy, as a body or as a stream.

What leaves is either a whole reply with a status, or a stream whose head says 200. Until the head
of a stream has left, every failure still becomes a reply with a status; after it, one error event.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from wellspoken.adapters import openai_bounds, translate
from wellspoken.adapters.backend import prepare
from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.openai import decode_chat, exchange_for
from wellspoken.adapters.request_error import error_json
from wellspoken.proxy.failures import UpstreamError
from wellspoken.proxy.replies import EventStream, Reply
from wellspoken.proxy.requests import extensions_of, forwarded, keep_of, read_body

if TYPE_CHECKING:
    from wellspoken.proxy.routing import Target
    from wellspoken.proxy.server import Call
    from wellspoken.proxy.upstream import Answer

LARGE = 131_072  # bytes of a body whose translation takes more than a millisecond or two
KEY_REFUSED = (401, 403)
DONE = b"data: [DONE]\n\n"
OUR_FAULT = Fault(500, "The proxy failed; this is a bug in it. Its log has the details.")
NO_RETRY = b"x-should-retry: false\r\n"
RETRY_AFTER = ("retry-after", "retry-after-ms")  # what the SDKs look at, besides x-should-retry
_DELAY = re.compile(r"[A-Za-z0-9 ,:.+-]{1,40}")  # seconds, or a date
_SSE_STARTS = (b"data:", b"event:", b"id:", b"retry:", b"error:", b":")


async def chat(call: Call) -> Reply | EventStream:
    """Answer one chat completion. Raises RequestError, UpstreamError: then nothing was sent."""
    service, request = call.service, call.request
    limits, timeouts = service.config.limits, service.config.timeouts
    call.phase = "request"
    body = await read_body(request, limits.body, timeouts.client_body)
    call.phase = "waiting"
    wanted = decode_chat(body, bounds=service.router.bounds)
    target = service.router.find(wanted.model)
    if target.bounds != service.router.bounds:
        openai_bounds.check(wanted, strict=target.bounds == "openai")
    call.routed(target, wanted.model, bool(wanted.stream))
    extensions = extensions_of(request, target.extensions)
    keep = keep_of(request, target.keep)
    await target.ready()
    payload = prepare(target.backend, wanted, model=target.model_for(wanted.model))
    if wanted.oai_compat is False:
        return await _untouched(call, target, payload, bool(wanted.stream))
    exchange = exchange_for(
        wanted,
        now=int(time.time()),
        new_id=service.new_id,
        tokens=target.tokens,
        extensions=extensions,
        keep=keep,
    )
    if not wanted.stream:
        return await _whole(call, target, payload, exchange)
    stream = call.stream(heartbeat=timeouts.heartbeat)
    try:
        return await _stream(call, target, payload, exchange, stream)
    except BaseException as error:
        if not stream.left:
            stream.stop()
            raise
        if isinstance(error, ConnectionError) or not isinstance(error, Exception):
            stream.abort()  # the client has gone, or the proxy is ending
            raise
        call.service.failed(error)
        return await _broken(call, stream, OUR_FAULT)


async def _open(call: Call, target: Target, payload: bytes, stream: bool) -> Answer:
    timeouts = call.service.config.timeouts
    request = call.request
    kind = "text/event-stream" if stream else "application/json"
    authorization = b""
    if target.auth_pass and "Authorization" in request.headers:
        authorization = f"Authorization: {request.headers['Authorization']}\r\n".encode("ascii")
    return await target.connection().open(
        "POST",
        target.backend.chat_path,
        payload,
        extra=forwarded(request, call.id, kind),
        authorization=authorization,
        first=timeouts.first_token_stream if stream else timeouts.first_token_body,
        between=timeouts.between_chunks,
    )


async def _whole(call: Call, target: Target, payload: bytes, exchange: Exchange) -> Reply:
    answer = await _open(call, target, payload, stream=False)
    data = await answer.read(call.service.config.limits.response)
    if target.auth_pass and answer.status in KEY_REFUSED:
        return call.fault(_clients_key(answer.status))
    arguments = (exchange, answer.status, answer.content_type, data)
    if len(data) < LARGE:
        result = translate.translate_body(*arguments)
    else:
        # A thread gives the interpreter back every few milliseconds, so the loop stays answerable.
        result = await asyncio.to_thread(translate.translate_body, *arguments)
    call.translated(exchange)
    body = call.hide(result.body) if result.status >= 400 else result.body
    return call.reply(result.status, body, _explained(exchange, answer, result.retry))


def _clients_key(status: int) -> Fault:
    """Return the fault of a client whose own key, passed on to the backend, was refused there."""
    return Fault(
        status,
        "The backend refused the key in your Authorization header, which this proxy passes on. "
        "Send a key that the backend knows.",
        "invalid_request_error",
        code="invalid_api_key",
    )


def _explained(exchange: Exchange, answer: Answer, retry: bool | None) -> bytes:
    """Return the header lines that say what was repaired, and whether and when to try again."""
    counts = exchange.notes.counts
    lines = f"x-wellspoken-repairs: {', '.join(counts)}\r\n".encode() if counts else b""
    if answer.status >= 400:
        for name in RETRY_AFTER:
            value = answer.headers.get(name, "")
            if _DELAY.fullmatch(value):
                lines += f"{name}: {value}\r\n".encode()
    return lines + NO_RETRY if retry is False else lines


async def _stream(
    call: Call, target: Target, payload: bytes, exchange: Exchange, stream: EventStream
) -> Reply | EventStream:
    try:
        answer = await _open(call, target, payload, stream=True)
    except UpstreamError as error:
        call.upstream_failed(error)
        return await _broken(call, stream, error.fault)
    try:
        first = b""
        good = answer.status < 300
        events = good and answer.content_type == "text/event-stream"
        if good and not events and answer.content_type != "application/json":
            first = await answer.chunk()
            events = first.lstrip().startswith(_SSE_STARTS)
        if not events:
            data = first + await answer.read(call.service.config.limits.response)
    except UpstreamError as error:
        call.upstream_failed(error)
        return await _broken(call, stream, error.fault)
    if events:
        return await _relay(call, answer, first, exchange, stream)
    if target.auth_pass and answer.status in KEY_REFUSED:
        return await _broken(call, stream, _clients_key(answer.status))
    return await _not_a_stream(call, answer, data, exchange, stream)


async def _relay(
    call: Call, answer: Answer, data: bytes, exchange: Exchange, stream: EventStream
) -> Reply | EventStream:
    """Translate events as they come: all complete ones of one read leave in one write."""
    translator = translate.StreamTranslator(exchange)
    fault: Fault | None = None
    complete = False
    try:
        while True:
            data = data or await answer.chunk()
            out = translator.feed(data) if data else translator.close()
            if translator.done or not data:
                break
            if out:
                await stream.write(out)
                call.first_token()
            data = b""
        complete = translator.done and b"[DONE]" in data[-24:]
    except UpstreamError as error:
        call.upstream_failed(error)
        fault = error.fault
        out = translator.fail(fault) if translator.started else b""
    finally:
        # Closed before the last write: the backend must not compute on while a slow client reads.
        if complete:
            answer.finish()
        else:
            answer.close()
    call.translated(exchange)
    if not translator.started:
        fault = fault or translator.fault
        if fault is not None:
            return await _broken(call, stream, fault, _explained(exchange, answer, fault.retry))
    if translator.fault is not None:
        out = call.hide(out)
    if call.request.headers.get("x-wellspoken-explain") == "1":
        out = _with_repairs(out, exchange)
    await stream.end(out)
    call.first_token()
    return stream


def _with_repairs(out: bytes, exchange: Exchange) -> bytes:
    """Put the comment that names the repairs before the end of a stream."""
    listed = ", ".join(f"{name}={times}" for name, times in exchange.notes.counts.items())
    comment = f": repairs {listed or 'none'}\n\n".encode()
    return out.removesuffix(DONE) + comment + (DONE if out.endswith(DONE) else b"")


async def _not_a_stream(
    call: Call, answer: Answer, data: bytes, exchange: Exchange, stream: EventStream
) -> Reply | EventStream:
    """Answer a client that asked for a stream from a body: an answer, or an error."""
    if answer.status < 300:
        out = translate.translate_stream_body(exchange, answer.content_type, data)
        call.translated(exchange)
        if isinstance(out, Fault):
            return await _broken(call, stream, out, _explained(exchange, answer, out.retry))
        if call.request.headers.get("x-wellspoken-explain") == "1":
            out = _with_repairs(out, exchange)
        await stream.end(out)
        call.first_token()
        return stream
    result = translate.translate_body(exchange, answer.status, answer.content_type, data)
    call.translated(exchange)
    if not stream.left:
        stream.stop()
        lines = _explained(exchange, answer, result.retry)
        return call.reply(result.status, call.hide(result.body), lines)
    await stream.end(b"data: " + call.hide(result.body) + b"\n\n")
    return stream


async def _broken(
    call: Call, stream: EventStream, fault: Fault, lines: bytes = b""
) -> Reply | EventStream:
    """Answer a failure: with its status while that is possible, else as the stream's last event.

    `lines` are header lines for the former.
    """
    if not stream.left:
        stream.stop()
        return call.fault(fault, lines)
    body = error_json(fault.message, fault.type, fault.param, fault.code)
    await stream.end(b"data: " + body + b"\n\n")
    return stream


async def _untouched(
    call: Call, target: Target, payload: bytes, stream: bool
) -> Reply | EventStream:
    """Pass an answer through as it is: bytes, status and content type (`"oai_compat": false`)."""
    answer = await _open(call, target, payload, stream)
    kind = answer.content_type_header.encode("utf-8", "replace")
    if not stream or answer.status >= 400:
        data = await answer.read(call.service.config.limits.response)
        data = call.hide(data) if answer.status >= 400 else data
        return call.reply(answer.status, data, content_type=kind)
    relay = call.stream(answer.status, kind)
    try:
        while data := await answer.chunk():
            await relay.write(data)
            call.first_token()
        await relay.end()
    except UpstreamError as error:
        if not relay.left:
            relay.stop()
            raise
        # Nothing of ours may be added to an untouched answer: a cut one is passed on cut.
        call.upstream_failed(error)
        relay.abort()
    except BaseException:
        relay.abort()
        raise
    finally:
        answer.close()
    return relay
