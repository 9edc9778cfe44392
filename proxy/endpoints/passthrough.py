"""Endpoints that pass through: of the backend's allow-list, byte for byte both ways.

/v1/responses is among them where the route says `responses = "pass"`, and for a request that says
`"oai_compat": false`; else the proxy answers it (responses/).

Only POST with a JSON body, and only paths that the adapter (`Backend.passes`) or the route
(`endpoints = [...]`) names; every other path stays a 404. Where the route names a path that counts
tokens (.../input_tokens), GET passes too, with its query. The body goes out as the client sent it,
but for the name of the model where the route has another one, and `caps.max_tokens` where the
client sets no limit; the route's caps hold. Of several servers a response is continued by the one
that gave it (balance/continued.py). A stream comes back as it comes. The query is not sent
on: no listed endpoint reads one, and Anthropic's SDK adds `?beta=true`. What is addressed by an id
(GET /v1/responses/{id}) does not pass: an id names no backend, and one key of the proxy's would
show every client the others' responses.

Errors get OpenAI's envelope, except those of Anthropic's endpoints, whose clients read another one;
there the backend's own 401 and 403 are ours still, since they tell of the proxy's key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from msgspec import Raw, structs

from wellspoken.adapters.backend_answer import error_of
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.embeddings import EMBEDDINGS
from wellspoken.adapters.requests.errors import RequestError, missing
from wellspoken.adapters.requests.renaming import asks_stream, decode_named, with_values
from wellspoken.adapters.servers import registry
from wellspoken.proxy.balance.continued import RESPONSES, IdReader
from wellspoken.proxy.balance.router import Router
from wellspoken.proxy.config.checks import counts_tokens
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.relay.admission import (
    admit_client,
    admit_passing,
    enter_passing,
    error_exchange,
)
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.headers import delays, explain_headers
from wellspoken.proxy.relay.send import (
    ANTHROPIC,
    KEY_REFUSED,
    in_thread,
    passing_request,
    send_request,
)
from wellspoken.proxy.relay.untouched import STREAMS, LookOn, pass_through
from wellspoken.proxy.relay.way import begin_way
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.target import Target, no_endpoint

_LIMIT: Final = {
    "/v1/responses": "max_output_tokens",
    "/responses": "max_output_tokens",
    ANTHROPIC: "max_tokens",
}
"""Paths that generate -> what they call the most tokens of an answer."""

_NAMED: Final = frozenset(path for one in registry.BACKENDS.values() for path in one.passes)
_VERSION: Final = re.compile(r"/v\d+/|/")


def is_reachable(router: Router, path: str) -> bool:
    """Say whether some backend may have a path; one that is not recognised yet may have any."""
    wanted = set(EMBEDDINGS) if path in EMBEDDINGS else {path}
    for target in router.targets:
        unsure = target.detector is not None and not target.detector.settled
        listed = _NAMED if unsure and target.settings.endpoints is None else target.passes
        if not wanted.isdisjoint(listed):
            return True
    return False


def is_read(router: Router, path: str) -> bool:
    """Say whether a path is one that counts tokens and that `endpoints` names: then GET passes."""
    named = (target.settings.endpoints or () for target in router.targets)
    return counts_tokens(path) and any(path in one for one in named)


def label(path: str) -> str:
    """Return an endpoint's name in metrics: that of its path, whichever version it has."""
    return re.sub(r"[^a-z0-9]", "_", _VERSION.sub("", path, count=1).lower())


def _only_counts(path: str) -> bool:
    """Say whether a path takes texts apart, or puts them together, and asks no model."""
    return counts_tokens(path) or path.endswith("tokenize")


def _default(path: str) -> int | None:
    """Return the tokens of an answer without a limit, 0 where a path is known to generate none."""
    return None if path in _LIMIT or path not in _NAMED else 0


async def pass_request(call: Call) -> Reply | EventStream:
    """Pass one request through. Raises RequestError, UpstreamError: then nothing was sent."""
    return await pass_body(call, await call.read_body())


