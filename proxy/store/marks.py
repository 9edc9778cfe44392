"""What both databases find rows by: digests of what a filter names, and the bounds of a page.

The digests are in the databases, so to make them otherwise needs a migration of both.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from wellspoken.proxy.store.rows import Position, Query, Row

Span = tuple[Position, Position]
"""The positions between which rows lie, both outside."""
LEAST, MOST = -(2**63), 2**63 - 1
"""What the databases' integers hold."""


def digest(*parts: str) -> bytes:
    """Return 16 bytes that stand for `parts`, any text; their lengths keep them apart."""
    small = sum(map(len, parts)) <= _REMEMBERED
    return _cached_digest(*parts) if small else _digest(*parts)


def _digest(*parts: str) -> bytes:
    data = [part.encode("utf-8", "surrogatepass") for part in parts]
    lengths = ",".join(str(len(each)) for each in data)
    return blake2b(b";".join([lengths.encode(), *data]), digest_size=16).digest()


_REMEMBERED = 512  # characters: a text of a client's may be as long as its request
_cached_digest = lru_cache(4096)(_digest)


def marks(owner: str, model: str | None, metadata: dict[str, str]) -> list[bytes]:
    """Return what a row is found by, or a filter asks for: its pairs, then the model if any."""
    pairs = [digest(owner, key, value) for key, value in metadata.items()]
    return pairs if model is None else [*pairs, digest(owner, model)]


def marks_of(row: Row) -> list[bytes]:
    """Return the marks of a row."""
    return marks(row.owner, row.model, row.metadata)


def clamp(number: int) -> int:
    """Return the nearest number that the databases' integers hold."""
    return min(max(number, LEAST), MOST)


def bounds(query: Query) -> Span:
    """Return between what rows are wanted: a row's seq is over 0."""
    low, high = Position(LEAST, 0), Position(MOST, MOST)
    if query.since is not None:
        low = Position(clamp(query.since), 0)
    if query.until is not None:
        high = Position(clamp(query.until), 0)
    if query.after is not None and query.descending:
        high = min(high, query.after)
    elif query.after is not None:
        low = max(low, query.after)
    return low, high
