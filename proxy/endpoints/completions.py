"""POST /v1/completions: from the client's request to the plan of its answer.

llama.cpp's clients may send the same to /completion and /completions under its own names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests import completions_bounds
from wellspoken.adapters.requests.chat_bounds import seed_of_choice
from wellspoken.adapters.requests.completions import (
    exchange_for_completion,
    find_variable,
    parse_completion,
    prompts,
)
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import CompletionRequest, Prompt, TokenIds
from wellspoken.adapters.servers.backend import Backend, Endpoint
from wellspoken.adapters.servers.known.llamacpp_native import prepare_native
from wellspoken.adapters.servers.parameters import find_rows, refuse
from wellspoken.adapters.servers.prepare import prepare_completion
from wellspoken.adapters.stages.usage import BYTES_PER_TOKEN
from wellspoken.proxy.relay.call import Call, Handler
from wellspoken.proxy.relay.generate import Generation, generate
from wellspoken.proxy.relay.helping import scoring
from wellspoken.proxy.relay.helping.counting import Counter
from wellspoken.proxy.relay.planning.plan import BackendRequest, Plan
from wellspoken.proxy.relay.planning.planner import Planner
from wellspoken.proxy.relay.send import in_thread
from wellspoken.proxy.upstream.listing import name_model
from wellspoken.proxy.upstream.target import Target

OPENAI_PATH = "/v1/completions"
COMPUTED = frozenset({"prompt_logprobs"})  # what a backend that cannot do it is not sent


def _parse(call: Call, body: bytes) -> CompletionRequest:
    return parse_completion(body, native_names=call.path != OPENAI_PATH)


def _endpoint(backend: Backend, exchange: Exchange) -> Endpoint | None:
    """Return where the backend answers: token ids llama.cpp of any build tells at its own."""
    if exchange.tells_ids and backend.native is not None:
        return Endpoint(backend.native, "llamacpp")
    return backend.completions


def _request_untouched(call: Call, target: Target, wanted: CompletionRequest) -> BackendRequest:
    native = target.backend.native is not None and call.path != OPENAI_PATH
    model = target.model_for(wanted.model)
    make = partial(prepare_completion, target.backend, wanted.drop_text(), model=model)
    path = call.path if native else OPENAI_PATH
    return BackendRequest(path, b"", bool(wanted.stream), make)


def _refuse(backend: Backend, wanted: CompletionRequest) -> None:
    """Raise RequestError 400 for what the backend cannot do, since nobody need wait for that."""
    table = backend.completion_table
    refuse(find_rows(wanted, table), table, backend.title)
    native = bool(wanted.echo) and backend.scores == "backend"
    if native and wanted.limit is not None and wanted.limit < backend.least_tokens:
        raise RequestError(
            f"With 'echo', {backend.title} needs 'max_tokens' of 1 at least. Send 1.",
            param="max_tokens",
            code="unsupported_parameter",
        )


async def _plan(planner: Planner[CompletionRequest]) -> Plan:
    """Return what to ask of the backend, once it is there: one request, or one for each choice."""
    call, target, wanted = planner.call, planner.target, planner.wanted
    backend, exchange = target.backend, planner.exchange
    given = await in_thread(planner.large, prompts, wanted)
    model = target.model_for(wanted.model)
    _refuse(backend, wanted)
    if exchange.logprobs and None in exchange.prompts and not wanted.echo:
        texts = await scoring.texts(call, target, exchange, given, model or wanted.model)
        planner.exchange = replace(exchange, prompts=texts)
    planner.choose_form()
    # Whether the proxy puts the prompt before the answer, or computes its logprobs.
    emulated = wanted.echo and backend.completion_table["echo"].how == "emulated"
    if emulated or (backend.scores == "proxy" and planner.tells):
        planner.found = [await planner.score(prompt) for prompt in given]
    if backend.computes and exchange.tells_ids:
        await planner.find_ids(given)
    if wanted.limit == 0 and not (wanted.echo and backend.scores == "backend"):
        planner.sizes = [await _size(planner, place, given[place]) for place in range(len(given))]
        if not exchange.model:  # nor does an answer of the backend's tell it
            planner.exchange = replace(planner.exchange, model=await name_model(target))
    each = max(wanted.best_of or 1, wanted.n or 1)
    best = each > (wanted.n or 1)
    make = partial(_make_payload, planner, () if planner.large else given)
    return planner.plan(make, len(given), each, takes=backend.several, best=best)


def _make_payload(
    planner: Planner[CompletionRequest],
    given: Sequence[Prompt],
    exchange: Exchange,
    stream: bool,
    place: int | None,
    sample: int,
) -> bytes:
    """Return the payload for the whole answer, or for one choice of the prompt at `place`."""
    wanted, target, seed = planner.wanted, planner.target, None
    given = given or prompts(wanted)
    prompt = given[place or 0] if place is not None or len(given) == 1 else None
    if isinstance(prompt, TokenIds):
        prompt = None  # as the client sent it
    if place is not None and wanted.seed is not None:
        seed = seed_of_choice(wanted.seed, sample)
    k = max(wanted.logprobs or 0, 1) if exchange.logprobs else None  # `best_of` needs one
    if planner.endpoint.dialect == "llamacpp":
        return prepare_native(
            wanted,
            prompt=list(prompt) if isinstance(prompt, tuple) else prompt,
            model=target.model_for(wanted.model) or wanted.model,
            stream=stream,
            stops=not exchange.enforced,
            seed=seed,
            n_probs=k or 0,
            limit=wanted.limit,
        )
    return prepare_completion(
        target.backend,
        wanted,
        model=target.model_for(wanted.model),
        prompt=prompt,
        n=_count_choices(wanted) if place is None else 1,
        seed=seed,
        enforced=exchange.enforced,
        stream=stream,
        logprobs=k,
        usage=bool(planner.usage),
        running=exchange.running_usage,
        without=COMPUTED if target.backend.scores == "proxy" else frozenset(),
    )


def _count_choices(wanted: CompletionRequest) -> int | None:
    """Return how many choices of one computation are asked for, None for the client's `n`.

    A search gives its best first, so those above `n` go; `best_of` was the width of vLLM's beams up
    to 0.11, `n` is since.
    """
    best_of = wanted.best_of or 1
    return best_of if best_of > (wanted.n or 1) else None


async def _size(planner: Planner[CompletionRequest], place: int, prompt: Prompt) -> tuple[int, str]:
    """Return how many tokens a prompt has and who says so, by the best that there is to tell."""
    if not isinstance(prompt, str):
        return len(prompt), "tokens"
    if planner.found and planner.found[place].ids:
        return len(planner.found[place].ids), "tokenize"
    target, model = planner.target, planner.wanted.model
    told = await Counter(planner.call, target).size(prompt, target.model_for(model) or model)
    if told is not None:
        return told, "tokenize"
    vocabulary = planner.exchange.tokens.vocabulary
    counted = vocabulary.count(prompt) if vocabulary is not None else None
    if counted is not None:
        return counted, "tokenizer"
    return -(-len(prompt.encode()) // BYTES_PER_TOKEN), "estimate"


COMPLETIONS: Final = Generation(
    _parse,
    completions_bounds.check,
    find_variable,
    exchange_for_completion,
    _endpoint,
    "chat completions only. Use POST /v1/chat/completions.",
    _request_untouched,
    _refuse,
    _plan,
)
completions: Final[Handler] = partial(generate, generation=COMPLETIONS)
