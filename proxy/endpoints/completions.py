"""POST /v1/completions: from the client's request to the plan of its answer.

llama.cpp's clients may send the same to /completion and /completions under its own names.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from wellspoken.adapters.events import Event
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.merge import Best, Merge, entries_in
from wellspoken.adapters.requests import completions_bounds
from wellspoken.adapters.requests.chat_bounds import seed_of_choice
from wellspoken.adapters.requests.completions import (
    decode_completion,
    exchange_for_completion,
    prompts,
)
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import Bounds, CompletionRequest, Prompt
from wellspoken.adapters.rest import Rest
from wellspoken.adapters.servers.backend import Backend, Endpoint
from wellspoken.adapters.servers.known.llamacpp_native import prepare_native
from wellspoken.adapters.servers.parameters import find_rows, refuse
from wellspoken.adapters.servers.prepare import lacks_in_streams, prepare_completion
from wellspoken.adapters.stages.usage import BYTES_PER_TOKEN
from wellspoken.adapters.translate import BackendAnswer
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay import scoring
from wellspoken.proxy.relay.admission import enter
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.counting import Counter
from wellspoken.proxy.relay.generate import Generation, generate
from wellspoken.proxy.relay.plan import BackendRequest, Merging, Plan, asks_stream, without_stops
from wellspoken.proxy.upstream.target import Target

OPENAI_PATH = "/v1/completions"
COMPUTED = frozenset({"prompt_logprobs"})  # what a backend that cannot do it is not sent


def completions(call: Call) -> Awaitable[Reply | EventStream]:
    """Answer one completion. Raises what `generate` does: then nothing was sent."""
    return generate(call, COMPLETIONS)


def _decode(call: Call, body: bytes, bounds: Bounds) -> CompletionRequest:
    return decode_completion(body, bounds=bounds, native_names=call.path != OPENAI_PATH)


def _check_bounds(wanted: CompletionRequest, strict: bool) -> None:
    completions_bounds.check(wanted, strict=strict)


def _request_untouched(call: Call, target: Target, wanted: CompletionRequest) -> BackendRequest:
    _endpoint(target)
    native = target.backend.native is not None and call.path != OPENAI_PATH
    payload = prepare_completion(target.backend, wanted, model=target.model_for(wanted.model))
    return BackendRequest(call.path if native else OPENAI_PATH, payload, bool(wanted.stream))


def _refuse(target: Target, wanted: CompletionRequest) -> None:
    """Raise RequestError 400 for what the backend cannot do, since nobody need wait for that."""
    _endpoint(target)
    _check(target.backend, wanted)


def _endpoint(target: Target) -> Endpoint:
    endpoint = target.backend.completions
    if endpoint is None:
        raise RequestError(
            f"The backend {target.name} ({target.backend.title}) answers chat completions only. "
            "Use POST /v1/chat/completions.",
            param="model",
            code="unsupported_endpoint",
        )
    return endpoint


async def _plan(call: Call, target: Target, wanted: CompletionRequest, exchange: Exchange) -> Plan:
    """Return what to ask of the backend, once it is there: one request, or one for each choice."""
    endpoint = _endpoint(target)
    await enter(call, target, wanted)
    backend, given = target.backend, prompts(wanted)
    computed = _computed(target, wanted, exchange)
    _check(backend, wanted)
    if exchange.logprobs and None in exchange.prompts and not wanted.echo:
        model = target.model_for(wanted.model) or wanted.model
        texts = await scoring.texts(call, target, exchange, given, model)
        exchange = replace(exchange, prompts=texts)
    each = max(wanted.best_of or 1, wanted.n or 1)
    best = each > (wanted.n or 1)
    entries = exchange.logprobs or exchange.keeps_stop
    if backend.loses_entries and exchange.stops and entries:
        exchange = replace(exchange, enforced=target.settings.streams != "never")
        wanted = wanted if exchange.enforced else without_stops(wanted)
    one_by_one = backend.tops_up and len(given) > 1  # whether it takes several is not known
    alone = each > 1 and backend.alone(wanted.temperature)
    several = backend.several and not (best or target.lone or one_by_one or alone)
    nothing = wanted.limit == 0 and not (wanted.echo and backend.scores == "backend")
    if (several or each * len(given) == 1) and not (computed or nothing or exchange.enforced):
        whole = None if len(given) > 1 else given[0]
        ask = _ask(target, wanted, exchange, endpoint, whole, None)
        if each > 1 and backend.tops_up and whole is not None:
            more = partial(_choices, target, wanted, exchange, endpoint, whole)
            source = BackendAnswer(exchange, endpoint.dialect)
            return Plan(exchange, endpoint.dialect, [ask], [source], Rest(exchange), more)
        return Plan(exchange, endpoint.dialect, [ask])
    parts = await _parts(call, target, wanted, exchange, endpoint, each)
    merge: Merging | None = None
    if best:
        merge = Best(exchange, [x.source.exchange for x in parts], each, [x.leading for x in parts])
    elif len(parts) > 1:
        merge = Merge(exchange, [x.source.exchange for x in parts], each)
    asks, sources = [x.ask for x in parts], [x.source for x in parts]
    return Plan(exchange, endpoint.dialect, asks, sources, merge)


def _choices(
    target: Target,
    wanted: CompletionRequest,
    exchange: Exchange,
    endpoint: Endpoint,
    prompt: Prompt,
    choices: range,
) -> tuple[list[BackendRequest], list[BackendAnswer]]:
    """Return what is asked for single choices of one prompt, and what reads the answers."""
    parts = [exchange.part(exchange.prompts[0]) for _ in choices]
    asks = [
        _ask(target, wanted, part, endpoint, prompt, sample)
        for part, sample in zip(parts, choices, strict=True)
    ]
    return asks, [BackendAnswer(part, endpoint.dialect) for part in parts]


class _Part(NamedTuple):
    """One choice asked for by itself; `leading`: entries of it that are the prompt's."""

    ask: BackendRequest
    source: BackendAnswer
    leading: int


