"""A guarded parse for what backends send and strict JSON refuses."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any

import msgspec


def parse(data: bytes) -> Any:
    """Return the JSON value in `data`, which may hold NaN, Infinity and lone surrogates.

    A pair of surrogate escapes becomes its character, a lone one U+FFFD. Raises ValueError if
    `data` is not JSON or nests too deeply. A byte order mark in front is left out.
    """
    data = data.removeprefix(BOM_UTF8)
    try:
        return msgspec.json.decode(data)
    except RecursionError:
        raise ValueError("the JSON nests too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return _clean(json.loads(data.decode("utf-8", "replace")))
    except RecursionError:
        raise ValueError("the JSON nests too deeply") from None


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return (
            value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            if _surrogate(value)
            else value
        )
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
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
