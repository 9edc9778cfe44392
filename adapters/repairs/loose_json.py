"""A guarded parse for what backends send and strict JSON refuses."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any

import msgspec

from wellspoken.adapters.nesting import is_too_deep


class TooDeep(ValueError):
    """JSON nests too deeply to be worked with."""


def parse(data: bytes) -> Any:
    """Return the JSON value in `data`, which may hold NaN, Infinity and lone surrogates.

    A pair of surrogate escapes becomes its character, a lone one U+FFFD. Raises ValueError if
    `data` is not JSON, `TooDeep` if it nests too deeply. A byte order mark in front is left out.
    """
    data = data.removeprefix(BOM_UTF8)
    if is_too_deep(data):
        raise TooDeep("the JSON nests too deeply")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return _clean(json.loads(data.decode("utf-8", "replace")))


def _clean(value: Any) -> Any:
    """Return the value without surrogates; one call a level, a comprehension might be a second."""
    if isinstance(value, str):
        return (
            value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if _surrogate(value)
            else value
        )
    if isinstance(value, list):
        for at, item in enumerate(value):
            value[at] = _clean(item)
    elif isinstance(value, dict):
        items = list(value.items())
        value.clear()
        for key, item in items:
            value[_clean(key)] = _clean(item)
    return value


def _surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def raw(value: Any) -> msgspec.Raw:
    """Return `value` as JSON; NaN and the infinities, which JSON lacks, become null."""
    return msgspec.Raw(msgspec.json.encode(value))
