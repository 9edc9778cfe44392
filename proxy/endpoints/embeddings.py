"""POST /v1/embeddings: the client gets floats or base64 as it asked, whatever the backend sends."""

from __future__ import annotations

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
from wellspoken.proxy.relay.send import (
    LARGE,
    STREAMS,
    in_thread,
    pass_through,
    passing_request,
    send_request,
)
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
    target = state.router.find(wanted.model, call.routing.client)
    if target.settings.bounds != state.router.bounds:
        await in_thread(large, requests.check, wanted, target.settings.bounds == "openai")
    call.route(target, wanted.model)
    make = partial(Exchange, model=wanted.model, prompt_size=len(body))
    del body
    exchange = make_exchange(call, target, make)
    await call.prepare(target)
    if not wanted.model and target.names:
        exchange = replace(exchange, model=target.names[0])
    sent = wanted.fields
    if target.settings.vendor == "strip":
        sent = {key: value for key, value in sent.items() if key in EMBEDDING_KEYS}
    await admit_passing(call, target, wanted.model, sent)
    path = _path(call, target, wanted)
    await enter_passing(call, target, wanted.model, sent)
    if large:  # not held while the answer is waited for
        wanted = wanted.drop_text()
    answer, data = await _ask_backend(call, target, wanted, exchange, path)
    if data is None:
        return await pass_through(call, answer, answer.content_type in STREAMS)
    began = perf_counter()
    heavy = large or len(data) >= LARGE
    wanted = wanted.read_text()
    result = await in_thread(heavy, translate_embeddings, exchange, wanted, answer.status, data)
    call.timing.end_work(began)
    call.count_answer(exchange)
    made = call.routing.hide(result.body) if result.status >= 400 else result.body
    return call.reply(result.status, made, explain_headers(exchange, result.retry, answer))


def _path(call: Call, target: Target, wanted: EmbeddingRequest) -> str:
    """Return where the backend is asked; raise RequestError 404 if it has no embeddings."""
    # A server's two paths may answer in different forms, of which only one is repaired.
    paths = (call.path, *EMBEDDINGS) if wanted.oai_compat is False else EMBEDDINGS
    path = next((path for path in paths if path in target.passes), None)
    if path is None:
        raise no_endpoint(target, call.path)
    return path


async def _ask_backend(
    call: Call, target: Target, wanted: EmbeddingRequest, exchange: Exchange, path: str
) -> tuple[UpstreamResponse, bytes | None]:
    """Return the backend's answer with its body, None where it leaves as it comes.

    A backend that refuses base64 is asked for floats (`embedding_base64_refused`).
    """
    model = target.model_for(wanted.model)
    vendors = tuple(key for key in wanted.fields if key not in EMBEDDING_KEYS | OUR_KEYS)
    if vendors:
        count_vendors(call, target, vendors)
    vendor = target.settings.vendor
    make = partial(prepare_embeddings, wanted, model=model, vendor=vendor)
    answer = await send_request(call, target, passing_request(call, target, path, make))
    if wanted.untouched and answer.status < 300:
        return answer, None
    data = await call.read_whole(answer)
    if wanted.base64 and refuses_base64(exchange.notes, answer.status, data):
        make = partial(make, floats=True)
        answer = await send_request(call, target, passing_request(call, target, path, make))
        data = await call.read_whole(answer)
    return answer, data
