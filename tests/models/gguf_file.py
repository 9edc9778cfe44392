"""Writes a GGUF file of version 3 with tensors of float32, in the format's own words.

Source: docs/gguf.md of ggml. It is read back with llama.cpp's own package gguf by a test; that and
numpy would be half of what `make demo` installs.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import chain
from pathlib import Path

Tensor = Sequence["array[float]"]
"""The rows of a matrix as float32; of one row: a vector."""

Value = str | bool | int | float | Sequence[str] | Sequence[int] | Sequence[float]
"""A number of the metadata is a uint32 or float32; of a list, an int32 or float32."""

ALIGNMENT = 32  # of each tensor, as general.alignment has it where it is not given
VERSION = 3
FLOAT32 = 0  # the type of a tensor


class TokenType(IntEnum):
    """What a token is, in tokenizer.ggml.token_type."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    UNUSED = 5
    BYTE = 6


def write_gguf(path: Path, metadata: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """Write the file. The bytes are the same for the same arguments, on every machine."""
    infos, bodies, offset = list[bytes](), list[bytes](), 0
    for name, rows in tensors.items():
        body = _pad(b"".join(map(_little_endian, rows)))
        sizes = (len(rows[0]),) if len(rows) == 1 else (len(rows[0]), len(rows))
        shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
        infos.append(_text(name) + shape + struct.pack("<IQ", FLOAT32, offset))
        bodies.append(body)
        offset += len(body)
    pairs = (_text(key) + _typed(value) for key, value in metadata.items())
    head = struct.pack("<4sIQQ", b"GGUF", VERSION, len(tensors), len(metadata))
    path.write_bytes(_pad(b"".join(chain([head], pairs, infos))) + b"".join(bodies))


def _little_endian(row: array[float]) -> bytes:
    return struct.pack(f"<{len(row)}f", *row)


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Value) -> bytes:
    """Return a value with its type before it."""
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    kind, each = _elements(value)
    return struct.pack("<IIQ", 9, kind, len(value)) + each


def _elements(values: Sequence[str] | Sequence[int] | Sequence[float]) -> tuple[int, bytes]:
    """Return the type of a list's elements and their bytes."""
    if isinstance(values[0], str):
        return 8, b"".join(_text(str(each)) for each in values)
    if isinstance(values[0], int):
        return 5, struct.pack(f"<{len(values)}i", *values)
    return 6, struct.pack(f"<{len(values)}f", *values)
