"""Lets a request through to its backend as the route says: vendors' keys, caps, token ids."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Final

from msgspec import Raw

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.caps import (
    Asked,
    apply_caps,
    names_tokens,
    passes_tokens,
    refuse_over,
)
from wellspoken.adapters.requests.errors import UNKNOWN, RequestError, missing
from wellspoken.adapters.requests.responses.as_chat import ResponseChat
from wellspoken.adapters.requests.vendor import apply_policy, refuse_variants, vendor_keys
from wellspoken.proxy.http.requests import extensions_of, keep_of
from wellspoken.proxy.limits.clients import KnownClient
from wellspoken.proxy.limits.estimate import ANSWER, answer_tokens, prompt_tokens
from wellspoken.proxy.limits.quota import headers_of, refuse, refuse_too_large
from wellspoken.proxy.metrics.service import tokens_of
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.records import Reservation
from wellspoken.proxy.relay.send import enter_engine, in_thread
from wellspoken.proxy.upstream.target import Target

_OUTCOMES: Final = {"pass": "passed", "strip": "stripped", "reject": "rejected"}
LISTED: Final = 32  # names that the header lists at most
_NAME: Final = re.compile(r"[\w.\[\]-]{1,64}", re.ASCII)  # a client's key may hold anything


def make_exchange(call: Call, target: Target, make: Callable[..., Exchange]) -> Exchange:
    """Return the exchange that `make` gives of a request to `target`.

    Raises RequestError for x-wellspoken headers that cannot be followed.
    """
    return make(
        now=int(time.time()),
        new_id=call.state.new_id,
        tokens=target.tokens,
        extensions=extensions_of(call.request, target.settings.extensions),
        keep=keep_of(call.request, target.settings.keep),
        tokenize=target.backend.tokenize,
        pairs_best=target.backend.pairs_best,
        recover=target.settings.recover,
        origin=origin_of(call, target.name),
    )


def origin_of(call: Call, backend: str) -> str:
    """Return how messages name a request and where it goes."""
    return f"backend {backend}, request {call.id}"


def error_exchange(call: Call, backend: str, model: str) -> Exchange:
    """Return what notes the repairs of a backend's error, where nothing else is repaired."""
    return Exchange(
        model=model,
        now=int(time.time()),
        new_id=call.state.new_id,
        origin=origin_of(call, backend),
    )


async def admit_client(
    call: Call,
    client: KnownClient,
    model: str,
    body: bytes,
    fields: Mapping[str, Raw],
    default: int | None = None,
    prompts: int = 1,
) -> None:
    """Let a request of a client through that may have the model, and count what it may need.

    `fields`: the top-level values of `body`; `default`: the tokens of an answer without a limit of
    its own, of which each of the `prompts` gets one. Raises RequestError: 404 for another model, as
    for one that is not there, 429 for what is over a limit, whether for now or for ever.
    """
    if client.is_confined and not model:
        raise missing("model", "This API key is for some models alone: GET /v1/models lists them.")
    if not client.may_use(model):
        raise call.state.router.unknown(model, client)
    quota = client.quota
    if quota is None:
        return
    prompt = answer = 0
    if quota.tokens:
        cap = call.state.router.find(model, client).servers[0].settings.caps.max_tokens
        prompt = prompt_tokens(body)
        found = answer_tokens(fields, default if default is not None else cap, prompts)
        answer = min(ANSWER, max(quota.tokens - prompt, 0)) if found is None else found
        if prompt + answer > quota.tokens:
            call.state.metrics.quota.labels(client.name, "tokens").inc()
            raise refuse_too_large(client.name, quota, prompt, answer)
    id = call.state.new_id()
    began = perf_counter()
    try:
        decision = await call.state.counters.reserve(client.name, quota, id, prompt + answer)
    finally:
        call.timing.end_wait(began)
    if decision is None:
        call.state.metrics.quota.labels(client.name, "uncounted").inc()
    elif decision.refused is not None:
        call.state.metrics.quota.labels(client.name, decision.refused).inc()
        raise refuse(client.name, quota, decision, prompt + answer)
    else:
        call.results.reservation = Reservation(id, client.name, quota, prompt, prompt + answer)
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers_of(quota, decision).items())
        call.results.quota = lines.encode("ascii")


