"""Connections to backends: reuse, staleness, ends, and that nothing else reaches a backend."""

from __future__ import annotations

import asyncio

import pytest

from tests.clock import skip
from tests.fakes.upstream import (
    Cut,
    Gate,
    Pause,
    Reset,
    Stall,
    Upstream,
    chunk,
    head,
    stream,
    whole,
)
from tests.proxy.upstream.clients import client
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.client import Upstream as Client
from wellspoken.proxy.upstream.failures import UpstreamError


async def fetch(made: Client, *, first: float = 0.0, between: float = 0.0) -> bytes:
    """POST to /x and return the body."""
    answer = await made.open("POST", "/x", b"{}", first=first, between=between)
    return await answer.read(1_000_000)


async def test_a_connection_is_used_again(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1"), stream(b"2"), whole(b"3")]
    async with client(upstream.url) as made:
        for wanted in (b"1", b"2", b"3"):
            assert await fetch(made) == wanted
            await pass_trial(made.connections)
    assert upstream.opened == 1
    assert len(upstream.requests) == 3


@pytest.mark.parametrize(
    "first",
    [
        [*whole(b"1"), Cut()],
        [*whole(b"1"), Reset()],
        [head(length=1, headers=[("Connection", "close")]) + b"1"],
        [head() + b"1"],
        [head(length=1) + b"1HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nunasked"],
        [*whole(b"1"), Pause(0.02), b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nunasked"],
    ],
    ids=["closed", "reset", "close header", "until close", "two answers", "unasked answer"],
)
async def test_a_connection_that_is_over_is_not_used_again(
    upstream: Upstream, first: list[object]
) -> None:
    upstream.scripts = [first, whole(b"2")]  # type: ignore[list-item]
    async with client(upstream.url) as made:
        assert await fetch(made) == b"1"
        await until(lambda: not made.busy)
        assert await fetch(made) == b"2"
    assert upstream.opened == 2


async def test_an_end_that_the_loop_has_not_seen_is_noticed(upstream: Upstream) -> None:
    """The socket is readable although nothing was asked: that can only be its end."""
    gate = Gate()
    upstream.scripts = [[*whole(b"1"), gate, Cut()], whole(b"2")]
    async with client(upstream.url) as made:
        assert await fetch(made) == b"1"
        await pass_trial(made.connections)
        gate.open()
        connection = next(iter(upstream.connections))
        while upstream.connections:
            # Steps of the loop in which the client's transport may not read what has come.
            for wire in made.connections.idle:
                assert wire.transport is not None
                wire.transport.pause_reading()
            await asyncio.sleep(0)
        del connection
        assert await fetch(made) == b"2"
    assert upstream.opened == 2


async def test_idle_connections_are_closed_in_time(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1")]
    async with client(upstream.url, upstream_keep_alive=0.1) as made:
        began = made.loop.time()
        await asyncio.gather(fetch(made), fetch(made))
        await until(lambda: not upstream.connections)
        assert made.loop.time() - began >= 0.1
        assert await fetch(made) == b"1"


async def test_of_idle_connections_only_the_old_ones_are_closed(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1")]
    async with client(upstream.url, upstream_keep_alive=3600.0) as made:
        await fetch(made)
        await pass_trial(made.connections)
        await asyncio.gather(fetch(made), fetch(made))
        made.connections._sweep()
        made.connections.idle[0].since -= 3600.0
        made.connections._sweep()
        await until(lambda: len(upstream.connections) == 1)
        assert await fetch(made) == b"1"
        assert upstream.opened == 2


async def test_a_post_that_may_have_run_is_not_repeated(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1"), [Cut()], whole(b"3")]
    async with client(upstream.url) as made:
        assert await fetch(made) == b"1"
        with pytest.raises(UpstreamError) as caught:
            await fetch(made)
        assert caught.value.reason == "cut"
    assert len(upstream.requests) == 2


async def test_close_ends_what_is_open(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1"), stream(b"2", Stall())]
    async with client(upstream.url) as made:
        await fetch(made)
        answer = await made.open("POST", "/x")
        assert await answer.chunk() == b"2"
    await upstream.requests[1].closed.wait()
    with pytest.raises(UpstreamError):
        await answer.chunk()


@pytest.mark.parametrize("script", [[Stall()], stream(Stall())])
async def test_close_wakes_whoever_waits(upstream: Upstream, script: list[object]) -> None:
    upstream.scripts = [script]  # type: ignore[list-item]
    async with client(upstream.url) as made:
        task = asyncio.create_task(fetch(made))
        await upstream.request()
        await asyncio.sleep(0.02)
    with pytest.raises(UpstreamError):
        await task


async def test_a_late_release_after_the_close_is_no_leak(upstream: Upstream) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *whole(b"1")]]
    made = Client(upstream.url, Timeouts())
    task = asyncio.create_task(fetch(made))
    await gate.reached.wait()
    gate.open()
    assert await task == b"1"
    await made.close()
    await upstream.requests[0].closed.wait()


async def test_an_answer_can_be_closed_twice_and_after_its_end(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1")]
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x")
        assert await answer.read(10) == b"1"
        await pass_trial(made.connections)
        answer.close()
        answer.close()
        answer.finish()
        assert await answer.chunk() == b""
        assert await fetch(made) == b"1"
    assert upstream.opened == 1


async def test_limits_are_of_waits_not_of_the_reader(upstream: Upstream) -> None:
    gate, last = Gate(), Gate()
    upstream.scripts = [stream(b"1", b"2", gate, b"3", last)]
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x", between=50.0)
        assert await answer.chunk() == b"12"
        gate.open()
        await last.reached.wait()
        skip(100)
        await asyncio.sleep(0.01)  # what is due by then comes before the reader
        assert await answer.chunk() == b"3"
        last.open()
        assert await answer.chunk() == b""


async def test_a_wait_that_is_too_long_is_named(upstream: Upstream) -> None:
    upstream.scripts = [[Stall()], stream(Stall()), stream(b"1", Stall())]
    async with client(upstream.url) as made:
        for reason in ("first_byte_timeout", "first_byte_timeout", "chunk_timeout"):
            first, between = (60, 0.1) if reason == "chunk_timeout" else (0.05, 60)
            with pytest.raises(UpstreamError) as caught:
                await fetch(made, first=first, between=between)
            assert caught.value.reason == reason
            assert caught.value.fault.status == 504
    for request in upstream.requests:
        await request.closed.wait()


async def test_a_connect_that_takes_too_long_is_504(upstream: Upstream) -> None:
    """A listening socket whose backlog is full neither accepts nor refuses."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        async with client(f"http://127.0.0.1:{address[1]}", connect=0.1) as made:
            with pytest.raises(UpstreamError) as caught:
                await fetch(made)
        for filler in fillers:
            filler.close()
    assert caught.value.reason == "connect_timeout"
    assert caught.value.fault.status == 504


async def test_tls_to_a_plain_port_is_named(upstream: Upstream) -> None:
    upstream.scripts = [[b"HTTP/1.1 400 Bad Request\r\n\r\n"]]
    async with client(upstream.url.replace("http:", "https:")) as made:
        task = asyncio.create_task(fetch(made))
        await until(lambda: upstream.received)
        for connection in list(upstream.connections):
            assert connection.transport is not None
            connection.transport.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(UpstreamError) as caught:
            await task
    assert caught.value.reason == "tls"
    assert "does not speak TLS there" in str(caught.value)


async def test_an_address_that_cannot_be_reached_is_named() -> None:
    async with client("http://255.255.255.255:9") as made:
        with pytest.raises(UpstreamError) as caught:
            await fetch(made)
    assert caught.value.reason == "unreachable"


async def test_an_upgrade_is_no_answer(upstream: Upstream) -> None:
    upstream.scripts = [
        [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", Stall()]
    ]
    async with client(upstream.url) as made:
        with pytest.raises(UpstreamError):
            await fetch(made)


async def test_a_prefix_in_the_url_is_kept(upstream: Upstream) -> None:
    upstream.scripts = [whole(b"1")]
    async with client(upstream.url + "/llm") as made:
        await fetch(made)
    assert upstream.requests[0].target == "/llm/x"


async def test_chunks_come_as_they_are_sent(upstream: Upstream) -> None:
    gate = Gate()
    upstream.scripts = [[head(chunked=True) + chunk(b"a") + chunk(b"b"), gate, chunk(b"c")]]
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x")
        assert await answer.chunk() == b"ab"
        gate.open()
        assert await answer.chunk() == b"c"
        answer.close()
