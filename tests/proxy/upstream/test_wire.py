"""What comes on a connection, as its answer's reader sees it, however the bytes are split."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from typing import Any, Final
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.proxy.upstream.failures import ConnectionCut, NotHttp
from wellspoken.proxy.upstream.link.wire import FRAMING, Fields, Wire

OK: Final = b"HTTP/1.1 200 OK\r\n"
FIN: Final = None
RST: Final = ConnectionResetError("reset")
NOTHING: Final[tuple[Any, ...]] = (0, b"", False, None)


class Reader:
    """Notes what a connection tells, and holds it to the order of `wire.Waiting`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.kept = False  # what the connection was at the end of its answer
        self.status = 0
        self.fields: Fields = []
        self.body = b""
        self.complete = False
        self.failure: type[Exception] | None = None
        self.told = 0

    def _note(self) -> None:
        self.told += 1
        assert not self.complete and self.failure is None

    def begin(self, status: int, fields: Fields) -> None:
        self._note()
        assert not self.status
        self.status, self.fields = status, fields

    def receive(self, data: bytes, complete: bool) -> None:
        self._note()
        assert self.status and (data or complete)
        self.body += data
        self.complete = complete
        self.kept = complete and self.wire.connected and not self.wire.should_close

    def fail(self, error: Exception) -> None:
        self._note()
        self.failure = type(error)

    def may_leave(self) -> bool:
        return False

    def deadline(self, now: float) -> float:
        return float("inf")

    @property
    def found(self) -> tuple[Any, ...]:
        return self.status, self.body, self.complete, self.failure


def connection() -> tuple[Wire, Mock, list[bool]]:
    """Return a connection, its transport, and whether each loss was the server's doing."""
    lost: list[bool] = []
    wire = Wire(asyncio.new_event_loop(), set(), lambda _, there: lost.append(there))
    wire._loop.close()
    transport = Mock()
    transport.is_closing = lambda: bool(transport.abort.called or transport.close.called)
    transport.get_extra_info.return_value.fileno.return_value = 0
    wire.connection_made(transport)
    return wire, transport, lost


def read(
    *parts: bytes, end: BaseException | str | None = "none", bodiless: bool = False
) -> tuple[Reader, Wire]:
    """Return what a reader saw of these reads and then of the connection's end, if it had one."""
    wire, transport, _ = connection()
    reader = Reader(wire)
    wire.send(b"request", reader, bodiless)
    for part in parts:
        if not transport.is_closing():
            wire.data_received(part)
    if transport.is_closing():
        wire.connection_lost(None)
    elif not isinstance(end, str):
        wire.connection_lost(end)
    assert not (reader.failure and wire.connected)
    return reader, wire


CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS: Final[dict[str, tuple[bytes, BaseException | str | None, tuple[Any, ...]]]] = {
    "length": (OK + b"Content-Length: 2\r\n\r\nab", "none", (200, b"ab", True, None)),
    "no bytes": (OK + b"Content-Length: 0\r\n\r\n", "none", (200, b"", True, None)),
    "chunks": (CHUNKED + b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n", "none", (200, b"ab", True, None)),
    "extension": (CHUNKED + b"2 ;x=y\r\nab\r\n0\r\n\r\n", "none", (200, b"ab", True, None)),
    "trailer": (CHUNKED + b"2\r\nab\r\n0\r\nX: y\r\n\r\n", "none", (200, b"ab", True, None)),
    "until FIN": (OK + b"\r\nab", FIN, (200, b"ab", True, None)),
    "until RST": (OK + b"\r\nab", RST, (200, b"ab", False, ConnectionCut)),
    "gzip until FIN": (OK + b"Transfer-Encoding: gzip\r\n\r\nab", FIN, (200, b"ab", True, None)),
    "short by FIN": (
        OK + b"Connection: close\r\nContent-Length: 3\r\n\r\nab",
        FIN,
        (200, b"ab", False, ConnectionCut),
    ),
    "short by FIN, a blank before the colon": (
        OK + b"Connection: close\r\nContent-Length : 3\r\n\r\nab",
        FIN,
        (200, b"ab", False, ConnectionCut),
    ),
    "no chunks until FIN": (
        OK + b"Transfer-Encoding: xchunked\r\n\r\nab",
        FIN,
        (200, b"ab", True, None),
    ),
    "no chunks at last until FIN": (
        OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n\r\nab",
        FIN,
        (200, b"ab", True, None),
    ),
    "coded chunks short": (
        OK + b"Connection: close\r\nTransfer-Encoding: gzip,Chunked \r\n\r\n2\r\nab\r\n",
        FIN,
        (200, b"ab", False, ConnectionCut),
    ),
    "chunks short": (CHUNKED + b"2\r\nab\r\n", FIN, (200, b"ab", False, ConnectionCut)),
    "1.0 chunks short": (
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n",
        FIN,
        (200, b"ab", False, ConnectionCut),
    ),
    "no head": (b"", FIN, (0, b"", False, ConnectionCut)),
    "half a head": (OK + b"Content-Le", FIN, (0, b"", False, ConnectionCut)),
    "1xx": (
        b"HTTP/1.1 103 Early\r\nContent-Length: 9\r\n\r\n"
        + b"HTTP/1.1 100 Continue\r\n\r\n"
        + OK
        + b"Content-Length: 2\r\n\r\nab",
        "none",
        (200, b"ab", True, None),
    ),
    "101": (
        b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
        "none",
        (101, b"", True, None),
    ),
    "204": (b"HTTP/1.1 204 No\r\n\r\n", "none", (204, b"", True, None)),
    "304": (b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", "none", (304, b"", True, None)),
    "bare LF": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nab", "none", (200, b"ab", True, None)),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nab", "none", (200, b"ab", True, None)),
    "garbage": (b"garbage\r\n\r\n", "none", (0, b"", False, NotHttp)),
    "HTTP/2": (b"HTTP/2 200\r\n\r\n", "none", (0, b"", False, NotHttp)),
    "NUL": (OK + b"A: \0\r\nContent-Length: 0\r\n\r\n", "none", (0, b"", False, NotHttp)),
    "length and chunks": (
        OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
        "none",
        (0, b"", False, NotHttp),
    ),
    "two lengths": (
        OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nab",
        "none",
        (0, b"", False, NotHttp),
    ),
    "no number": (OK + b"Content-Length: 2, 2\r\n\r\nab", "none", (0, b"", False, NotHttp)),
    "bad chunk": (CHUNKED + b"2\r\nab\r\nzz\r\n", "none", (200, b"ab", False, NotHttp)),
}
"""Bytes, the end of the connection, and what is to be found in them."""


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_what_it_is_however_its_bytes_are_split(name: str) -> None:
    data, end, wanted = ANSWERS[name]
    assert read(*([data] if data else []), end=end)[0].found == wanted
    assert read(*(data[at : at + 1] for at in range(len(data))), end=end)[0].found == wanted
    for at in range(1, len(data)):
        assert read(data[:at], data[at:], end=end)[0].found == wanted


@given(st.sampled_from(sorted(ANSWERS)), st.sets(st.integers(1, 200)))
def test_however_many_splits(name: str, cuts: set[int]) -> None:
    data, end, wanted = ANSWERS[name]
    places = sorted({0, len(data), *(at for at in cuts if at < len(data))})
    parts = [data[a:b] for a, b in pairwise(places)]
    assert read(*parts, end=end)[0].found == wanted


def test_all_of_one_read_is_told_at_once() -> None:
    reader, _ = read(CHUNKED, b"1\r\na\r\n1\r\nb\r\n" * 100, b"0\r\n\r\n")
    assert reader.body == b"ab" * 100 and reader.complete
    assert reader.told == 3


KEPT: Final = {
    OK + b"Content-Length: 1\r\n\r\na": True,
    CHUNKED + b"0\r\n\r\n": True,
    b"HTTP/1.1 204 No\r\n\r\n": True,
    b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na": True,
    b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na": False,
    OK + b"Connection: close\r\nContent-Length: 1\r\n\r\na": False,
    b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n": False,
    OK + b"Content-Length: 1\r\n\r\na" + OK + b"Content-Length: 1\r\n\r\nb": False,
    OK + b"Content-Length: 1\r\n\r\na" + OK + b"Content-Length: 0\r\n\r\n": False,
    OK + b"Content-Length: 1\r\n\r\nab": False,
    OK + b"Connection: close\r\nContent-Length: 1\r\n\r\nab": False,
    CHUNKED + b"0\r\n\r\nX": False,
}


@pytest.mark.parametrize("data", KEPT)
def test_a_connection_takes_another_request_only_where_its_answer_ended_and_nothing_followed(
    data: bytes,
) -> None:
    reader, wire = read(data)
    assert reader.complete and reader.body in (b"", b"a")
    assert reader.kept is (wire.connected and not wire.should_close) is KEPT[data]


def test_a_head_alone_has_no_body_whatever_it_says() -> None:
    for data in (b"Content-Length: 5\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        reader, wire = read(OK + data, bodiless=True)
        assert reader.found == (200, b"", True, None) and not wire.should_close
        again = Reader(wire)
        wire.send(b"request", again, False)
        wire.data_received(OK + b"Content-Length: 2\r\n\r\nab")
        assert again.found == (200, b"ab", True, None)
    reader, wire = read(OK + b"Content-Length: 5\r\n\r\nabcde", bodiless=True)
    assert reader.found == (200, b"", True, None) and wire.should_close


def test_a_head_and_a_trailer_have_their_limit() -> None:
    line = b"X: " + b"y" * 1000 + b"\r\n"
    for parts in (
        [OK + line * 66 + b"\r\n"],
        [OK, *[line] * 66],
        [OK + b"X: ", *[b"y" * 1000] * 66],
    ):
        assert read(*parts)[0].found == (0, b"", False, NotHttp)
    assert read(OK + line * 60 + b"\r\n")[0].status == 200
    assert read(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 4000)[0].failure is NotHttp
    reader, _ = read(CHUNKED[:-2] + line * 60 + b"\r\n", b"1;" + b"x" * 9000, b"\r\na\r\n")
    assert reader.found == (200, b"a", False, None)
    trailer = [CHUNKED + b"1\r\na\r\n0\r\n", *[line] * 66]
    assert read(*trailer)[0].found == (200, b"a", False, NotHttp)
    # What has a body in it is no framing.
    piece = b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n"
    reader, _ = read(CHUNKED, *[piece[at : at + 1000] for at in range(0, len(piece), 1000)] * 2)
    assert reader.failure is None and len(reader.body) > FRAMING


def test_what_a_server_says_to_nobody_ends_the_connection_by_its_doing() -> None:
    wire, transport, lost = connection()
    reader = Reader(wire)
    wire.send(b"request", reader, False)
    wire.data_received(OK + b"Content-Length: 0\r\n\r\n")
    wire.data_received(b"HTTP/1.1 408 Late\r\n\r\n")
    assert transport.abort.called and wire.should_close
    wire.connection_lost(None)
    assert lost == [True] and reader.found == (200, b"", True, None)


def test_nobody_is_told_of_a_connection_that_was_closed_here() -> None:
    for close in (Wire.close, Wire.abort):
        wire, _, lost = connection()
        reader = Reader(wire)
        wire.send(b"request", reader, False)
        close(wire)
        wire.connection_lost(None)
        assert lost == [False] and reader.found == NOTHING


def test_a_process_that_stands_still_between_two_looks_at_the_clock_ends_no_answer() -> None:
    """Mutant: a second look at the clock, when what the reader said of the first is compared."""
    wire, transport, _ = connection()
    reader = Reader(wire)
    wire.send(b"request", reader, False)
    stops = count(step=10.0)
    wire._loop = Mock(time=lambda: next(stops))
    reader.deadline = lambda now: now + 0.05  # type: ignore[method-assign]
    wire._ring()
    assert reader.found == NOTHING and not transport.abort.called
    wire._loop.call_at.assert_called_once()


def test_the_fields_are_as_they_came() -> None:
    reader, _ = read(OK + b"A: 1\r\na:2 \r\nB:\r\n folded\r\nContent-Length : 0\r\n\r\n")
    assert [name for name, _ in reader.fields] == [b"A", b"a", b"B", b"Content-Length"]
    assert b"folded" in reader.fields[2][1]
    reader, _ = read(CHUNKED, b"1\r\na\r\n0\r\nX: trailer\r\n\r\n")
    assert [name for name, _ in reader.fields] == [b"Transfer-Encoding"]
