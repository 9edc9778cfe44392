"""POST /v1/chat/completions: from the client's request to the plan of its answer."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from msgspec import Raw, structs
from msgspec.structs import replace

from wellspoken.adapters.events import Event
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.merge import Merge
from wellspoken.adapters.requests import chat_bounds as openai_bounds
from wellspoken.adapters.requests.chat import decode_chat, exchange_for
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import Bounds, ChatRequest
from wellspoken.adapters.rest import Rest
from wellspoken.adapters.servers.backend import Endpoint
from wellspoken.adapters.servers.known.llamacpp_native import (
    prepare_native,
    read_template,
    refuse_unsupported,
    template_request,
)
from wellspoken.adapters.servers.prepare import lacks_in_streams, prepare
from wellspoken.adapters.translate import BackendAnswer
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay import scoring
from wellspoken.proxy.relay.admission import enter
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.generate import Generation, generate
from wellspoken.proxy.relay.plan import BackendRequest, Plan, asks_stream, without_stops
from wellspoken.proxy.upstream.target import Target

OPENAI_PATH = "/v1/chat/completions"
TEMPLATE = "/apply-template"


def chat(call: Call) -> Awaitable[Reply | EventStream]:
    """Answer one chat completion. Raises what `generate` does: then nothing was sent."""
    return generate(call, CHAT)


def _decode(call: Call, body: bytes, bounds: Bounds) -> ChatRequest:
    return decode_chat(body, bounds=bounds)


def _check_bounds(wanted: ChatRequest, strict: bool) -> None:
    openai_bounds.check(wanted, strict=strict)


def _request_untouched(call: Call, target: Target, wanted: ChatRequest) -> BackendRequest:
    payload = prepare(target.backend, wanted, model=target.model_for(wanted.model))
    endpoint = _endpoint(target)
    path = endpoint.path if endpoint.dialect == "chat" else OPENAI_PATH
    return BackendRequest(path, payload, bool(wanted.stream))


def _endpoint(target: Target) -> Endpoint:
    endpoint = target.backend.chat
    if endpoint is None:
        raise RequestError(
            f"The backend {target.name} ({target.backend.title}) answers no chat completions. Use "
            "POST /v1/completions.",
            param="model",
            code="unsupported_endpoint",
        )
    return endpoint


def _refuse(target: Target, wanted: ChatRequest) -> None:
    """Raise RequestError 400 for what the backend cannot do, since nobody need wait for that."""
    if _endpoint(target).dialect == "llamacpp":
        refuse_unsupported(wanted)
    else:
        prepare(target.backend, wanted, model=None)


async def _plan(call: Call, target: Target, wanted: ChatRequest, exchange: Exchange) -> Plan:
    """Return what to ask of the backend, once it is there."""
    await enter(call, target, wanted)
    backend, endpoint = target.backend, _endpoint(target)
    # With a stop string the backend's logprobs would lack entries, and its text that string.
    lost = backend.loses_entries and bool(exchange.stops)
    if lost and (exchange.logprobs or exchange.keeps_stop):
        whole = target.settings.streams == "never" or lacks_in_streams(backend, wanted.fields)
        exchange = replace(exchange, enforced=not whole)
        wanted = without_stops(wanted) if whole else wanted
    prompt = ""
    tells = "prompt_logprobs" in exchange.switches and exchange.keeps("prompt_logprobs")
    scores = tells and backend.scores == "proxy"
    if endpoint.dialect == "llamacpp":
        refuse_unsupported(wanted)
    if endpoint.dialect == "llamacpp" or scores:
        template = template_request(backend, wanted)
        prompt = read_template(
            await scoring.ask_backend(call, target, exchange, TEMPLATE, template)
        )
    prelude: list[Event] = []
    if scores:
        k = scoring.count_of(wanted.fields["prompt_logprobs"])
        found = await scoring.score(call, target, exchange, prompt, k, "prompt_logprobs")
        prelude = [scoring.prompt_logprobs(exchange, found, k)]
    asking = _Asking(target, wanted, exchange, endpoint, prompt)
    return asking.plan(prelude)


class _Asking:
    """How one request of a client is asked for: for the whole answer, or choice by choice."""

    def __init__(
        self,
        target: Target,
        wanted: ChatRequest,
        exchange: Exchange,
        endpoint: Endpoint,
        prompt: str,
    ) -> None:
        self.target = target
        self.wanted = wanted
        self.exchange = exchange
        self.endpoint = endpoint
        self.prompt = prompt
        self.whole = lacks_in_streams(target.backend, wanted.fields) and not exchange.enforced

    def plan(self, prelude: list[Event]) -> Plan:
        """Return the plan; `prelude` comes before the answer."""
        exchange, dialect, n = self.exchange, self.endpoint.dialect, self.exchange.n
        # A choice that has met its stop is cancelled by itself, so each has a request of its own.
        backend = self.target.backend
        alone = exchange.enforced or self.target.lone or backend.alone(self.wanted.temperature)
        together = backend.many and not alone
        if n > 1 and not together:
            asks, sources = self.choices(range(n))
            sources[0].prelude = prelude
            merge = Merge(exchange, [x.exchange for x in sources], n)
            return Plan(exchange, dialect, asks, sources, merge)
        asks = [self._ask(self.wanted, exchange)]
        if n > 1 and backend.tops_up:
            sources = [BackendAnswer(exchange, dialect, prelude=prelude)]
            return Plan(exchange, dialect, asks, sources, Rest(exchange), self.choices)
        sources = []
        if exchange.enforced or prelude:
            sources = [BackendAnswer(exchange, dialect, prelude=prelude)]
        return Plan(exchange, dialect, asks, sources)

    def choices(self, choices: range) -> tuple[list[BackendRequest], list[BackendAnswer]]:
        """Return what is asked for single choices, and what reads the answers."""
        asks, sources = [], []
        for choice in choices:
            part = self.exchange.part(None)
            asks.append(self._ask(_one_choice(self.wanted, choice), part))
            sources.append(BackendAnswer(part, self.endpoint.dialect))
        return asks, sources

    def _ask(self, wanted: ChatRequest, exchange: Exchange) -> BackendRequest:
        stream, enforced = asks_stream(self.target, exchange, whole=self.whole), exchange.enforced
        if self.endpoint.dialect == "llamacpp":
            payload = prepare_native(wanted, prompt=self.prompt, stream=stream, stops=not enforced)
        else:
            model = self.target.model_for(wanted.model)
            backend = self.target.backend
            payload = prepare(backend, wanted, model=model, enforced=enforced, stream=stream)
        return BackendRequest(self.endpoint.path, payload, stream)


def _one_choice(wanted: ChatRequest, sample: int) -> ChatRequest:
    """Return the request for one of several choices, each with a seed of its own."""
    changed = {"n": 1}
    if wanted.seed is not None:
        changed["seed"] = openai_bounds.seed_of_choice(wanted.seed, sample)
    fields = wanted.fields | {key: Raw(b"%d" % value) for key, value in changed.items()}
    return structs.replace(wanted, **changed, fields=fields)


CHAT: Final = Generation(_decode, _check_bounds, exchange_for, _request_untouched, _refuse, _plan)
