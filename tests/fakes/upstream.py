"""A scripted upstream: a raw HTTP/1.1 server that answers any bytes and records what it got.

It knows just enough HTTP to find where a request ends. What it answers is a script: bytes to write
as they are, and steps between them (wait for a gate, sleep, stall, cut, reset). Nothing is checked
or repaired on the way out, so a test can send what no well-behaved library would.

    async with Upstream(whole(b'{"choices": []}')) as upstream:
        ...                                  # ask the proxy in front of upstream.url
        assert upstream.requests[0].json()["model"] == "m"

Scripts are taken from `upstream.script(path, ...)` for that path, else from the list given at the
start (the last one stays), so `Upstream(a, b)` answers a, b, b, b.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.clock import own_time
from tests.ports import hold
from tests.waiting import SECONDS

_LINGER_NONE = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN


@dataclass(frozen=True)
class Pause:
    """Wait this many seconds."""

    seconds: float


class Gate:
    """Wait until the test opens it; `reached` tells the test that the script is here.

    After minutes it gives up and resets the connection, so a broken test cannot hang.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Let the script go on."""
        self._opened.set()

    async def wait(self) -> None:
        """Wait for `open`."""
        self.reached.set()
        async with asyncio.timeout(SECONDS):
            await self._opened.wait()


class Stall:
    """Never go on: the connection stays open until the peer or the test closes it."""


class Cut:
    """Close the connection here, in the middle of whatever was being sent (FIN)."""


class Reset:
    """Reset the connection here (RST)."""


Step = bytes | Pause | Gate | Stall | Cut | Reset
Script = Sequence[Step]


def head(
    status: int = 200,
    content_type: str | None = "application/json",
    *,
    length: int | None = None,
    chunked: bool = False,
    headers: Iterable[tuple[str, str]] = (),
) -> bytes:
    """Return a response head with just these headers; neither length nor chunked: until close."""
    lines = [f"HTTP/1.1 {status} Scripted"]
    if content_type is not None:
        lines.append(f"Content-Type: {content_type}")
    if length is not None:
        lines.append(f"Content-Length: {length}")
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """Return `data` as one HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


LAST_CHUNK = b"0\r\n\r\n"


def whole(
    body: bytes | dict[str, Any] | list[Any],
    status: int = 200,
    content_type: str | None = "application/json",
    headers: Iterable[tuple[str, str]] = (),
) -> list[Step]:
    """Return the script of a complete answer with a Content-Length."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return [head(status, content_type, length=len(data), headers=headers) + data]


def event(data: bytes | str | dict[str, Any]) -> bytes:
    """Return one server-sent event, the JSON of a dict or the text as it is."""
    if isinstance(data, dict):
        data = json.dumps(data)
    if isinstance(data, str):
        data = data.encode()
    return b"data: " + data + b"\n\n"


DONE = b"data: [DONE]\n\n"


def stream(
    *steps: Step,
    status: int = 200,
    content_type: str | None = "text/event-stream",
    end: bool = True,
    headers: Iterable[tuple[str, str]] = (),
) -> list[Step]:
    """Return the script of a chunked answer: a bytes step is a chunk; `end` writes the last."""
    script: list[Step] = [head(status, content_type, chunked=True, headers=headers)]
    script += [chunk(step) if isinstance(step, bytes) else step for step in steps]
    if end:
        script.append(LAST_CHUNK)
    return script


@dataclass
class Request:
    """What one request looked like on the wire, and what became of its connection.

    `headers` in the order received, names as sent. `closed` is set when the connection is gone,
    `closed_at` is then own_time(), `by_peer` whether the other side ended it.
    """

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    closed_at: float = 0.0
    by_peer: bool = False

    def header(self, name: str) -> str | None:
        """Return the header's value, None where it was not sent; fails if it was sent twice."""
        found = [value for key, value in self.headers if key.lower() == name.lower()]
        if len(found) > 1:
            raise AssertionError(f"{name} was sent {len(found)} times: {found}")
        return found[0] if found else None

    def json(self) -> Any:
        """Return the body, decoded."""
        return json.loads(self.body)


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream, number: int) -> None:
        self.upstream = upstream
        self.number = number
        self.buffer = bytearray()
        self.transport: asyncio.Transport | None = None
        self.task: asyncio.Task[None] | None = None
        self.seen: list[Request] = []
        self.ended_here = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        self.upstream.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.upstream.received += data
        self.buffer += data
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.connections.discard(self)
        if self.task is not None:
            self.task.cancel()
        for request in self.seen:
            if not request.closed.is_set():
                request.closed_at = own_time()
                request.by_peer = not self.ended_here
                request.closed.set()

    def _next(self) -> None:
        """Start the script of the next complete request, if none is running."""
        if self.task is not None and not self.task.done():
            return
        request = self._parse()
        if request is None:
            return
        self.seen.append(request)
        self.upstream.requests.append(request)
        self.upstream.arrived.set()
        script = self.upstream.take(request.target)
        self.task = asyncio.get_running_loop().create_task(self._run(script))

    def _parse(self) -> Request | None:
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        first, *lines = bytes(self.buffer[:end]).decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = [
            (name.strip(), value.strip()) for name, _, value in (x.partition(":") for x in lines)
        ]
        known = {name.lower(): value for name, value in pairs}
        rest = bytes(self.buffer[end + 4 :])
        if "chunked" in known.get("transfer-encoding", "").lower():
            found = _unchunk(rest)
        else:
            size = int(known.get("content-length", "0"))
            found = (rest[:size], size) if len(rest) >= size else None
        if found is None:
            return None
        body, used = found
        del self.buffer[: end + 4 + used]
        return Request(method, target, pairs, body, self.number)

    async def _run(self, script: Script) -> None:
        transport = self.transport
        assert transport is not None
        for step in script:
            if transport.is_closing():
                return
            if isinstance(step, bytes):
                transport.write(step)
                self.upstream.sent += len(step)
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Gate):
                try:
                    await step.wait()
                except TimeoutError:
                    self._reset()
                    return
            elif isinstance(step, Stall):
                await asyncio.Event().wait()
            elif isinstance(step, Cut):
                self.ended_here = True
                transport.close()
                return
            else:
                self._reset()
                return
        self._after(script)

    def _after(self, script: Script) -> None:
        """Keep the connection if the answer said where it ended, else end it by closing."""
        transport = self.transport
        assert transport is not None
        first = next((step for step in script if isinstance(step, bytes)), b"").lower()
        top = first.split(b"\r\n\r\n")[0]
        framed = b"content-length:" in top or b"transfer-encoding:" in top
        if not framed or b"connection: close" in top:
            self.ended_here = True
            transport.close()
        else:
            asyncio.get_running_loop().call_soon(self._next)

    def _reset(self) -> None:
        self.ended_here = True
        assert self.transport is not None
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self.transport.abort()


