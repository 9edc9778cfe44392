"""Kept responses: retrieve one, also as a stream, list what it answers, and delete it.

Everybody sees what their own key kept and nothing else. Only a whole response is kept, so none is
ever in progress: there is nothing to wait for and nothing to cancel.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import unquote

from msgspec import json

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.response_queries import (
    decode_items,
    decode_retrieval,
)
from wellspoken.adapters.writers.response_replay import replay_response
from wellspoken.proxy.endpoints.responses.finding import delete_response, find_response
from wellspoken.proxy.endpoints.responses.response_views import list_items
from wellspoken.proxy.http.requests import query_of
from wellspoken.proxy.http.responses import EventStream, Reply
from wellspoken.proxy.limits.budget import ANSWER
from wellspoken.proxy.relay.call import LARGE, Call, Handler, Route, in_thread

ROOTS: Final = ("/v1/responses", "/responses")
_DELETED: Final = b'{"id":%b,"object":"response","deleted":true}'


def routes(path: str) -> tuple[Route, ...]:
    """Return what a path below that of the responses answers."""
    for root in ROOTS:
        if path.startswith(f"{root}/"):
            name, slash, below = path[len(root) + 1 :].partition("/")
            if name and not slash:
                return _NAMED.get(name, _ONE)
            return _BELOW.get(below, ()) if name else ()
    return ()


async def retrieve(call: Call) -> Reply | EventStream:
    """Return one response, with `stream=true` as the events that it was. Raises RequestError."""
    wanted = decode_retrieval(query_of(call.request))
    kept = await find_response(call, _id(call))
    large = kept.size >= LARGE
    if not wanted.stream:
        return call.reply(200, kept.answer)
    stream = call.stream()
    try:
        replay = partial(replay_response, kept.answer, wanted.starting_after)
        await stream.end(await in_thread(large, replay))
    except BaseException:
        stream.abort()
        raise
    return stream


async def delete(call: Call) -> Reply:
    """Delete one response. Raises RequestError."""
    id = _id(call)
    await delete_response(call, id)
    return call.reply(200, _DELETED % json.encode(id))


async def input_items(call: Call) -> Reply:
    """List the items that a response answers, those of the turns before it, too."""
    wanted = decode_items(query_of(call.request))
    kept = await find_response(call, _id(call))
    await call.wait_for_room(ANSWER * kept.size)  # a page may hold all of it
    return call.reply(200, await in_thread(kept.size >= LARGE, list_items, kept, wanted))


async def cancel(call: Call) -> Reply:
    """Refuse to cancel a response, since each is over. Raises RequestError."""
    await find_response(call, _id(call))
    raise RequestError(
        "Cannot cancel a synchronous response. End the request for it by closing its connection.",
        param="response_id",
    )


async def compact(call: Call) -> Reply:
    """Refuse to compact a conversation. Raises RequestError 404."""
    raise RequestError(
        "This proxy compacts no conversations. Send those items of the conversation that are to "
        "be kept as the 'input' of POST /v1/responses, or ask the model there to sum it up.",
        status=404,
        code="unknown_url",
    )


def _id(call: Call) -> str:
    return unquote(call.path.partition("/responses/")[2].partition("/")[0])


def _route(method: str, label: str, handler: Handler) -> Route:
    return Route(method, label, handler, asks=True)


_ONE: Final = (_route("GET", "response", retrieve), _route("DELETE", "response", delete))
_NAMED: Final[dict[str, tuple[Route, ...]]] = {
    "compact": (_route("POST", "response_compact", compact),),
    "input_tokens": (),
}
"""What stands where an id does, and is none."""
_BELOW: Final = {
    "input_items": (_route("GET", "response_items", input_items),),
    "cancel": (_route("POST", "response_cancel", cancel),),
}
