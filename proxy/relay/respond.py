"""One answer to a client, by the server of its way that takes the request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay.answer import Relay, error_event, note_failure
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.planning.plan import Plan, Planning
from wellspoken.proxy.relay.way import Way
from wellspoken.proxy.upstream.failures import UpstreamError

PlanAnew = Callable[[], Awaitable[Planning]]
"""Makes ready what plans a request anew, once its way has led it to another server."""


async def respond(
    call: Call, way: Way, plan: Planning, streams: bool, plan_anew: PlanAnew | None = None
) -> Reply | EventStream:
    """Answer one request, which goes its way as long as no server takes it.

    `plan_anew` is None where there is one server alone. Raises RequestError, UpstreamError,
    ClientKeyRefused and what is a bug: then nothing was sent, and the service answers with a
    status. CancelledError and ConnectionError end the connection.
    """
    stream = relay = None
    if streams:  # its heartbeat runs while the plan waits for an engine
        stream = call.stream(heartbeat=call.state.config.timeouts.heartbeat)
    try:
        while True:
            try:
                made = await plan()
            except (UpstreamError, RequestError) as error:
                if plan_anew is None or not way.move(error):
                    raise
            else:
                relay = Relay(call, way.target, made, stream, _translate(made, fold=not streams))
                await relay.relay(made.asks, 0)
                if made.more is not None:
                    await relay.relay_missing()
                failure = relay.failure if plan_anew is not None else None
                if plan_anew is None or failure is None or not way.move(failure, noted=True):
                    return await relay.finish()
                relay = None
            if stream is not None and way.fallback and stream.left:
                stream.put(b": x-wellspoken-fallback: %b\n\n" % way.fallback)
            plan = await plan_anew()
    except BaseException as error:
        # The client has gone, or the proxy is ending.
        gone = isinstance(error, ConnectionError) or not isinstance(error, Exception)
        if gone and relay is not None:
            relay.count_so_far()
        if stream is None:
            raise
        if not stream.left:
            stream.stop()
            raise
        if isinstance(error, ConnectionError) or not isinstance(error, Exception):
            stream.abort()
            raise
        await _end_with(call, stream, error)
        return stream


def _translate(plan: Plan, fold: bool) -> StreamTranslator:
    return StreamTranslator(
        plan.exchange, plan.dialect, sources=plan.sources, merge=plan.merge, fold=fold
    )


async def _end_with(call: Call, stream: EventStream, error: Exception) -> None:
    """Tell the failure in a stream whose head has left."""
    fault = note_failure(call, error)
    call.note_fault(fault)
    await stream.end(error_event(call, fault))
