"""The proxy as a process beside scripted backends, and raw requests to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.store_check import Line
from tests.conforming import MODEL, chunk, finish, role
from tests.fakes.upstream import DONE, Request, Script, Step, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT
from tests.waiting import SECONDS, until

EVENTS = [event(role()), *(event(chunk({"content": f"{n} "})) for n in range(8)), event(finish())]


def write_config(folder: Path, url: str, **tables: Mapping[str, object]) -> Path:
    """Write a configuration with one backend, on a free port unless `server` says which."""
    given = {**tables, "server": {"listen": "127.0.0.1:0", **tables.get("server", {})}}
    lines = []
    for name, keys in given.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    lines += ["[[backend]]", f"url = {json.dumps(url)}", 'adapter = "openai"']
    path = folder / f"wellspoken-{len(list(folder.glob('*.toml')))}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def backend(*scripts: Script) -> Upstream:
    """Return a backend that looks like an LLM server beside what it answers to chats."""
    made = Upstream(*scripts)
    made.script("/health", whole({}))
    made.script("/v1/models", whole({"object": "list", "data": [{"id": MODEL}]}))
    return made


def chats_of(server: Upstream) -> list[Request]:
    """Return the requests for answers that have come to the backend, which is asked for more."""
    return [one for one in server.requests if one.method == "POST"]


async def chat(server: Upstream, number: int = 0) -> Request:
    """Wait until request `number` (from 0) for an answer has come, and return it."""
    async with asyncio.timeout(SECONDS):
        while len(found := chats_of(server)) <= number:
            server.arrived.clear()
            await server.arrived.wait()
    return found[number]


def answers(*steps: Step) -> Script:
    """Return a stream's script, whose middle is the steps."""
    return stream(*EVENTS[:5], *steps, *EVENTS[5:], DONE)


def request(streams: bool, size: int = 0, **more: Any) -> bytes:
    """Return a request that ends its connection, with a text of `size` bytes and `more` keys."""
    messages = [{"role": "user", "content": "Hi" + "x" * size}]
    asked: dict[str, Any] = {"model": MODEL, "messages": messages, **more}
    if streams:
        asked["stream"] = True
    sent = json.dumps(asked).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    return head.encode() + sent


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def send(url: str, data: bytes, buffer: int = 0, source: str = "") -> Connection:
    """Connect, from `source`, and send; `buffer`: what the system takes in of what nobody reads."""
    host, _, port = url.rpartition("/")[2].partition(":")
    raw = socket.socket()
    if buffer:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    raw.setblocking(False)
    try:
        if source:
            raw.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(raw, (host, int(port)))
    except OSError:
        raw.close()
        raise
    limit = buffer or 2**16
    reader, writer = await asyncio.open_connection(sock=raw, limit=limit)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def read_all(connection: Connection) -> bytes:
    """Return all that comes until the other side closes, b"" where it resets."""
    reader, writer = connection
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def ask(url: str, data: bytes, source: str = "") -> bytes:
    """Send a request and return its whole answer; b"" where nobody takes it."""
    try:
        return await read_all(await send(url, data, source=source))
    except ConnectionError:
        return b""


async def is_listening(url: str) -> bool:
    """Say whether the proxy takes connections and answers."""
    asked = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    return (await ask(url, asked)).startswith(b"HTTP/1.1 200 ")


def is_whole(answer: bytes) -> bool:
    """Say whether an answer is a good one that has come to its end."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        return False
    if b"chunked" in head.lower():
        return rest.endswith(b"0\r\n\r\n") and rest.count(b"data: [DONE]") == 1
    size = re.search(rb"(?i)content-length: (\d+)", head)
    return size is not None and len(rest) == int(size[1]) and b'"choices"' in rest


async def metric(url: str, name: str) -> float:
    """Return the sum of a family's samples; -1 where it is not told."""
    answer = await ask(url, b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    found = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", answer.decode(), re.MULTILINE)
    return sum(map(float, found)) if found else -1.0


async def inflight(url: str) -> float:
    """Return how many requests the proxy has open beside the one that asks."""
    return await metric(url, "wellspoken_inflight_requests") - 1


async def settle_inflight(url: str) -> float:
    """Wait until no request counts as open; return what does for minutes, which should be 0.

    One is open for a moment after its client, or its backend, has seen its end.
    """
    with suppress(AssertionError):
        await until(lambda: _is_idle(url))
    return await inflight(url)


async def _is_idle(url: str) -> bool:
    return await inflight(url) == 0


def descriptors(pid: int) -> int:
    """Return how many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def at_most(section: str, what: str, value: float, unit: str, bound: float) -> Line:
    """Return a figure that may not be larger; one of time is hard on a quiet machine alone."""
    return Line(section, "proxy", what, value, unit, "<=", bound, hard=unit != "ms")


def exactly(section: str, what: str, value: float, bound: float) -> Line:
    """Return a figure that has to be so."""
    return Line(section, "proxy", what, value, "", "==", bound, True)
