"""Nothing is held without end by clients that read or send nothing, nor by those that left.

The limits are short here, and nothing depends on how much longer than that something takes: what is
waited for is the end, which without the limit would not come.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clock import skip
from tests.conforming import MODEL
from tests.fakes.upstream import (
    Script,
    Stall,
    Upstream,
    event,
    stream,
    whole,
)
from tests.proxy.conftest import CHAT, MESSAGES, StartProxy, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.http.test_requests import post, status_of
from tests.waiting import until
from wellspoken.proxy.http.connection import Connection
from wellspoken.proxy.upstream.link.connect import Address
from wellspoken.proxy.upstream.link.wire import Wire

LARGE = 12 * 1024 * 1024  # more than the system holds of a connection on its own


def piece(**delta: Any) -> bytes:
    """Return one event of a chat stream."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1760000000,
            "model": MODEL,
            "choices": [choice],
        }
    )


def request(**more: Any) -> bytes:
    """Return a chat request whose connection stays open."""
    body = json.dumps({"model": MODEL, "messages": MESSAGES, **more}).encode()
    return post(body=body).replace(b"Connection: close\r\n", b"")


async def connect_narrow(port: int) -> socket.socket:
    """Return a connection whose reader's buffer is small."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made


LONG: dict[str, Script] = {
    "stream": stream(piece(role="assistant"), *[piece(content="x" * 65_000)] * 300, Stall()),
    "body": whole({**json.loads(PLAIN), "padding": "x" * LARGE}),
    "untouched stream": stream(*[piece(content="x" * 65_000)] * 300, Stall()),
    "untouched body": whole(b'{"x": "%b"}' % (b"x" * LARGE)),
}


@pytest.mark.parametrize("name", LONG)
async def test_a_client_that_reads_nothing_is_let_go(
    upstream: Upstream, start_proxy: StartProxy, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    upstream.scripts = [LONG[name]]
    timeouts = {"client_write": 0.4, "heartbeat": 0.05}
    proxy = await start_proxy(upstream, timeouts=timeouts, extensions="all")
    client = await connect_narrow(proxy.port)
    more = {"oai_compat": False} if "untouched" in name else {}
    sent = request(stream="stream" in name, **more)
    await asyncio.get_running_loop().sock_sendall(client, sent)
    asked = await upstream.request()
    await until(lambda: not proxy.service.state.inflight)
    if "stream" in name:
        await asked.closed.wait()
    await until(lambda: len(proxy.service.listener.connections) <= 1)
    scraped = await proxy.metrics()
    assert scraped['wellspoken_client_disconnects_total{phase="stalled"}'] == 1
    with pytest.raises(ConnectionResetError):  # so that it cannot take what it has for the whole
        while await asyncio.get_running_loop().sock_recv(client, 1 << 20):
            pass
    client.close()


async def test_a_client_that_reads_slowly_gets_all(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """It takes far longer than the limit, but comes on in each of its spans."""
    upstream.scripts = [LONG["untouched body"]]
    proxy = await start_proxy(upstream, timeouts={"client_write": 60.0})
    client, loop = await connect_narrow(proxy.port), asyncio.get_running_loop()
    await loop.sock_sendall(client, request(oai_compat=False))
    got = 0
    for number in range(250):
        got += len(await loop.sock_recv(client, 4096))
        await asyncio.sleep(0.01)
        if number % 10 == 9:
            skip(6.0)
    while got < LARGE:
        part = await loop.sock_recv(client, 1 << 20)
        assert part, f"the connection ended after {got} bytes"
        got += len(part)
    client.close()


async def test_an_end_that_nobody_reads_keeps_no_connection(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """All but a little was taken, so the request is over; the connection closes, and cannot."""
    upstream.scripts = [whole(b'{"x": "%b"}' % (b"x" * LARGE))]
    timeouts = {"client_write": 0.4, "client_keep_alive": 0.2}
    proxy = await start_proxy(upstream, timeouts=timeouts)
    client, loop = await connect_narrow(proxy.port), asyncio.get_running_loop()
    await loop.sock_sendall(client, request(oai_compat=False))
    while proxy.service.state.inflight or not upstream.requests:
        try:
            async with asyncio.timeout(0.02):
                assert await loop.sock_recv(client, 65_536)
        except TimeoutError:
            pass
    await until(lambda: not proxy.service.listener.connections)
    client.close()


async def test_a_body_that_drips_is_refused(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, timeouts={"client_body": 1.0}, limits={"body_rate": 1000})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(post(body=b"{}" + b" " * 9000)[:-8999])

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    task = asyncio.create_task(drip())
    answer = await reader.read()
    task.cancel()
    writer.close()
    assert status_of(answer) == 408
    assert b"limits.body_rate" in answer and b"a second" in answer
    assert not upstream.requests


async def test_a_large_body_that_comes_on_has_its_time(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, timeouts={"client_body": 60}, limits={"body_rate": 100})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    data = post(body=json.dumps({"model": MODEL, "messages": MESSAGES}).encode() + b" " * 60_000)
    for at in range(0, len(data), 4000):
        writer.write(data[at : at + 4000])
        await asyncio.sleep(0.02)
        skip(20.0)
    assert status_of(await reader.read()) == 200
    writer.close()


async def test_a_slow_client_is_not_the_backends_fault(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """While nobody reads it, an answer cannot bring tokens."""
    upstream.scripts = [stream(*[piece(content="x" * 65_000)] * 300)]
    proxy = await start_proxy(upstream, timeouts={"between_tokens": 100.0, "client_write": 0.0})
    client, loop = await connect_narrow(proxy.port), asyncio.get_running_loop()
    await loop.sock_sendall(client, request(stream=True))
    await upstream.request()
    for _ in range(40):  # by the loop's clock it takes four times as long
        await asyncio.sleep(0.02)
        skip(10.0)
    got = b""
    while not got.endswith(b"0\r\n\r\n"):
        part = await loop.sock_recv(client, 1 << 20)
        assert part
        got = got[-4096:] + part
    assert b"[DONE]" in got or b"upstream" in got
    client.close()


async def test_a_client_that_is_alone_slow_to_send_ends_by_the_total(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    limits, timeouts = {"body_rate": 0}, {"client_body": 60.0, "total": 0.4}
    proxy = await start_proxy(upstream, timeouts=timeouts, limits=limits)
    answer = await raw(proxy.port, post()[:-5])
    assert status_of(answer) == 408
    assert b"within 0.4 s" in answer
    assert CHAT.encode() not in answer


async def test_one_client_leaves_slots_to_others(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[Stall()]]
    proxy = await start_proxy(upstream, limits={"inflight": 4, "per_client": 2})
    async with asyncio.TaskGroup() as group:
        held = [group.create_task(proxy.chat()) for _ in range(2)]
        await until(lambda: len(upstream.requests) == 2)
        error = await proxy.error(429)
        assert "limits.per_client" in error["message"]
        assert proxy.service.state.slots.held == 2
        for one in held:
            one.cancel()
    await until(lambda: not proxy.service.state.slots.held)


async def test_readiness_says_when_all_slots_are_held(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[Stall()]]
    proxy = await start_proxy(upstream, limits={"inflight": 1})
    task = asyncio.create_task(proxy.chat())
    await upstream.request()
    status, body = await proxy.get("/readyz")
    assert status == 503 and "all 1 slots" in body["reason"]
    task.cancel()
    await until(lambda: not proxy.service.state.slots.held)


async def test_http_1_0_has_no_chunks(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    data = post("Transfer-Encoding: chunked", length=False, body=b"2\r\n{}\r\n0\r\n\r\n")
    data = data.replace(b"HTTP/1.1", b"HTTP/1.0").replace(
        b"Connection: close", b"Connection: keep-alive"
    )
    answer = await raw(proxy.port, data)
    assert status_of(answer) == 400 and b"Connection: close" in answer
    assert not upstream.requests


@pytest.mark.parametrize("early", [False, True])
async def test_who_leaves_while_connecting_leaves_no_connection(
    upstream: Upstream, start_proxy: StartProxy, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop may make the connection although nobody waits for it any more."""
    proxy = await start_proxy(upstream)
    client = proxy.service.state.router.targets[0].upstream
    assert client is not None
    made: list[Wire] = []
    port = urlsplit(upstream.url).port or 0

    async def connect(self: Address, make: Callable[[], Wire]) -> Wire:
        made.append(make())
        if not early:
            await loop.create_connection(lambda: made[0], "127.0.0.1", port)
        await asyncio.Event().wait()
        raise AssertionError

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(Address, "connect", connect)
    task = asyncio.create_task(client.open("GET", "/"))
    await until(lambda: made and (early or client.connections.open))
    task.cancel()
    await asyncio.wait({task})
    if early:
        await loop.create_connection(lambda: made[0], "127.0.0.1", port)
    await until(lambda: not client.connections.open and not upstream.connections)


