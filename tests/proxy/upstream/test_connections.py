"""Connections that servers close a moment after an answer, though they said they would not.

No request may be sent into one that is being closed, since nothing tells whether it was read. The
scripted server decides the order: it closes a connection once the next request is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
import uvloop

from tests.clock import skip
from tests.fakes.upstream import Cut, Gate, Reset, Script, Upstream, head, stream, whole
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.proxy.config.tables import Timeouts
from wellspoken.proxy.upstream.client import Upstream as Client
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.link import connections
from wellspoken.proxy.upstream.link.connections import TRIALS
from wellspoken.proxy.upstream.link.wire import Wire

ROUNDS = 20
TRIAL = 30.0  # in place of a second, which a busy machine may be away for
KINDS: dict[str, Callable[[bytes], Script]] = {
    "stream": stream,
    "text": lambda text: stream(text, content_type="text/plain"),
    "body": whole,
    "error": lambda text: whole(text, status=400),
}


@pytest.fixture(autouse=True)
def long_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no trial be over but by `skip`."""
    monkeypatch.setattr(connections, "TRIAL", TRIAL)


@asynccontextmanager
async def client(upstream: Upstream) -> AsyncIterator[Client]:
    """A client of the scripted server."""
    made = Client(upstream.url, Timeouts(upstream_keep_alive=100 * TRIAL))
    try:
        yield made
    finally:
        await made.close()


@pytest.fixture
async def made(upstream: Upstream) -> AsyncIterator[Client]:
    """The same for one test."""
    async with client(upstream) as made:
        yield made


async def fetch(made: Client) -> bytes:
    """POST to /x and return the body."""
    answer = await made.open("POST", "/x", b"{}")
    return await answer.read(1_000_000)


@pytest.mark.parametrize("after", [0.0, 0.02, 0.05, 0.1, 0.2, 0.8])  # of a trial
@pytest.mark.parametrize("end", [Cut, Reset])
@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
async def test_no_request_meets_a_connection_that_closes_after_its_answer(
    upstream: Upstream,
    made: Client,
    make: Callable[[bytes], Script],
    end: type[Cut | Reset],
    after: float,
) -> None:
    """llama.cpp (b7376, b11549) does so after streams; `after`: from then to the next request."""
    gates = [Gate() for _ in range(ROUNDS)]
    upstream.scripts = [[*make(b"%d" % n), gate, end()] for n, gate in enumerate(gates)]
    for number in range(ROUNDS):
        came, before = len(upstream.received), set(made.connections.open)
        answer = asyncio.create_task(fetch(made))
        await until(lambda came=came: len(upstream.received) > came)  # type: ignore[misc]
        if number:
            gates[number - 1].open()
        assert await answer == b"%d" % number
        await until(lambda before=before: not before & made.connections.open)  # type: ignore[misc]
        skip(after * TRIAL)
        await asyncio.sleep(0)  # what is due by then comes before the next request
    gates[-1].open()
    assert len(upstream.requests) == ROUNDS


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
async def test_a_server_that_keeps_connections_is_soon_trusted(
    upstream: Upstream, made: Client, make: Callable[[bytes], Script]
) -> None:
    upstream.scripts = [make(b"1")]
    await fetch(made)
    assert not made.connections.idle  # on trial
    await fetch(made)
    await until(lambda: len(upstream.connections) == 1)  # one trial at a time
    await pass_trial(made.connections)
    for _ in range(3):
        await fetch(made)
    assert upstream.opened == 2
    assert len(upstream.requests) == 5


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
async def test_a_trial_that_the_server_ends_is_no_trial_passed(
    upstream: Upstream, made: Client, make: Callable[[bytes], Script]
) -> None:
    upstream.scripts = [[*make(b"1"), Cut()], make(b"1")]
    await fetch(made)
    await until(lambda: not made.busy)
    skip(TRIAL)
    for number in range(TRIALS):
        await fetch(made)
        assert not made.connections.idle
        await pass_trial(made.connections)
        assert upstream.opened == number + 2
    await fetch(made)
    assert upstream.opened == TRIALS + 1


async def test_what_a_server_does_after_one_kind_of_answer_says_nothing_of_another(
    upstream: Upstream, made: Client
) -> None:
    """It is asked for its models, and keeps that connection, before it is asked for an answer."""
    upstream.scripts = [whole(b"{}")]
    assert await made.probe("/v1/models") == 200
    await pass_trial(made.connections)
    for number, kind in enumerate(("stream", "body", "error"), 1):
        upstream.scripts = [KINDS[kind](b"1"), whole(b"1")]
        await fetch(made)  # on the connection that passed, which now is on trial
        assert upstream.opened == number and not made.connections.idle
        await made.probe("/v1/models")
        assert upstream.opened == number + 1
    assert len(upstream.connections) == 4


