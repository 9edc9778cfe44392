"""Clients' connections are bounded: the quietest make room, and who finds none is told so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.fakes.upstream import Gate, Upstream, whole
from tests.proxy.conftest import CHAT, StartProxy, envelope, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.waiting import until
from wellspoken.proxy.http import connection, room

LIVE = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Pair]:
    """Connect, and close at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(pair: Pair) -> bytes:
    """Ask for /livez on an open connection; return what comes until its body is there, or all."""
    reader, writer = pair
    writer.write(LIVE)
    said = b""
    while b'{"status":"ok"}' not in said and (more := await reader.read(65_536)):
        said += more
    return said


async def test_the_quietest_make_room(
    start_proxy: StartProxy, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "QUIET_SECONDS", 0.0)
    proxy = await start_proxy(upstream, limits={"connections": 3})
    place = proxy.service.listener.room
    async with connected(proxy.port) as one, connected(proxy.port) as two:
        assert b" 200 " in await ask(one)
        assert b" 200 " in await ask(two)
        assert b" 200 " in await ask(one)  # so that the second is idle for longer
        async with connected(proxy.port) as three:
            assert b" 200 " in await ask(three)
            assert place.open == 3
            async with connected(proxy.port) as four:
                assert b" 200 " in await ask(four)
                assert await two[0].read() == b""
                assert place.open == 3
                assert b" 200 " in await ask(one)
                assert b" 200 " in await ask(three)
    await until(lambda: not place.open)


async def test_busy_ones_stay_and_a_new_one_is_told(
    start_proxy: StartProxy, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 600.0)
    gate = Gate()
    upstream.script(CHAT, [gate, *whole(PLAIN)])
    proxy = await start_proxy(upstream, limits={"connections": 1})
    place = proxy.service.listener.room
    body = b'{"model":"m","messages":[{"role":"user","content":"Hi"}]}'
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    async with connected(proxy.port) as (reader, writer):
        writer.write(head.encode() + body)
        await until(lambda: proxy.service.state.inflight)
        async with connected(proxy.port) as (other, asks):
            asks.write(head.encode() + body)
            said = await other.readuntil(b"\r\n\r\n")
            text = await other.readexactly(
                int(said.lower().split(b"content-length: ")[1].split()[0])
            )
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nRetry-After: 1\r\n" in said and b"\r\nConnection: close\r\n" in said
        assert b"x-request-id: " in said
        assert envelope(text)["code"] == "connection_limit"
        gate.open()
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    await until(lambda: not place.open and not place.surplus)
    assert b" 200 " in await raw(
        proxy.port, LIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    )


async def test_who_is_refused_and_stays_is_closed(
    start_proxy: StartProxy, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection has a second to ask, so that a crowd does not close each other's."""
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 0.01)
    proxy = await start_proxy(upstream, limits={"connections": 1})
    async with connected(proxy.port):
        await until(lambda: proxy.service.listener.room.open)
        monkeypatch.setattr(room, "QUIET_SECONDS", 600.0)
        assert await raw(proxy.port, b"") == b""
        monkeypatch.setattr(connection, "REFUSED_SECONDS", 600.0)  # who asks may be slow
        said = await raw(proxy.port, LIVE)
        assert said.startswith(b"HTTP/1.1 503 ")
