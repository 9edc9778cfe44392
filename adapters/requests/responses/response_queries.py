"""What GET asks of a kept response: its events again, or a page of the items that it answers.

OpenAI's reference names the parameters (GET /responses/{id}: include, include_obfuscation,
starting_after, stream; .../input_items: after, include, limit, order, which is "desc" by default).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.stored import Page, decode_page

_INCLUDE: Final = frozenset({"include", "include[]"})
"""Accepted: all that there is of an item is in it."""
_FLAGS: Final = {"true": True, "false": False}
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

Pairs = Iterable[tuple[str, str]]


class Retrieval(Struct, frozen=True):
    """How a response is wanted; `starting_after`: the last event that the client has of it."""

    stream: bool = False
    starting_after: int | None = None


def decode_retrieval(query: Pairs) -> Retrieval:
    """Return how GET /v1/responses/{id} wants the response; raise `RequestError` 400."""
    stream, after = False, None
    for name, value in query:
        if name in ("stream", "include_obfuscation"):
            if value.lower() not in _FLAGS:
                raise errors.wrong_type(name, "a boolean", "a string")
            stream = _FLAGS[value.lower()] if name == "stream" else stream
        elif name == "starting_after":
            if not _NUMBER.fullmatch(value):
                raise errors.wrong_type(name, "an integer", "a string")
            after = int(value)
        elif name not in _INCLUDE and name != "api-version":
            known = "include, include_obfuscation, starting_after, stream"
            raise errors.unknown(name, f"Known here: {known}.")
    if after is not None and not stream:
        raise errors.not_allowed("starting_after", "'stream' is true")
    return Retrieval(stream, after)


def decode_items(query: Pairs) -> Page:
    """Return the page that GET .../input_items asks for; raise `RequestError` 400."""
    pairs = [pair for pair in query if pair[0] not in _INCLUDE]
    return decode_page(pairs, ("after", "limit", "order"), order="desc")