@pytest.mark.parametrize("half", [False, True])
async def test_who_leaves_behind_much_that_waits_ends_the_backends_work(
    upstream: Upstream, start_proxy: StartProxy, half: bool
) -> None:
    """What waits fills the buffer, so nothing is read, and with it no end."""
    upstream.scripts = [[Stall()]]
    proxy = await start_proxy(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(request() * 100)
    asked = await upstream.request()
    connection = next(iter(proxy.service.listener.connections))
    await until(lambda: connection._number >= 0)  # type: ignore[attr-defined]
    if half:
        writer.write_eof()
    else:
        writer.transport.abort()
    await asked.closed.wait()
    await until(lambda: not proxy.service.state.inflight)
    writer.close()
    del reader


async def test_a_drain_waits_for_who_reads_the_end_slowly(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Its request is over once the answer is written; what has not left would be thrown away."""
    size = 300_000
    upstream.scripts = [whole({**json.loads(PLAIN), "padding": "x" * size})]
    proxy = await start_proxy(upstream, extensions="all")
    client, loop = await connect_narrow(proxy.port), asyncio.get_running_loop()
    service = proxy.service
    await until(lambda: bool(service.listener.connections))
    (connection,) = service.listener.connections
    assert isinstance(connection, Connection) and connection.transport is not None
    sending = connection.transport.get_extra_info("socket")
    sending.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    await loop.sock_sendall(client, post())
    answer = await loop.sock_recv(client, 1024)
    while service.state.inflight:
        part = await loop.sock_recv(client, 1024)
        assert part, f"closed behind {len(answer)} bytes"
        answer += part
    assert connection.unsent
    drain = asyncio.create_task(service.drain())
    await asyncio.wait({drain}, timeout=1.5)
    assert not drain.done()
    while part := await loop.sock_recv(client, 65_536):
        answer += part
    await drain
    assert b"x" * size in answer
    client.close()


def connections() -> set[Connection]:
    """Return those that are held by anything."""
    return {one for one in gc.get_objects() if type(one) is Connection}


async def test_a_connection_that_is_lost_is_freed_at_once(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """It is in no circle, for which the collector would have to look."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    gc.collect()
    others = connections()  # what an error of another test may still lead to
    gc.disable()
    try:
        assert status_of(await raw(proxy.port, post())) == 200
        await until(lambda: connections() <= others)
    finally:
        gc.enable()
