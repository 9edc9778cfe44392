"""POST /v1/chat/completions: from the client's request to the plan of its answer."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw, structs

from wellspoken.adapters import openai_bounds
from wellspoken.adapters.backend import Endpoint, lacks_in_streams, prepare
from wellspoken.adapters.llamacpp_native import (
    prepare_native,
    refuse_unsupported,
    template_request,
    templated,
)
from wellspoken.adapters.merge import Merge
from wellspoken.adapters.openai import decode_chat, exchange_for
from wellspoken.adapters.request_error import RequestError
from wellspoken.adapters.translate import Source
from wellspoken.proxy import scoring
from wellspoken.proxy.answer import respond, untouched
from wellspoken.proxy.plan import Ask, Plan
from wellspoken.proxy.requests import extensions_of, keep_of, read_body

if TYPE_CHECKING:
    from wellspoken.adapters.events import Event
    from wellspoken.adapters.exchange import Exchange
    from wellspoken.adapters.openai import ChatRequest
    from wellspoken.proxy.replies import EventStream, Reply
    from wellspoken.proxy.routing import Target
    from wellspoken.proxy.server import Call

OPENAI_PATH = "/v1/chat/completions"
TEMPLATE = "/apply-template"


async def chat(call: Call) -> Reply | EventStream:
    """Answer one chat completion. Raises RequestError, UpstreamError: then nothing was sent."""
    service, request = call.service, call.request
    limits, timeouts = service.config.limits, service.config.timeouts
    call.phase = "request"
    body = await read_body(request, limits.body, timeouts.client_body)
    call.phase = "waiting"
    wanted = decode_chat(body, bounds=service.router.bounds)
    target = service.router.find(wanted.model)
    if target.bounds != service.router.bounds:
        openai_bounds.check(wanted, strict=target.bounds == "openai")
    streams = bool(wanted.stream)
    call.routed(target, wanted.model, streams)
    extensions, keep = extensions_of(request, target.extensions), keep_of(request, target.keep)
    await target.ready()
    if wanted.oai_compat is False:
        payload = prepare(target.backend, wanted, model=target.model_for(wanted.model))
        endpoint = _endpoint(target)
        path = endpoint.path if endpoint.dialect == "chat" else OPENAI_PATH
        return await untouched(call, target, Ask(path, payload, streams))
    exchange = exchange_for(
        wanted,
        now=int(time.time()),
        new_id=service.new_id,
        tokens=target.tokens,
        extensions=extensions,
        keep=keep,
    )
    exchange.origin = f"backend {target.name}, request {call.id}"
    exchange.pairs_best = target.backend.pairs_best
    return await respond(call, target, partial(_plan, call, target, wanted, exchange), streams)


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


async def _plan(call: Call, target: Target, wanted: ChatRequest, exchange: Exchange) -> Plan:
    """Return what to ask of the backend."""
    backend, endpoint = target.backend, _endpoint(target)
    model = target.model_for(wanted.model)
    # llama.cpp's chat endpoint refuses to stream logprobs beside tools; so it is told the stops.
    streamable = endpoint.dialect == "llamacpp" or not (wanted.tools or wanted.functions)
    exchange.enforced = bool(
        backend.loses_entries and exchange.logprobs and exchange.stops and streamable
    )
    prompt = ""
    tells = "prompt_logprobs" in exchange.switches and exchange.keeps("prompt_logprobs")
    scores = tells and backend.scores == "proxy"
    if endpoint.dialect == "llamacpp":
        refuse_unsupported(wanted)
    if endpoint.dialect == "llamacpp" or scores:
        template = template_request(wanted)
        prompt = templated(await scoring.asked(call, target, exchange, TEMPLATE, template))
    prelude: list[Event] = []
    if scores:
        k = scoring.count_of(wanted.fields["prompt_logprobs"])
        found = await scoring.score(call, target, exchange, prompt, k, "prompt_logprobs")
        prelude = [scoring.prompt_logprobs(exchange, found, k)]
    # A choice that has met its stop is cancelled by itself, so each has a request of its own.
    each = 1 if backend.many and not exchange.enforced else exchange.n
    whole = lacks_in_streams(backend, wanted.fields) and not exchange.enforced
    asks, sources = [], []
    for sample in range(each):
        one = wanted if each == 1 else _one_choice(wanted, sample)
        part = exchange if each == 1 else exchange.part(None)
        stream = part.enforced or (part.stream and not whole)
        if endpoint.dialect == "llamacpp":
            payload = prepare_native(one, prompt=prompt, stream=stream, stops=not part.enforced)
        else:
            payload = prepare(backend, one, model=model, enforced=part.enforced, body=whole)
        asks.append(Ask(endpoint.path, payload, stream))
        if each > 1 or part.enforced or prelude:
            sources.append(Source(part, endpoint.dialect, prelude=prelude))
        prelude = []
    merge = Merge(exchange, [x.exchange for x in sources], each) if each > 1 else None
    return Plan(exchange, endpoint.dialect, asks, sources, merge)


def _one_choice(wanted: ChatRequest, sample: int) -> ChatRequest:
    """Return the request for one of several choices, each with a seed of its own."""
    changed = {"n": 1}
    if wanted.seed is not None:
        changed["seed"] = wanted.seed + sample
    fields = wanted.fields | {key: Raw(b"%d" % value) for key, value in changed.items()}
    return structs.replace(wanted, **changed, fields=fields)
