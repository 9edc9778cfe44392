"""Packing: what comes back is what went in, and nothing grows, in memory neither."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct, json

from wellspoken.proxy.store import packing
from wellspoken.proxy.store.database import Unusable
from wellspoken.proxy.store.packing import ELSEWHERE, LARGEST, SMALL, ZLIB, pack, unpack

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
BLANK = st.text(" \t\r\n").map(str.encode)
LONG = json.encode([{"role": "user", "content": f"line {at}"} for at in range(500)])


class _Request(Struct):
    messages: Raw


@settings(deadline=None)
@given(VALUES, BLANK, BLANK, st.integers(1, 800))
def test_json_comes_back_and_never_grows(
    value: object, before: bytes, after: bytes, times: int
) -> None:
    text = json.encode([value] * times)
    data = before + text + after
    packed = pack(data)
    assert len(packed) <= len(text)
    assert unpack(packed) == text
    assert pack(data) == packed
    assert pack(packed) == packed


@settings(deadline=None)
@given(VALUES, BLANK)
def test_a_json_text_is_no_zlib_stream_and_no_reference(value: object, before: bytes) -> None:
    """RFC 8259: what a text begins with, whitespace of a client's body included."""
    assert not (before + json.encode(value)).startswith((ZLIB, ELSEWHERE))


@settings(deadline=None)
@given(BLANK)
def test_a_clients_messages_may_stand_behind_whitespace(blank: bytes) -> None:
    body = b'{"messages":' + blank + LONG + blank + b"}"
    messages = bytes(json.decode(body, type=_Request).messages)
    assert unpack(pack(messages)) == LONG


def test_a_byte_order_mark_never_gets_here() -> None:
    with pytest.raises(ValueError):
        json.decode(b'\xef\xbb\xbf{"messages":[]}', type=_Request)


def test_what_is_small_or_does_not_shrink_stays() -> None:
    small = json.encode("x" * (SMALL - 3))
    assert len(small) == SMALL - 1 and pack(small) == small
    assert pack(small + b" \n") == small
    larger = json.encode("x" * (SMALL - 2))
    assert len(larger) == SMALL and len(pack(larger)) < 100
    noise = b"[" + random.Random(1).randbytes(2 * SMALL) + b"]"
    assert len(zlib.compress(noise, 1)) > len(noise) and pack(noise) == noise
    assert pack(b"") == b"" == unpack(b"")


def test_a_packed_column_may_end_in_what_looks_blank() -> None:
    ends = {pack(json.encode("x" * SMALL + str(at)))[-1:] for at in range(2000)}
    assert ends & {b" ", b"\t", b"\n", b"\r"}
    for at in range(2000):
        packed = pack(json.encode("x" * SMALL + str(at)))
        assert pack(packed) == packed


def test_what_would_not_come_back_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "LARGEST", len(LONG) - 1)
    assert pack(LONG) == LONG
    monkeypatch.setattr(packing, "LARGEST", len(LONG))
    assert pack(LONG).startswith(ZLIB) and unpack(pack(LONG)) == LONG


PACKED = pack(LONG)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (PACKED[:-1], "too early"),
        (PACKED[: len(PACKED) // 2], "too early"),
        (PACKED + b"x", "follows its end"),
        (PACKED[:-1] + bytes([PACKED[-1] ^ 1]), "incorrect data check"),
        (b"x", "too early"),
        (b"xyz", "header"),
        (b"@00/0", "it lies in the directory or bucket"),
    ],
)
def test_a_corrupt_column_is_said_to_be(data: bytes, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        unpack(data)


def test_a_bomb_takes_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zlib.compress(bytes(64 * 1024 * 1024), 9)
    monkeypatch.setattr(packing, "LARGEST", 1024 * 1024)
    tracemalloc.start()
    try:
        with pytest.raises(Unusable, match="more than 1048576 bytes"):
            unpack(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024
    assert LARGEST == 256 * 1024 * 1024
