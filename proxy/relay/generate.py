"""What chat and completions do alike: decode, route, admit, plan, relay."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic

from msgspec import Raw, json, structs
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
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.planning.plan import Amending, Amendment, BackendRequest, Plan, Planning
from wellspoken.proxy.relay.planning.planner import Planner, Wanted
from wellspoken.proxy.relay.planning.recipes import (
    Likeness,
    amendments_of,
    find_likeness,
    find_recipe,
    follow_recipe,
    learn_recipe,
)
from wellspoken.proxy.relay.respond import respond
from wellspoken.proxy.relay.send import LARGE, in_thread
from wellspoken.proxy.relay.untouched import send_untouched
from wellspoken.proxy.relay.way import Way, begin_way
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
    `request_untouched` is what a backend is sent with `"oai_compat": false`. `read`, instead
    of `parse`, makes the request of what its body refers to, too, and is as large as that.
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
    read: Callable[[Call, bytes], Awaitable[Wanted]] | None = None


async def generate(call: Call, generation: Generation[Wanted]) -> Reply | EventStream:
    """Answer one request with what a model generates.

    Raises what `respond` does: then nothing was sent. What is read of the body is let go before
    the backend is waited for, so no local name here may hold it.
    """
    answer = await prepare(call, generation, await call.read_body())
    return await answer()


Answering = Callable[[], Awaitable[Reply | EventStream]]


async def prepare(call: Call, generation: Generation[Wanted], body: bytes) -> Answering:
    """Return what answers a request that may be answered."""
    router = call.state.router  # only now: a reload may have come while the body did
    large = len(body) >= LARGE
    if generation.read is not None:
        wanted = await generation.read(call, body)
        body = bytes(wanted.fields["messages"])
        large = len(body) >= LARGE
    else:
        wanted = await in_thread(large, generation.parse, call, body)
    if call.routing.client is not None:
        await _admit_client(call, call.routing.client, wanted, body)
    pool = router.look_up(wanted.model)
    alike = plan = None
    if not large and not (call.notable and any(x in call.request.headers for x in WISHES)):
        alike = find_likeness(call, wanted, generation.find_variable(wanted))
    check = partial(generation.check, wanted, router.bounds == "openai")
    if pool is None or large:
        await in_thread(large, check)
    if pool is None:
        raise router.unknown(wanted.model, call.routing.client)
    # Only now, or a server would be chosen that by the end of the check has more than others.
    way = await begin_way(call, pool, wanted.model, wanted.fields)
    if alike is not None:
        plan = _find_plan(call, generation, way, wanted, alike)
    if plan is None:
        if not large:
            check()
        if isinstance(wanted, ChatRequest) and wanted.store:
            call.route(way.target, wanted.model, bool(wanted.stream))
            storing.begin(call, wanted, body)
        if wanted.oai_compat is False:
            return await _pass_untouched(call, generation, way, wanted, large)
        plan = await _plan_on(call, generation, way, wanted, alike, large)
    anew = None
    if way.order is not None:
        anew = partial(_plan_anew, call, generation, way, _let_go(wanted, large), alike, large)
    return partial(respond, call, way, plan, bool(wanted.stream), anew)


def _let_go(wanted: Wanted, large: bool) -> Wanted:
    """Return a request to be held while its answer is waited for."""
    return wanted.drop_text() if large else wanted


async def _plan_anew(
    call: Call,
    generation: Generation[Wanted],
    way: Way,
    held: Wanted,
    alike: Likeness | None,
    large: bool,
) -> Planning:
    """Return what plans a request for the server to which its way has led it."""
    if alike is not None and (plan := _find_plan(call, generation, way, held, alike)):
        return plan
    wanted = await in_thread(large, held.read_text)
    return await _plan_on(call, generation, way, wanted, alike, large)


async def _plan_on(
    call: Call,
    generation: Generation[Wanted],
    way: Way,
    wanted: Wanted,
    alike: Likeness | None,
    large: bool,
) -> Planning:
    """Return what plans a request for the first server of its way whose kind can do it."""
    while True:
        try:
            return await _plan_at(call, generation, way, wanted, alike, large)
        except RequestError as error:
            if not way.move(error):
                raise


def _find_plan(
    call: Call, generation: Generation[Wanted], way: Way, wanted: Wanted, alike: Likeness
) -> Planning | None:
    """Return what plans a request whose like was planned before for its server."""
    recipe = find_recipe(call, alike, way.target) if way.model == wanted.model else None
    return _follow(call, generation, wanted, alike, recipe) if recipe is not None else None


async def _plan_at(
    call: Call,
    generation: Generation[Wanted],
    way: Way,
    given: Wanted,
    alike: Likeness | None,
    large: bool,
) -> Planning:
    """Return what plans a request for its server. Raises RequestError for what that cannot do."""
    target, wanted = way.target, _rename(given, way.model)
    condition, admitted = await _admit_at(call, generation, target, given.model, wanted, large)
    described = (_describe_answer, call, generation, admitted, target, given.model)
    exchange, endpoint = await in_thread(large, *described)
    if not admitted.model and (target.names or endpoint.dialect == "llamacpp"):
        exchange = replace(exchange, model=await name_model(target))  # no native event tells it
        call.label_model(exchange.model)
    if target.away:
        generation.refuse(target.backend, admitted)
    learn = None
    if alike is not None and wanted is given and not (vendor_keys(given) or names_tokens(given)):
        learn = partial(learn_recipe, call, alike, target, condition)
    planner = Planner(call, target, admitted, exchange, endpoint, large)
    return partial(_plan, generation, planner, learn)


def _rename(wanted: Wanted, model: str) -> Wanted:
    """Return the request with what a fallback is asked for in its model's place."""
    if model == wanted.model:
        return wanted
    return structs.replace(
        wanted, model=model, fields={**wanted.fields, "model": Raw(json.encode(model))}
    )