async def pass_body(call: Call, body: bytes) -> Reply | EventStream:
    """Pass a request with this body through, as `pass_request` does."""
    state = call.state
    reads = call.request.method != "POST"
    model, fields = await _decode(call, body)
    if model is None and state.router.only is None:
        raise missing("model", "It says which of this proxy's backends is asked.")
    if call.routing.client is not None:
        given = (b"", fields, 0) if _only_counts(call.path) else (body, fields, _default(call.path))
        await admit_client(call, call.routing.client, model or "", *given)
    pool = state.router.find(model or "", call.routing.client)
    way = await begin_way(call, pool, model or "", fields, state.continued.find(fields))
    stream = asks_stream(fields)

    async def attempt(target: Target, name: str) -> UpstreamResponse:
        call.route(target, model or "", stream)
        await call.prepare(target)
        if call.path not in target.passes:
            raise no_endpoint(target, call.path)
        await admit_passing(call, target, name, fields)
        await enter_passing(call, target, name, fields)
        changes = _changes(target, call.path, model and name, fields)
        if name != (model or ""):
            changes.setdefault("model", name)
        make = partial(with_values, body, fields, changes) if changes else lambda: body
        request = passing_request(call, target, call.path, make, stream)
        if reads:
            query = call.request.rel_url.raw_query_string
            path = f"{call.path}?{query}" if query else call.path
            request = structs.replace(request, method="GET", path=path)
        return await send_request(call, target, request)

    answer = await way.send(attempt)
    if answer.status < 300:
        look_on = None if pool.sole else _remember(call, way.target)
        return await pass_through(call, answer, answer.content_type in STREAMS, look_on)
    return await _explain_failure(call, answer, error_exchange(call, way.target.name, model or ""))


async def _decode(call: Call, body: bytes) -> tuple[str | None, dict[str, Raw]]:
    """Return the model that is asked for, and the body's top-level values."""
    if call.request.method != "POST":
        return _named_in_query(call), {}
    return await in_thread(call.is_large, decode_named, body)


def _remember(call: Call, target: Target) -> LookOn | None:
    """Return what remembers who gave a response, None where the path gives none."""
    if call.path not in RESPONSES:
        return None
    return IdReader(partial(call.state.continued.note, server=target.name)).feed


def _named_in_query(call: Call) -> str | None:
    """Return the model that a query names; raise RequestError 400 where it comes again."""
    names = call.request.query.getall("model", ())
    if len(names) > 1:  # which of them counts is the server's choice
        raise RequestError(
            "'model' stands more than once in the query. Send it once.",
            param="model",
            code="invalid_value",
        )
    return names[0] if names else None


def _changes(
    target: Target, path: str, model: str | None, fields: Mapping[str, Raw]
) -> dict[str, Any]:
    """Return the values that the route changes: the model's name, and a limit that is missing."""
    changes: dict[str, Any] = {}
    other = target.model_for(model) if model is not None else None
    if other is not None and other != model:
        changes["model"] = other
    key, most = _LIMIT.get(path), target.settings.caps.max_tokens
    if key is not None and most is not None and bytes(fields.get(key, b"null")) == b"null":
        changes[key] = most
    return changes


async def _explain_failure(call: Call, answer: UpstreamResponse, exchange: Exchange) -> Reply:
    """Return an error: as sent where it is Anthropic's, else in OpenAI's envelope."""
    status = answer.status
    data = await call.read_whole(answer)
    if 400 <= status < 600 and status not in KEY_REFUSED and call.path.startswith(ANTHROPIC):
        kind = answer.content_type_header.encode("utf-8", "replace")
        lines = "".join(f"{name}: {value}\r\n" for name, value in delays(answer).items())
        return call.reply(status, call.routing.hide(data), lines.encode("ascii"), content_type=kind)
    fault = error_of(exchange, status, data)
    call.count_answer(exchange)
    return call.fail(fault, explain_headers(exchange, fault.retry, answer))
