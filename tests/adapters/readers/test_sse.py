"""The SSE decoder: what it gives, and that neither split nor line ending changes it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.linear import linear
from wellspoken.adapters.readers.sse import CAP, EventTooLarge, ServerEvent, SSEDecoder

BOM = b"\xef\xbb\xbf"


def decode(*reads: bytes, cap: int = CAP) -> list[ServerEvent]:
    """Feed the reads, finish, and return every event, those of an `EventTooLarge` included."""
    decoder = SSEDecoder(cap)
    events: list[ServerEvent] = []
    try:
        for read in reads:
            events += decoder.feed(read)
        events += decoder.finish()
    except EventTooLarge as error:
        assert error.cap == cap
        events += error.events
        events.append(ServerEvent(b"", event="too large"))
    return events


def data(*values: bytes) -> list[ServerEvent]:
    return [ServerEvent(value) for value in values]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"", []),
        (b"\n\n\n", []),
        (b'data: {"a":1}\n\ndata: [DONE]\n\n', data(b'{"a":1}', b"[DONE]")),
        (b"data:tight\n\n", data(b"tight")),
        (b"data:  two spaces\n\n", data(b" two spaces")),
        (b"data: a\ndata: b\n\n", data(b"a\nb")),
        (b"data\n\n", data(b"")),
        (b"data:\n\n", data(b"")),
        (b"data: a\n\n\ndata: b\n\n", data(b"a", b"b")),
        (b"data: a\n\n\n\n\ndata: b\n\n", data(b"a", b"b")),
        (b": ping\n\ndata: a\n\n", data(b"a")),
        (b": ping\ndata: a\n: more\n\n", data(b"a")),
        (b"event: ping\n\n", []),
        (b"event: ping\n\ndata: a\n\n", data(b"a")),
        (b"event: x\ndata: a\n\ndata: b\n\n", [ServerEvent(b"a", "x"), ServerEvent(b"b")]),
        (b"event: \xff\ndata: a\n\n", [ServerEvent(b"a", "\ufffd")]),
        (b"id: 7\nretry: 10\nunknown: y\ndata: a\n\n", data(b"a")),
        (b"data: last", data(b"last")),
        (b"data: last\n", data(b"last")),
        (b"data: a\n\ndata: b\ndata: c", data(b"a", b"b\nc")),
        (BOM + b"data: a\n\n", data(b"a")),
        (BOM + BOM + b"data: a\n\n", []),
        (BOM[:2], []),
        (BOM[:2] + b"\ndata: a\n\n", data(b"a")),
        (b"data: \xe2\x80\xa8\xc2\x85\x0b\x0c\x1c\n\n", data(b"\xe2\x80\xa8\xc2\x85\x0b\x0c\x1c")),
        (b'error: {"code":500}\n\n', [ServerEvent(b"", None, b'{"code":500}')]),
        (b"data: a\nerror: b\nerror: c\n\n", [ServerEvent(b"a", None, b"b\nc")]),
        (b"\ndata: a\n\n", data(b"a")),
    ],
)
def test_events(stream: bytes, expected: list[ServerEvent]) -> None:
    assert decode(stream) == expected
    assert decode(*(stream[i : i + 1] for i in range(len(stream)))) == expected
    for ending in (b"\r\n", b"\r"):
        other = stream.replace(b"\n", ending)
        assert decode(other) == expected
        assert decode(*(other[i : i + 1] for i in range(len(other)))) == expected


def test_an_event_is_given_with_the_read_that_completes_it() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\n\r") == data(b"a")  # the CR is a line end already
    assert decoder.feed(b"\ndata: b\n") == []
    assert decoder.feed(b"\ndata: c\r") == data(b"b")
    assert decoder.feed(b"\r") == data(b"c")
    assert decoder.feed(b"") == []
    assert decoder.feed(b"\ndata: d") == []
    assert decoder.feed(b"\r") == []
    assert decoder.feed(b"\n") == []  # the CR's second half, not an empty line
    assert decoder.feed(b"\n") == data(b"d")
    assert decoder.finish() == []


def test_whole_blocks_after_each_other_and_what_interrupts_them() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\n\n") == data(b"a")
    assert decoder.feed(b"data: b\n\ndata: c\n\n") == data(b"b", b"c")
    assert decoder.feed(b": ping\n\n") == []
    assert decoder.feed(b"data: d\ndata: e\n\n") == data(b"d\ne")
    assert decoder.feed(b"data: f\r\n\r\n") == data(b"f")
    assert decoder.feed(b"data: g\n\n") == data(b"g")
    assert decoder.feed(b"event: x\ndata: h\nda") == []
    assert decoder.feed(b"ta: i\n: c\n\ndata: j\n\n") == [ServerEvent(b"h\ni", "x"), *data(b"j")]
    assert decoder.feed(b"data: k\n\n") == data(b"k")
    assert decoder.feed(b"data: l\n\ndata: m") == data(b"l")
    assert decoder.finish() == data(b"m")


def test_the_cap_counts_the_lines_of_one_event() -> None:
    too_large = ServerEvent(b"", event="too large")
    assert decode(b"data: 1234\n\ndata: 1234\n\n", cap=10) == data(b"1234", b"1234")
    assert decode(b"data: 1\n\ndata: 12345\n\n", cap=10) == [ServerEvent(b"1"), too_large]
    assert decode(b"data: 1\n\ndata: 12345", cap=10) == [ServerEvent(b"1"), too_large]
    assert decode(b"data: 1\n: 12\n\n", cap=10) == [too_large]
    with pytest.raises(EventTooLarge, match="10 bytes; ask for less"):
        SSEDecoder(10).feed(b"x" * 11)


def test_what_is_buffered_never_passes_the_cap() -> None:
    decoder = SSEDecoder(1000)
    fed = 0
    with pytest.raises(EventTooLarge):
        for _ in range(2000):
            decoder.feed(b"x")
            fed += 1
    assert fed == 1000


LINES = st.sampled_from(
    [
        b"data: {}",
        b"data: a\xe2\x80\xa8b",
        b"data:x",
        b"data",
        b"data: ",
        b"error: {}",
        b"event: e",
        b": c",
        b":",
        b"id: 1",
        b"dat",
        b"",
        b"",
        b"",
        BOM,
    ]
)
STREAMS = st.tuples(st.sampled_from([b"", BOM]), st.lists(LINES, max_size=12), st.booleans())


@given(STREAMS, st.lists(st.integers(0, 200), max_size=6), st.sampled_from([CAP, 12, 5]))
def test_split_and_line_ending_do_not_matter(
    stream: tuple[bytes, list[bytes], bool], cuts: list[int], cap: int
) -> None:
    bom, lines, ended = stream
    whole = decode(bom + b"\n".join(lines) + (b"\n" if ended else b""), cap=cap)
    for ending in (b"\n", b"\r\n", b"\r"):
        raw = bom + ending.join(lines) + (ending if ended else b"")
        edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
        reads = [raw[a:b] for a, b in pairwise(edges)]
        assert decode(raw, cap=cap) == whole
        assert decode(*reads, cap=cap) == whole
        assert decode(*(raw[i : i + 1] for i in range(len(raw))), cap=cap) == whole


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_any_bytes_decode_the_same_however_split(raw: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    reads = [raw[a:b] for a, b in pairwise(edges)]
    assert decode(*reads) == decode(raw)


BLOCKS = st.sampled_from(
    [b"data: {}\n\n"] * 4
    + [b"data: {}\r\n\r\n"] * 2
    + [
        b"data: {}\n\ndata: {}",
        b"data: a\n",
        b": c\n\n",
        b"\n",
        b"\r",
        b"event: e\n",
        b"data:b\n\n",
        b"data: {}",
        b"\r\n",
    ]
)


@settings(max_examples=examples(2000))
@given(st.lists(BLOCKS, max_size=8), st.lists(st.integers(0, 60), max_size=4), st.integers(8, 20))
def test_plain_reads_decode_as_single_bytes_do(
    blocks: list[bytes], cuts: list[int], cap: int
) -> None:
    raw = b"".join(blocks)
    edges = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    reads = [raw[a:b] for a, b in pairwise(edges)]
    singly = decode(*(raw[i : i + 1] for i in range(len(raw))), cap=cap)
    assert decode(*reads, cap=cap) == singly
    assert decode(*blocks, cap=cap) == singly


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_a_large_event_in_small_reads_costs_its_size(end: bytes) -> None:
    def events(size: int) -> int:
        stream = b"data: " + b"x" * size + end
        return len(decode(*(stream[at : at + 50] for at in range(0, len(stream), 50))))

    assert linear(events, 400_000) == 1
