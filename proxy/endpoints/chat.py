"""POST /v1/chat/completions: from the client's request to the plan of its answer."""

from __future__ import annotations

from functools import partial
from typing import Final

from msgspec import Raw, structs

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.prompt_scores import prompt_token_ids_missing
from wellspoken.adapters.requests import chat_bounds
from wellspoken.adapters.requests.chat import exchange_for, find_variable, parse_chat
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ChatRequest
from wellspoken.adapters.requests.system import (
    begins_with_user,
    fold_system,
    has_late_system,
    has_system,
    refuses_role,
    refuses_system,
    send_as_user,
)
from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.known.llamacpp_native import (
    prepare_native,
    read_template,
    refuse_unsupported,
    template_request,
)
from wellspoken.adapters.servers.prepare import prepare
from wellspoken.proxy.relay.call import Call, Handler
from wellspoken.proxy.relay.generate import Generation, generate
from wellspoken.proxy.relay.helping import scoring
from wellspoken.proxy.relay.planning.plan import BackendRequest, Plan
from wellspoken.proxy.relay.planning.planner import Planner, Revision
from wellspoken.proxy.upstream.refusals import ROLE, SYSTEM
from wellspoken.proxy.upstream.target import Target

OPENAI_PATH = "/v1/chat/completions"
TEMPLATE = "/apply-template"


def _request_untouched(call: Call, target: Target, wanted: ChatRequest) -> BackendRequest:
    model = target.model_for(wanted.model)
    make = partial(prepare, target.backend, wanted.drop_text(), model=model)
    endpoint = target.backend.chat
    path = endpoint.path if endpoint and endpoint.dialect == "chat" else OPENAI_PATH
    return BackendRequest(path, b"", bool(wanted.stream), make)


def _refuse(backend: Backend, wanted: ChatRequest) -> None:
    """Raise RequestError 400 for what the backend cannot do, since nobody need wait for that."""
    if backend.chat and backend.chat.dialect == "llamacpp":
        refuse_unsupported(wanted)
    else:
        prepare(backend, wanted, model=None)


async def _plan(planner: Planner[ChatRequest]) -> Plan:
    """Return what to ask of the backend, once it is there."""
    target, exchange = planner.target, planner.exchange
    backend, native = target.backend, planner.endpoint.dialect == "llamacpp"
    await _place_system(planner)
    scores = backend.scores == "proxy" and planner.tells
    prompt = ""
    planner.choose_form()
    if native:
        refuse_unsupported(planner.wanted)
    tells = backend.computes and exchange.tells_ids
    if native or scores:
        prompt = await _apply_template(planner)
    elif tells and not exchange.parts:
        try:
            prompt = await _apply_template(planner)
        except RequestError:  # builds before 2025-02; the answer needs no prompt
            prompt_token_ids_missing(exchange.notes)
            tells = False
    if scores:
        planner.found = [await planner.score(prompt)]
    if tells:
        await planner.find_ids([prompt])
    model = target.model_for(planner.wanted.model)

    def make(part: Exchange, stream: bool, place: int | None, sample: int) -> bytes:
        wanted, enforced = planner.wanted, part.enforced
        if place is not None and exchange.n > 1:
            wanted = _one_choice(wanted, sample)
        if native:
            return prepare_native(wanted, prompt=prompt, stream=stream, stops=not enforced)
        return prepare(
            backend,
            wanted,
            model=model,
            enforced=enforced,
            stream=stream,
            usage=bool(planner.usage),
            running=part.running_usage,
        )

    return planner.plan(make, 1, exchange.n, takes=backend.many)


async def _place_system(planner: Planner[ChatRequest]) -> None:
    """Put system messages where the model's template takes them, and say what else may be tried.

    A conversation that does not begin with the user's message may be what a template refuses, so
    that it takes the other form says nothing of its system messages.
    """
    target, wanted = planner.target, planner.wanted
    if not has_system(wanted.messages):
        return
    usual = begins_with_user(wanted.messages) and not has_late_system(wanted.messages)
    form = (
        target.system_form(wanted.model) if usual else await target.find_system_form(wanted.model)
    )
    if form == "user":
        planner.wanted = send_as_user(wanted)
    elif form == "fold":
        planner.wanted = fold_system(wanted)
    if target.settings.system in ("user", "pass"):
        return
    note = target.note_seen
    if has_late_system(planner.wanted.messages):
        planner.revisions = (Revision(refuses_system, fold_system, partial(note, SYSTEM)),)
    if has_system(planner.wanted.messages):
        learn = partial(note, ROLE) if begins_with_user(wanted.messages) else _learn_nothing
        planner.revisions = (*planner.revisions, Revision(refuses_role, send_as_user, learn))


def _learn_nothing(model: str) -> None:
    pass


async def _apply_template(planner: Planner[ChatRequest]) -> str:
    """Return the prompt that the backend's template makes of the messages."""

    async def ask() -> str:
        payload = template_request(target.backend, planner.wanted)
        return read_template(
            await scoring.ask_backend(call, target, planner.exchange, TEMPLATE, payload)
        )

    call, target = planner.call, planner.target
    made = []
    while True:
        try:
            prompt = await ask()
            break
        except RequestError as error:
            refused = (error.status, str(error).encode())
            revision = next((x for x in planner.revisions if x.refused(*refused)), None)
            if revision is None:
                raise
        planner.wanted = revision.make(planner.wanted)
        planner.revisions = [other for other in planner.revisions if other is not revision]
        made.append(revision)
    for revision in made:
        revision.note(planner.wanted.model)
    return prompt


def _one_choice(wanted: ChatRequest, sample: int) -> ChatRequest:
    """Return the request for one of several choices, each with a seed of its own."""
    changed = {"n": 1}
    if wanted.seed is not None:
        changed["seed"] = chat_bounds.seed_of_choice(wanted.seed, sample)
    fields = wanted.fields | {key: Raw(b"%d" % value) for key, value in changed.items()}
    return structs.replace(wanted, **changed, fields=fields)


CHAT: Final = Generation(
    lambda _, body: parse_chat(body),
    chat_bounds.check,
    find_variable,
    exchange_for,
    lambda backend, exchange: backend.chat,
    "no chat completions. Use POST /v1/completions.",
    _request_untouched,
    _refuse,
    _plan,
)
chat: Final[Handler] = partial(generate, generation=CHAT)
