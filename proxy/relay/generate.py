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
from wellspoken.proxy.limits.clients import KnownClient
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
from wellspoken.proxy.relay.send import LARGE, in_thread, send_untouched
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

    Raises what `respond` does: then nothing was sent. What is read of the body is let go before
    the backend is waited for, so no local name here may hold it.
    """
    answer = await _prepare(call, generation)
    return await answer()


Answering = Callable[[], Awaitable[Reply | EventStream]]


async def _prepare(call: Call, generation: Generation[Wanted]) -> Answering:
    """Return what answers a request that may be answered."""
    body = await call.read_body()
    router = call.state.router  # only now: a reload may have come while the body did
    large = len(body) >= LARGE
    wanted = await in_thread(large, generation.parse, call, body)
    if call.routing.client is not None:
        await _admit_client(call, call.routing.client, wanted, body)
    alike = None
    if not large and not (call.notable and any(x in call.request.headers for x in WISHES)):
        alike = find_likeness(call, wanted, generation.find_variable(wanted))
    if alike is not None:
        recipe = find_recipe(call, alike, wanted.model)
        if recipe is not None:
            return partial(_follow, call, generation, wanted, alike, recipe)
    await in_thread(large, generation.check, wanted, router.bounds == "openai")
    target = router.find(wanted.model, call.routing.client)
    bounds = target.settings.bounds
    if bounds != router.bounds:
        await in_thread(large, generation.check, wanted, bounds == "openai")
    call.route(target, wanted.model, bool(wanted.stream))
    if isinstance(wanted, ChatRequest) and wanted.store:
        storing.begin(call, wanted, body)
    await call.prepare(target)
    condition = target.condition
    admitted = await admit(call, target, wanted)
    described = (_describe_answer, call, generation, admitted, target)
    exchange, endpoint = await in_thread(large, *described)
    if admitted.oai_compat is False:
        request = generation.request_untouched(call, target, admitted)
        await enter(call, target, admitted)
        return partial(send_untouched, call, target, request)
    if not admitted.model and (target.names or endpoint.dialect == "llamacpp"):
        exchange = replace(exchange, model=await name_model(target))  # no native event tells it
        call.label_model(exchange.model)
    if target.away:
        generation.refuse(target.backend, admitted)
    learn = None
    if alike is not None and not (vendor_keys(wanted) or names_tokens(wanted)):
        learn = partial(learn_recipe, call, alike, target, condition)
    planner = Planner(call, target, admitted, exchange, endpoint, large)
    plan = partial(_plan, generation, planner, learn)
    return partial(respond, call, target, plan, bool(wanted.stream))


async def _plan(
    generation: Generation[Wanted], planner: Planner[Wanted], learn: Callable[[Plan], None] | None
) -> Plan:
    """Plan a request once its engine is there; `learn`: for those that are like it."""
    if planner.target.engine is not None:
        await enter(planner.call, planner.target, planner.wanted)
    plan = await generation.plan(planner)
    if learn is not None and planner.settled:
        learn(plan)
    if planner.large:
        planner.wanted = planner.wanted.drop_text()
    return plan


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


async def _admit_client(
    call: Call, client: KnownClient, wanted: ChatRequest | CompletionRequest, body: bytes
) -> None:
    default, prompts = None, 1
    if isinstance(wanted, CompletionRequest):
        default, prompts = wanted.limit, _count_prompts(wanted.prompt)
    await admit_client(call, client, wanted.model, body, wanted.fields, default, prompts)


def _count_prompts(prompt: object) -> int:
    """Return how many prompts a request has; a list that begins with a number is one."""
    if not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return 1
    return len(prompt)


def _note_nothing() -> None:
    pass
