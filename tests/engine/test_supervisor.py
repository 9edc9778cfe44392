"""The life of an engine, by script: every row of the state table, and requests in each state."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.scripted import Host, Scripted, ScriptedKind, SocketServer
from tests.waiting import until
from wellspoken.engine import supervisor as module
from wellspoken.engine.failure import EngineError, NotReady
from wellspoken.engine.kind import Settings
from wellspoken.engine.states import TABLE
from wellspoken.engine.supervisor import Supervisor

Make = Callable[..., Supervisor]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """What each start does; starts follow each other at once."""
    scripted = Scripted()
    monkeypatch.setattr(module, "attempt", scripted.attempt)
    monkeypatch.setattr(module, "sweep", lambda log: None)
    monkeypatch.setattr(module, "BACKOFF", (0.01, 0.04))
    return scripted


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
async def make(script: Scripted, host: Host) -> AsyncIterator[Make]:
    """Make supervisors, whose engines end with the test."""
    made: list[Supervisor] = []

    def of(**settings: Any) -> Supervisor:
        quiet: dict[str, Any] = {"health_interval": 0.0, "stall_timeout": 0.0}
        chosen = Settings(**{**quiet, **settings})
        made.append(Supervisor(ScriptedKind(), chosen, host, lambda line: None))
        host.of = made[-1]
        return made[-1]

    yield of
    for each in made:
        await each.stop()


def test_every_state_can_be_left_by_a_stop() -> None:
    """Each but draining, which ends by itself."""
    states = {state for state, _ in TABLE}
    assert states == {"stopped", "starting", "ready", "draining", "failed"}
    assert {state for state, event in TABLE if event == "stop"} == states - {"draining"}
    assert set(TABLE.values()) == states


async def test_start_stop(make: Make, script: Scripted, host: Host) -> None:
    engine = make()
    assert str(engine.state) == "stopped" and engine.first
    assert engine.reason == "it has not been started"
    await engine.start()
    assert engine.state == "ready" and engine.reason == "" and not engine.first
    assert engine.facts.models == ("m",) and engine.start_seconds is not None
    assert host.told == ["up"]
    await engine.stop()
    assert engine.state == "stopped" and engine.pid is None
    assert host.told == ["up", "down"]
    assert script.children[0].told[0] == "stop" and script.places[0].cleared
    with pytest.raises(NotReady):
        await engine.enter()


async def test_a_first_start_refuses_requests_at_once_and_says_how_far_it_is(
    make: Make, script: Scripted
) -> None:
    gate = asyncio.Event()
    script.steps = [gate]
    engine = make()
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.state == "starting" and "loading" in engine.reason)
    with pytest.raises(NotReady, match="Scripted is starting: loading, 0 s") as refused:
        await engine.enter()
    assert refused.value.retry_after == 5
    gate.set()
    await starting
    await engine.enter()
    assert engine.open == 1
    engine.leave()
    assert engine.open == 0


async def test_a_stop_in_the_middle_of_a_start(make: Make, script: Scripted) -> None:
    script.steps = [asyncio.Event()]
    engine = make()
    starting = asyncio.create_task(engine.start())
    await until(lambda: engine.state == "starting")
    await engine.stop()
    assert engine.state == "stopped" and script.cancelled == 1
    with pytest.raises(EngineError, match="shutting down"):
        await starting


async def test_a_lasting_error_at_the_first_start_is_final(make: Make, script: Scripted) -> None:
    script.steps = [EngineError("there is no model", lasting=True)]
    engine = make()
    with pytest.raises(EngineError, match="there is no model") as failed:
        await engine.start()
    assert failed.value.lasting and engine.state == "failed" and engine.restarts == 0
    with pytest.raises(NotReady, match="there is no model") as refused:
        await engine.enter()
    assert refused.value.retry_after is None


async def test_a_lasting_error_later_is_tried_again(make: Make, script: Scripted) -> None:
    """A network file system that is away for a moment looks like a missing model."""
    engine = make()
    await engine.start()
    script.steps = [EngineError("there is no model", lasting=True)]
    script.children[0].end(1)
    await until(lambda: engine.restarts == 2 and engine.state == "ready")


@pytest.mark.parametrize("code", [0, 1, -9])
async def test_an_end_that_nobody_asked_for_restarts_it(
    make: Make, script: Scripted, host: Host, code: int
) -> None:
    """vLLM ends with 0 when its EngineCore was killed."""
    engine = make()
    await engine.start()
    script.children[0].end(code)
    await until(lambda: len(script.children) == 2 and engine.state == "ready")
    assert engine.restarts == 1
    assert host.told == ["up", "down", "up"] and script.places[0].cleared
    how = "was ended by SIGKILL" if code < 0 else f"ended with exit code {code}"
    assert f"Scripted {how}, and nobody asked it to; it starts again in 0.01 s" in host.reasons


async def test_five_ends_within_ten_minutes_are_too_many(
    make: Make, script: Scripted, host: Host
) -> None:
    engine = make()
    await engine.start()
    for number in range(5):
        await until(lambda: engine.state == "ready")
        script.children[number].end(7)
        await until(lambda: engine.state != "ready")
    await until(lambda: engine.state == "failed")
    assert len(script.children) == 5 and engine.restarts == 4
    often = "it ended 5 times within 10 minutes, and is tried again 1 minute later, or at once on "
    assert engine.reason.startswith(often)
    assert "exit code 7" in engine.reason and host.told[-1] == "down"
    with pytest.raises(NotReady, match="5 times") as refused:
        await engine.enter()
    assert refused.value.retry_after == 30
    engine.try_now()  # as SIGHUP does
    await until(lambda: engine.state == "ready" and len(script.children) == 6)
    assert engine.restarts == 5


async def test_one_that_fails_on_is_tried_after_longer_and_longer_pauses(
    make: Make, script: Scripted, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN", (0.01, 0.04))
    script.steps = [EngineError("no memory")] * 9
    engine = make()
    with pytest.raises(EngineError, match="5 times"):
        await engine.start()
    await until(lambda: engine.state == "ready")
    assert engine.restarts == 9
    pauses = [r.split(" again ")[1].split(" s ")[0] for r in host.reasons if "on SIGHUP" in r]
    assert list(dict.fromkeys(pauses)) == ["0.01", "0.02", "0.04"]
    script.children[0].end(1)  # before it has served for long
    await until(lambda: "it failed once more" in engine.reason)


async def test_one_that_has_served_well_may_fail_five_times_again(
    make: Make, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN", (0.01, 0.04))
    monkeypatch.setattr(module, "HEALTHY", 0.0)
    monkeypatch.setattr(module, "WINDOW", 0.0)
    script.steps = [EngineError("no memory")]
    engine = make(restarts=1)
    with pytest.raises(EngineError, match="1 times"):
        await engine.start()
    await until(lambda: engine.state == "ready")
    monkeypatch.setattr(engine, "settings", replace(engine.settings, restarts=5))
    script.children[0].end(1)
    await until(lambda: len(script.children) == 2 and engine.state == "ready")
    assert "once more" not in engine._why


async def test_one_that_takes_its_host_along_is_not_tried_again(
    make: Make, script: Scripted
) -> None:
    script.steps = [EngineError("no memory")] * 5
    engine = make(exits=True)
    with pytest.raises(EngineError, match="and is not started again; the last time: no memory"):
        await engine.start()
    await engine.wait_failed()
    with pytest.raises(NotReady) as refused:
        await engine.enter()
    assert refused.value.retry_after is None


async def test_what_makes_no_sense_to_try_again_is_tried_when_asked_for(
    make: Make, script: Scripted
) -> None:
    script.steps = [EngineError("there is no model", lasting=True)] * 2
    engine = make()
    with pytest.raises(EngineError, match="there is no model"):
        await engine.start()
    await engine.wait_failed()
    engine.try_now()
    await until(lambda: engine.restarts == 1 and engine.state == "failed")
    engine.try_now()
    await until(lambda: engine.state == "ready")
    engine.try_now()
    assert engine.state == "ready" and len(script.children) == 1


async def test_a_first_start_that_fails_five_times(make: Make, script: Scripted) -> None:
    script.steps = [EngineError("no memory")] * 5
    engine = make()
    with pytest.raises(EngineError, match=r"5 times.*no memory") as failed:
        await engine.start()
    assert not failed.value.lasting and engine.first


async def test_pauses_double_and_begin_anew_after_good_service(
    make: Make, script: Scripted, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEALTHY", 0.2)
    engine = make(restarts=20)
    await engine.start()
    script.steps = [EngineError("a"), EngineError("b"), EngineError("c")]
    script.children[0].end(1)
    await until(lambda: len(script.children) == 2 and engine.state == "ready")
    await asyncio.sleep(0.25)
    script.children[1].end(1)
    await until(lambda: len(script.children) == 3)
    pauses = [reason.rpartition(" in ")[2] for reason in host.reasons if "again in" in reason]
    assert pauses == ["0.01 s", "0.02 s", "0.04 s", "0.04 s", "0.01 s"]


async def test_requests_wait_for_a_restart(make: Make, script: Scripted) -> None:
    engine = make()
    await engine.start()
    gate = asyncio.Event()
    script.steps = [gate]
    script.children[0].end(1)
    await until(lambda: engine.state == "starting")
    waiting = [asyncio.create_task(engine.enter()) for _ in range(3)]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting) and engine.open == 0
    gate.set()
    await asyncio.gather(*waiting)
    assert engine.open == 3


async def test_requests_wait_no_longer_than_they_may(make: Make, script: Scripted) -> None:
    engine = make(wait=0.05, queue=1)
    await engine.start()
    script.steps = [asyncio.Event()]
    script.children[0].end(1)
    await until(lambda: engine.state == "starting")
    one = asyncio.create_task(engine.enter())
    await asyncio.sleep(0)
    with pytest.raises(NotReady, match="1 requests wait for it already"):
        await engine.enter()
    with pytest.raises(NotReady, match="Scripted") as refused:
        await one
    assert refused.value.retry_after is not None and engine.open == 0


async def test_a_request_that_leaves_while_it_waits_is_forgotten(
    make: Make, script: Scripted
) -> None:
    engine = make(queue=1)
    await engine.start()
    script.steps = [asyncio.Event()]
    script.children[0].end(1)
    await until(lambda: engine.state == "starting")
    for _ in range(3):
        waiting = asyncio.create_task(engine.enter())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert engine.open == 0


async def test_unused_it_is_unloaded_and_loaded_by_a_request(
    make: Make, script: Scripted, host: Host
) -> None:
    engine = make(idle_unload=0.05, wait=0.0)
    await engine.start()
    await until(lambda: engine.state == "stopped")
    assert engine.reason == "it was unloaded after 0.05 s without use" and engine.unloaded
    assert host.told == ["up", "down"] and script.places[0].cleared
    gate = asyncio.Event()
    script.steps = [gate]
    waiting = [asyncio.create_task(engine.enter()) for _ in range(3)]
    await until(lambda: engine.state == "starting")
    await asyncio.sleep(0.05)  # longer than `wait`: it is they who let it be loaded
    assert engine.unloaded
    gate.set()
    await asyncio.gather(*waiting)
    assert not engine.unloaded
    assert engine.open == 3 and engine.restarts == 0 and len(script.children) == 2
    await asyncio.sleep(0.15)
    assert engine.state == "ready"  # open requests hold it
    for _ in range(3):
        engine.leave()
    await until(lambda: engine.state == "stopped")


async def test_a_request_during_an_unload_waits_for_the_next_start(
    make: Make, script: Scripted
) -> None:
    engine = make(idle_unload=0.05)
    await engine.start()
    script.children[0].obedient = False
    await until(lambda: engine.state == "draining")
    waiting = asyncio.create_task(engine.enter())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    script.children[0].end(0)
    await waiting
    assert engine.state == "ready" and len(script.children) == 2


async def test_now_kills_what_would_still_take_its_time(make: Make, script: Scripted) -> None:
    engine = make()
    await engine.start()
    script.children[0].obedient = False
    now = asyncio.Event()
    stopping = asyncio.create_task(engine.stop(now))
    await until(lambda: engine.state == "draining")
    await asyncio.sleep(0.02)
    assert script.children[0].told == ["stop"]
    now.set()
    await stopping
    assert script.children[0].told[:2] == ["stop", "kill"] and engine.state == "stopped"


async def test_now_cuts_an_unload_short_that_began_before_the_stop(
    make: Make, script: Scripted
) -> None:
    """The second signal, while an idle engine does not end."""
    engine = make(idle_unload=0.05)
    await engine.start()
    script.children[0].obedient = False
    await until(lambda: engine.state == "draining")
    now = asyncio.Event()
    stopping = asyncio.create_task(engine.stop(now))
    await asyncio.sleep(0.02)
    assert script.children[0].told == ["stop"]
    now.set()
    await asyncio.wait_for(stopping, 60)
    assert script.children[0].told[:2] == ["stop", "kill"] and engine.state == "stopped"


@pytest.mark.parametrize(
    "error", [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
)
async def test_what_the_machine_refuses_is_an_end_like_others(
    make: Make, script: Scripted, host: Host, error: Exception
) -> None:
    engine = make()
    await engine.start()
    script.steps = [error]
    script.children[0].end(1)
    await until(lambda: engine.restarts == 2 and engine.state == "ready")
    assert any(f"could not be started: {error}; it starts again" in r for r in host.reasons)


async def begin_to_end_by_itself(engine: Supervisor, script: Scripted, short: Path) -> Supervisor:
    """Start an engine and end its listening, as somebody else's SIGTERM does, under a request."""
    script.socket = short / "s"
    async with SocketServer(script.socket):
        await engine.start()
        await engine.enter()
    await engine.suspect()
    await until(lambda: engine.state == "draining")
    return engine