async def _parts(
    call: Call,
    target: Target,
    wanted: CompletionRequest,
    exchange: Exchange,
    endpoint: Endpoint,
    each: int,
) -> list[_Part]:
    """Return what is asked for each choice, `each` of a prompt, in order."""
    backend, given = target.backend, prompts(wanted)
    computed = _computed(target, wanted, exchange)
    nothing = wanted.limit == 0 and not (wanted.echo and backend.scores == "backend")
    parts = []
    for place, prompt in enumerate(given):
        found = await _scored(call, target, wanted, exchange, prompt) if computed else None
        size: tuple[int | None, str] = (None, "")
        if nothing:
            size = await _size(call, target, wanted, exchange, prompt, found)
        for sample in range(each):
            part = exchange.part(
                exchange.prompts[place],
                logprobs=exchange.logprobs or each > (wanted.n or 1),  # `best_of` goes by them
                echoed=computed,
            )
            prelude: list[Event] = []
            if found is not None and computed:
                prelude = _prelude(wanted, part, found)
            ask = _ask(target, wanted, part, endpoint, prompt, sample)._replace(
                nothing=size[0], source=size[1]
            )
            source = BackendAnswer(part, endpoint.dialect, prelude=prelude)
            parts.append(_Part(ask, source, entries_in(prelude)))
    return parts


def _computed(target: Target, wanted: CompletionRequest, exchange: Exchange) -> bool:
    """Say whether the proxy puts the prompt before the answer, or computes its logprobs."""
    if wanted.echo and target.backend.completion_table["echo"].how == "emulated":
        return True
    return target.backend.scores == "proxy" and _tells(exchange)


def _tells(exchange: Exchange) -> bool:
    """Say whether the client asked for the prompt's logprobs, and gets them."""
    return "prompt_logprobs" in exchange.switches and exchange.keeps("prompt_logprobs")


