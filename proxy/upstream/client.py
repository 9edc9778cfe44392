"""Connections to backends: opened, reused and closed here and nowhere else.

Every request is built from the parsed model: no header and no path of the client is copied, so what
a client smuggles into its head cannot reach a backend. Backends are fixed by the configuration,
redirects are answers like any other, and proxy variables of the environment are not read.

aiohttp's response parser and its protocol do the HTTP; its ClientSession does not take part: it is
the main cost of a small request, and it cannot say whether a request's bytes were already sent,
which decides whether a request may be repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, Protocol

from aiohttp import ClientPayloadError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from multidict import CIMultiDictProxy

from wellspoken.proxy.config.backend_headers import StaticHeaders
from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.connections import Connections
from wellspoken.proxy.upstream.failures import (
    UNREACHABLE,
    Peer,
    UpstreamError,
    encoded,
    not_connected,
    not_read,
    not_told,
    too_large,
)
from wellspoken.proxy.upstream.wire import NEVER, Address, AnswerKind, Wire, take_ready

READ_SIZE = 65_536  # bytes a connection buffers before it stops reading, twice at most
_SECRETS = 64  # keys and headers of one backend that are remembered, the newest ones
NO_HEADERS = StaticHeaders()
LINGER = 0.25  # seconds for the last bytes of an answer that is no longer needed


class Watch(Protocol):
    """Who is told how a backend's answer comes in; see `UpstreamResponse.watch`."""

    def begin_body(self) -> None:
        """Note that the first piece of the body was read."""

    def end(self) -> None:
        """Note that the last byte has come or the connection was closed; more than once maybe."""

    def note_failure(self, error: UpstreamError) -> None:
        """Note that the answer broke off."""