async def test_a_connection_on_trial_does_not_outlive_its_backend(
    upstream: Upstream, made: Client
) -> None:
    upstream.scripts = [whole(b"1")]
    await fetch(made)
    made.retire()
    for _ in range(5):  # steps of the loop, and no time, after which it would be closed as idle
        await asyncio.sleep(0)
    assert not made.busy


@pytest.mark.parametrize(
    "first", [stream(b"1"), whole(b"1"), [head(chunked=True) + b"1\r\n1\r\n0\r\n\r\n"]]
)
@pytest.mark.parametrize("end", [Cut, Reset])
async def test_a_server_that_ends_an_idle_connection_early_loses_trust(
    upstream: Upstream, made: Client, first: Script, end: type[Cut | Reset]
) -> None:
    """It may have been replaced by another, or close some connections and not others."""
    upstream.scripts = [first]
    await fetch(made)
    if not made.connections.idle:
        await pass_trial(made.connections)
    gate = Gate()
    upstream.scripts = [[*first, gate, end()], first]
    await fetch(made)
    gate.open()
    await until(lambda: not made.busy)
    opened = upstream.opened
    for number in range(TRIALS):
        await fetch(made)
        assert not made.connections.idle
        await pass_trial(made.connections)
        assert upstream.opened == opened + number + 1
    await fetch(made)
    assert upstream.opened == opened + TRIALS


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Both loops, each of which ends a connection by code of its own."""
    with asyncio.Runner(loop_factory=request.param) as found:
        yield found


async def ask_behind_an_end(
    upstream: Upstream, made: Client, monkeypatch: pytest.MonkeyPatch
) -> bytes:
    """Send a request while the server's end of the connection is on its way.

    It has come in truth, but neither the loop nor the look before use has seen it.
    """
    gate = next(step for step in upstream.scripts[0] if isinstance(step, Gate))
    monkeypatch.setattr(connections, "TRIAL", 0.1)
    await fetch(made)
    await pass_trial(made.connections)
    (wire,) = made.connections.idle
    assert wire.transport is not None
    wire.transport.pause_reading()
    gate.open()
    await until(lambda: not upstream.connections)

    def see_nothing(wire: Wire) -> bool:
        assert wire.transport is not None
        wire.transport.resume_reading()
        return True

    monkeypatch.setattr(Wire, "quiet", see_nothing)
    return await fetch(made)


def test_a_request_behind_the_servers_end_is_sent_once_more(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of it was acknowledged when the FIN came, so the server had not read any."""

    async def run() -> None:
        first = [*whole(b"1"), Gate(), Cut()]
        async with Upstream(first, whole(b"2"), whole(b"2")) as upstream, client(upstream) as made:
            failures: list[UpstreamError] = []
            made.on_failure = failures.append
            assert await ask_behind_an_end(upstream, made, monkeypatch) == b"2"
            assert len(upstream.requests) == upstream.opened == 2
            assert not failures and not made.losses

    runner.run(run())


def test_a_request_that_met_a_reset_is_not(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset may have come from anybody between, for any reason."""

    async def run() -> None:
        first = [*whole(b"1"), Gate(), Reset()]
        async with Upstream(first, whole(b"2"), whole(b"2")) as upstream, client(upstream) as made:
            with pytest.raises(UpstreamError) as caught:
                await ask_behind_an_end(upstream, made, monkeypatch)
            assert caught.value.reason == "cut"
            assert len(upstream.requests) == 1

    runner.run(run())


@pytest.mark.parametrize("end", [Cut(), Reset()])
async def test_a_request_that_may_have_been_read_is_sent_once(
    upstream: Upstream, made: Client, end: Cut | Reset
) -> None:
    """What a server says that reads a request whole and then dies does not tell that it was read.

    The connection had been kept after a stream, and after it there is a new trial.
    """
    upstream.scripts = [stream(b"1"), stream(b"2"), [end], stream(b"4")]
    await fetch(made)
    await pass_trial(made.connections)
    await fetch(made)
    with pytest.raises(UpstreamError) as caught:
        await fetch(made)
    assert caught.value.reason == "cut"
    assert [request.connection for request in upstream.requests] == [1, 1, 1]
    await fetch(made)
    assert not made.connections.idle


async def test_a_failure_in_an_answer_says_nothing_of_idle_connections(
    upstream: Upstream, made: Client
) -> None:
    upstream.scripts = [stream(b"1"), stream(b"2"), stream(b"3", Cut())]
    await fetch(made)
    await pass_trial(made.connections)
    await fetch(made)
    with pytest.raises(UpstreamError):
        await fetch(made)
    upstream.scripts = [stream(b"4")]
    await fetch(made)
    assert made.connections.idle
