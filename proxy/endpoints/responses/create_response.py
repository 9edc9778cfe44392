"""POST /v1/responses: made a chat request, which any backend answers, and kept to be continued.

A backend with `responses = "pass"` is asked at its own endpoint instead, as is any for a request
with `"oai_compat": false`: then nothing is translated, and nothing is kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Unpack

from msgspec import Raw, Struct, json

from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import Exchange, ResponseFacts, Surroundings
from wellspoken.adapters.requests import chat_bounds
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.renaming import decode_named
from wellspoken.adapters.requests.responses.as_chat import (
    ResponseChat,
    exchange_for_response,
    find_response_variable,
    make_chat,
)
from wellspoken.adapters.requests.responses.renamed import rename_error
from wellspoken.adapters.requests.responses.response_bounds import check_response
from wellspoken.adapters.requests.responses.response_request import (
    ResponseRequest,
    parse_response,
)
from wellspoken.adapters.requests.shapes import ChatRequest, Variable
from wellspoken.adapters.writers.response_stream import fail_stream
from wellspoken.proxy.endpoints.chat import CHAT
from wellspoken.proxy.endpoints.passthrough import pass_body
from wellspoken.proxy.endpoints.responses.finding import find_previous, find_referred
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.limits.budget import BODY
from wellspoken.proxy.relay.call import LARGE, Call, in_thread
from wellspoken.proxy.relay.generate import Answering, prepare
from wellspoken.proxy.relay.storing import begin_response
from wellspoken.proxy.store.kept_responses import KeptResponse, context_of, history_of


async def create_response(call: Call) -> Reply | EventStream:
    """Answer a request for a response. Raises what `generate` does, in the client's names."""
    try:
        answer = await _prepare(call, await call.read_body())
        return await answer()
    except RequestError as error:
        form = call.routing.form
        raise error if form is None else form.rename(error) from None


async def _prepare(call: Call, body: bytes) -> Answering:
    router = call.state.router
    if b'"oai_compat"' in body or router.passes_responses:
        model, fields = await in_thread(len(body) >= LARGE, decode_named, body)
        if bytes(fields.get("oai_compat", b"")) == b"false":
            del fields["oai_compat"]  # which is ours, and never reaches a backend
            return partial(pass_body, call, json.encode(fields))
        pool = router.look_up(model or "")
        if pool is not None and pool.servers[0].settings.responses == "pass":
            return partial(pass_body, call, body)
    return await prepare(call, RESPONSES, body)


@dataclass(frozen=True, slots=True, eq=False)
class ResponseForm:
    """How an answer that is a response tells of failures."""

    facts: ResponseFacts
    model: str

    def rename(self, error: RequestError) -> RequestError:
        """Return an error of the chat request in the names of the client's request."""
        return rename_error(error, self.facts)

    def tell_failure(self, fault: Fault) -> bytes:
        """Return the stream of a response of which nothing came before it failed."""
        return fail_stream(self.facts, self.model, self.facts.clock(), fault)


async def _read(call: Call, body: bytes) -> ChatRequest:
    """Return the chat request that a body asks for, with the turns that it goes on from."""
    if len(body) >= LARGE:  # its items are there as such, and as messages
        await call.wait_for_room(BODY * len(body))
    request = await in_thread(len(body) >= LARGE, parse_response, body)
    history, found = await _recall(call, request)
    keeps = request.store is not False and not call.state.responses.why_not_kept
    make = partial(make_chat, request, history, found, stored=keeps)
    id = call.state.new_id()
    wanted = await in_thread(call.is_large, partial(make, suffix=id, clock=_now))
    if call.state.router.bounds == "openai" and wanted.refusal is not None:
        raise wanted.refusal  # also of one whose like was planned before
    call.routing.answer_in(ResponseForm(wanted.facts, wanted.model))
    if request.store is not False:
        keep = partial(_keep, call, wanted.facts.id, wanted.own, history)
        begin_response(call, keep, sent=request.store is True)
    return wanted


def _now() -> int:
    return int(time.time())


async def _recall(call: Call, request: ResponseRequest) -> tuple[Sequence[Raw], Mapping[str, Raw]]:
    """Return the items of the turns before this one, and those that are referred to by id."""
    history: Sequence[Raw] = ()
    if request.previous_response_id is not None or request.references:
        # What is read may be large, so nothing is for what will be refused without it.
        router, client = call.state.router, call.routing.client
        check_response(request, router.bounds == "openai")
        router.find(request.model, client)
        if client is not None and not client.may_use(request.model):
            raise router.unknown(request.model, client)
    if request.previous_response_id is not None:
        kept = await find_previous(call, request.previous_response_id)
        history = await in_thread(call.is_large, context_of, kept)
    return history, await find_referred(call, request.references)


async def _keep(call: Call, id: str, own: bytes, history: Sequence[Raw], answer: bytes) -> str:
    """Keep a whole response; return why it is not kept, or ""."""

    def make() -> KeptResponse:
        told = _decode_told(answer)
        return KeptResponse(
            id=id,
            owner=call.routing.owner,
            request_id=call.id,
            created=told.created_at,
            model=told.model,
            answer=answer,
            input=own,
            history=history_of(history),
        )

    large = call.is_large or len(answer) >= LARGE
    return await call.state.responses.add(await in_thread(large, make))


class _Told(Struct):
    created_at: int
    model: str


_decode_told = json.Decoder(_Told).decode


def _check(wanted: ChatRequest, strict: bool) -> None:
    assert isinstance(wanted, ResponseChat)
    if strict and wanted.refusal is not None:
        raise wanted.refusal
    chat_bounds.check(wanted, strict)


def _find_variable(wanted: ChatRequest) -> Variable | None:
    assert isinstance(wanted, ResponseChat)
    return find_response_variable(wanted)


def _exchange_for(wanted: ChatRequest, **given: Unpack[Surroundings]) -> Exchange:
    assert isinstance(wanted, ResponseChat)
    return exchange_for_response(wanted, **given)


RESPONSES: Final = replace(
    CHAT, read=_read, check=_check, find_variable=_find_variable, exchange_for=_exchange_for
)
