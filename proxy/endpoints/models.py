"""GET /v1/models, and one of them."""

from __future__ import annotations

from urllib.parse import unquote

import msgspec

from wellspoken.adapters.requests.shapes import ModelList
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.listing import list_models

_encode = msgspec.json.Encoder().encode


async def models(call: Call) -> Reply:
    """List the models: what the configuration names, and what a sole backend says it has."""
    found = await list_models(call.state.router)
    return call.reply(200, _encode(ModelList(data=list(found.values()))))


async def model(call: Call) -> Reply:
    """Return one model. Raises RequestError 404 model_not_found."""
    name = unquote(call.path.partition("/models/")[2])
    found = (await list_models(call.state.router)).get(name)
    if found is None:
        raise call.state.router.unknown(name)
    return call.reply(200, _encode(found))
