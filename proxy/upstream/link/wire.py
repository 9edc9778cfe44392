"""One connection to a backend: what is sent into it, what comes, and how it ends.

The HTTP is parsed by httptools, as leniently as a server's mistakes in a head allow (a bare LF, a
folded line, spaces behind a chunk's size), and not at all where two readers could understand two
things: a length twice, or beside chunks.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from itertools import chain
from typing import NamedTuple, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from wellspoken.proxy.limits.kernel import count_unacknowledged
from wellspoken.proxy.upstream.failures import ConnectionCut, NotHttp

NEVER = float("-inf")
FRAMING = 65_536  # bytes that a head has at most, and what stands between two pieces of a body

Fields = list[tuple[bytes, bytes]]
"""The header fields of a head, as they came."""


class AnswerKind(NamedTuple):
    """A kind of answer, after each of which a server may treat a connection otherwise."""

    posted: bool
    streamed: bool
    failed: bool


class Waiting(Protocol):
    """Who waits for the answer that comes in on a connection. None of it may await."""

    def begin(self, status: int, fields: Fields) -> None:
        """Take the answer's head; no 1xx is one."""

    def receive(self, data: bytes, complete: bool) -> None:
        """Take what one read has brought of the body, maybe nothing; `complete`: it was the last.

        Nothing is told of an answer that is complete or has failed.
        """

    def fail(self, error: Exception) -> None:
        """Take that nothing more will come, though the answer is not complete."""

    def may_leave(self) -> bool:
        """Say whether the request may be given up, since nothing of the answer's body has come."""

    def deadline(self, now: float) -> float:
        """Return the loop's time at which the present wait is too long, or when to ask again."""


