"""One connection to a backend: how it is opened, over TCP, TLS or a unix socket, and how it ends.

Only client.py, which owns the connections, and connections.py, which keeps them, import this. What
is private in aiohttp's client is used here and nowhere else: `ResponseHandler._payload`,
`StreamReader._buffer` and `_read_nowait`.
tests/proxy/upstream/test_aiohttp_private.py holds what they have to be.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import ssl
import sys
import termios
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from aiohttp import ClientPayloadError
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

UNIX = "unix:"
NEVER = float("-inf")
PAUSES = (0.001, 0.05)  # seconds between two tries of a full unix socket: the first and the longest


class AnswerKind(NamedTuple):
    """A kind of answer, after each of which a server may treat a connection otherwise."""

    posted: bool
    streamed: bool
    failed: bool


class Wire(ResponseHandler):
    """One connection, with those ends made errors that aiohttp does not report.

    A body that ends with the connection (no length, no chunks) is complete at FIN, but not at RST.
    `since`: when its last answer ended, by the loop's time; until the next one begins. `kind`: of
    which kind that was. `open_` holds every connection that is made and not lost; `lose` is told of
    the loss, and whether the server's end was the cause. `unread`: the server ended it before it
    had any byte of the request that was sent last.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_: set[Wire],
        lose: Callable[[Wire, bool], None],
    ) -> None:
        super().__init__(loop)
        self._among = open_
        self._lose = lose
        self.since = NEVER
        self.kind = AnswerKind(False, False, False)
        self.unread = False
        self._asked = 0  # bytes of the request sent last

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._among.add(self)

    def send(self, request: bytes) -> None:
        """Write a request, unless the connection is lost."""
        self._asked = len(request)
        if self.transport is not None:
            self.transport.write(request)

    def connection_lost(self, exc: BaseException | None) -> None:
        payload = self._payload
        unread = payload is not None and not payload.is_eof()
        if payload is not None and unread and exc is not None:
            payload.set_exception(ClientPayloadError(f"connection lost: {exc}"))
        if exc is None and self.transport is not None:  # by FIN; a reset may have had any cause
            self.unread = 0 < self._asked <= _unacknowledged(self.transport)
        self._among.discard(self)
        self._lose(self, self.transport is not None)  # None: it was closed here
        broken = self.exception()
        super().connection_lost(exc)
        if payload is not None and unread and not payload.is_eof() and not payload.exception():
            # What could not be parsed closed the connection, but does not wake the body's reader.
            payload.set_exception(broken or ClientPayloadError("connection lost"))

    def drop(self, error: Exception) -> None:
        """Close at once, and tell whoever waits for this connection (`abort` alone does not)."""
        if self._payload is not None and not self._payload.is_eof():
            self._payload.set_exception(error)
        self.set_exception(error)
        self.abort()

    def quiet(self) -> bool:
        """Nothing has come since the last answer: no bytes, no end that the loop has not seen."""
        transport = self.transport
        if transport is None or transport.is_closing() or self.should_close:
            return False
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)


def _unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Return how many bytes of what was sent the other side's kernel has not said to have."""
    found = bytearray(4)
    try:
        fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, found)
    except OSError:  # not Linux's TCP
        return 0
    return int.from_bytes(found, sys.byteorder)


def take_ready(body: StreamReader) -> bytes:
    """Return what has come of a body and was not read; b"" where that is nothing.

    Also what came before a failure, which is still the answer's: `read_nowait` would raise.
    """
    return body._read_nowait(-1) if body._buffer else b""


class Address:
    """Where a backend listens, from a URL that `normal_url` gave.

    `host` is what the Host header says, `prefix` what comes before each path.
    """

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix(UNIX) if url.startswith(UNIX) else ""
        parts = urlsplit("http://localhost" if self._path else url)
        self.host = parts.netloc
        self.prefix = parts.path
        self._name = parts.hostname or ""
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)

    async def connect(self, make: Callable[[], Wire]) -> Wire:
        """Return a new connection, which `make` gave. Raises OSError."""
        loop = asyncio.get_running_loop()
        if not self._path:
            _, wire = await loop.create_connection(make, self._name, self._port, ssl=self._tls)
            return wire
        made = await _unix(self._path)
        try:
            _, wire = await loop.create_unix_connection(make, sock=made)
        except BaseException:
            made.close()
            raise
        return wire


async def _unix(path: str) -> socket.socket:
    """Return a socket that is connected to `path`.

    Where the queue of a server that accepts slowly is full, TCP waits, but a unix socket says
    EAGAIN, which uvloop makes an error and asyncio takes for a connection. So it is tried again
    here, until the caller's time is over.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    pause, longest = PAUSES
    try:
        made.setblocking(False)
        while True:
            try:
                made.connect(path)
            except BlockingIOError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                return made
    except BaseException:
        made.close()
        raise
