"""What goes back to a client: a whole reply, or a stream of events, written as ready bytes.

aiohttp's own responses build a header dictionary and serialise it for every answer; here the head
is one join of bytes and leaves with the body in a single write. aiohttp's RequestHandler asks of a
response only `prepare`, `write_eof` and `keep_alive`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from aiohttp.web_request import BaseRequest

JSON = b"application/json"
_JOIN_BELOW = 65_536  # bytes: above this a second write costs less than the copy

VERSION = b"2020-10-01"  # of OpenAI's API, the only one there is
HEARTBEAT = b": keepalive\n\n"
EVENTS = b"text/event-stream"
_UNBUFFERED = b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n"


BODILESS = frozenset({204, 304})
"""Statuses whose answer ends with its head: a body's framing would be read as the next answer."""


@lru_cache(maxsize=1024)
def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Unknown"
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return f"Date: {formatdate(second, usegmt=True)}\r\n".encode()


def identifying(identity: str, seconds: float) -> bytes:
    """Return the header lines that every answer has, as OpenAI's do.

    `seconds`: from the end of the request's head to the beginning of the answer's.
    """
    return b"x-request-id: %b\r\nopenai-processing-ms: %d\r\nopenai-version: %b\r\n" % (
        identity.encode("ascii"),
        seconds * 1000,
        VERSION,
    )


def plain_head(
    status: int,
    length: int | None,
    *,
    content_type: bytes = JSON,
    extra: bytes = b"",
    close: bool = False,
) -> bytes:
    """Return a response head. `extra`: whole header lines; `length` None: no Content-Length."""
    return b"".join(
        (
            _status_line(status),
            b"Content-Type: %b\r\n" % content_type if content_type else b"",
            b"" if length is None or status in BODILESS else b"Content-Length: %d\r\n" % length,
            _date(int(time.time())),
            extra,
            b"Connection: close\r\n\r\n" if close else b"\r\n",
        )
    )


class Reply:
    """One whole answer; `extra` are whole header lines, `close` ends the connection after it."""

    __slots__ = ("_body", "_head", "_sent", "keep_alive", "request", "status")

    def __init__(
        self,
        request: BaseRequest,
        status: int,
        body: bytes,
        *,
        content_type: bytes = JSON,
        extra: bytes = b"",
        close: bool = False,
    ) -> None:
        self.request = request
        self.status = status
        self._sent = False
        self.keep_alive = request.keep_alive and not close
        if self.keep_alive and request.version < (1, 1):
            extra += b"Connection: keep-alive\r\n"
        self._body = b"" if request.method == "HEAD" or status in BODILESS else body
        self._head = plain_head(
            status,
            len(body),
            content_type=content_type,
            extra=extra,
            close=not self.keep_alive,
        )

    async def prepare(self, request: BaseRequest) -> None:
        """Do nothing: head and body leave together."""

    async def write_eof(self) -> None:
        """Write the reply, unless it was; raises ConnectionResetError when the client has gone."""
        if self._sent:
            return
        self._sent = True
        transport = self.request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if len(self._body) < _JOIN_BELOW:
            transport.write(self._head + self._body)
        else:
            transport.write(self._head)
            transport.write(self._body)
        await self.request.writer.drain()


class EventStream:
    """A reply written piece by piece, whose head leaves with its first bytes.

    While nothing was written for `heartbeat` seconds (0: never) a comment is, which also sends the
    head: a timer does it, so that whoever waits for the backend needs no second task. `left` says
    that the head has left, so that a failure can no longer answer a status. `lines` gives the
    header lines when it does.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_content_type",
        "_ended",
        "_heartbeat",
        "_hot",
        "_last",
        "_lines",
        "_loop",
        "_protocol",
        "_timer",
        "keep_alive",
        "left",
        "request",
        "status",
    )

    def __init__(
        self,
        request: BaseRequest,
        *,
        status: int = 200,
        content_type: bytes = EVENTS,
        lines: Callable[[], bytes] = bytes,
        heartbeat: float = 0.0,
        close: bool = False,
    ) -> None:
        self.request = request
        self.status = status
        self._content_type = content_type
        self.left = False
        self._lines = lines
        self._protocol = request.protocol
        self._bodiless = status in BODILESS or request.method == "HEAD"
        self._chunked = request.version >= (1, 1)
        self._hot = self._chunked and not self._bodiless
        self.keep_alive = self._chunked and request.keep_alive and not close
        self._heartbeat = heartbeat
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(heartbeat, self._beat) if heartbeat else None

    async def write(self, data: bytes) -> None:
        """Write whole events; waits while the client reads slower than they come.

        Raises ConnectionResetError when the client has gone.
        """
        if self.put(data):
            await self.drain()

    def put(self, data: bytes) -> bool:
        """Write whole events now; say whether the stream is `paused`: `drain` before the next.

        Raises ConnectionResetError when the client has gone.
        """
        protocol = self._protocol
        transport = protocol.transport
        if transport is None or not (data and self.left and self._hot) or transport.is_closing():
            self._put(data, last=False)  # also of nothing, whose chunk would end the reply
        else:
            self._last = self._loop.time()
            transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return protocol.writing_paused

    @property
    def paused(self) -> bool:
        """Whether the client reads slower than events come."""
        return self._protocol.writing_paused

    async def drain(self) -> None:
        """Wait until the client has read. Raises ConnectionResetError when it has gone."""
        await self.request.writer.drain()

    async def end(self, data: bytes = b"") -> None:
        """Write the last events and the end of the reply, in one write."""
        self.stop()
        self._ended = True
        self._put(data, last=True)
        await self.request.writer.drain()

    def stop(self) -> None:
        """Write no more heartbeats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """End the connection here, so that the client cannot take the stream for complete."""
        self.stop()
        self._ended = True
        self.keep_alive = False
        if self.request.transport is not None:
            self.request.transport.close()

    async def prepare(self, request: BaseRequest) -> None:
        """Do nothing: the head leaves with the first bytes."""

    async def write_eof(self) -> None:
        """Hold aiohttp to the rule that a handler ends or aborts its stream."""
        if not self._ended:
            self.abort()

    def _put(self, data: bytes, *, last: bool) -> None:
        transport = self._protocol.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if self._bodiless:
            data = b""
        elif self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            if last:
                data += b"0\r\n\r\n"
        if not self.left:
            self.left = True
            data = self._head() + data
        self._last = self._loop.time()
        transport.write(data)

    def _head(self) -> bytes:
        extra = _UNBUFFERED + self._lines()
        if self._chunked and self.status not in BODILESS:
            extra += b"Transfer-Encoding: chunked\r\n"
        return plain_head(
            self.status,
            None,
            content_type=self._content_type,
            extra=extra,
            close=not self.keep_alive,
        )

    def _beat(self) -> None:
        """Write a comment if it is time; the timer is set again rather than moved per write."""
        wait = self._last + self._heartbeat - self._loop.time()
        if wait <= 0.001:
            wait = self._heartbeat
            # A client that does not read what is there needs no sign of life on top of it.
            if not self.paused:
                try:
                    self._put(HEARTBEAT, last=False)
                except ConnectionResetError:
                    return
        self._timer = self._loop.call_later(wait, self._beat)


class TappedStream(EventStream):
    """A stream whose pieces are noted as they leave."""

    __slots__ = ("_tap",)

    def __init__(self, tap: Callable[[bytes], None], *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._tap = tap
        self._hot = False  # each piece goes by `_put`

    def _put(self, data: bytes, *, last: bool) -> None:
        self._tap(data)
        super()._put(data, last=last)
