"""The load: raw HTTP/1.1 connections, each asking again as soon as it was answered.

What comes is counted and looked at just enough to know that it is whole; the same connections
fetch one answer of each kind beforehand, which is checked in full.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import uvloop

C = TypeVar("C", bound="Client")

_END = b"0\r\n\r\n"


class LoadError(Exception):
    """The server answered something else than asked for."""


@dataclass(frozen=True)
class Job:
    """One kind of load: `ask` is the request's JSON, `events` how many `data:` lines answer it."""

    name: str
    ask: bytes
    connections: int = 16
    events: int = 0  # 0: a body
    once: bool = False  # every connection asks once; else all ask until the time is up


@dataclass(frozen=True)
class Done:
    """What was done: answers, wall seconds."""

    answers: int
    seconds: float


def request(url: str, ask: bytes) -> bytes:
    """Return the bytes of a chat request."""
    host = urlsplit(url).netloc.encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
    return head % host + b"Content-Length: %d\r\n\r\n%s" % (len(ask), ask)


def asking(model: str, k: int, stream: bool, **more: object) -> bytes:
    """Return the JSON of a chat request for the canned answer `model`, with `more` keys."""
    wanted: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": "Write a long and varied text, please."}],
        "stream": stream,
    }
    if k:
        wanted |= {"logprobs": True, "top_logprobs": k}
    return json.dumps(wanted | more, separators=(",", ":")).encode()


class Client(asyncio.Protocol):
    """One connection: `ask` returns the next answer's head and body (chunks still framed)."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        self.wanted = -1  # bytes of the whole answer; -1 before its head; -2 for chunked
        self.headed = 0  # bytes of the head, which may end as chunks do: "max=100", a port
        self.waiter: asyncio.Future[bytes] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits for an answer."""
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(LoadError("the server closed the connection"))

    def ask(self, data: bytes) -> asyncio.Future[bytes]:
        """Send a request; the future is its whole answer."""
        assert self.transport is not None
        self.parts, self.size, self.wanted = [], 0, -1
        self.waiter = asyncio.get_running_loop().create_future()
        self.transport.write(data)
        return self.waiter

    def close(self) -> None:
        """Close the connection, if it was made."""
        if self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Collect, and give the answer when it is whole."""
        self.parts.append(data)
        self.size += len(data)
        if self.wanted == -1:
            self._head()
        if self.wanted == -2:
            last = data if len(data) >= len(_END) else b"".join(self.parts[-6:])
            whole = last.endswith(_END) and self.size > self.headed
        else:
            whole = self.size >= self.wanted >= 0
        if whole and self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(b"".join(self.parts))

    def _head(self) -> None:
        head, blank, _ = b"".join(self.parts).partition(b"\r\n\r\n")
        if not blank:
            return
        lowered = head.lower()
        _, length, value = lowered.partition(b"\r\ncontent-length:")
        if length:
            self.wanted = len(head) + 4 + int(value.split(b"\r\n")[0])
        elif b"transfer-encoding: chunked" in lowered:
            self.wanted = -2
        self.headed = len(head) + 4


async def connected(url: str, count: int) -> list[Client]:
    """Return open connections."""
    return [await connect(url, Client) for _ in range(count)]


async def connect(url: str, kind: type[C]) -> C:
    """Return an open connection of this kind."""
    parts = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(kind, parts.hostname or "", parts.port or 80)
    return client


def check(job: Job, answer: bytes) -> None:
    """Raise LoadError unless the answer is what the job expects, judged by its outside."""
    head = answer[: answer.find(b"\r\n\r\n")]
    if not answer.startswith(b"HTTP/1.1 200"):
        raise LoadError(f"{job.name}: {head[:300]!r} {answer[len(head) :][:300]!r}")
    if job.events and answer.count(b"data: ") != job.events:
        # A chunk's frame may stand within the word.
        count = body_of(job.name, answer).count(b"data: ")
        if count != job.events:
            raise LoadError(f"{job.name}: {count} events, not {job.events}")


async def run(url: str, job: Job, seconds: float) -> Done:
    """Put the load on the server for this long; raise LoadError for a wrong answer."""
    clients = await connected(url, job.connections)
    data = request(url, job.ask)
    started = time.perf_counter()
    until = started + seconds

    async def repeat(client: Client) -> int:
        done = 0
        while True:
            check(job, await client.ask(data))
            done += 1
            if job.once or time.perf_counter() >= until:
                return done

    try:
        answers = sum(await asyncio.gather(*map(repeat, clients)))
    finally:
        for client in clients:
            client.close()
    return Done(answers, time.perf_counter() - started)


async def fetch(url: str, job: Job) -> bytes:
    """Return the body (without chunk frames) of one answer, on a connection of its own."""
    client = await connect(url, Client)
    try:
        return await fetch_on(client, url, job)
    finally:
        client.close()


async def fetch_on(client: Client, url: str, job: Job) -> bytes:
    """Return the body (without chunk frames) of one answer. Raises LoadError."""
    answer = await asyncio.wait_for(client.ask(request(url, job.ask)), 120)
    return body_of(job.name, answer)


async def get(url: str, path: str) -> Any:
    """Return the JSON at a path of a server, on a connection of its own."""
    client = await connect(url, Client)
    try:
        asked = b"GET %s HTTP/1.1\r\nHost: bench\r\n\r\n" % path.encode()
        return json.loads(body_of(path, await asyncio.wait_for(client.ask(asked), 30)))
    finally:
        client.close()


def body_of(name: str, answer: bytes) -> bytes:
    """Return the body (without chunk frames) of an answer. Raises LoadError."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise LoadError(f"{name}: {head[:300]!r} {body[:300]!r}")
    return _unframed(body) if b"chunked" in head.lower() else body


async def settle(client: Client, url: str, job: Job, backend: str, seconds: float = 30) -> None:
    """Ask until the server answers from a connection that its backend has already.

    A proxy may try a backend's connections before it uses them again; what that costs, it costs
    once. `backend`: the bench's upstream, which counts its connections. Raises LoadError.
    """
    until = time.monotonic() + seconds
    before = alike = 0
    while alike < 3:
        await fetch_on(client, url, job)
        now = await get(backend, "/connections") - 1  # without this one
        alike = alike + 1 if now == before else 0
        before = now + 1
        if time.monotonic() > until:
            raise LoadError(f"{job.name}: a new connection to the backend for each request")
        await asyncio.sleep(0.02)


def _unframed(data: bytes) -> bytes:
    parts: list[bytes] = []
    at = 0
    while True:
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        if not size:
            return b"".join(parts)
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size


def runner() -> asyncio.Runner:
    """Return a runner on uvloop."""
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)