async def test_requests_wait_no_longer_for_one_that_ends_by_itself(
    make: Make, script: Scripted, short: Path
) -> None:
    """Its streams may take minutes to end, and the next start comes after them."""
    engine = await begin_to_end_by_itself(make(wait=0.1), script, short)
    with pytest.raises(NotReady, match="is ending"):
        await asyncio.wait_for(engine.enter(), 60)
    script.children[0].end(0)
    await until(lambda: engine.state == "ready")
    assert engine.open == 1
    engine.leave()


async def test_a_second_start_is_the_first(make: Make, script: Scripted) -> None:
    engine = make()
    await asyncio.gather(engine.start(), engine.start())
    assert len(script.children) == 1


async def test_one_that_listens_no_more_lets_its_streams_finish(
    make: Make, script: Scripted, host: Host, short: Path
) -> None:
    """SIGTERM from somebody else: vLLM closes its socket, and answers what it has begun."""
    script.socket = short / "s"
    engine = make()
    async with SocketServer(script.socket):
        await engine.start()
        await engine.enter()
        await engine.suspect()
        assert engine.state == "ready"
    await engine.suspect()
    await until(lambda: engine.state == "draining")
    assert engine.reason == "Scripted takes no requests any more and is ending"
    waiting = asyncio.create_task(engine.enter())
    await asyncio.sleep(0.05)
    assert host.told == ["up"] and not waiting.done() and not engine.unloaded
    engine.leave()
    script.children[0].end(0)
    await waiting
    assert host.told == ["up", "down", "up"] and engine.restarts == 1
    engine.leave()


async def test_after_one_that_listened_no_more_the_next_is_unloaded_as_any(
    make: Make, script: Scripted, short: Path
) -> None:
    engine = await begin_to_end_by_itself(make(idle_unload=0.05), script, short)
    script.children[0].end(0)
    await until(lambda: engine.state == "ready")
    engine.leave()
    await until(lambda: engine.state == "stopped" or len(script.children) > 2)
    assert script.children[1].told[0] == "stop"
    assert engine.reason == "it was unloaded after 0.05 s without use"
    assert engine.restarts == 1


async def test_a_hung_one_is_killed_and_started_again(
    make: Make, script: Scripted, host: Host, short: Path
) -> None:
    script.socket = short / "s"
    engine = make(health_interval=0.02, health_timeout=0.5, health_failures=2)
    async with SocketServer(script.socket) as server:
        await engine.start()
        server.answers["/health"] = None
        await until(lambda: engine.restarts == 1)
        server.answers.clear()
        await until(lambda: engine.state == "ready" and len(script.children) == 2)
    assert script.children[0].told == ["kill"]
    problem = "Scripted did not answer GET /health 2 times in a row, and was ended"
    assert any(reason.startswith(problem) for reason in host.reasons)
