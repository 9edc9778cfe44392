"""Connections to backends: opened, reused and closed here and nowhere else.

Every request is built from the parsed model: no header and no path of the client is copied, so what
a client smuggles into its head cannot reach a backend. Backends are fixed by the configuration,
redirects are answers like any other, and proxy variables of the environment are not read.

The HTTP is parsed by httptools in a protocol of our own (link/wire.py). aiohttp's ClientSession is
the main cost of a small request, and it cannot say whether a request's bytes were already sent,
which decides whether a request may be repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from wellspoken.proxy.config.backend_headers import StaticHeaders
from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.limits.descriptors import SHORTAGES
from wellspoken.proxy.limits.pace import Pace
from wellspoken.proxy.tls.certificates import ClientContext
from wellspoken.proxy.upstream.failures import (
    UNREACHABLE,
    ConnectionCut,
    Peer,
    Stuck,
    UpstreamError,
    not_connected,
    not_told,
)
from wellspoken.proxy.upstream.link.connect import Address
from wellspoken.proxy.upstream.link.connections import Connections
from wellspoken.proxy.upstream.link.response import MayLeave as MayLeave
from wellspoken.proxy.upstream.link.response import UpstreamResponse as UpstreamResponse
from wellspoken.proxy.upstream.link.wire import Wire

LARGE = 131_072  # bytes of a body: above this a copy costs more than a connection
_HEADS = 256  # of requests, of which the paths are few but for those with a model's name
_SECRETS = 64  # keys and headers of one backend that are remembered, the newest ones
NO_HEADERS = StaticHeaders()
HIDDEN = "[not shown]"
"""What stands in an error for a URL, a host or a path that its reader must not know."""


class Upstream:
    """One backend's address and its connections.

    `url` is the base URL without credentials, as in messages, or unix:/path of a unix socket. `key`
    is sent as a bearer token. `title`, of an engine that the proxy runs, is how messages call it;
    `alias`, of a backend, what they say instead of its URL. `places`: what else a client must not
    read in its errors, as paths and hosts.
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
        tls: ClientContext | None = None,
        title: str = "",
        alias: str = "",
        places: Sequence[str] = (),
    ) -> None:
        self.url = url
        self._address = Address(url)
        self.peer = Peer.of(url, title, alias)
        self.loop = asyncio.get_running_loop()
        self.heard = 0.0
        self.losses = 0
        self.timeouts = timeouts
        self.connections = Connections(self.loop, timeouts.upstream_keep_alive)
        self._fixed = b""
        self._heads: dict[tuple[str, str, bool], bytes] = {}
        self._key = b""
        self._places = tuple(place.encode() for place in places)
        self._secrets: deque[bytes] = deque(maxlen=_SECRETS)  # the newest, which is sent, first
        self.on_failure: Callable[[UpstreamError], None] | None = None
        self.use(key, headers, tls)

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
        pace: Pace | None = None,
        coded: bool = False,
        whole: bool = False,
        may_leave: MayLeave | None = None,
    ) -> UpstreamResponse:
        """Send a request and return its answer once the head has come.

        `path` begins with /v1 or /; `extra` and `authorization` are whole header lines, the latter
        used where no key is configured. `first` and `between`: seconds for the first and for each
        further piece of the answer, 0 for no limit; `pace`: what it has to keep beside. `coded`:
        `extra` says which encodings of the answer are welcome; otherwise none is. `whole`: the body
        is wanted whole, so that of a small one the head need not be told before. `may_leave`: says
        whether the request may be given up as long as nothing is answered (`drop_waiting`). Raises
        UpstreamError.
        """
        request = self._head(method, path, coded)
        if authorization and not self._key:
            request += authorization
        if method == "POST":
            request += b"%bContent-Length: %d\r\n\r\n" % (extra, len(body))
        else:
            request += extra + b"\r\n"
        bodiless = method == "HEAD"
        limits = (first, between, coded, whole, method == "POST")
        if len(body) >= LARGE:
            # It goes into a new connection, so that it need not be held to be sent once more.
            wire = await self._connect()
            answer = UpstreamResponse(self, wire, self.loop, *limits, pace, may_leave)
            wire.send(request, answer, bodiless, body)
            del body
            await answer.head()
            return answer
        request += body
        free = self.connections.take()
        while True:
            wire, again = free or await self._connect(), free is not None
            answer = UpstreamResponse(self, wire, self.loop, *limits, pace, may_leave)
            # No step of the loop lies between the look at an idle connection and this write, so
            # nothing is sent into one that is known to be over.
            wire.send(request, answer, bodiless)
            if await answer.head(again):
                return answer
            free = None

    def _head(self, method: str, path: str, coded: bool) -> bytes:
        """Return a head's lines that are the same each time; of each path they are made once."""
        head = self._heads.get((method, path, coded))
        if head is None:
            head = f"{method} {self._address.prefix}{path} HTTP/1.1\r\n".encode()
            head += self._fixed + self._key
            if not coded:
                head += b"Accept-Encoding: identity\r\n"
            if method == "POST":
                head += b"Content-Type: application/json\r\n"
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[method, path, coded] = head
        return head

    def use(
        self,
        key: str | None,
        headers: StaticHeaders = NO_HEADERS,
        tls: ClientContext | None = None,
    ) -> bool:
        """Send this key and these headers with every request, secured so, from now on.

        What was sent before is still hidden from clients. Connections that trust other files, or
        show another certificate, take no further request: then True is returned.
        """
        self._address.tls, before = tls, self._address.tls
        changed = before is not None and (tls is None or tls.digest != before.digest)
        if changed:
            self.connections.renew()
        fixed = f"Host: {self._address.host}\r\nUser-Agent: wellspoken\r\n".encode()
        self._fixed = fixed + headers.lines
        self._heads.clear()
        self._key = f"Authorization: Bearer {key}\r\n".encode() if key else b""
        for secret in map(str.encode, (*headers.secrets, *filter(None, (key,)))):
            if secret in self._secrets:
                self._secrets.remove(secret)
            self._secrets.appendleft(secret)
        return changed

    def note_failure(self, error: UpstreamError) -> UpstreamError:
        """Tell who listens that the backend failed, and return the error, to be raised."""
        if error.reason in UNREACHABLE:
            self.losses += 1
        if self.on_failure is not None:
            self.on_failure(error)
        return error

    def hide(self, data: bytes) -> bytes:
        """Return what the backend said without the key that it was sent, and without `places`."""
        for secret in sorted(self._secrets, key=len, reverse=True):  # one may begin another
            data = data.replace(secret, b"[the key]")
        for place in self._places:
            data = data.replace(place, HIDDEN.encode())
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

    def drop_waiting(self) -> None:
        """Give up the requests that wait for the first byte of an answer and may go elsewhere.

        Raises Stuck at those who wait.
        """
        for wire in list(self.connections.open):
            if wire.may_leave():
                wire.drop(Stuck())

    async def close(self) -> None:
        """Close every connection, also those in use."""
        self.retire()
        for wire in list(self.connections.open):
            wire.drop(ConnectionCut("the proxy closed the connection"))
        # Aborted transports run connection_lost in the next step, over TLS in the one after it.
        for _ in range(2):
            await asyncio.sleep(0)

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
        made: list[Wire] = []

        def make() -> Wire:
            made.append(self.connections.make())
            return made[-1]

        try:
            async with asyncio.timeout(seconds):
                return await self._address.connect(make)
        except BaseException as error:  # also who is cancelled leaves no connection behind
            for wire in made:
                wire.abandon()
            if not isinstance(error, OSError):  # TimeoutError is one
                raise
            failure = not_connected(self.peer, error, seconds)
            if failure.reason == "descriptors":
                SHORTAGES.tell(str(failure))
            raise self.note_failure(failure) from error
