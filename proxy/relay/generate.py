"""What chat and completions do alike: decode, route, admit, plan, relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from msgspec.structs import replace

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import Bounds, ChatRequest
from wellspoken.adapters.servers.backend import Backend, Endpoint
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay import storing
from wellspoken.proxy.relay.admission import admit, enter, make_exchange
from wellspoken.proxy.relay.answer import respond, send_untouched
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.plan import BackendRequest, Plan
from wellspoken.proxy.relay.planner import Planner, Wanted
from wellspoken.proxy.upstream.listing import name_model
from wellspoken.proxy.upstream.target import Target


@dataclass(frozen=True, slots=True)
class Generation(Generic[Wanted]):
    """What is an endpoint's own on the way of a request; all of it may raise RequestError.

    `check` holds a request to a backend's bounds (`strict`: OpenAI's). `endpoint_of` tells where a
    backend answers what an exchange asks for; `elsewhere` goes on a message that one does not.
    `refuse` knows what the backend cannot do, for a client that would wait for an engine.
    `request_untouched` is what a backend is sent with `"oai_compat": false`.
    """

    decode: Callable[[Call, bytes, Bounds], Wanted]
    check: Callable[..., None]
    exchange_for: Callable[..., Exchange]
    endpoint_of: Callable[[Backend, Exchange], Endpoint | None]
    elsewhere: str
    request_untouched: Callable[[Call, Target, Wanted], BackendRequest]
    refuse: Callable[[Backend, Wanted], None]
    plan: Callable[[Planner[Wanted]], Awaitable[Plan]]


async def generate(call: Call, generation: Generation[Wanted]) -> Reply | EventStream:
    """Answer one request with what a model generates.

    Raises what `respond` does: then nothing was sent.
    """
    body = await call.read_body()
    router = call.state.router  # only now: a reload may have come while the body did
    wanted = generation.decode(call, body, router.bounds)
    target = router.find(wanted.model)
    bounds = target.settings.bounds
    if bounds != router.bounds:
        generation.check(wanted, strict=bounds == "openai")
    streams = bool(wanted.stream)
    call.route(target, wanted.model, streams)
    if isinstance(wanted, ChatRequest) and wanted.store:
        storing.begin(call, wanted, body)
    await call.prepare(target)
    wanted = await admit(call, target, wanted)
    exchange = make_exchange(call, target, partial(generation.exchange_for, wanted))
    if call.routing.kept is not None:
        exchange = replace(exchange, stored=True)
    endpoint = generation.endpoint_of(target.backend, exchange)
    if endpoint is None:
        raise RequestError(
            f"The backend {target.name} ({target.backend.title}) answers {generation.elsewhere}",
            param="model",
            code="unsupported_endpoint",
        )
    if wanted.oai_compat is False:
        request = generation.request_untouched(call, target, wanted)
        await enter(call, target, wanted)
        return await send_untouched(call, target, request)
    if not wanted.model and (target.names or endpoint.dialect == "llamacpp"):
        exchange = replace(exchange, model=await name_model(target))  # no native event tells it
        call.label_model(exchange.model)
    if target.away:
        generation.refuse(target.backend, wanted)

    async def plan() -> Plan:
        if target.engine is not None:
            await enter(call, target, wanted)
        return await generation.plan(Planner(call, target, wanted, exchange, endpoint))

    return await respond(call, target, plan, streams)