@dataclass(slots=True, eq=False, repr=False)
class UpstreamResponse:
    """A backend's answer whose head has come; read it to its end, or close it.

    `content_type` is lower-case and without parameters. After the last byte the connection goes
    back to the idle ones by itself.

    One task reads. Beside it run the timer (`_late`), which fails a wait that is too long, and the
    parser, which may give the connection back (`_give_back`) at any wait of the reader's, or before
    its first. Whoever cancels the reader has the connection closed, since bytes that nobody takes
    would be the next answer's; `close` and `finish` await nothing, so they are safe in a `finally`.
    """

    _upstream: Upstream
    _wire: Wire
    _limit: float
    _between: float
    _coded: bool
    _works: bool  # it shows that the model computes
    _loop: asyncio.AbstractEventLoop
    _first: bool = True  # no byte of the body has come
    _complete: bool = False  # its last byte has come, and the connection is no longer ours
    _body: StreamReader | None = None
    _timer: asyncio.TimerHandle | None = None
    _watch: Watch | None = None
    _since: float = 0.0  # when the present wait began; 0: nobody waits
    status: int = 0
    headers: CIMultiDictProxy[str] = field(init=False)
    content_type: str = ""
    content_type_header: str = ""

    async def head(self, again: bool = False) -> bool:
        """Wait for the response's head, past any 1xx. Raises UpstreamError.

        `again`: what the server did not read may be sent once more; then False is returned.
        """
        if self._limit:
            self._since = self._loop.time()
            self._timer = self._loop.call_later(self._limit, self._late)
        try:
            while True:
                message, payload = await self._wire.read()
                if message.code >= 200 or message.code == 101:
                    break
        except BaseException as error:
            self.close()
            if again and self._wire.unread and not isinstance(error, asyncio.CancelledError):
                return False
            self._raise(error)
        self._wire.since = NEVER
        self._body = payload
        self.status = message.code
        self.headers = message.headers
        self.content_type_header = message.headers.get("Content-Type", "")
        self.content_type = self.content_type_header.partition(";")[0].strip().lower()
        coding = message.headers.get("Content-Encoding", "identity").strip().lower()
        if message.code == 101 or (coding not in ("identity", "") and not self._coded):
            self.close()
            raise encoded(self._upstream.peer, coding)
        payload.on_eof(self._give_back)
        if payload is EMPTY_PAYLOAD:
            self._body = None
        return True

    async def chunk(self) -> bytes:
        """Return what has come, at least one byte; b"" at the end. Raises UpstreamError."""
        body = self._body
        if body is None:
            return b""
        data = take_ready(body)
        if not data:
            self._since = self._loop.time()
            try:
                data = await body.readany()
            except BaseException as error:
                self.close()
                self._raise(error)
        self._since = 0.0
        if self._works:
            self._upstream.heard = self._loop.time()
        if self._first:
            self._first = False
            self._limit = self._between
            if self._watch is not None:
                self._watch.begin_body()
            if not self._complete:
                self._arm(self._between)
        return data

    def watch(self, watch: Watch) -> None:
        """Tell `watch` of the body's first piece, of its end, and of what fails."""
        self._watch = watch
        if self._complete:
            watch.end()

    async def read(self, limit: int) -> bytes:
        """Return the whole body. Raises UpstreamError, also for more than `limit` bytes."""
        parts = []
        size = 0
        while data := await self.chunk():
            parts.append(data)
            size += len(data)
            if size > limit:
                self.close()
                raise self._note_failure(too_large(self._upstream.peer, limit))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Close the connection at once, whatever is still to come; after the end, do nothing."""
        self._stop()
        self._body = None
        if not self._complete:
            self._wire.abort()
        if self._watch is not None:
            self._watch.end()

    def finish(self) -> None:
        """Say that what matters has been read: the rest, if it comes at once, is dropped.

        A server's last chunk often is a packet of its own behind [DONE]; to wait a moment for it
        keeps the connection, and costs nobody anything.
        """
        if self._body is not None and not self._complete:
            self._limit = LINGER
            self._since = self._loop.time()
            self._arm(LINGER)

    def _give_back(self) -> None:
        """Give the connection back, at the moment in which its answer's last byte is parsed."""
        self._stop()
        self._complete = True
        if self._watch is not None:
            self._watch.end()
        # Perhaps still inside the parser, where what follows the last byte in the same read is not
        # seen yet; it is looked at again (`quiet`) before the connection is used.
        streamed = self.content_type == "text/event-stream" or "Content-Length" not in self.headers
        kind = AnswerKind(self._works, streamed, self.status >= 400)
        self._upstream.connections.give(self._wire, kind)

    def _arm(self, seconds: float) -> None:
        self._stop()
        if seconds:
            self._timer = self._loop.call_later(seconds, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        """Fail the present wait if it is too long; the timer is moved here, not at every chunk."""
        self._timer = None
        waited = self._loop.time() - self._since if self._since else 0.0
        if waited < self._limit - 0.001:
            self._timer = self._loop.call_later(self._limit - waited, self._late)
            return
        self._wire.drop(TimeoutError())

    def _note_failure(self, error: UpstreamError) -> UpstreamError:
        if self._watch is not None:
            self._watch.note_failure(error)
        return error

    def _raise(self, error: BaseException) -> NoReturn:
        """Raise what a failed read means: the backend's failure by name, else the error itself."""
        meaning = not_read(self._upstream.peer, error, self._first, self._limit)
        if meaning is None:
            raise error
        raise self._note_failure(self._upstream.note_failure(meaning)) from error


class Upstream:
    """One backend's address and its connections.

    `url` is the base URL without credentials, as in messages, or unix:/path of a unix socket. `key`
    is sent as a bearer token. `title`, of an engine that the proxy runs, is how messages call it.
    `heard`: the loop's time when something of an answer's body was last read, 0.0 before; what a
    GET answers does not count, since a server whose model hangs still answers those.
    `losses`: how often it was not reached, or broke off; after that it may be another server.
    `on_failure` is told of every connection that cannot be made and every answer that breaks off.

    It belongs to the loop's thread, where many requests use it at a time: its `connections` change
    only in steps that await nothing, so each connection has one user.
    """

    def __init__(
        self,
        url: str,
        timeouts: Timeouts,
        *,
        key: str | None = None,
        headers: StaticHeaders = NO_HEADERS,
        title: str = "",
    ) -> None:
        self.url = url
        self._address = Address(url)
        self.peer = Peer.of(url, title)
        self.loop = asyncio.get_running_loop()
        self.heard = 0.0
        self.losses = 0
        self.timeouts = timeouts
        self.connections = Connections(self.loop, timeouts.upstream_keep_alive)
        self._fixed = b""
        self._key = b""
        self._secrets: deque[bytes] = deque(maxlen=_SECRETS)  # the newest, which is sent, first
        self.on_failure: Callable[[UpstreamError], None] | None = None
        self.use(key, headers)

    async def open(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        extra: bytes = b"",
        authorization: bytes = b"",
        first: float = 0.0,
        between: float = 0.0,
        coded: bool = False,
    ) -> UpstreamResponse:
        """Send a request and return its answer once the head has come.

        `path` begins with /v1 or /; `extra` and `authorization` are whole header lines, the latter
        used where no key is configured. `first` and `between`: seconds for the first and for each
        further piece of the answer, 0 for no limit. `coded`: `extra` says which encodings of the
        answer are welcome; otherwise none is. Raises UpstreamError.
        """
        head = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n".encode()
        lines = [head, self._fixed, self._key or authorization, extra]
        if not coded:
            lines.append(b"Accept-Encoding: identity\r\n")
        if method == "POST":
            lines.append(b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body))
        request = b"".join((*lines, b"\r\n", body))
        wire = self.connections.take()
        send = partial(self._send, request, (first, between, coded, method == "POST"), method)
        if wire is not None:  # an idle one is false, since it is an empty queue too
            answer = send(wire)
            if await answer.head(again=True):
                return answer
        answer = send(await self._connect())
        await answer.head()
        return answer

    def _send(
        self, request: bytes, facts: tuple[float, float, bool, bool], method: str, wire: Wire
    ) -> UpstreamResponse:
        """Send a request into a connection; return its answer, of which nothing has come."""
        wire.set_response_params(
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_SIZE,
        )
        # No step of the loop lies between the look at an idle connection and this write, so nothing
        # is sent into one that is known to be over.
        wire.send(request)
        return UpstreamResponse(self, wire, *facts, self.loop)

    def use(self, key: str | None, headers: StaticHeaders = NO_HEADERS) -> None:
        """Send this key and these headers with every request from now on.

        What was sent before is still hidden from clients.
        """
        fixed = f"Host: {self._address.host}\r\nUser-Agent: wellspoken\r\n".encode()
        self._fixed = fixed + headers.lines
        self._key = f"Authorization: Bearer {key}\r\n".encode() if key else b""
        for secret in map(str.encode, (*headers.secrets, *filter(None, (key,)))):
            if secret in self._secrets:
                self._secrets.remove(secret)
            self._secrets.appendleft(secret)

    def note_failure(self, error: UpstreamError) -> UpstreamError:
        """Tell who listens that the backend failed, and return the error, to be raised."""
        if error.reason in UNREACHABLE:
            self.losses += 1
        if self.on_failure is not None:
            self.on_failure(error)
        return error

    def hide(self, data: bytes) -> bytes:
        """Return what the backend said without the key that it was sent, should it repeat it."""
        for secret in sorted(self._secrets, key=len, reverse=True):  # one may begin another
            data = data.replace(secret, b"[the key]")
        return data

    @property
    def busy(self) -> bool:
        """Whether a connection is open."""
        return bool(self.connections.open)

    def retire(self) -> None:
        """Close what is idle now, and each other connection when its answer has been read.

        Requests on their way may still open new ones.
        """
        self.connections.retire()

    async def close(self) -> None:
        """Close every connection, also those in use."""
        self.retire()
        for wire in list(self.connections.open):
            wire.drop(ClientPayloadError("the proxy closed the connection"))
        await asyncio.sleep(0)  # aborted transports run connection_lost in the next step

    async def probe(self, path: str) -> int:
        """Return the status of GET `path`. Raises UpstreamError."""
        return (await self.get(path, 65_536))[0]

    async def get(self, path: str, limit: int) -> tuple[int, bytes]:
        """Return status and body of GET `path`, each in timeouts.probe. Raises UpstreamError."""
        return await self._ask("GET", path, b"", limit)

    async def post(self, path: str, body: bytes, limit: int) -> tuple[int, bytes]:
        """Return those of a POST that needs no model. Raises UpstreamError."""
        return await self._ask("POST", path, body, limit)

    async def _ask(self, method: str, path: str, body: bytes, limit: int) -> tuple[int, bytes]:
        seconds, asked = self.timeouts.probe, f"{method} {path}"
        try:
            answer = await self.open(method, path, body, first=seconds, between=seconds)
            async with asyncio.timeout(seconds):  # of the whole body: it may come byte by byte
                return answer.status, await answer.read(limit)
        except UpstreamError as error:  # noted already
            if error.reason not in ("first_byte_timeout", "chunk_timeout", "too_large"):
                raise
            raise not_told(self.peer, asked, error.reason, seconds, limit) from error
        except TimeoutError as error:
            late = not_told(self.peer, asked, "chunk_timeout", seconds, limit)
            raise self.note_failure(late) from error

    async def _connect(self) -> Wire:
        seconds = self.timeouts.connect
        try:
            async with asyncio.timeout(seconds):
                return await self._address.connect(self.connections.make)
        except OSError as error:  # TimeoutError is one
            raise self.note_failure(not_connected(self.peer, error, seconds)) from error
