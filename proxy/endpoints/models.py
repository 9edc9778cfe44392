"""GET /v1/models, and one of them."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from wellspoken.adapters.requests.shapes import Model, ModelList
from wellspoken.proxy.http.requests import extensions_of
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.listing import list_models
from wellspoken.proxy.upstream.target import Target

_encode = msgspec.json.Encoder().encode


async def models(call: Call) -> Reply:
    """List the models: what the configuration names, and what a sole backend says it has."""
    found = await _list_models(call)
    return call.reply(200, _encode(ModelList(data=list(found.values()))))


async def model(call: Call) -> Reply:
    """Return one model. Raises RequestError 404 model_not_found."""
    name = unquote(call.path.partition("/models/")[2])
    found = (await _list_models(call)).get(name)
    if found is None:
        raise call.state.router.unknown(name)
    return call.reply(200, _encode(found))


async def _list_models(call: Call) -> dict[str, Model]:
    """Return the models with context lengths, which are none of OpenAI's keys: an extension."""

    def tells(target: Target) -> bool:
        return extensions_of(call.request, target.settings.extensions) != "none"

    return await list_models(call.state.router, tells)
