"""Requests for stored completions: a page's query, and the new metadata of one.

OpenAI's reference names the parameters (GET /chat/completions: model, metadata, after, limit,
order); the official clients write a filter as metadata[key]=value, its brackets percent-encoded.
A parameter that is not known is refused, unlike elsewhere: a mistyped filter would give every
completion, and such a page may be read in order to delete what it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, json

from wellspoken.adapters.requests import chat_bounds as openai_bounds
from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.parsing import parse
from wellspoken.adapters.requests.shapes import Bounds

ORDERS: Final = ("asc", "desc")
MOST: Final = 100
DEFAULT: Final = 20
"""The most items of one page, and how many where the client does not say; OpenAI's."""

IGNORED: Final = frozenset({"api-version"})
"""What Azure's clients add to every request."""

_COMPLETIONS: Final = ("after", "limit", "metadata", "model", "order")
_MESSAGES: Final = ("after", "limit", "order")
_FILTER: Final = re.compile(r"metadata\[(.*)\]", re.DOTALL)
_WHOLE: Final = re.compile(r"-?[0-9]+")
_DIGITS: Final = 9  # of a limit that is worth reading


Pairs = Iterable[tuple[str, str]]


class Page(Struct, frozen=True):
    """What page is wanted; `after` is the id of the last item of the page before it."""

    after: str | None
    limit: int
    descending: bool
    model: str | None
    metadata: dict[str, str]


class _Update(Struct):
    metadata: dict[str, Any] | UnsetType | None = UNSET


_decode_update = json.Decoder(_Update).decode


def decode_completions(query: Pairs, *, bounds: Bounds = "openai") -> Page:
    """Return the page that GET /v1/chat/completions asks for; raise `RequestError` 400.

    `query`: its names and values in the client's order, percent-decoded.
    """
    return decode_page(query, _COMPLETIONS, bounds)


def decode_messages(query: Pairs) -> Page:
    """Return the page that GET /v1/chat/completions/{id}/messages asks for, likewise."""
    return decode_page(query, _MESSAGES)


def decode_update(body: bytes, *, bounds: Bounds = "openai") -> dict[str, str]:
    """Return the metadata that replaces a completion's; null is none. Raises `RequestError` 400."""
    update, fields = parse(body, _decode_update, '{"metadata": {...}}')
    if update.metadata is UNSET:
        raise errors.missing("metadata", "It is an object of texts, and replaces what there was.")
    for key in fields:
        if key != "metadata":
            raise _unknown(key, ("metadata",), "Only the metadata can be changed.")
    openai_bounds.metadata(update.metadata, strict=bounds == "openai")
    return update.metadata or {}


def decode_page(
    query: Pairs, known: tuple[str, ...], bounds: Bounds = "openai", order: str = "asc"
) -> Page:
    """Return the page that a query asks for whose parameters are `known`; raise `RequestError` 400.

    `order`: that of a query that says none.
    """
    plain: dict[str, str] = {}
    filters: dict[str, str] = {}
    for name, value in query:
        found = _FILTER.fullmatch(name) if "metadata" in known else None
        into, key = (plain, name) if found is None else (filters, found[1])
        if found is None and name in IGNORED:
            continue
        if found is None and (name not in known or name == "metadata"):
            raise _not_there(name, known)
        if key in into:
            raise RequestError(
                f"Duplicate parameter: '{short(name)}'. Send it once.",
                param=short(name),
                code="duplicate_parameter",
            )
        into[key] = value
    # How many lists a database walks together is its affair, not a backend's.
    many = len(filters) > openai_bounds.MAX_PAIRS
    openai_bounds.metadata(filters, strict=many or bounds == "openai")
    order = plain.get("order", order)
    if order not in ORDERS:
        raise errors.wrong_value("order", order, ORDERS)
    after, model = plain.get("after"), plain.get("model")
    return Page(after or None, _limit(plain.get("limit")), order == "desc", model, filters)


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT
    if not _WHOLE.fullmatch(text):
        raise errors.wrong_type("limit", "an integer", "a string")
    value = int(text) if len(text) <= _DIGITS else 10**_DIGITS * (-1 if text[0] == "-" else 1)
    if not 1 <= value <= MOST:
        raise errors.out_of_range("limit", "integer", text, 1, MOST)
    return value


def _not_there(name: str, known: tuple[str, ...]) -> RequestError:
    """Return the error for a name that is no parameter of this query."""
    if "metadata" in known and (name == "metadata" or name.startswith(("metadata[", "metadata."))):
        return errors.invalid(
            "metadata",
            "Invalid 'metadata': a filter names its key, as in metadata[topic]=weather.",
        )
    return _unknown(name, known, f"Known here: {', '.join(known)}.")


def _unknown(name: str, known: tuple[str, ...], also: str) -> RequestError:
    near = get_close_matches(name, known, 1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return errors.unknown(name, hint + also)
