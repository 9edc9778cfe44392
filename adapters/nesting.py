"""How deep JSON may nest here: a bound of our own, the same on each Python.

How deep a parser reads is the interpreter's affair: 997 levels on CPython 3.11, 1,500 on 3.12.1,
10,000 on 3.13, on 3.14 as many as the stack bears. What one step can read, the next may not be able
to write, so depth is counted once, where JSON comes in, and what recurses later knows its limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from msgspec import DecodeError, Raw, json

DEEPEST: Final = 500
"""Lists and objects within each other. A function that calls itself once a level has room for so
many in the 1,000 calls that Python allows, whatever called it."""

_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_OTHERS: Final = bytes(sorted(set(range(256)) - _STEPS.keys() - {ord('"')}))
_values_of = json.Decoder(dict[str, Raw]).decode
_items_of = json.Decoder(list[Raw]).decode


def is_too_deep(data: bytes, fields: Mapping[str, Raw] | None = None) -> bool:
    """Say whether JSON nests deeper than `DEEPEST`; what is no JSON may be either.

    What opens little, as nearly all does, is not looked at any closer. `fields` are an object's
    values where they are known.
    """
    if not _opens_over(DEEPEST, data):
        return False
    try:
        for around, part in _parts(data, fields):
            if _opens_over(DEEPEST - around, part) and around + _depth(part) > DEEPEST:
                return True
    except DecodeError:
        return _depth(data) > DEEPEST
    except RecursionError:  # deeper than this interpreter reads
        return True
    return False


def _opens_over(most: int, data: bytes) -> bool:
    return len(data) > most and len(data) - len(data.translate(None, b"[{")) > most


def _parts(data: bytes, fields: Mapping[str, Raw] | None) -> Iterator[tuple[int, bytes]]:
    """Yield the long parts of JSON, each with how many levels are around it.

    These are an object's values and the items of its lists, such as `messages`: each opens little
    where all together open much, and a parser passes over texts faster than what counts does.
    """
    if fields is None and data[:1] != b"{":
        yield 0, data
        return
    for value in map(bytes, (fields or _values_of(data)).values()):
        if len(value) > DEEPEST and value[:1] == b"[":
            yield from ((2, bytes(item)) for item in _items_of(value) if len(item) > DEEPEST)
        elif len(value) > DEEPEST:
            yield 1, value


def _depth(data: bytes) -> int:
    """Return how many lists and objects are within each other, texts left out."""
    if b"\\" in data:  # without these two no quote is left but those around texts
        data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = b"".join(data.translate(None, _OTHERS).split(b'"')[::2])  # every other part is a text
    return max(accumulate(map(_STEPS.__getitem__, marks)), default=0)


def is_text_too_deep(text: str) -> bool:
    """Say the same of JSON in a text, such as a call's arguments."""
    return len(text) > DEEPEST and is_too_deep(text.encode("utf-8", "replace"))
