"""Connections to a unix socket: the same care as over TCP, and errors of its own."""

from __future__ import annotations

import asyncio
import functools
import os
import select
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvloop
from aiohttp import web

from tests.fakes.upstream import (
    Cut,
    Gate,
    Pause,
    Script,
    Stall,
    Upstream,
    head,
    stream,
    whole,
)
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.client import Upstream as Client
from wellspoken.proxy.upstream.failures import Reason, UpstreamError

NOBODY = 65534
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


@pytest.fixture
def place() -> Iterator[Path]:
    """A socket's path, not made yet: short, since one has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "api.sock"


def on_both_loops(test: Callable[[Path], Awaitable[None]]) -> Callable[..., None]:
    """Run a test on asyncio's loop and on uvloop, whose unix transports are another code."""

    @functools.wraps(test)
    def run(place: Path, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(place)

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(limited())

    del run.__wrapped__  # whose signature lacks `loop`
    return pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "uvloop"])(run)


@asynccontextmanager
async def client(place: Path, title: str = "", **timeouts: float) -> AsyncIterator[Client]:
    """A client that is closed at the end, and keeps idle connections however slow the machine."""
    kept = Timeouts(**{"upstream_keep_alive": 3600.0, **timeouts})
    made = Client(f"unix:{place}", kept, title=title)
    try:
        yield made
    finally:
        await made.close()


async def fetch(made: Client, first: float = 0.0) -> bytes:
    """POST to /x and return the body."""
    answer = await made.open("POST", "/x", b"{}", first=first)
    return await answer.read(1_000_000)


async def failure(made: Client, first: float = 0.0) -> UpstreamError:
    """Return the error of a POST."""
    with pytest.raises(UpstreamError) as caught:
        await fetch(made, first)
    return caught.value


@on_both_loops
async def test_a_connection_is_used_again(place: Path) -> None:
    async with Upstream(whole(b"1"), stream(b"2"), whole(b"3"), path=place) as upstream:
        async with client(place) as made:
            for wanted in (b"1", b"2", b"3"):
                assert await fetch(made) == wanted
                await pass_trial(made.connections)
    assert upstream.opened == 1
    request = upstream.requests[0]
    assert request.target == "/x"
    assert dict(request.headers)["Host"] == "localhost"


@on_both_loops
async def test_a_real_server_takes_it(place: Path) -> None:
    """aiohttp's own server refuses a request whose head is not right."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(text=request.host + request.path + await request.text())

    runner = web.ServerRunner(web.Server(answer), shutdown_timeout=1)
    await runner.setup()
    await web.UnixSite(runner, str(place)).start()
    try:
        async with client(place) as made:
            assert await made.get("/v1/models", 100) == (200, b"localhost/v1/models")
            answers = await asyncio.gather(*(fetch(made) for _ in range(20)))
            assert answers == [b"localhost/x{}"] * 20
    finally:
        await runner.cleanup()


@on_both_loops
async def test_a_connection_that_is_over_is_not_used_again(place: Path) -> None:
    """Closed, closed after its head said so, and with bytes that nobody asked for."""
    unasked = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nunasked"
    scripts: list[Script] = [
        [*whole(b"1"), Cut()],
        [head(length=1, headers=[("Connection", "close")]) + b"1"],
        [head() + b"1"],
        [*whole(b"1"), Pause(0.02), unasked],
        whole(b"1"),
    ]
    async with Upstream(*scripts, path=place) as upstream, client(place) as made:
        for _ in scripts[:-1]:
            assert await fetch(made) == b"1"
            await until(lambda: not made.busy)
        assert await fetch(made) == b"1"
        assert upstream.opened == len(scripts)


@on_both_loops
async def test_a_restart_on_the_same_path_breaks_no_request(place: Path) -> None:
    """The idle connections end with the old server, and no step of the loop has seen that yet."""
    async with Upstream(whole(b"old"), path=place) as old, client(place) as made:
        assert await asyncio.gather(*(fetch(made) for _ in range(5))) == [b"old"] * 5
        assert old.opened == 5
        await old.refuse()
        async with Upstream(whole(b"new"), path=place) as new:
            assert await asyncio.gather(*(fetch(made) for _ in range(5))) == [b"new"] * 5
            assert new.opened == 5


@on_both_loops
async def test_an_end_that_the_loop_has_not_seen_is_noticed(place: Path) -> None:
    with listening(place, 9) as listener:
        async with client(place) as made:
            for wanted in (b"1", b"2"):
                task = asyncio.create_task(fetch(made))
                await until(lambda: is_readable(listener))
                accepted, _ = listener.accept()  # the old connection is not asked again
                await until(lambda accepted=accepted: is_readable(accepted))  # type: ignore[misc]
                accepted.sendall(_plain(wanted))
                assert await task == wanted
                accepted.close()  # and no step of the loop lies between this and the next request


@on_both_loops
async def test_whoever_leaves_closes_the_socket_at_once(place: Path) -> None:
    scripts: list[Script] = [[Stall()], stream(b"1", Stall())]
    async with Upstream(*scripts, path=place) as upstream, client(place) as made:
        for n in range(2):
            task = asyncio.create_task(fetch(made))
            request = await upstream.request(n)
            await asyncio.sleep(0.02)
            task.cancel()
            for _ in range(20):  # at once: within some steps of the loop, whatever time they take
                await asyncio.sleep(0)
            assert request.closed.is_set() and request.by_peer
            with pytest.raises(asyncio.CancelledError):
                await task


@on_both_loops
async def test_close_wakes_whoever_waits(place: Path) -> None:
    async with Upstream([Stall()], path=place) as upstream:
        async with client(place) as made:
            task = asyncio.create_task(failure(made))
            await upstream.request()
        assert (await task).reason == "cut"


def _plain(body: bytes) -> bytes:
    return head(length=len(body)) + body


def is_readable(sock: socket.socket) -> bool:
    """Say whether something has come: a connection where it listens, else bytes."""
    ready = select.poll()
    ready.register(sock, select.POLLIN)
    return bool(ready.poll(0))


def listening(place: Path, backlog: int) -> socket.socket:
    """Return a socket that listens, and accepts only when it is asked to, within a minute."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(place))
    listener.listen(backlog)
    listener.settimeout(60)
    return listener


