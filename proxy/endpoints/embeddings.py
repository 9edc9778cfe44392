"""POST /v1/embeddings: the client gets floats or base64 as it asked, whatever the backend sends."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from msgspec.structs import replace

from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests import embeddings as requests
from wellspoken.adapters.requests.embeddings import (
    EMBEDDING_KEYS,
    EMBEDDINGS,
    EmbeddingRequest,
    decode_embeddings,
    prepare_embeddings,
    refuses_base64,
)
from wellspoken.adapters.requests.shapes import OUR_KEYS
from wellspoken.adapters.translate_embeddings import translate_embeddings
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay.admission import (
    admit_client,
    admit_passing,
    count_vendors,
    enter_passing,
    make_exchange,
)
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.headers import explain_headers
from wellspoken.proxy.relay.send import LARGE, in_thread, passing_request, send_request
from wellspoken.proxy.relay.untouched import STREAMS, pass_through
from wellspoken.proxy.relay.way import begin_way
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.target import Target, no_endpoint


async def embeddings(call: Call) -> Reply | EventStream:
    """Answer one request for embeddings. Raises RequestError, UpstreamError."""
    state = call.state
    body = await call.read_body()
    large = len(body) >= LARGE
    decode = partial(decode_embeddings, bounds=state.router.bounds)
    wanted = await in_thread(large, decode, body)
    if call.routing.client is not None:
        await admit_client(call, call.routing.client, wanted.model, body, {}, default=0)
    pool = state.router.find(wanted.model, call.routing.client)
    way = await begin_way(call, pool, wanted.model, wanted.fields)
    # Of a large one the text is not held while the answer is waited for.
    question = _Question(call, wanted.drop_text() if large else wanted, len(body), large)
    del body, wanted
    answer = await way.send(question.ask)
    wanted, exchange = question.wanted, question.exchange
    if wanted.untouched and answer.status < 300:
        return await pass_through(call, answer, answer.content_type in STREAMS)
    data = await call.read_whole(answer)
    if wanted.base64 and refuses_base64(exchange.notes, answer.status, data):
        answer = await question.send(way.target, way.model, floats=True)
        data = await call.read_whole(answer)
    began = perf_counter()
    heavy = large or len(data) >= LARGE
    wanted = wanted.read_text()
    result = await in_thread(heavy, translate_embeddings, exchange, wanted, answer.status, data)
    call.timing.end_work(began)
    call.count_answer(exchange)
    made = call.routing.hide(result.body) if result.status >= 400 else result.body
    return call.reply(result.status, made, explain_headers(exchange, result.retry, answer))


@dataclass(slots=True, eq=False)
class _Question:
    """A request for embeddings, as whichever server is asked that has it.

    `exchange` is that of the answer, by the server that was asked last; `size`: the bytes of the
    client's body.
    """

    call: Call
    wanted: EmbeddingRequest
    size: int
    large: bool
    exchange: Exchange = field(init=False)

    async def ask(self, target: Target, model: str) -> UpstreamResponse:
        """Ask a server, under the model's name there. Raises RequestError, UpstreamError."""
        call, wanted = self.call, self.wanted
        if target.settings.bounds != call.state.router.bounds:
            strict = target.settings.bounds == "openai"
            await in_thread(self.large, lambda: requests.check(wanted.read_text(), strict))
        call.route(target, wanted.model)
        make = partial(Exchange, model=wanted.model, prompt_size=self.size)
        self.exchange = make_exchange(call, target, make)
        await call.prepare(target)
        if not wanted.model and target.names:
            self.exchange = replace(self.exchange, model=target.names[0])
        sent = wanted.fields
        if target.settings.vendor == "strip":
            sent = {key: value for key, value in sent.items() if key in EMBEDDING_KEYS}
        await admit_passing(call, target, model, sent)
        _path(call, target, wanted)  # before an engine is waited for
        await enter_passing(call, target, model, sent)
        vendors = tuple(key for key in wanted.fields if key not in EMBEDDING_KEYS | OUR_KEYS)
        if vendors:
            count_vendors(call, target, vendors)
        return await self.send(target, model)

    def send(
        self, target: Target, model: str, *, floats: bool = False
    ) -> Awaitable[UpstreamResponse]:
        """Send the question; `floats`: base64 was refused (`embedding_base64_refused`)."""
        other = target.model_for(model) or (model if model != self.wanted.model else None)
        vendor = target.settings.vendor
        make = partial(prepare_embeddings, self.wanted, model=other, vendor=vendor, floats=floats)
        path = _path(self.call, target, self.wanted)
        request = passing_request(self.call, target, path, make)
        return send_request(self.call, target, request)


def _path(call: Call, target: Target, wanted: EmbeddingRequest) -> str:
    """Return where the backend is asked; raise RequestError 404 if it has no embeddings."""
    # A server's two paths may answer in different forms, of which only one is repaired.
    paths = (call.path, *EMBEDDINGS) if wanted.oai_compat is False else EMBEDDINGS
    path = next((path for path in paths if path in target.passes), None)
    if path is None:
        raise no_endpoint(target, call.path)
    return path
