"""Columns made smaller: JSON as it is, or deflated by zlib where that helps.

A column says by its first byte what it is. A JSON text begins with whitespace or one of
`{ [ " - 0-9 t f n` (RFC 8259, sections 2 and 3), zlib's stream with the byte 0x78, `x` (RFC 1950,
section 2.2: deflate with a window of 32 KiB). With `@` begins what an earlier version wrote: where
in a directory or bucket the column lies.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence

from msgspec import structs

from wellspoken.proxy.store.database import Unreadable, Unusable
from wellspoken.proxy.store.rows import COLUMNS, Row

ZLIB, ELSEWHERE = b"x", b"@"
LARGEST = 256 * 1024 * 1024
"""How many bytes a column may unpack to: deflate grows up to a thousandfold, so that a corrupt or
hostile row of some megabytes could take all memory. What is larger is stored as it is."""
SMALL = 4096
"""Shorter columns stay as they are: 4 kB of text become 2 kB in 130 us, which is more than all else
that writing such a row takes, and one thread is to write 5,000 of them a second."""
_BLANK = b" \t\n\r"


def pack_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows as they are stored, new ones; those that are packed come back the same."""
    return [
        structs.replace(row, **{column: pack(getattr(row, column)) for column in COLUMNS})
        for row in rows
    ]


def unpack_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows with all their columns as JSON; b"" stays b"".

    Raises Unreadable, whose message names the row and the column.
    """
    return [_unpack_row(row) for row in rows]


def warn_of_leftovers(deleted: Sequence[Row], log: logging.Logger) -> None:
    """Say which of the deleted rows, as they were stored, had a part outside of the database."""
    left = [
        row.id
        for row in deleted
        if any(getattr(row, column).startswith(ELSEWHERE) for column in COLUMNS)
    ]
    if left:
        log.warning(
            "deleted from the database, but not from where store.large_to was: %s", ", ".join(left)
        )


def _unpack_row(row: Row) -> Row:
    columns = {}
    for column in COLUMNS:
        try:
            columns[column] = unpack(getattr(row, column))
        except Unusable as error:
            raise Unreadable(f"the {column} of {row.id} cannot be read: {error}") from error
    return structs.replace(row, **columns)


def pack(data: bytes) -> bytes:
    """Return a JSON column as it is stored: never longer, the same for the same data.

    What is packed already comes back as it is. On a large column a thread's work.
    """
    if data.startswith((ZLIB, ELSEWHERE)):
        return data
    data = data.strip(_BLANK)
    if not SMALL <= len(data) <= LARGEST:
        return data
    packed = zlib.compress(data, 1)
    return packed if len(packed) < len(data) else data


def unpack(data: bytes) -> bytes:
    """Return the JSON of a stored column. Raises Unusable where it is corrupt or not here."""
    if data.startswith(ELSEWHERE):
        raise Unusable(
            "it lies in the directory or bucket that store.large_to named, a setting that was "
            "removed. Export it with the version that stored it (wellspoken export --format full) "
            "and import that into a new store"
        )
    if not data.startswith(ZLIB):
        return data
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(data, LARGEST)
    except zlib.error as error:
        raise Unusable(f"a stored column is corrupt: {error}") from error
    if not unpacking.eof:
        short = len(found) < LARGEST
        problem = "it ends too early" if short else f"it unpacks to more than {LARGEST} bytes"
        raise Unusable(f"a stored column is corrupt: {problem}")
    if unpacking.unused_data:
        raise Unusable("a stored column is corrupt: something follows its end")
    return found
