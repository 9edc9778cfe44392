"""Keeps one answer in the store, for a client that sent `store: true`."""

from __future__ import annotations

import asyncio

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ChatRequest
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.send import LARGE
from wellspoken.proxy.store.rows import Capture

NO_STORE = "no store is configured (store.path or store.url)"
UNTOUCHED = 'with "oai_compat": false answers pass as they are'


def begin(call: Call, wanted: ChatRequest, body: bytes) -> None:
    """Note on the call whether its answer, for which the client sent `store`, is to be kept.

    Raises RequestError: 400 where nothing can be kept and the configuration refuses that, 503
    while the store is full and the configuration refuses then.
    """
    store, config = call.state.store, call.state.config.store
    if store is None and config.missing == "refuse":
        raise RequestError(
            "This server keeps no completions. Leave out 'store', or configure store.path or "
            "store.url.",
            param="store",
            code="unsupported_parameter",
        )
    if store is None or wanted.oai_compat is False:
        _warn(call, NO_STORE if store is None else UNTOUCHED)
        return
    full = store.refuses
    if full:
        raise RequestError(
            f"The answer could not be stored: {full}. Try again shortly, or leave out 'store'.",
            status=503,
            type="server_error",
            param="store",
            code="store_full",
            headers={"Retry-After": "1"},
        )
    call.routing.kept = body


async def keep(call: Call, answer: bytes) -> None:
    """Give a complete answer, which is to be kept, to the store; warn if it was not stored.

    Returns once the store has it as surely as `store.durability` wants.
    """
    store, request = call.state.store, call.routing.kept
    assert store is not None and request is not None
    problem = await store.add(Capture(call.routing.owner, call.id, answer, request))
    if problem:
        _warn(call, problem)


def _warn(call: Call, why: str) -> None:
    call.results.warning = why


async def keep_stream(call: Call, translator: StreamTranslator, out: bytes) -> bytes:
    """Give the body of a stream to the store before the stream's end, `out`, leaves; return that.

    What was not kept is told in a comment, since the head with the warning has left.
    """
    folded = translator.kept
    if folded is None or folded.fault is not None:
        return out
    if translator.written < LARGE:
        answer = folded.body()
    else:
        answer = await asyncio.to_thread(folded.body)
    await keep(call, answer)
    if call.results.warning:
        return b": not stored: %b\n\n" % call.results.warning.encode() + out
    return out