def _check(backend: Backend, wanted: CompletionRequest) -> None:
    """Raise RequestError 400 for what the backend cannot do."""
    table = backend.completion_table
    refuse(find_rows(wanted, table), table, backend.title)
    native = bool(wanted.echo) and backend.scores == "backend"
    if native and wanted.limit is not None and wanted.limit < backend.least_tokens:
        raise RequestError(
            f"With 'echo', {backend.title} needs 'max_tokens' of 1 at least. Send 1.",
            param="max_tokens",
            code="unsupported_parameter",
        )


def _ask(
    target: Target,
    wanted: CompletionRequest,
    exchange: Exchange,
    endpoint: Endpoint,
    prompt: Prompt | None,
    sample: int | None,
) -> BackendRequest:
    """Return the request for the whole answer, or (`sample`) for one choice of a prompt."""
    seed = None
    if sample is not None and wanted.seed is not None:
        seed = seed_of_choice(wanted.seed, sample)
    body = lacks_in_streams(target.backend, wanted.fields) and not exchange.enforced
    stream = asks_stream(target, exchange, whole=body)
    k = max(wanted.logprobs or 0, 1) if exchange.logprobs else None  # `best_of` needs one
    if endpoint.dialect == "llamacpp":
        payload = prepare_native(
            wanted,
            prompt=prompt if isinstance(prompt, str) or prompt is None else list(prompt),
            stream=stream,
            stops=not exchange.enforced,
            seed=seed,
            n_probs=k or 0,
            limit=wanted.limit,
        )
    else:
        payload = prepare_completion(
            target.backend,
            wanted,
            model=target.model_for(wanted.model),
            prompt=prompt,
            n=None if sample is None else 1,
            seed=seed,
            enforced=exchange.enforced,
            stream=stream,
            logprobs=k,
            without=COMPUTED if target.backend.scores == "proxy" else frozenset(),
        )
    return BackendRequest(endpoint.path, payload, stream)


async def _scored(
    call: Call, target: Target, wanted: CompletionRequest, exchange: Exchange, prompt: Prompt
) -> scoring.Scored:
    """Return a prompt with the logprobs that the request asks for."""
    k = exchange.k if wanted.echo and exchange.logprobs else -1
    param = "echo"
    if _tells(exchange):
        k, param = max(k, scoring.count_of(wanted.fields["prompt_logprobs"])), "prompt_logprobs"
    if k < 0:
        return await scoring.spell_prompt(call, target, exchange, prompt)
    return await scoring.score(call, target, exchange, prompt, k, param)


async def _size(
    call: Call,
    target: Target,
    wanted: CompletionRequest,
    exchange: Exchange,
    prompt: Prompt,
    found: scoring.Scored | None,
) -> tuple[int, str]:
    """Return how many tokens a prompt has and who says so, by the best that there is to tell."""
    if not isinstance(prompt, str):
        return len(prompt), "tokens"
    if found is not None and found.ids:
        return len(found.ids), "tokenize"
    model = target.model_for(wanted.model) or wanted.model
    told = await Counter(call, target).size(prompt, model)
    if told is not None:
        return told, "tokenize"
    vocabulary = exchange.tokens.vocabulary
    counted = vocabulary.count(prompt) if vocabulary is not None else None
    if counted is not None:
        return counted, "tokenizer"
    return -(-len(prompt.encode()) // BYTES_PER_TOKEN), "estimate"


def _prelude(wanted: CompletionRequest, exchange: Exchange, found: scoring.Scored) -> list[Event]:
    """Return what comes before the generated text: the prompt's logprobs, the prompt itself."""
    prelude: list[Event] = []
    if _tells(exchange):
        k = scoring.count_of(wanted.fields["prompt_logprobs"])
        prelude.append(scoring.prompt_logprobs(exchange, found, k))
    if wanted.echo:
        prelude += scoring.echo_prompt(exchange, found)
    return prelude


COMPLETIONS: Final = Generation(
    _decode, _check_bounds, exchange_for_completion, _request_untouched, _refuse, _plan
)
