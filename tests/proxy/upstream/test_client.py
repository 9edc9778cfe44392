"""Connections to backends: reuse, staleness, ends, and that nothing else reaches a backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tests.clock import skip
from tests.fakes.upstream import (
    LAST_CHUNK,
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
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.client import Upstream as Client
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.link.response import MOST


@asynccontextmanager
async def client(url: str, **timeouts: float) -> AsyncIterator[Client]:
    """A client that is closed at the end."""
    made = Client(url, Timeouts(**timeouts))
    try:
        yield made
    finally:
        await made.close()


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
        answer = await made.open("POST", "/x", between=1.0)
        assert await answer.chunk() == b"12"
        gate.open()
        await asyncio.sleep(1.5)
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
    assert "https or plain http" in str(caught.value)


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


@pytest.mark.parametrize(
    ("script", "waits"),
    [
        ([head(length=2), Gate(), b"ab"], True),
        ([head(length=2) + b"a", Gate(), b"b"], True),
        ([head(content_type="text/event-stream", length=2), Gate(), b"ab"], False),
        ([head(chunked=True), Gate(), chunk(b"ab"), LAST_CHUNK], False),
        ([head(length=200_000), Gate(), b"a" * 200_000], False),
    ],
)
async def test_the_head_of_a_small_body_need_not_be_told_before_it(
    upstream: Upstream, script: list[Gate | bytes], waits: bool
) -> None:
    """Where it is wanted whole: one wake-up for both. A stream's head is not held back."""
    (gate,) = (step for step in script if isinstance(step, Gate))
    upstream.scripts = [script]
    async with client(upstream.url) as made:
        task = asyncio.create_task(made.open("POST", "/x", whole=True))
        await gate.reached.wait()
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert bool(done) is not waits
        gate.open()
        answer = await task
        assert (await answer.read(200_000)).startswith(b"a")


@pytest.mark.parametrize("end", [Cut(), Reset(), Stall()])
async def test_a_body_that_breaks_off_is_a_failure_of_the_reading(
    upstream: Upstream, end: Cut | Reset | Stall
) -> None:
    """The head has come all the same, and the request is not sent once more."""
    upstream.scripts = [[head(length=3) + b"a", Pause(0.02), end]]
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x", whole=True, first=60, between=0.1)
        assert answer.status == 200
        with pytest.raises(UpstreamError) as caught:
            await answer.read(10)
        assert caught.value.reason == ("chunk_timeout" if isinstance(end, Stall) else "cut")
    assert len(upstream.requests) == 1


async def test_the_fields_of_a_head_are_found_by_any_case(upstream: Upstream) -> None:
    fields = [("X-A", "1"), ("x-a", "2 "), ("X-C", "\xe9"), ("CONTENT-type", "Text/Plain; X")]
    upstream.scripts = [whole(b"1", content_type=None, headers=fields)]
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x")
        assert answer.headers["x-A"] == "1"
        assert answer.headers["x-c"] == "\xe9"
        assert answer.headers.getall("X-a") == ["1", "2"]
        assert (answer.content_type, answer.content_type_header) == ("text/plain", "Text/Plain; X")
        assert await answer.read(10) == b"1"


def noting(got: list[bytes]) -> Callable[[bytes], bool]:
    """Return a sink that keeps what it gets, and never stops."""

    def note(data: bytes) -> bool:
        got.append(data)
        return False

    return note


@pytest.mark.parametrize("by", ["chunk", "read", "pump", "finish"])
async def test_what_comes_before_its_reader_is_kept_up_to_a_limit(
    upstream: Upstream, by: str
) -> None:
    """Then no more is read, until somebody waits."""
    size = 8_000_000  # more than the kernel keeps
    upstream.scripts = [[head(length=size), *[b"x" * 100_000] * 80]]
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x", first=60.0, between=60.0)
        connection = next(iter(upstream.connections))
        assert connection.transport is not None
        await until(lambda: upstream.sent == size + len(head(length=size)))
        await asyncio.sleep(0.1)
        assert connection.transport.get_write_buffer_size() > 1_000_000
        assert answer._size <= MOST + 262_144
        got: list[bytes] = []
        if by == "chunk":
            while data := await answer.chunk():
                got.append(data)
        elif by == "read":
            got.append(await answer.read(size))
        elif by == "pump":
            assert not await answer.pump(noting(got))
        else:
            answer.finish()
            await until(lambda: answer._complete)
            size = 0
        assert sum(map(len, got)) == size