def settle(call: Call, reservation: Reservation, code: int) -> None:
    """Count the end of a request that was answered with a status, 499: whose client has left.

    It costs what its usage says; without one nothing where it has failed, the prompt where the
    client has left since a backend was asked, and else what was reserved. A stream that passes
    through and is not whole, or tells no usage, costs a token for each piece at least.
    """
    results = call.results
    usage = results.exchange.result.usage if results.exchange is not None else results.usage
    spent = sum(count for kind, count in tokens_of(usage) if kind in ("prompt", "completion"))
    failed = code != 499 and (code >= 400 or results.fault is not None)
    whole = code != 499 and not failed
    if call.timing.sent and (results.pieces or not failed) and not (spent and whole):
        so_far = reservation.prompt + results.pieces
        if whole:
            spent = max(so_far, reservation.tokens)
        elif results.pieces or not spent:  # a usage may be that of its beginning
            spent = max(so_far, spent)
    requests = 1 if not spent and failed else 0
    call.state.counters.settle(
        reservation.client,
        reservation.quota,
        reservation.id,
        requests,
        reservation.tokens - spent,
    )


async def admit(call: Call, target: Target, wanted: Asked) -> Asked:
    """Return the request that `target` gets; raise `RequestError` 400 for what it does not take."""
    vendors = vendor_keys(wanted)
    size = None
    if names_tokens(wanted):
        size = await _size(call, target, wanted.model)
    try:
        apply = partial(
            apply_policy,
            wanted,
            policy=target.settings.vendor,
            caps=target.settings.caps,
            vocabulary=size,
        )
        found = await in_thread(call.is_large, apply)
    except RequestError as error:
        _count_refused(call, target, error)
        raise
    if vendors:
        count_vendors(call, target, vendors)
    if isinstance(wanted, ResponseChat) and wanted.left_out:
        stripped = vendors if vendors and target.settings.vendor == "strip" else ()
        _note_stripped(call, (*stripped, *wanted.left_out))
    return found


async def enter(call: Call, target: Target, wanted: Asked) -> None:
    """Wait for the engine of `target`, if it has one, with a request that was admitted.

    Raises RequestError: 503 while there is no engine to wait for, 400 for token ids that turn out
    not to be the model's, since a size that only the engine tells may be known just now.
    """
    if target.engine is None:
        return
    await enter_engine(call, target)
    if names_tokens(wanted):
        size = await _size(call, target, wanted.model)
        try:
            apply_caps(wanted, target.settings.caps, size)
        except RequestError as error:
            _count_refused(call, target, error)
            raise


async def enter_passing(call: Call, target: Target, model: str, fields: Mapping[str, Raw]) -> None:
    """Wait as `enter` does, with a request to another endpoint."""
    if target.engine is not None:
        await enter_engine(call, target)
        if passes_tokens(fields):
            await admit_passing(call, target, model, fields)


async def _size(call: Call, target: Target, model: str) -> int | None:
    """Return how many token ids a model has, for which the backend may be asked."""
    began = perf_counter()
    try:
        return await target.vocabulary_size(target.model_for(model) or model)
    finally:
        call.timing.end_wait(began)


def count_vendors(call: Call, target: Target, names: tuple[str, ...]) -> None:
    """Count vendors' keys by what becomes of them at `target`, a rejected request once.

    Those taken out are named in the answer's x-wellspoken-stripped header.
    """
    outcome = _OUTCOMES[target.settings.vendor]
    counter = call.state.metrics.vendor_parameters.labels(target.name, outcome)
    counter.inc(1 if outcome == "rejected" else len(names))
    if outcome == "stripped":
        _note_stripped(call, names)


def _count_refused(call: Call, target: Target, error: RequestError) -> None:
    outcome = "rejected" if error.code == UNKNOWN else "capped"
    call.state.metrics.vendor_parameters.labels(target.name, outcome).inc()


async def admit_passing(call: Call, target: Target, model: str, fields: Mapping[str, Raw]) -> None:
    """Raise RequestError 400 for what is over a cap in a request to another endpoint.

    `fields` are its top-level values. What is a vendor's key there is not known, so no policy
    holds for it, but the caps do.
    """
    size = None
    if passes_tokens(fields):
        size = await _size(call, target, model)
    try:
        refuse_variants(fields)
        await in_thread(call.is_large, refuse_over, fields, target.settings.caps, size)
    except RequestError as error:
        _count_refused(call, target, error)
        raise


def _note_stripped(call: Call, names: tuple[str, ...]) -> None:
    """Note the names of keys that were taken out, for a header line; odd names are `_other`."""
    shown = [name if _NAME.fullmatch(name) else "_other" for name in names[:LISTED]]
    shown += ["..."] if len(names) > LISTED else []
    line = f"x-wellspoken-stripped: {', '.join(dict.fromkeys(shown))}\r\n"
    call.results.stripped = line.encode("ascii")
