"""Columns made smaller: JSON as it is, or deflated by zlib where that helps.

A column says by its first byte what it is. A JSON text begins with whitespace or one of
`{ [ " - 0-9 t f n` (RFC 8259, sections 2 and 3), zlib's stream with the byte 0x78, `x` (RFC 1950,
section 2.2: deflate with a window of 32 KiB), and a reference to a place (`large.py`) with `@`.
"""

from __future__ import annotations

import zlib

from wellspoken.proxy.store.database import Unusable

ZLIB, PLACE = b"x", b"@"
LARGEST = 256 * 1024 * 1024
"""How many bytes a column may unpack to: deflate grows up to a thousandfold, so that a corrupt or
hostile row of some megabytes could take all memory. What is larger is stored as it is."""
SMALL = 4096
"""Shorter columns stay as they are: 4 kB of text become 2 kB in 130 us, which is more than all else
that writing such a row takes, and one thread is to write 5,000 of them a second."""
_BLANK = b" \t\n\r"


def pack(data: bytes) -> bytes:
    """Return a JSON column as it is stored: never longer, the same for the same data.

    What is packed already, or a reference, comes back as it is. On a large column a thread's work.
    """
    if data.startswith((ZLIB, PLACE)):
        return data
    data = data.strip(_BLANK)
    if not SMALL <= len(data) <= LARGEST:
        return data
    packed = zlib.compress(data, 1)
    return packed if len(packed) < len(data) else data


def unpack(data: bytes) -> bytes:
    """Return the JSON of a stored column. Raises Unusable where it is corrupt or a reference."""
    if data.startswith(PLACE):
        raise Unusable("a stored column lies in store.large_to, and was not fetched from there")
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