def filled(place: Path) -> list[socket.socket]:
    """Return connections that fill the queue of the listener at `place`."""
    found: list[socket.socket] = []
    while True:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        try:
            one.connect(str(place))
        except BlockingIOError:
            one.close()
            return found
        found.append(one)


@on_both_loops
async def test_a_server_that_is_slow_to_accept_is_waited_for(place: Path) -> None:
    """Over TCP the kernel waits; a unix socket whose queue is full says EAGAIN at once."""
    with listening(place, 1) as listener:
        fillers = filled(place)
        async with client(place, connect=60) as made:
            task = asyncio.create_task(fetch(made))
            await asyncio.sleep(0.1)
            assert not task.done()
            for _ in fillers:
                listener.accept()[0].close()
            listener.setblocking(False)
            accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
            accepted.setblocking(False)
            accepted.sendall(_plain(b"1"))
            assert await task == b"1"
            accepted.close()
        for one in fillers:
            one.close()


@on_both_loops
async def test_a_server_that_never_accepts_is_504(place: Path) -> None:
    with listening(place, 0):
        fillers = filled(place)
        async with client(place, connect=0.1) as made:
            error = await failure(made)
        for one in fillers:
            one.close()
    assert (error.reason, error.fault.status) == ("connect_timeout", 504)
    assert "accepted no connection within 0.1 s. It is too busy, or stuck" in str(error)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may open every file, so be somebody else for a moment."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@on_both_loops
async def test_why_there_is_no_connection(place: Path) -> None:
    async with client(place) as made, client(place / "x") as inside:
        missing = await failure(made)
        listening(place, 1).close()
        stale = await failure(made)
        under = await failure(inside)
        closed = place.with_name("closed")
        with listening(closed, 1):
            closed.chmod(0)
            with unprivileged():
                async with client(closed) as other:
                    denied = await failure(other)
    where = f"The backend at unix:{place}"
    assert str(missing) == (
        f"{where} does not run: its socket is not there. Start it, or check the path that the "
        "proxy was given."
    )
    assert str(stale) == (
        f"{where} refused the connection: the socket is there, but no server listens on it. "
        "Start it, or check the path that the proxy was given."
    )
    assert "cannot be reached (Not a directory). Check the path" in str(under)
    assert "may not be reached: permission denied. Give the proxy's user" in str(denied)
    reasons: list[Reason] = [error.reason for error in (missing, stale, under, denied)]
    assert reasons == ["refused", "refused", "unreachable", "unreachable"]
    assert {error.fault.status for error in (missing, stale, under, denied)} == {502}


@on_both_loops
async def test_an_engine_of_the_proxys_own_is_called_by_its_name(place: Path) -> None:
    """Whoever reads the message cannot start it or change its address: the proxy does that."""
    again = "Where it ended, the proxy starts it again: send the request again."
    scripts: list[Script] = [stream(b"1", Cut(), end=False), [b"no http"], [Stall()]]
    async with client(place, title="vLLM") as made:
        told: list[UpstreamError] = []
        made.on_failure = told.append
        assert str(await failure(made)) == (
            f"The engine (vLLM) does not run: its socket is not there. {again}"
        )
        async with Upstream(*scripts, path=place):
            assert str(await failure(made)) == (
                "The engine (vLLM) closed the connection before its answer was complete. "
                f"Its log says why. {again}"
            )
            assert str(await failure(made)) == (
                "The engine (vLLM) answered something that is not HTTP. Its log says more; "
                "send the request again."
            )
            late = await failure(made, first=0.05)
            assert str(late).startswith("The engine (vLLM) did not begin its answer within 0.05 s.")
    assert [error.reason for error in told] == ["refused", "cut", "protocol", "first_byte_timeout"]
    assert all(str(place) not in str(error) for error in told)


@on_both_loops
async def test_when_something_was_last_read(place: Path) -> None:
    gates = [Gate(), Gate()]
    script = [gates[0], *stream(b"1", gates[1], b"2")]
    loop = asyncio.get_running_loop()
    async with Upstream(script, path=place), client(place) as made:
        asking = asyncio.create_task(made.open("POST", "/x"))
        await gates[0].reached.wait()
        assert made.heard == 0.0  # the request is sent, and nothing has come
        gates[0].open()
        answer = await asking
        assert made.heard == 0.0  # nor does a head tell that anything is computed
        assert await answer.chunk() == b"1"
        assert 0.0 < made.heard <= loop.time()
        await gates[1].reached.wait()
        await asyncio.sleep(0.05)
        before = loop.time()
        assert made.heard < before  # waiting is no sign of life
        gates[1].open()
        assert await answer.chunk() == b"2"
        assert made.heard >= before
        answer.close()
