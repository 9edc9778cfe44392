"""A backend's answer: its head and body as they come, read in pieces, whole, or by a pump."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
from tests.proxy.upstream.clients import client
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.link.response import MOST


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
        if waits:
            await asyncio.sleep(0.05)
            assert not task.done()
        else:
            await asyncio.wait({task})
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
        answer = await made.open("POST", "/x", whole=True, first=60, between=_limit(end))
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


def _limit(end: object) -> float:
    """Return the seconds between two pieces: few where it is the limit that ends the answer."""
    return 0.1 if isinstance(end, Stall) else 60.0


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
        answer = await made.open("POST", "/x", first=60, between=_limit(end))
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
