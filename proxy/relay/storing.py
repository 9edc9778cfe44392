"""Keeps one answer in the store, for a client that sent `store: true`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.shapes import ChatRequest
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.records import Keep
from wellspoken.proxy.relay.send import LARGE
from wellspoken.proxy.store.database import StoreError, Unreadable, Unusable
from wellspoken.proxy.store.rows import Capture

if TYPE_CHECKING:
    from wellspoken.proxy.store.completions import CompletionStore
    from wellspoken.proxy.store.kept_responses import ResponseStore

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
    _refuse_while(store.refuses, "leave out 'store'")
    call.routing.keep_answer(partial(_store, store, call.routing.owner, call.id, body))


def begin_response(call: Call, keep: Keep, *, sent: bool) -> None:
    """Have a response kept where that is possible; `sent`: the client sent `"store": true`.

    Raises RequestError as `begin` does.
    """
    store = call.state.responses
    if store.why_not_kept:
        if sent and call.state.config.store.missing == "refuse":
            raise no_responses(store, "store")
        _warn(call, store.why_not_kept)
        return
    _refuse_while(store.refuses, "send 'store': false")
    call.routing.keep_answer(keep)


def no_responses(store: ResponseStore, param: str) -> RequestError:
    """Return the error for what needs a kept response, where none is kept."""
    return RequestError(
        f"This server keeps no responses: {store.why_not_kept}. Send the whole conversation as "
        "'input', or have a store configured.",
        param=param,
        code="unsupported_parameter",
    )


def _refuse_while(full: str, instead: str) -> None:
    if full:
        raise RequestError(
            f"The answer could not be stored: {full}. Try again shortly, or {instead}.",
            status=503,
            type="server_error",
            param="store",
            code="store_full",
            headers={"Retry-After": "1"},
        )


def store_failure(call: Call, error: StoreError) -> RequestError:
    """Return what a client is told of a store that cannot be used now."""
    again = {"x-should-retry": "false"} if isinstance(error, Unusable) else {}
    why = str(error)
    if not isinstance(error, Unreadable):  # paths and hosts are nothing for a client
        call.state.log.warning("%s: the store cannot be used: %s", call.id, error)
        why = "the server's log says why"
    return RequestError(
        f"The store of completions cannot be used now: {why}.",
        status=503,
        type="server_error",
        code="store_unavailable",
        headers=again,
    )


async def keep(call: Call, answer: bytes) -> None:
    """Give a complete answer, which is to be kept, to the store; warn if it was not stored.

    Returns once the store has it as surely as `store.durability` wants.
    """
    assert call.routing.keep is not None
    problem = await call.routing.keep(answer)
    if problem:
        _warn(call, problem)


async def _store(
    store: CompletionStore, owner: str, request_id: str, request: bytes, answer: bytes
) -> str:
    return await store.add(Capture(owner, request_id, answer, request))


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
