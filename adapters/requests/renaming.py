"""Requests that pass through: what has to be known of one, and the few values that change in it.

Such a request stays as the client wrote it, byte for byte, but for the text of its `model` where
the route has another name for it, and the limit where the route has one. So a value's place in the
bytes is found, and nothing else is decoded and written again.

A key that stands twice is refused: servers differ in which of the two counts, so what the proxy
checked need not be what the server reads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct, json

from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.parsing import parse

_KEY: Final = re.compile(rb'\s*[{,]\s*("[^"\\]*+(?:\\.[^"\\]*+)*+")\s*:\s*')
_END: Final = re.compile(rb"\s*(?:\{\s*)?\}\s*")
_EXAMPLE: Final = '{"model": ..., ...}'


class Named(Struct):
    """What routing reads of a request: the model's name, None where absent or null."""

    model: str | None = None


_decode = json.Decoder(Named).decode
_text_of = json.Decoder(str).decode


def decode_named(body: bytes) -> tuple[str | None, dict[str, Raw]]:
    """Return the model that a body names, None if it names none, and its top-level values.

    Raises `RequestError` 400 for what is no JSON object, whose model is no string, or in which a
    key stands twice.
    """
    request, fields = parse(body, _decode, _EXAMPLE)
    _walk(body, fields)
    return request.model, fields


def asks_stream(fields: dict[str, Raw]) -> bool:
    """Say whether a request asks for a stream."""
    return bytes(fields.get("stream", b"")) == b"true"


def with_values(body: bytes, fields: Mapping[str, Raw], changes: Mapping[str, Any]) -> bytes:
    """Return a JSON object's bytes with other values of some top-level keys; new ones come last.

    Every other byte stays. `fields` are what `decode_named` made of `body`.
    """
    parts: list[bytes] = []
    done = 0
    places = _walk(body, fields)
    for key, (start, end) in places.items():
        if key in changes:
            parts += (body[done:start], json.encode(changes[key]))
            done = end
    added = [b"%b:%b" % tuple(map(json.encode, x)) for x in changes.items() if x[0] not in places]
    if added:
        last = body.rindex(b"}")
        parts += (body[done:last], b"," if fields else b"", b",".join(added))
        done = last
    return b"".join((*parts, body[done:]))


def _walk(body: bytes, fields: Mapping[str, Raw]) -> dict[str, tuple[int, int]]:
    """Return where each value begins and ends; raise `RequestError` 400 for a key that comes again.

    The decoder keeps one of the two, so there the bytes and `fields` part.
    """
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for key, value in fields.items():
        found = _KEY.match(body, at)
        if found is None or _text_of(found[1]) != key or not body.startswith(value, found.end()):
            raise _twice(body, at, key)
        at = found.end() + len(memoryview(value))
        places[key] = (found.end(), at)
    if _END.fullmatch(body, at) is None:
        raise _twice(body, at, next(reversed(places), ""))
    return places


def _twice(body: bytes, at: int, last: str) -> RequestError:
    """Return the error for the key at that place, `last` where a number's digits are there."""
    found = _KEY.match(body, at)
    name = short(last if found is None else _text_of(found[1]))
    return RequestError(
        f"The key '{name}' stands twice in the request's body. Send it once.",
        param=name,
        code="invalid_json",
    )
