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
    """List the models that the client may use, of those that are configured or listed."""
    found = await _list_models(call)
    return call.reply(200, _encode(ModelList(data=list(found.values()))))


async def model(call: Call) -> Reply:
    """Return one model. Raises RequestError 404 model_not_found."""
    name = unquote(call.path.partition("/models/")[2])
    found = (await _list_models(call)).get(name)
    if found is None:
        raise call.state.router.unknown(name, call.routing.client)
    return call.reply(200, _encode(found))


async def _list_models(call: Call) -> dict[str, Model]:
    """Return the models that the client may use.

    With context lengths, which are none of OpenAI's keys: an extension.
    """
    client = call.routing.client

    def tells(target: Target) -> bool:
        return extensions_of(call.request, target.settings.extensions) != "none"

    found = await list_models(call.state.router.targets, tells)
    if client is None:
        return found
    return {name: model for name, model in found.items() if client.may_use(name)}
