"""Kept responses and their items, found by their ids for the client whose key kept them.

Another's id is answered as one that never was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Raw

from wellspoken.adapters.exchange import response_of_item
from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.proxy.limits.budget import BODY
from wellspoken.proxy.relay.call import Call, in_thread
from wellspoken.proxy.relay.storing import no_responses, store_failure
from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.store.kept_responses import KeptResponse, find_items

LONGEST: Final = 512
"""Characters of an id that is looked for."""


async def find_response(call: Call, id: str) -> KeptResponse:
    """Return a kept response. Raises RequestError: 404 as OpenAI does, 503 if the store fails."""
    kept = await _get(call, id, "response_id")
    if kept is None:
        raise not_found(id)
    return kept


async def find_previous(call: Call, id: str) -> KeptResponse:
    """Return the response that a request goes on from; raise RequestError 400 as OpenAI does."""
    kept = await _get(call, id, "previous_response_id")
    if kept is None:
        raise RequestError(
            f"Previous response with id '{short(id)}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return kept


async def find_referred(call: Call, ids: Sequence[str]) -> dict[str, Raw]:
    """Return the items that a request refers to; raise RequestError 404 as OpenAI does.

    A response is read once, however many of its items are referred to.
    """
    by_response: dict[str, set[str]] = {}
    for id in ids:
        place = response_of_item(id)
        if place is None:
            raise _no_item(id)
        by_response.setdefault(place[0], set()).add(id)
    found: dict[str, Raw] = {}
    for response, wanted in by_response.items():
        kept = await _get(call, response, "input")
        if kept is not None:
            found |= await in_thread(call.is_large, find_items, kept, wanted)
    missing = next((id for id in ids if id not in found), None)
    if missing is not None:
        raise _no_item(missing)
    return found


def _no_item(id: str) -> RequestError:
    return RequestError(
        f"Item with id '{short(id)}' not found. Items are kept with their response, unless that "
        "was created with 'store': false. Send the item itself.",
        status=404,
        param="input",
    )


async def delete_response(call: Call, id: str) -> None:
    """Delete a kept response. Raises RequestError as `find_response` does."""
    store = call.state.responses
    if store.why_not_kept:
        raise no_responses(store, "response_id")
    try:
        deleted = len(id) <= LONGEST and await store.delete(call.routing.owner, id)
    except StoreError as error:
        raise store_failure(call, error) from error
    if not deleted:
        raise not_found(id)


def not_found(id: str) -> RequestError:
    """Return the error for an id that no response has, or none of this client's."""
    return RequestError(f"Response with id '{short(id)}' not found.", status=404)


async def _get(call: Call, id: str, param: str) -> KeptResponse | None:
    store = call.state.responses
    if store.why_not_kept:
        raise no_responses(store, param)
    if len(id) > LONGEST:
        return None
    try:
        # How large it is, only the reading tells: a few at a time, each counted before the next.
        async with call.state.recalling:
            kept = await store.get(call.routing.owner, id)
            if kept is not None:
                await call.wait_for_room(BODY * kept.size)
            return kept
    except StoreError as error:
        raise store_failure(call, error) from error