class Wire(asyncio.Protocol):
    """One connection. Each request has one answer, which is told to who waits for it.

    A body that ends with the connection (no length, no chunks) is complete at FIN, but not at RST.
    `since`: when its last answer ended, by the loop's time; until the next one begins. `kind`: of
    which kind that was. `open_` holds every connection that is made and not lost; `lose` is told of
    the loss, and whether the server's end was the cause. `unread`: the server ended it before it
    had any byte of the request that was sent last. `should_close`: it takes no further request.

    All is told once for each read, behind the parser, so that the last byte of an answer is known
    together with what stands behind it.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_: set[Wire],
        lose: Callable[[Wire, bool], None],
    ) -> None:
        self._loop = loop
        self._among = open_
        self._lose = lose
        self.transport: asyncio.Transport | None = None
        self.since = NEVER
        self.kind = AnswerKind(False, False, False)
        self.unread = False
        self.should_close = False
        self._look = select.poll()
        self._size = 0  # bytes of the request sent last
        self._early = b""
        self._abandoned = False
        # Closed, and not lost: with TLS that takes the server's word, for which asyncio waits 30 s.
        self._ending: asyncio.Transport | None = None
        self._waiting: Waiting | None = None
        self._parser: HttpResponseParser | None = None
        self._bodiless = False
        self._framing = 0  # bytes since the last that was told
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        # What the parser finds in one read.
        self._fields: Fields = []
        self._pieces: list[bytes] = []
        self._status = 0  # 0: the head has not come
        self._complete = True
        self._until_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the new connection, unless nobody waits for it any more."""
        if self._abandoned:
            transport.abort()  # type: ignore[attr-defined]
            return
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._look.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self._among.add(self)

    @property
    def connected(self) -> bool:
        """Whether it is open, on both sides as far as is known."""
        return self.transport is not None and not self.transport.is_closing()

    def may_leave(self) -> bool:
        """Say whether it has a request that may be given up for another server."""
        return self._waiting is not None and self._waiting.may_leave()

    def send(
        self, request: bytes, waiting: Waiting, bodiless: bool, body: bytes | None = None
    ) -> None:
        """Write a request; `bodiless`: its answer is a head alone, whatever that says.

        `body`: the request's, where that is too large to be copied behind the head.
        """
        self._waiting = waiting
        self._bodiless = bodiless
        self._size = len(request)
        self._framing = self._status = 0
        self._complete = self._until_end = False
        self._fields = []
        if self._parser is None:
            self._parser = HttpResponseParser(self)
            self._parser.set_dangerous_leniencies(
                lenient_headers=True,
                lenient_optional_cr_before_lf=True,
                lenient_spaces_after_chunk_size=True,
            )
        if self.transport is None:
            self._loop.call_soon(self._fail, ConnectionCut("lost before the request"))
            return
        self.transport.write(request)
        if body is not None:
            self._size += len(body)
            self.transport.write(body)
        if self._early:
            self._loop.call_soon(self.data_received, self._early)
            self._early = b""

    def data_received(self, data: bytes) -> None:
        """Parse what came, and tell it."""
        waiting, parser = self._waiting, self._parser
        if waiting is None or parser is None:
            self._take_unasked(data)
            return
        begun = self._status
        self._framing += len(data)
        failure: Exception | None = None
        try:
            parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            failure = NotHttp(str(error))
            self.should_close = True
        if begun or not self._status:
            self._tell(waiting)
        elif self._framing <= FRAMING or sum(map(len, chain(*self._fields))) <= FRAMING:
            self.since = NEVER
            self._framing = 0
            waiting.begin(self._status, self._fields)
            self._tell(waiting)
        if self._framing > FRAMING:
            failure = failure or NotHttp("a head or a trailer that is too large")
        if failure is not None:
            self._spoil()
            self._fail(failure)

    def _tell(self, waiting: Waiting) -> None:
        """Tell what one read has brought of the body."""
        pieces = self._pieces
        if not pieces and not self._complete:
            return
        data = pieces.pop() if len(pieces) == 1 else b"".join(pieces)
        if pieces:
            self._pieces = []
        self._framing = 0
        if self._complete:
            self._waiting = None
        waiting.receive(data, self._complete)

    def _take_unasked(self, data: bytes) -> None:
        """Keep what a server says before its first request; behind an answer nobody may."""
        self._early += data
        if self._size or len(self._early) > FRAMING:
            self._spoil()

    # What the parser calls, inside of feed_data.

    def on_message_begin(self) -> None:
        """Note what stands behind an answer's last byte."""
        if self._complete:
            self.should_close = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header field; what is behind the body, and whatever nobody asked for, is none."""
        if b"\0" in value:
            raise ValueError(value)
        if not self._status:
            self._fields.append((name.rstrip(), value))  # blanks before the colon

    def on_headers_complete(self) -> None:
        """Take the end of a head."""
        parser = self._parser
        if self._status or parser is None:  # of what nobody asked for
            return
        status = parser.get_status_code()
        if status < 200 and status != 101:
            self._fields = []
            return
        self._status = status
        if self._bodiless:
            self._complete = True
            self._parser = None  # it waits for a body that does not come
        if not parser.should_keep_alive():
            self.should_close = True
            self._until_end = not tells_end(self._fields)

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        if not self._complete:
            self._pieces.append(data)
        else:
            self.should_close = True

    def on_message_complete(self) -> None:
        """Take the end of the answer, unless it was a 1xx."""
        if self._status:
            self._complete = True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Note the end, and tell who waits."""
        transport, waiting = self.transport, self._waiting
        if waiting is not None and transport is not None and exc is None:
            # By FIN; a reset may have had any cause.
            self.unread = not self._status and 0 < self._size <= count_unacknowledged(transport)
        self._among.discard(self)
        self._lose(self, transport is not None)  # None: it was closed here
        self.transport = self._ending = self._parser = None
        self._stop_alarm()
        if self._until_end and exc is None and waiting is not None:
            self._complete = True
            self._tell(waiting)
        lost = ConnectionCut(f"connection lost: {exc}")
        lost.__cause__ = exc
        self._fail(lost)

    def close(self) -> None:
        """Close, once what was written has left."""
        if self.transport is not None:
            self.transport.close()
            self._ending = self.transport
        self._forget()

    def abort(self) -> None:
        """Close at once, also what is closing; nobody is told."""
        for transport in (self.transport, self._ending):
            if transport is not None:
                transport.abort()
        self._forget()

    def abandon(self) -> None:
        """Close it as soon as it is made, or now."""
        self._abandoned = True
        self.abort()

    def drop(self, error: Exception) -> None:
        """Close at once, and tell who waits."""
        waiting = self._waiting
        self.abort()
        if waiting is not None:
            waiting.fail(error)

    def _forget(self) -> None:
        self.transport = self._waiting = self._parser = None
        self._stop_alarm()

    def _spoil(self) -> None:
        """Close at once what the server has made useless: by its doing, not by ours."""
        self.should_close = True
        if self.transport is not None:
            self.transport.abort()

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.fail(error)

    def pause(self) -> None:
        """Read nothing more for now."""
        if self.connected:
            assert self.transport is not None
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.connected:
            assert self.transport is not None
            self.transport.resume_reading()

    def quiet(self) -> bool:
        """Nothing has come since the last answer: no bytes, no end that the loop has not seen."""
        return not self.should_close and self.connected and not self._look.poll(0)

    def wake_at(self, deadline: float) -> None:
        """Look at the present wait at that time of the loop, or before.

        The timer stays through answers and from one request to the next, and is moved when it
        rings, since to set one costs more than all else that is done for a chunk.
        """
        if self._alarm is None or deadline < self._alarm_at:
            self._stop_alarm()
            self._alarm_at = deadline
            self._alarm = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        if self._waiting is not None:
            # Once: a process that stands still between two looks would be over its next look.
            now = self._loop.time()
            deadline = self._waiting.deadline(now)
            if deadline <= now + 0.001:
                self.drop(TimeoutError())
            elif deadline < float("inf"):
                self.wake_at(deadline)

    def _stop_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


def tells_end(fields: Fields) -> bool:
    """Say whether a head tells where the body ends, so that the connection's end does not."""
    coding = b""
    for name, value in fields:
        name = name.lower()
        if name == b"content-length":
            return True
        if name == b"transfer-encoding":
            coding = value  # the last one counts
    return coding.lower().rpartition(b",")[2].strip(b" \t") == b"chunked"
