"""What chat and completions do alike: decode, route, admit, plan, relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from msgspec.structs import replace

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.shapes import Bounds, ChatRequest, CompletionRequest
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay import storing
from wellspoken.proxy.relay.admission import admit, enter, make_exchange
from wellspoken.proxy.relay.answer import respond, send_untouched
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.plan import BackendRequest, Plan
from wellspoken.proxy.upstream.target import Target

Wanted = TypeVar("Wanted", ChatRequest, CompletionRequest)


@dataclass(frozen=True, slots=True)
class Generation(Generic[Wanted]):
    """What is an endpoint's own on the way of a request; all of it may raise RequestError.

    `check` holds a request to a backend's bounds (`strict`: OpenAI's). `refuse` knows what the
    backend cannot do, for a client that would wait for an engine. `request_untouched` is what a
    backend is sent with `"oai_compat": false`.
    """

    decode: Callable[[Call, bytes, Bounds], Wanted]
    check: Callable[[Wanted, bool], None]
    exchange_for: Callable[..., Exchange]
    request_untouched: Callable[[Call, Target, Wanted], BackendRequest]
    refuse: Callable[[Target, Wanted], None]
    plan: Callable[[Call, Target, Wanted, Exchange], Awaitable[Plan]]


async def generate(call: Call, endpoint: Generation[Wanted]) -> Reply | EventStream:
    """Answer one request with what a model generates.

    Raises what `respond` does: then nothing was sent.
    """
    router = call.state.router
    body = await call.read_body()
    wanted = endpoint.decode(call, body, router.bounds)
    target = router.find(wanted.model)
    bounds = target.settings.bounds
    if bounds != router.bounds:
        endpoint.check(wanted, bounds == "openai")
    streams = bool(wanted.stream)
    call.routed(target, wanted.model, streams)
    if isinstance(wanted, ChatRequest):
        storing.begin(call, wanted, body)
    await call.ready(target)
    wanted = await admit(call, target, wanted)
    exchange = make_exchange(call, target, partial(endpoint.exchange_for, wanted))
    if call.kept is not None and isinstance(wanted, ChatRequest):
        exchange = replace(exchange, stored=True)
        wanted = storing.with_usage(target, wanted)
    if wanted.oai_compat is False:
        request = endpoint.request_untouched(call, target, wanted)
        await enter(call, target, wanted)
        return await send_untouched(call, target, request)
    if not wanted.model and target.names:
        exchange = replace(exchange, model=target.names[0])
    if target.away:
        endpoint.refuse(target, wanted)
    plan = partial(endpoint.plan, call, target, wanted, exchange)
    return await respond(call, target, plan, streams)
