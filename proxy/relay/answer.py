"""A planned request's way to the backend, and its answer's back: as a body or as a stream.

What leaves is either a whole reply with a status, or a stream whose head says 200. Until the head
of a stream has left, every failure still becomes a reply with a status; after it, one error event.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import TYPE_CHECKING

from wellspoken.adapters import translate
from wellspoken.adapters.events import Fault
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.metrics.passing import PassingUsage
from wellspoken.proxy.relay import counting, several
from wellspoken.proxy.relay.headers import DONE, broken, explained, told_in, with_repairs
from wellspoken.proxy.relay.send import KEY_REFUSED, LARGE, clients_key, opened, send
from wellspoken.proxy.relay.storing import keep, keep_stream
from wellspoken.proxy.relay.waiting import doubt
from wellspoken.proxy.upstream.failures import OUR_FAULT, UpstreamError

if TYPE_CHECKING:
    from wellspoken.proxy.relay.call import Call
    from wellspoken.proxy.relay.plan import Ask, Plan, Planning
    from wellspoken.proxy.upstream.client import Answer
    from wellspoken.proxy.upstream.target import Target


async def respond(call: Call, target: Target, plan: Planning, streams: bool) -> Reply | EventStream:
    """Answer one request. Raises RequestError, UpstreamError: then nothing was sent."""
    if not streams:
        made = await plan()
        counting.enable(target, made)
        if made.simple:
            return await _whole(call, target, made)
        return await several.folded(call, target, made)
    stream = call.stream(heartbeat=call.state.config.timeouts.heartbeat)
    try:
        made = await plan()
        counting.enable(target, made)
        if made.merge is not None or made.asks[0].nothing is not None:
            return await several.interleaved(call, target, made, stream)
        return await _stream(call, target, made, stream)
    except (RequestError, UpstreamError) as error:
        if isinstance(error, UpstreamError):
            call.upstream_failed(error)
        else:
            call.refuses(error)
        return await broken(call, stream, _fault(error), _lines(error))
    except BaseException as error:
        if not stream.left:
            stream.stop()
            raise
        if isinstance(error, ConnectionError) or not isinstance(error, Exception):
            stream.abort()  # the client has gone, or the proxy is ending
            raise
        call.state.log.error("a request failed in the proxy itself", exc_info=error)
        return await broken(call, stream, OUR_FAULT)


def _fault(error: RequestError | UpstreamError) -> Fault:
    if isinstance(error, UpstreamError):
        return error.fault
    return Fault(error.status, error.message, error.type, error.param, error.code)


def _lines(error: RequestError | UpstreamError) -> bytes:
    """Return the header lines of a refusal."""
    headers = {} if isinstance(error, UpstreamError) else error.headers
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("ascii")


async def _whole(call: Call, target: Target, plan: Plan) -> Reply:
    exchange = plan.exchange
    answer = await send(call, target, plan.asks[0])
    data = await answer.read(call.state.config.limits.response)
    if target.auth_pass and answer.status in KEY_REFUSED:
        return call.fault(clients_key(answer.status))
    translator = translate.BodyTranslator(exchange, plan.dialect)
    arguments = (answer.status, answer.content_type, data)
    began = perf_counter()
    if len(data) < LARGE:
        result = translator.translate(*arguments)
    else:
        # A thread gives the interpreter back every few milliseconds, so the loop stays answerable.
        result = await asyncio.to_thread(translator.translate, *arguments)
    call.worked += perf_counter() - began
    if result is None:
        wanted = translator.wanted
        assert wanted is not None
        counter = counting.Counter(call, target)
        result = translator.add_counts(await counter.counted(plan.asks[0], wanted))
    counting.told(call, plan)
    if result.status < 300:
        await keep(call, result.body)
    body = call.hide(result.body) if result.status >= 400 else result.body
    return call.reply(result.status, body, explained(exchange, result.retry, answer))


async def _stream(
    call: Call, target: Target, plan: Plan, stream: EventStream
) -> Reply | EventStream:
    answer = await send(call, target, plan.asks[0])
    events, data = await opened(answer, call.state.config.limits.response)
    if events:
        return await _relay(call, target, answer, data, plan, stream)
    if target.auth_pass and answer.status in KEY_REFUSED:
        return await broken(call, stream, clients_key(answer.status))
    return await _not_a_stream(call, target, answer, data, plan, stream)


async def _relay(
    call: Call, target: Target, answer: Answer, data: bytes, plan: Plan, stream: EventStream
) -> Reply | EventStream:
    """Translate events as they come: all complete ones of one read leave in one write."""
    exchange, translator = plan.exchange, plan.translator()
    fault: Fault | None = None
    complete = False
    began = 0.0
    try:
        while True:
            data = data or await answer.chunk()
            began = perf_counter()
            out = translator.feed(data) if data else translator.close()
            if translator.done or not data or translator.missing_counts() is not None:
                break
            if out:
                call.leaves(began)
                await stream.write(out)
                call.first_token()
            data = b""
        complete = bool(data) and b"[DONE]" in data[-24:]
        if out == DONE:  # a piece without a token, whose time would be taken for one's
            call.worked += perf_counter() - began
        else:
            call.leaves(began)
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
    if translator.missing_counts() is not None and fault is None:
        if out:
            await stream.write(out)
            call.first_token()
        out = await _counted(call, target, plan, translator)
    counting.told(call, plan)
    doubt(target, translator.fault)
    if not translator.started:
        fault = fault or translator.fault
        if fault is not None:
            return await broken(call, stream, fault, explained(exchange, fault.retry, answer))
    if translator.fault is not None:
        call.told = translator.fault
        out = call.hide(out)
    out = await keep_stream(call, translator, out)
    if call.request.headers.get("x-wellspoken-explain") == "1":
        out = with_repairs(out, exchange)
    await stream.end(out)
    call.first_token()
    return stream


async def _counted(
    call: Call, target: Target, plan: Plan, translator: translate.StreamTranslator
) -> bytes:
    """Return the end of a stream that waits for its counts, once the backend was asked for them."""
    wanted = translator.missing_counts()
    if wanted is None:
        return b""
    found = await counting.Counter(call, target).counted(plan.asks[0], wanted)
    return translator.add_counts(found)


async def _not_a_stream(
    call: Call, target: Target, answer: Answer, data: bytes, plan: Plan, stream: EventStream
) -> Reply | EventStream:
    """Answer a client that asked for a stream from a body: an answer, or an error."""
    exchange = plan.exchange
    if answer.status < 300:
        exchange.notes.add("body_for_stream")
        translator = plan.translator()
        out = translator.whole(answer.status, answer.content_type, data)
        out += await _counted(call, target, plan, translator)
        counting.told(call, plan)
        fault = translator.fault
        if fault is not None:
            return await broken(call, stream, fault, explained(exchange, fault.retry, answer))
        out = await keep_stream(call, translator, out)
        if call.request.headers.get("x-wellspoken-explain") == "1":
            out = with_repairs(out, exchange)
        await stream.end(out)
        call.first_token()
        return stream
    result = translate.translate_body(exchange, answer.status, answer.content_type, data)
    counting.told(call, plan)
    if not stream.left:
        stream.stop()
        lines = explained(exchange, result.retry, answer)
        return call.reply(result.status, call.hide(result.body), lines)
    call.told = told_in(result.status, result.body)
    await stream.end(b"data: " + call.hide(result.body) + b"\n\n")
    return stream


async def untouched(call: Call, target: Target, ask: Ask) -> Reply | EventStream:
    """Pass an answer through as it is: bytes, status and content type (`"oai_compat": false`)."""
    answer = await send(call, target, ask)
    if ask.stream and answer.status < 400:
        return await relayed(call, answer)
    kind = answer.content_type_header.encode("utf-8", "replace")
    data = await answer.read(call.state.config.limits.response)
    counts = PassingUsage()
    counts.body(data)
    call.passed(counts)
    data = call.hide(data) if answer.status >= 400 else data
    return call.reply(answer.status, data, content_type=kind)


async def relayed(call: Call, answer: Answer) -> EventStream:
    """Pass an answer's bytes on as they come, with its status and content type.

    Raises UpstreamError: then nothing was sent.
    """
    kind = answer.content_type_header.encode("utf-8", "replace")
    relay = call.stream(answer.status, kind)
    counts = PassingUsage()
    try:
        while data := await answer.chunk():
            began = perf_counter()
            counts.feed(data)
            call.leaves(began)
            await relay.write(data)
            call.first_token()
        await relay.end()
    except UpstreamError as error:
        if not relay.left:
            relay.stop()
            raise
        # Nothing of ours may be added to an untouched answer: a cut one is passed on cut.
        call.upstream_failed(error)
        call.told = error.fault
        relay.abort()
    except BaseException:
        relay.abort()
        raise
    finally:
        call.passed(counts)
        answer.close()
    return relay