async def _admit_at(
    call: Call,
    generation: Generation[Wanted],
    target: Target,
    model: str,
    wanted: Wanted,
    large: bool,
) -> tuple[tuple[object, ...], Wanted]:
    """Return a server's condition, and the request that it gets; `model`: the client's name.

    Raises RequestError.
    """
    bounds = target.settings.bounds
    if bounds != call.state.router.bounds:
        await in_thread(large, generation.check, wanted, bounds == "openai")
    call.route(target, model, bool(wanted.stream))
    await call.prepare(target)
    condition = target.condition
    return condition, await admit(call, target, wanted)


async def _pass_untouched(
    call: Call, generation: Generation[Wanted], way: Way, wanted: Wanted, large: bool
) -> Answering:
    """Return what passes a request and its answer on as they are (`"oai_compat": false`)."""
    held = _let_go(wanted, large)

    async def make_request(target: Target, model: str) -> BackendRequest:
        wanted = _rename(await in_thread(large, held.read_text), model)
        _, admitted = await _admit_at(call, generation, target, held.model, wanted, large)
        await in_thread(large, _describe_answer, call, generation, admitted, target, held.model)
        request = generation.request_untouched(call, target, admitted)
        await enter(call, target, admitted)
        return request

    return partial(send_untouched, call, way, make_request)


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
    call: Call, generation: Generation[Wanted], wanted: Wanted, target: Target, model: str
) -> tuple[Exchange, Endpoint]:
    """Return the exchange of a request's answer, and where the backend gives it.

    `model`: as the answer calls it, which is what the client asked for.
    """
    exchange = make_exchange(call, target, partial(generation.exchange_for, wanted))
    if call.routing.keep is not None and exchange.response is None:
        exchange = replace(exchange, stored=True)
    if model != wanted.model:
        exchange = replace(exchange, model=model)
    endpoint = generation.endpoint_of(target.backend, exchange)
    if endpoint is None:
        raise RequestError(
            f"The backend {target.name} ({target.backend.title}) answers {generation.elsewhere}",
            param="model",
            code="unsupported_endpoint",
        )
    return exchange, endpoint


def _follow(
    call: Call, generation: Generation[Wanted], given: Wanted, alike: Likeness, recipe: Recipe
) -> Planning:
    """Return what plans a request whose like was planned before."""
    target = recipe.target
    call.route(target, given.model, bool(given.stream))

    async def plan_anew() -> Plan:
        wanted = await admit(call, target, given)
        described = _describe_answer(call, generation, wanted, target, given.model)
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

    return plan


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