async def test_a_sink_stops_the_pump_and_raises_through_it(upstream: Upstream) -> None:
    gates = [Gate() for _ in range(3)]
    steps = [
        step for gate, data in zip(gates, b"abc", strict=True) for step in (gate, bytes([data]))
    ]
    upstream.scripts = [stream(*steps)]
    got: list[bytes] = []

    def stop(data: bytes) -> bool:
        got.append(data)
        gates[len(got) % 3].open()
        return data == b"a"

    def fail(data: bytes) -> bool:
        raise ConnectionResetError(data)  # which is no failure of the backend's

    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x")
        gates[0].open()
        assert await answer.pump(stop)
        with pytest.raises(ConnectionResetError):
            await answer.pump(fail)
        gates[2].open()
        assert not await answer.pump(stop)
        assert got == [b"a", b"c"]
        assert not await answer.pump(fail) and not made.losses


async def test_a_pump_ends_with_its_task(upstream: Upstream) -> None:
    upstream.scripts = [stream(b"a", Stall())]
    got: list[bytes] = []
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x")
        task = asyncio.create_task(answer.pump(noting(got)))
        await until(lambda: got)
        task.cancel()
        await upstream.requests[0].closed.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("end", [Cut(), Reset(), Stall(), b"zz"])
async def test_a_pump_tells_what_came_before_a_failure(
    upstream: Upstream, end: Cut | Reset | Stall | bytes
) -> None:
    upstream.scripts = [[head(chunked=True) + chunk(b"a"), end]]
    got: list[bytes] = []
    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x", first=60, between=0.2)
        with pytest.raises(UpstreamError) as caught:
            await answer.pump(noting(got))
    assert got == [b"a"]
    wanted = {Cut: "cut", Reset: "cut", Stall: "chunk_timeout", bytes: "protocol"}
    assert caught.value.reason == wanted[type(end)]


async def test_a_connection_whose_answer_had_to_wait_for_its_reader_reads_on(
    upstream: Upstream,
) -> None:
    """The last byte may come in the same read as what was too much for now."""
    big = b"x" * (MOST + 1000)
    upstream.scripts = [whole(b"1"), stream(big), whole(big), whole(b"1")]
    async with client(upstream.url) as made:
        for wanted in (b"1", big, big, b"1"):
            answer = await made.open("POST", "/x")
            while not answer._complete and not answer._paused:
                await asyncio.sleep(0.01)
            assert await answer.read(len(big)) == wanted
            await pass_trial(made.connections)
    assert upstream.opened == 1


async def test_what_comes_behind_a_stop_waits_for_the_next_pump(upstream: Upstream) -> None:
    """In the same step of the loop, before the task wakes, and before a pump has begun."""
    upstream.scripts = [[head(chunked=True), Stall()]]
    got: list[bytes] = []

    def stop(data: bytes) -> bool:
        got.append(data)
        return True

    async with client(upstream.url) as made:
        answer = await made.open("POST", "/x", between=100.0)
        (wire,) = made.connections.open
        wire.data_received(chunk(b"a"))
        wire.data_received(chunk(b"b"))
        assert await answer.pump(stop) and got == [b"ab"]
        task = asyncio.create_task(answer.pump(stop))
        await asyncio.sleep(0)
        wire.data_received(chunk(b"c"))
        wire.data_received(chunk(b"d"))
        assert await task and got == [b"ab", b"c"]
        assert await answer.pump(stop) and got == [b"ab", b"c", b"d"]
        task = asyncio.create_task(answer.pump(noting(got)))
        for _ in range(3):  # each wait is shorter than the limit, all of them are longer
            await asyncio.sleep(0.01)
            skip(60)
            wire.data_received(chunk(b"e"))
        wire.data_received(LAST_CHUNK)
        assert not await task and got[3:] == [b"e"] * 3
