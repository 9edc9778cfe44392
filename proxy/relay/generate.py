"""What chat and completions do alike: decode, route, admit, plan, relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from msgspec.structs import replace

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.caps import names_tokens
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ChatRequest, CompletionRequest, Variable
from wellspoken.adapters.requests.vendor import vendor_keys
from wellspoken.adapters.servers.backend import Backend, Endpoint
from wellspoken.proxy.http.requests import WISHES
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay import storing
from wellspoken.proxy.relay.admission import admit, admit_client, enter, make_exchange
from wellspoken.proxy.relay.answer import respond
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.plan import Amending, Amendment, BackendRequest, Plan
from wellspoken.proxy.relay.planner import Planner, Wanted
from wellspoken.proxy.relay.recipes import (
    Likeness,
    amendments_of,
    find_likeness,
    find_recipe,
    follow_recipe,
    learn_recipe,
)
from wellspoken.proxy.relay.send import send_untouched
from wellspoken.proxy.state import Recipe
from wellspoken.proxy.upstream.listing import name_model
from wellspoken.proxy.upstream.target import Target


@dataclass(frozen=True, slots=True)
class Generation(Generic[Wanted]):
    """What is an endpoint's own on the way of a request; all of it may raise RequestError.

    `parse` checks a request's types, `check` its values, by a backend's bounds (`strict`:
    OpenAI's). `find_variable` tells its text, where that is plain. `endpoint_of` tells where a
    backend answers what an exchange asks for; `elsewhere` goes on a message that one does not.
    `refuse` knows what the backend cannot do, for a client that would wait for an engine.
    `request_untouched` is what a backend is sent with `"oai_compat": false`.
    """

    parse: Callable[[Call, bytes], Wanted]
    check: Callable[..., None]
    find_variable: Callable[[Wanted], Variable | None]
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
    wanted = generation.parse(call, body)
    if call.routing.client is not None:
        default = wanted.limit if isinstance(wanted, CompletionRequest) else None
        given = (wanted.model, body, wanted.fields, default)
        await admit_client(call, call.routing.client, *given)
    alike = None
    if not (call.notable and any(name in call.request.headers for name in WISHES)):
        alike = find_likeness(call, wanted, generation.find_variable(wanted))
    if alike is not None:
        recipe = find_recipe(call, alike, wanted.model)
        if recipe is not None:
            return await _follow(call, generation, wanted, alike, recipe)
    generation.check(wanted, strict=router.bounds == "openai")
    target = router.find(wanted.model, call.routing.client)
    bounds = target.settings.bounds
    if bounds != router.bounds:
        generation.check(wanted, strict=bounds == "openai")
    call.route(target, wanted.model, bool(wanted.stream))
    if isinstance(wanted, ChatRequest) and wanted.store:
        storing.begin(call, wanted, body)
    await call.prepare(target)
    return await _generate_admitted(call, generation, wanted, target, alike)


async def _generate_admitted(
    call: Call,
    generation: Generation[Wanted],
    given: Wanted,
    target: Target,
    alike: Likeness | None,
) -> Reply | EventStream:
    """Answer a request whose values are good and whose target is known; `alike`: once more."""
    condition = target.condition
    wanted = await admit(call, target, given)
    exchange, endpoint = _describe_answer(call, generation, wanted, target)
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
        planner = Planner(call, target, wanted, exchange, endpoint)
        made = await generation.plan(planner)
        if (
            alike is not None
            and planner.settled
            and not (vendor_keys(given) or names_tokens(given))
        ):
            learn_recipe(call, alike, target, condition, made)
        return made

    return await respond(call, target, plan, bool(wanted.stream))


def _describe_answer(
    call: Call, generation: Generation[Wanted], wanted: Wanted, target: Target
) -> tuple[Exchange, Endpoint]:
    """Return the exchange of a request's answer, and where the backend gives it."""
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
    return exchange, endpoint


async def _follow(
    call: Call, generation: Generation[Wanted], given: Wanted, alike: Likeness, recipe: Recipe
) -> Reply | EventStream:
    """Answer a request whose like was planned before."""
    target = recipe.target
    call.route(target, given.model, bool(given.stream))

    async def plan_anew() -> Plan:
        wanted = await admit(call, target, given)
        described = _describe_answer(call, generation, wanted, target)
        return await generation.plan(Planner(call, target, wanted, *described))

    async def find_amendments(sent: bytes) -> tuple[Amendment, ...]:
        try:
            anew = await plan_anew()
        except RequestError:  # the server turns out to be one that cannot do it, and has said so
            return ()
        return amendments_of(sent, anew.asks[0])

    async def plan() -> Plan:
        if target.engine is not None:
            await enter(call, target, given)
            if recipe.condition != target.condition:  # it was started anew
                return await plan_anew()
        note = target.note_seen if recipe.stream else _note_nothing
        return follow_recipe(call, recipe, alike, Amending(find_amendments, note))

    return await respond(call, target, plan, bool(given.stream))


def _note_nothing() -> None:
    pass
