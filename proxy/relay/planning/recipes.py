"""How requests that differ in their texts alone are asked for: planned once, then followed.

A program sends the same request again and again with other messages. What a plan depends on is then
the same each time: the other keys, byte for byte, the path, the configuration, and what is known of
the backend's server. So the first such request is planned as any other, and its plan is kept as a
`Recipe` where it is plain: one request, whose payload has the text as it came, and whose answer
needs no more than its translation. Whatever differs from that is planned anew.
"""

from __future__ import annotations

import time
from typing import Final

from msgspec import Raw, Struct, json, structs

from wellspoken.adapters.exchange import AnswerResult, Notes
from wellspoken.adapters.requests.shapes import ChatRequest, CompletionRequest, Variable
from wellspoken.adapters.requests.system import refuses_system
from wellspoken.adapters.servers.stream_usage import refuses_usage
from wellspoken.proxy.relay.admission import origin_of
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.planning.plan import Amending, Amendment, BackendRequest, Outcome, Plan
from wellspoken.proxy.state import Recipe, RecipeKey
from wellspoken.proxy.upstream.target import Target

MOST: Final = 256  # recipes of one configuration
LONGEST: Final = 16_384  # bytes of a request without its text


class Likeness(Struct, frozen=True):
    """What requests have in common that differ in their `variable` alone."""

    key: RecipeKey
    variable: Variable


def find_likeness(
    call: Call, wanted: ChatRequest | CompletionRequest, variable: Variable | None
) -> Likeness | None:
    """Return what a request is known again by; None for one that is planned for itself."""
    fields = wanted.fields
    if variable is None or not wanted.model or wanted.oai_compat is False or "store" in fields:
        return None
    rest = fields.copy()
    del rest[variable.key]
    return Likeness((call.path, variable.kind, *fields, b"\0".join(rest.values())), variable)


def find_recipe(call: Call, alike: Likeness, target: Target) -> Recipe | None:
    """Return the recipe of such a request to a server, if there is one that still holds."""
    recipe = call.state.recipes.get((target.name, alike.key))
    if recipe is None:
        return None
    if recipe.target is not target or recipe.condition != target.condition:
        return None
    if target.detector is not None and not target.detector.settled:
        return None  # what the server is may have to be asked again
    return recipe


def follow_recipe(call: Call, recipe: Recipe, alike: Likeness, amending: Amending) -> Plan:
    """Return the plan of a request; `amending` is for one that may be refused."""
    variable = alike.variable
    exchange = structs.replace(
        recipe.exchange,
        now=int(time.time()),
        origin=origin_of(call, recipe.target.name),
        notes=Notes(),
        result=AnswerResult(),
        **variable.facts,
    )
    payload = recipe.head + variable.raw + recipe.tail
    request = BackendRequest(
        recipe.path, payload, recipe.stream, amending=amending if recipe.amends else None
    )
    return Plan(exchange, recipe.dialect, (request,))


def amendments_of(sent: bytes, anew: BackendRequest) -> tuple[Amendment, ...]:
    """Return what may be made of a recipe's payload; `anew`: the same request as planned now.

    What another request has learned since it was sent is in that plan, so it has no amendment for
    it: then the plan itself is one.
    """
    if json.decode(anew.payload) == json.decode(sent):
        return anew.amendments

    def refused(status: int, said: bytes) -> bool:
        return refuses_system(status, said) or refuses_usage(status, said, sent=sent, taken=True)

    return (Amendment(refused, lambda: anew.payload, _learn_nothing), *anew.amendments)


def _learn_nothing(outcome: Outcome) -> None:
    pass


def learn_recipe(
    call: Call, alike: Likeness, target: Target, condition: tuple[object, ...], plan: Plan
) -> None:
    """Keep the plan of a request, if it is plain; `condition`: the target's before it was made."""
    recipe = _recipe_of(alike.variable, target, condition, plan)
    if recipe is None or sum(map(len, alike.key)) > LONGEST:
        return
    recipes = call.state.recipes
    if len(recipes) >= MOST:
        recipes.clear()
    recipes[target.name, alike.key] = recipe


def _recipe_of(
    variable: Variable, target: Target, condition: tuple[object, ...], plan: Plan
) -> Recipe | None:
    if len(plan.asks) != 1 or plan.sources or plan.merge is not None or plan.more is not None:
        return None
    request, exchange = plan.asks[0], plan.exchange
    if request.nothing is not None or request.extra:
        return None
    if exchange.notes.changes or exchange.stored:
        return None
    name = json.encode(variable.key) + b":"
    head, found, tail = request.payload.partition(name + variable.raw)
    # The text is where it belongs, and nowhere else.
    if not found or name + variable.raw in tail or _value(request, variable) != variable.raw:
        return None
    return Recipe(
        target=target,
        condition=condition,
        exchange=structs.replace(exchange, notes=Notes(), result=AnswerResult()),
        dialect=plan.dialect,
        path=request.path,
        stream=request.stream,
        head=head + name,
        tail=tail,
        amends=bool(request.amendments),
    )


def _value(request: BackendRequest, variable: Variable) -> bytes:
    return bytes(json.decode(request.payload, type=dict[str, Raw])[variable.key])
