"""An engine and another server with the same model: who answers while it is there or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from tests.conforming import body
from tests.fakes.engine import EngineProxy, engine_proxy
from tests.fakes.upstream import Gate, Script, Upstream, whole
from tests.proxy.posting import post
from tests.proxy.relay.test_engine_waiting import ENDPOINTS, STREAM, Json, waits
from tests.waiting import until
from wellspoken.engine.failure import EngineError

OK = whole(body())
UNSEEN = {"health": {"interval": 0, "failures": 2, "pause": 50}}
Make = Callable[..., AbstractAsyncContextManager[EngineProxy]]


@pytest.fixture
async def other() -> AsyncIterator[Upstream]:
    """A server that has the engine's model, too."""
    async with Upstream(OK) as server:
        yield server


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch, other: Upstream) -> Make:
    """Run a proxy with both: `async with make(script, ...) as running`."""

    def of(*scripts: Script, **more: Any) -> AbstractAsyncContextManager[EngineProxy]:
        backend = {"name": "other", "url": other.url, "models": ["m"], "adapter": "vllm"}
        tables = {**UNSEEN, **more.pop("tables", {})}
        return engine_proxy(
            monkeypatch, *(scripts or (OK,)), backends=(backend,), tables=tables, **more
        )

    return of


async def ask(running: EngineProxy, **more: Any) -> str:
    """Send a chat that is answered; return by which server."""
    async with await running.proxy.chat(model="m", **more) as response:
        text = await response.text()
        assert response.status == 200 and "error" not in text, text
        return response.headers["x-wellspoken-backend"]


async def failovers(running: EngineProxy) -> dict[str, float]:
    found = await running.proxy.metrics()
    return {name: value for name, value in found.items() if "failovers_total{" in name}


async def test_both_there_share_the_requests(make: Make) -> None:
    async with make() as running:
        await running.ready()
        found = [await ask(running) for _ in range(6)]
        assert found.count("engine") == found.count("other") == 3
        assert not await failovers(running) and not running.supervisor.open


async def test_both_there_the_less_busy_one_has_the_next(make: Make, other: Upstream) -> None:
    gate = Gate()
    async with make([gate, *OK], OK) as running:
        await running.ready()
        asked = [asyncio.create_task(ask(running)) for _ in range(2)]
        await gate.reached.wait()
        await until(lambda: any(task.done() for task in asked))
        assert [await ask(running) for _ in range(3)] == ["other"] * 3
        gate.open()
        assert sorted(await asyncio.gather(*asked)) == ["engine", "other"]
        await running.settled()


@pytest.mark.parametrize(("path", "given", "script"), ENDPOINTS)
async def test_while_it_starts_the_other_has_all(
    make: Make, other: Upstream, path: str, given: Json, script: Script
) -> None:
    other.scripts = [script]
    async with make() as running:
        running.gate.clear()
        start = asyncio.create_task(running.hosted.supervisor.start())
        await running.state("starting")
        for _ in range(3):
            async with await post(running.proxy, path, {"model": "m", **given}) as response:
                assert response.status == 200, await response.text()
                assert response.headers["x-wellspoken-backend"] == "other"
        assert [request.target for request in other.requests] == [path] * 3
        assert not await failovers(running)  # it was not asked, so it did not fail
        assert (await running.proxy.get("/readyz"))[0] == 200
        running.gate.set()
        await start
        other.scripts = [OK]
        assert {await ask(running) for _ in range(2)} == {"engine", "other"}


async def test_while_it_starts_again_nobody_waits_for_it(make: Make) -> None:
    async with make() as running:
        await running.ready()
        await running.end()
        for stream in (False, True):
            assert await ask(running, stream=stream) == "other"
        assert not running.supervisor._waiting
        running.gate.set()
        await running.state("ready")
        assert {await ask(running) for _ in range(2)} == {"engine", "other"}


async def test_one_that_failed_is_not_asked(make: Make) -> None:
    async with make(restarts=1) as running:
        running.failing = EngineError("no GPU")
        with pytest.raises(EngineError):
            await running.ready()
        assert running.supervisor.state == "failed"
        assert [await ask(running) for _ in range(3)] == ["other"] * 3
        assert not await failovers(running)


async def test_one_that_was_unloaded_is_loaded_only_where_no_other_is_there(
    make: Make, other: Upstream
) -> None:
    async with make(idle_unload=0.05) as running:
        await running.ready()
        await running.state("stopped")
        assert [await ask(running) for _ in range(3)] == ["other"] * 3
        assert (running.supervisor.state, running.starts) == ("stopped", 1)
        await other.refuse()
        assert await ask(running) == "engine"
        assert running.starts == 2


async def test_an_end_that_nobody_has_seen_yet_loses_no_request(
    make: Make, other: Upstream
) -> None:
    async with make() as running:
        await running.ready()
        running.gate.clear()  # once it is seen, its next start waits
        await running.upstream.refuse()
        assert [await ask(running) for _ in range(4)] == ["other"] * 4
        names = await failovers(running)  # by its refusal, or as it is away once that is seen
        assert names
        assert all('backend="engine"' in name and 'to="server"' in name for name in names)
        assert not running.supervisor.open


@pytest.mark.parametrize("streams", [False, True])
async def test_where_the_other_is_away_the_engine_is_waited_for(
    make: Make, other: Upstream, streams: bool
) -> None:
    async with make(STREAM if streams else OK, tables={"timeouts": {"heartbeat": 0.05}}) as running:
        await running.ready()
        await running.end()
        await other.refuse()
        asked = asyncio.create_task(ask(running, stream=streams))
        await waits(running)
        running.gate.set()
        assert await asked == "engine" or streams  # of which the head may have left before
        assert len(running.upstream.requests) == 1
        await running.settled()
        (name,) = await failovers(running)
        assert 'backend="other"' in name


async def test_where_neither_is_there_the_last_failure_is_told(make: Make, other: Upstream) -> None:
    async with make() as running:
        running.gate.clear()
        start = asyncio.create_task(running.hosted.supervisor.start())
        await running.state("starting")
        await other.refuse()
        error = await running.proxy.error(503, model="m")  # nobody waits for a first start
        assert error["code"] == "engine_not_ready"
        running.gate.set()
        await start


async def test_one_that_fails_its_requests_goes_out_and_comes_back(make: Make) -> None:
    """Nobody looks at an engine that is away, so that its trial follows the pause."""
    broken = whole({"error": {"message": "no"}}, status=500)
    rules = {"interval": 0.05, "failures": 2, "pause": 0.05}
    async with make(broken, tables={"health": rules}) as running:
        await running.ready()
        running.proxy.service.looks.watch(running.proxy.service.state.router.targets)
        ejection = running.target.ejection
        assert ejection is not None
        while ejection.state == "in":
            async with await running.proxy.chat(model="m") as response:
                await response.read()
        assert ejection.reason == "500"
        running.upstream.scripts = [OK]
        await until(lambda: ejection.is_open)
        await ask(running)
        assert "engine" in {await ask(running) for _ in range(3)}
        assert ejection.reason == ""  # it is in