def _unchunk(data: bytes) -> tuple[bytes, int] | None:
    body = b""
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        if end < 0:
            return None
        size = int(data[at:end].split(b";")[0], 16)
        if len(data) < end + 4 + size:
            return None
        body += data[end + 2 : end + 2 + size]
        at = end + 4 + size
        if size == 0:
            return body, at


NOT_FOUND: Script = whole({"detail": "Not Found"}, status=404)


class Upstream:
    """The server; use it as an async context manager, then `url`, `requests`, `sent`, `received`.

    `refuse()` closes the listening socket, so the next connection is refused on the same port.
    With `path` it listens on a unix socket there, whose file stays as real servers leave theirs;
    `tls` secures the port.
    """

    def __init__(
        self, *scripts: Script, path: Path | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.path = path
        self.tls = tls
        self.scripts = list(scripts)
        self.by_path: dict[str, list[Script]] = {}
        self.by_seed: dict[int, Script] = {}
        self.requests: list[Request] = []
        self.connections: set[_Connection] = set()
        self.opened = 0
        self.sent = 0
        self.received = bytearray()
        self.arrived = asyncio.Event()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._holder: socket.socket | None = None

    @property
    def url(self) -> str:
        """The base URL, without a path."""
        scheme = "http" if self.tls is None else "https"
        return f"{scheme}://127.0.0.1:{self.port}" if self.path is None else f"unix:{self.path}"

    def script(self, path: str, *scripts: Script) -> None:
        """Answer these scripts in turn for requests whose target is `path` (the last one stays)."""
        self.by_path[path] = list(scripts)

    def script_choices(self, seed: int, *scripts: Script) -> None:
        """Answer the requests for the choices of one answer, which come in any order, by seed."""
        self.by_seed = dict(enumerate(scripts, seed))

    def take(self, target: str) -> Script:
        """Return the script of the last request, which is for `target`."""
        request = self.requests[-1]
        if self.by_seed and request.body and (seed := request.json().get("seed")) in self.by_seed:
            return self.by_seed[seed]
        scripts = self.by_path.get(target.partition("?")[0], self.scripts)
        if not scripts:
            return NOT_FOUND
        return scripts.pop(0) if len(scripts) > 1 else scripts[0]

    async def request(self, number: int = 0) -> Request:
        """Wait until request `number` (from 0) has arrived whole, and return it."""
        async with asyncio.timeout(SECONDS):
            while len(self.requests) <= number:
                self.arrived.clear()
                await self.arrived.wait()
        return self.requests[number]

    async def refuse(self) -> None:
        """Stop listening and drop every connection; connects to the port are refused then."""
        if self._server is not None:
            await self._see_newcomers(self._server)
            self._server.close()
            for connection in list(self.connections):
                if connection.transport is not None:
                    connection.ended_here = True
                    connection.transport.abort()
            abort = getattr(self._server, "abort_clients", None)  # from 3.13 on, not in uvloop
            if abort is not None:
                abort()  # also one in the middle of a handshake
            await self._server.wait_closed()
            self._server = None

    async def _see_newcomers(self, server: asyncio.Server) -> None:
        """Accept no more, and let those that were accepted be among the connections.

        asyncio loses them where a server is closed at this moment, or waits for their end (3.13).
        """
        for each in server.sockets:
            asyncio.get_running_loop().remove_reader(each.fileno())
        for _ in range(2):  # a task begins a connection, and the protocol is told one step later
            await asyncio.sleep(0)

    async def listen(self) -> None:
        """Start to listen, on the old port if there was one."""
        loop = asyncio.get_running_loop()
        if self.path is not None:
            self._server = await loop.create_unix_server(self._connected, str(self.path))
            return
        if self._holder is None:
            self._holder = hold(0)  # to the end, so that nobody else gets the port meanwhile
            self.port = self._holder.getsockname()[1]
        self._server = await loop.create_server(self._connected, sock=hold(self.port), ssl=self.tls)

    async def __aenter__(self) -> Upstream:
        await self.listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.refuse()
        if self._holder is not None:
            self._holder.close()
        await asyncio.sleep(0)  # lets aborted transports run their connection_lost

    def _connected(self) -> _Connection:
        self.opened += 1
        return _Connection(self, self.opened)
