"""The items that a kept response answers, as OpenAI's API lists them."""

from __future__ import annotations

from msgspec import Raw, Struct, json

from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.stored import Page
from wellspoken.proxy.store.kept_responses import KeptResponse


class _Named(Struct):
    id: str = ""


_items_of = json.Decoder(list[Raw]).decode
_id_of = json.Decoder(_Named).decode
_encode = json.Encoder().encode


def list_items(kept: KeptResponse, page: Page) -> bytes:
    """Return a page of the items that a response answers, those of earlier turns first, as JSON.

    Raises RequestError 400 where no item has the id that the page begins after.
    """
    items = (*_items_of(kept.history), *_items_of(kept.input))
    ids = [_id_of(item).id for item in items]
    places = list(range(len(items)))
    if page.descending:
        places.reverse()
    if page.after is not None:
        if page.after not in ids:
            raise RequestError(
                f"Invalid 'after': no item of this response's input has the id "
                f"'{short(page.after)}'. Send the last id of a page.",
                param="after",
                code="invalid_value",
            )
        places = places[places.index(ids.index(page.after)) + 1 :]
    shown = places[: page.limit]
    return _encode(
        {
            "object": "list",
            "data": [items[place] for place in shown],
            "first_id": ids[shown[0]] if shown else None,
            "last_id": ids[shown[-1]] if shown else None,
            "has_more": len(places) > len(shown),
        }
    )
