"""What would be held without end: each limit against clients and backends that run into it.

The limits are short. What counts is that all that was held is free again, and who is told what.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench.process import forget_peak, memory
from tests.bench.store_check import Line
from tests.bench.store_proxy import Proxy, proxy
from tests.clock import own_time
from tests.conforming import chunk
from tests.fakes.upstream import Gate, Pause, Script, Step, Upstream, event, head, stream
from tests.fakes.upstream import chunk as http_chunk
from tests.soak.proxies import (
    EVENTS,
    Connection,
    answers,
    ask,
    at_most,
    backend,
    chats_of,
    exactly,
    inflight,
    is_listening,
    is_whole,
    read_all,
    request,
    send,
    settle_inflight,
    write_config,
)
from tests.waiting import until

LIMIT = 1.0  # seconds
FREE_MS = 5000.0
"""Until all is free again: limits of a second, told within two, for many at once."""
MEGABYTE = 1_000_000
BUDGET_MB = 40
GROWN_MB = 3.0 * BUDGET_MB
"""More than what comes and is sent at the same moment takes (`memory.PEAK_MB`) of what has room."""
LARGE = stream(EVENTS[0], *[event(chunk({"content": "x" * 65_000}))] * 100, EVENTS[-1])


@asynccontextmanager
async def running(server: Upstream, **tables: Mapping[str, object]) -> AsyncIterator[Proxy]:
    """Run the proxy in front of a backend, with these tables in its configuration."""
    with (
        tempfile.TemporaryDirectory() as folder,
        proxy(write_config(Path(folder), server.url, **tables), None) as made,
    ):
        yield made


async def wait_free(url: str, began: float) -> float:
    """Wait until no request counts as open; return the milliseconds since `began`."""

    async def is_free() -> bool:
        return await inflight(url) == 0

    await until(is_free, "all is free")
    return (own_time() - began) * 1e3


async def unread(clients: int) -> list[Line]:
    """Ask for large answers, so many, and read nothing; stay until the proxy ends it."""
    async with backend(LARGE) as server:
        async with running(server, timeouts={"client_write": LIMIT}) as made:
            began = own_time()
            opened = [await send(made.url, request(True), 4096) for _ in range(clients)]
            await until(lambda: len(chats_of(server)) == clients, "all are at the backend")
            free = await wait_free(made.url, began)
            await until(lambda: all(one.closed.is_set() for one in chats_of(server)), "all closed")
            got = await asyncio.gather(*map(read_all, opened))
    of = f"of {clients} that read nothing"
    return [
        exactly("unread", f"whole answers {of}", sum(map(is_whole, got)), 0),
        at_most("unread", "until all are free, at client_write = 1 s", free, "ms", FREE_MS),
    ]


async def drip(connection: Connection) -> bytes:
    """Send a byte now and then until there is an answer, and return that."""
    reader, writer = connection
    head = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    while not head.done():
        writer.write(b"x")
        await asyncio.wait([head], timeout=0.1)
    return await head + await read_all(connection)


async def drips(clients: int) -> list[Line]:
    """Send bodies, so many, a byte now and then."""
    limits = {"body_rate": 1000}
    async with backend(answers()) as server:
        async with running(server, timeouts={"client_body": LIMIT}, limits=limits) as made:
            began = own_time()
            data = request(True, 9000)
            opened = [await send(made.url, data[:-8000]) for _ in range(clients)]
            got = await asyncio.gather(*map(drip, opened))
            took = (own_time() - began) * 1e3
            there = len(chats_of(server))
    late = sum(one.startswith(b"HTTP/1.1 408 ") for one in got)
    return [
        exactly("drips", f"408s of {clients} bodies that drip", late, clients),
        exactly("drips", "of these at the backend", there, 0),
        at_most("drips", "until all are told, at client_body = 1 s", took, "ms", FREE_MS),
    ]


def endless(*beginning: bytes, again: bytes, kind: str = "text/event-stream") -> Script:
    """Return an answer that begins so, and then says the same again and again, for minutes."""
    begun = [head(200, kind, chunked=True), *map(http_chunk, beginning)]
    drip: list[Step] = [http_chunk(again), Pause(0.05)]
    return [*begun, *drip * 4000]


TOKEN = event(chunk({"content": "a"}))
EMPTY = event(chunk({"content": ""}))
SILENT: dict[str, tuple[str, Script]] = {
    "pings before a token": ("first_token_stream", endless(EVENTS[0], again=b": ping\n\n")),
    "empty deltas": ("between_tokens", endless(EVENTS[0], TOKEN, again=EMPTY)),
    "a body byte by byte": (
        "between_tokens",
        endless(b'{"choices": ', again=b" ", kind="application/json"),
    ),
    "tokens without end": ("total", endless(EVENTS[0], again=TOKEN)),
}
"""How a backend says nothing, or never ends -> the key that ends it, and its answer."""


async def silent(each: int) -> list[Line]:
    """Ask so often for each of these answers, which say something and nothing new.

    Of a proxy whose one short limit ends them: on a machine that stands still another one would.
    """
    lines = []
    for name, (key, script) in SILENT.items():
        async with backend(script) as server, running(server, timeouts={key: LIMIT}) as made:
            began, data = own_time(), request("body" not in name)
            got = await asyncio.gather(*(ask(made.url, data) for _ in range(each)))
            await until(lambda: all(one.closed.is_set() for one in chats_of(server)), "all closed")
            free = await wait_free(made.url, began)
        told = sum(f"timeouts.{key}".encode() in one and b"[DONE]" not in one for one in got)
        lines += [
            exactly("silent", f"{name}: told so of {each}", told, each),
            at_most("silent", f"{name}: until free, at 1 s", free, "ms", FREE_MS),
        ]
    return lines


async def one_client(requests: int) -> list[Line]:
    """Ask so often at once from one address, which nobody answers, and then from another one."""
    share, gate = 8, Gate()
    limits = {"inflight": share + 2, "per_client": share}
    async with backend(answers(gate)) as server:
        async with running(server, limits=limits) as made:
            data = request(True)
            asked = [asyncio.create_task(ask(made.url, data)) for _ in range(requests)]
            await until(
                lambda: sum(one.done() for one in asked) == requests - share, "the others are told"
            )
            others = [asyncio.create_task(ask(made.url, data, "127.0.0.2")) for _ in range(2)]
            await until(lambda: len(chats_of(server)) == share + 2, "the other client is served")
            gate.open()
            got = await asyncio.gather(*asked)
            good = sum(map(is_whole, await asyncio.gather(*others)))
            free = await settle_inflight(made.url)
    refused = sum(one.startswith(b"HTTP/1.1 429 ") for one in got)
    return [
        exactly("one client", f"429s of {requests} at per_client = 8", refused, requests - share),
        exactly("one client", "whole answers of the rest", sum(map(is_whole, got)), share),
        exactly("one client", "whole answers of another client's 2", good, 2),
        exactly("one client", "requests that count as open", free, 0),
    ]


async def budget(requests: int) -> list[Line]:
    """Send so many requests of 1 MB at once where there is room for fewer, and ask for /livez."""
    gate = Gate()
    limits = {"memory": BUDGET_MB * MEGABYTE, "inflight": 2 * requests, "per_client": 2 * requests}
    async with backend(answers(gate)) as server:
        async with running(server, limits=limits) as made:
            first = memory(made.pid).now
            forget_peak(made.pid)
            data = request(True, MEGABYTE)
            asked = [asyncio.create_task(ask(made.url, data)) for _ in range(requests)]
            dead = 0

            async def is_refused() -> bool:
                nonlocal dead
                dead += not await is_listening(made.url)
                return sum(one.done() for one in asked) + len(chats_of(server)) == requests

            await until(is_refused, "each is at the backend or refused")
            grown = memory(made.pid).peak - first
            held = len(chats_of(server))
            gate.open()
            got = await asyncio.gather(*asked)
            free = await settle_inflight(made.url)
    refused = [one for one in got if one.startswith(b"HTTP/1.1 503 ")]
    again = sum(b"\r\nretry-after: " in one.lower() for one in refused)
    return [
        at_most("budget", f"grown by {requests} of 1 MB, room {BUDGET_MB}", grown, "MB", GROWN_MB),
        at_most("budget", "of these at the backend", held, "", BUDGET_MB),
        exactly("budget", "503s with Retry-After", again, requests - held),
        exactly("budget", "whole answers of the rest", sum(map(is_whole, got)), held),
        exactly("budget", "/livez unanswered meanwhile", dead, 0),
        exactly("budget", "requests that count as open", free, 0),
    ]
