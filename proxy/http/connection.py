"""Client connections: aiohttp's protocol, with the deadlines and refusals that it lacks.

aiohttp waits for the rest of a request head without end (measured on 3.14: more than 90 s), and
accepts heads that a proxy must not act on. Both are settled here, before a handler runs.

What is private in aiohttp's server is used here and nowhere else: `RequestHandler._request_count`,
`_messages`, `_task_handler`, `_lingering_time`, `_loop`, `_next_keepalive_close_time`,
`_pause_transport_reading` and `_resume_transport_reading`, and the message `ERROR`.
tests/proxy/http/test_aiohttp_private.py holds what they have to be.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.http_writer import StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import ERROR, RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from wellspoken.adapters.requests.errors import error_json
from wellspoken.proxy.http.hangups import Hangups
from wellspoken.proxy.http.requests import fresh_id
from wellspoken.proxy.http.responses import Reply, identifying, plain_head
from wellspoken.proxy.http.room import Room
from wellspoken.proxy.http.stalls import WriteWatch, reset

REFUSED_SECONDS: Final = 1.0
"""How long a refused connection is there, unless the client closes it: so that it has read why."""


class ConnectionOwner(Server):
    """What connections ask of who made them; see `Listener`."""

    refused: Callable[[BaseRequest, int], str]
    hangups: Hangups
    room: Room


class Connection(RequestHandler):
    """One client connection.

    A request head that has begun must be complete after `head_seconds` and within `head_size`
    bytes, else 408 or 431 and the end of the connection. A client that takes nothing of its answer
    for `write_seconds`, or not all of it in `total`, is `stalled`: its connection is reset. What
    aiohttp cannot parse, and what a handler raises, answers in OpenAI's error envelope, without a
    traceback to the client.

    Two things run: the transport's callbacks (`data_received`, `connection_lost`, the head's
    timer, the look at what is written), which await nothing, and aiohttp's one task, which answers
    the requests of the connection one after another. `connection_lost` cancels that task wherever
    it waits, and with it the request to the backend; nothing else cancels it but `shutdown`, when
    the proxy stops. A refusal by the timer writes beside the task, so it comes only between two
    requests.
    """

    __slots__ = (
        "_answered",
        "_begun",
        "_body_left",
        "_closing",
        "_head_bytes",
        "_head_seconds",
        "_head_size",
        "_head_timer",
        "_held",
        "_last",
        "_listener",
        "_number",
        "_peer",
        "_writes",
        "stalled",
    )

    def __init__(
        self,
        manager: ConnectionOwner,
        *,
        head_seconds: float,
        head_size: int,
        write_seconds: float,
        total: float,
        **kw: Any,
    ) -> None:
        super().__init__(manager, **kw)
        self._listener = manager
        self._head_seconds = head_seconds
        self._head_size = head_size
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._answered = 0
        self._closing = False  # what comes is dropped, as this was refused
        self._begun = b""  # a head whose rest is to come
        self._body_left = 0  # bytes of the last request's body that are to come; -1: chunks
        self._held = False  # reading is paused, until a body that is too much at once was read
        self._last: StreamReader | None = None
        self._peer: asyncio.Transport | None = None  # until it is lost, also while it closes
        self._writes = WriteWatch(self._loop, write_seconds, total, self._stall)
        self.stalled = False
        self._number = -1  # of the socket, while nothing is read from it

    @property
    def idle(self) -> bool:
        """No request is being read or answered."""
        return self._between() and self._head_timer is None

    @property
    def unsent(self) -> bool:
        """Something waits to be sent, maybe before the connection closes."""
        return self._peer is not None and self._peer.get_write_buffer_size() > 0

    @property
    def quiet_since(self) -> float:
        """The loop's time since when it is idle, if it is; infinite until it has begun."""
        return (self._next_keepalive_close_time or math.inf) - self.keepalive_timeout

    def _between(self) -> bool:
        """Every request that has begun is answered and read to its end."""
        last = self._last
        return self._answered == self._request_count and (
            last is None or last.is_eof() or last.exception() is not None
        )

    def data_received(self, data: bytes) -> None:
        """Parse, and watch a head that is not complete yet."""
        if self._closing:
            return
        count = self._request_count
        before = self._between()
        super().data_received(data)
        new = self._request_count - count
        if new != 1 or self._begun or self._body_left or not self._ends_with(data):
            self._begun = self._find_begun(data, new)
        if new:
            if self._messages:
                self._last = self._messages[-1][1]
            self._head_done()
        elif before and data:
            self._head_bytes += len(data)
            if self._head_bytes > self._head_size:
                self._refuse(431, "The request's headers are too large. Send fewer.")
            elif self._head_timer is None:
                self._head_timer = self._loop.call_later(self._head_seconds, self._head_late)

    def _ends_with(self, data: bytes) -> bool:
        """Say whether what was read is one request to its last byte, as it nearly always is."""
        message = self._messages[-1][0]
        if type(message) is not RawRequestMessage or message.chunked:
            return False
        size = message.headers.get("Content-Length")
        end = data.find(b"\r\n\r\n") + 4
        return end == len(data) if size is None else end + int(size) == len(data)

    def _find_begun(self, data: bytes, new: int) -> bytes:
        """Return what of a head stands behind all that was read, `new` requests in this read.

        Behind a request it would otherwise wait for its rest as long as an idle connection may.
        Behind chunks it cannot be told.
        """
        if self._body_left < 0 and self._last is not None:
            self._body_left = 0 if self._last.is_eof() else -1
            return b""
        if self._body_left:
            taken = min(self._body_left, len(data))
            self._body_left -= taken
            data = data[taken:]
        elif self._begun:
            data = self._begun + data
        for message, _ in list(self._messages)[-new:] if new else ():
            end = data.find(b"\r\n\r\n") + 4
            if end < 4 or not isinstance(message, RawRequestMessage) or message.chunked:
                self._body_left = -1
                return b""
            end += int(message.headers.get("Content-Length", 0))
            self._body_left = max(end - len(data), 0)
            data = data[end:]
        if len(data) > self._head_size and not self._between() and self._peer is not None:
            self._peer.abort()  # nobody sends so much behind a request that is being answered
        return data.lstrip(b"\r\n")

    def pause_reading(self) -> None:
        """Read no more for now, as a body that nobody reads asks."""
        self._held = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on, unless nothing has stopped that: aiohttp asks at each piece of a body."""
        if self._held:
            self._held = False
            super().resume_reading(resume_parser)

    def _pause_transport_reading(self) -> None:
        """Read nothing (aiohttp), since requests or bodies wait; see that the client is there."""
        super()._pause_transport_reading()
        found = self._peer.get_extra_info("socket") if self._peer is not None else None
        if found is not None and self._number < 0:
            self._number = found.fileno()
            self._listener.hangups.watch(self._number, self._hang_up)

    def _resume_transport_reading(self) -> None:
        """Read on (aiohttp)."""
        self._forget_hangup()
        super()._resume_transport_reading()

    def _forget_hangup(self) -> None:
        if self._number >= 0:
            self._listener.hangups.forget(self._number)
            self._number = -1

    def _hang_up(self) -> None:
        self._number = -1
        if self._peer is not None:
            self._peer.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the new connection."""
        self._peer = cast(asyncio.Transport, transport)
        super().connection_made(transport)

    def pause_writing(self) -> None:
        """Wait for a client that reads slower than it is written to, and see that it reads."""
        super().pause_writing()
        self._watch_writing()

    def force_close(self) -> None:
        """Close, once what was written has left; that has to go on."""
        super().force_close()
        self._watch_writing()

    async def start(self) -> None:
        """Answer the connection's requests (aiohttp); what is left to send then has to go on."""
        try:
            await super().start()
        finally:
            self._watch_writing()

    def _watch_writing(self) -> None:
        if self._peer is not None:
            self._writes.watch(self._peer)

    def _stall(self) -> None:
        self.stalled = True
        if self._peer is not None:
            reset(self._peer)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Drop the timers, then cancel the handler (aiohttp, handler_cancellation)."""
        self._peer = None
        self._listener.room.leave(self)
        self._forget_hangup()
        self._last = None
        self._writes.stop()
        self._head_done()
        super().connection_lost(exc)

    def _head_done(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        self._refuse(408, "The request's headers took too long. Send the request again.")

    def _refuse(self, status: int, message: str) -> None:
        self._tell(status, error_json(message, "invalid_request_error"))

    def _tell(self, status: int, body: bytes, extra: bytes = b"") -> None:
        """Answer in the task's place, as nothing else is on its way, and end the connection."""
        if self.transport is not None and not self.transport.is_closing():
            assert self._task_handler is not None, "an open connection has its task"
            writer, task = StreamWriter(self, self._loop), self._task_handler
            # As aiohttp itself has it for what cannot be parsed.
            request = BaseRequest(ERROR, EMPTY_PAYLOAD, self, writer, task, self._loop)
            lines = identifying(self._listener.refused(request, status), 0) + extra
            head = plain_head(status, len(body), extra=lines, close=True)
            self.transport.write(head + body)
            self._close_writing()
            self._head_done()
            self._head_timer = self._loop.call_later(REFUSED_SECONDS, self.force_close)

    def _close_writing(self) -> None:
        """Say that nothing more comes, and read on, so that a client that sends has its answer.

        Bytes that come to a connection that is closed, or wait there unread, reset it, and then a
        client may lose what it has not read yet (RFC 9112 9.6).
        """
        self._closing = True
        self.resume_reading()
        if self.transport is not None and self.transport.can_write_eof():
            self.transport.write_eof()

    async def finish_response(
        self, request: BaseRequest, resp: StreamResponse, start_time: float | None
    ) -> tuple[StreamResponse, bool]:
        """Finish one answer, and count it: aiohttp calls this once per request."""
        try:
            finished = await super().finish_response(request, resp, start_time)
        finally:
            self._answered += 1
            if self._begun and self._head_timer is None and not self._closing:
                self._head_timer = self._loop.call_later(self._head_seconds, self._head_late)
        if self._closing:
            self._close_writing()
            await asyncio.sleep(REFUSED_SECONDS)  # cancelled as soon as the client closes
        return finished

    def end_soon(self) -> None:
        """After the present answer, drop the rest of its request's body, and wait a moment only."""
        self._closing = True
        self._lingering_time = 0.0

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what aiohttp could not parse (4xx), or what a handler raised (500)."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has gone; aiohttp ends the connection
        self.end_soon()
        if status >= 500:
            self.logger.error("a request failed in the proxy itself", exc_info=exc)
            text = "The proxy failed; this is a bug in it. Its log has the details."
            body = error_json(text, "server_error")
            identity = fresh_id()
        else:
            if isinstance(exc, LineTooLong):
                status, text = (
                    431,
                    "A header or the request's path is too long. Send a shorter one.",
                )
            else:
                text = (
                    f"{HTTPStatus(status).phrase}: this is no valid HTTP/1.1 request. Check its "
                    "headers (one Host, one Content-Length or Transfer-Encoding), its method and "
                    "path, and that plain http is spoken."
                )
            body = error_json(text, "invalid_request_error")
            identity = self._listener.refused(request, status)
        lines = identifying(identity, 0)
        answer = Reply(request, status, body, extra=lines, close=True)
        return cast("StreamResponse", answer)  # of which aiohttp asks no more than it has


_FULL: Final = error_json(
    "The proxy has as many connections open as it may. Send the request again in a moment, or "
    "raise limits.connections.",
    "server_error",
    code="connection_limit",
)


class Surplus(Connection):
    """A connection beyond the limit: what it asks first is answered 503, and it ends."""

    __slots__ = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take it for a moment."""
        super().connection_made(transport)
        self._head_timer = self._loop.call_later(REFUSED_SECONDS, self.force_close)

    def data_received(self, data: bytes) -> None:
        """Answer the first bytes."""
        if not self._closing:
            self._tell(503, _FULL, b"Retry-After: 1\r\n")
