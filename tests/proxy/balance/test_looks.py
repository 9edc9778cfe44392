"""Looks at servers: who goes out and comes back without a request, and whose wait ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.conforming import body, chunk, finish, role
from tests.fakes.upstream import (
    DONE,
    Gate,
    Pause,
    Request,
    Script,
    Stall,
    Step,
    Upstream,
    event,
    stream,
    whole,
)
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.waiting import until
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.lifecycle.reload import Reloader
from wellspoken.proxy.upstream.ejection import Ejection
from wellspoken.proxy.upstream.failures import UpstreamError

HEALTH: Final = "/health"
WELL: Final = whole({"status": "ok"})
LOADING: Final = whole({"error": {"message": "Loading model"}}, status=503)
OK: Final = whole(body())
OFTEN: Final = {"interval": 0.05, "failures": 2, "pause": 0.01}
Servers = Callable[..., Any]


@pytest.fixture
async def servers() -> AsyncIterator[Servers]:
    """Start a server that is well for each script of its chats."""
    async with AsyncExitStack() as stack:

        async def start(*scripts: Script) -> list[Upstream]:
            made = [await stack.enter_async_context(Upstream(each)) for each in scripts]
            for server in made:
                server.script(HEALTH, WELL)
            return made

        yield start


def chats(server: Upstream) -> list[Request]:
    return [request for request in server.requests if request.target == CHAT]


def looks(server: Upstream) -> int:
    return len(server.requests) - len(chats(server))


def ejections(proxy: Proxy) -> list[Ejection]:
    found = [target.ejection for target in proxy.service.state.router.targets]
    return [ejection for ejection in found if ejection is not None]


def states(proxy: Proxy) -> list[str]:
    return [ejection.state for ejection in ejections(proxy)]


def settings(*servers: Upstream, **more: Any) -> dict[str, Any]:
    """Return a backend's table."""
    return {"adapter": "openai", "url": [server.url for server in servers], **more}


async def start(
    start_proxy: StartProxy, *servers: Upstream, tables: dict[str, Any] | None = None, **more: Any
) -> Proxy:
    """Start a proxy that looks at these servers; no look is late unless the test says when."""
    given: dict[str, Any] = {"health": OFTEN, "timeouts": {"probe": 600}, **(tables or {})}
    proxy = await start_proxy(settings(*servers, **more), **given)
    proxy.service.looks.watch(proxy.service.state.router.targets)
    return proxy


async def ask(proxy: Proxy) -> str:
    """Send a chat that is answered; return the server's name."""
    async with await proxy.chat() as response:
        assert response.status == 200, await response.text()
        return response.headers["x-wellspoken-backend"]


async def test_a_server_that_is_away_goes_out_before_a_request_comes(
    start_proxy: StartProxy, servers: Servers
) -> None:
    first, second = await servers(OK, OK)
    proxy = await start(start_proxy, first, second)
    await until(lambda: looks(first) > 2 and looks(second) > 2)
    assert states(proxy) == ["in", "in"]
    await first.refuse()
    await until(lambda: states(proxy) == ["out", "in"])
    assert ejections(proxy)[0].reason in ("refused", "cut")
    assert {await ask(proxy) for _ in range(4)} == {"default/2"}
    assert not [name for name in await proxy.metrics() if "failovers_total{" in name]
    await first.listen()
    await until(lambda: states(proxy) == ["in", "in"])  # also without a request
    assert {await ask(proxy) for _ in range(4)} == {"default/1", "default/2"}


async def test_a_server_that_still_loads_is_out_and_a_request_brings_it_back(
    start_proxy: StartProxy, servers: Servers
) -> None:
    first, second = await servers(OK, OK)
    gate = Gate()
    first.script(HEALTH, LOADING)
    proxy = await start(start_proxy, first, second)
    await until(lambda: states(proxy) == ["out", "in"])
    await until(lambda: looks(first) > 4)  # after its pause, too
    assert states(proxy) == ["out", "in"] and not ejections(proxy)[0].is_open
    assert ejections(proxy)[0].reason == "503"
    assert {await ask(proxy) for _ in range(4)} == {"default/2"}
    first.script(HEALTH, WELL, [gate, *WELL])
    await gate.reached.wait()
    assert states(proxy) == ["out", "in"] and ejections(proxy)[0].is_open
    assert await ask(proxy) == "default/1"
    assert states(proxy) == ["in", "in"]


@pytest.mark.parametrize("answers", [True, False])
async def test_one_that_goes_on_with_answers_is_well_however_late_its_looks_are(
    start_proxy: StartProxy, servers: Servers, answers: bool
) -> None:
    """A server whose one process also generates answers a look when it comes to it."""
    words: list[Step] = [event(chunk({"content": "a"})), Pause(0.02)] * 6000
    first, second = await servers(stream(event(role()), *words, event(finish()), DONE), OK)
    first.script(HEALTH, [Stall()])
    proxy = await start(start_proxy, first, second, tables={"timeouts": {"probe": 0.5}})
    if not answers:
        await until(lambda: states(proxy) == ["out", "in"])
        return
    proxy.service.looks.watch(())
    async with await proxy.chat(stream=True) as response:
        assert response.headers["x-wellspoken-backend"] == "default/1"
        assert await response.content.readline()
        before = looks(first)
        proxy.service.looks.watch(proxy.service.state.router.targets)
        reading = asyncio.create_task(response.read())
        await until(lambda: looks(first) > before + 3)
        assert states(proxy) == ["in", "in"]
        reading.cancel()


@pytest.mark.parametrize("retry", ["unstarted", "unsent"])
async def test_what_waits_at_a_stuck_server_moves_on_only_where_that_is_allowed(
    start_proxy: StartProxy, servers: Servers, retry: str
) -> None:
    gate = Gate()
    first, second = await servers([gate, *OK], OK)
    tables = {"timeouts": {"probe": 0.5}}
    proxy = await start(start_proxy, first, second, tables=tables, retry=retry)
    asked = asyncio.create_task(ask(proxy))
    await gate.reached.wait()
    first.script(HEALTH, [Stall()])
    if retry == "unstarted":
        assert await asked == "default/2"
        name = 'wellspoken_failovers_total{backend="default/1",reason="stuck",to="server"}'
        assert (await proxy.metrics())[name] == 1
        assert states(proxy)[0] == "out" and len(chats(second)) == 1
        await asyncio.wait_for(chats(first)[0].closed.wait(), 60)
        return
    await until(lambda: states(proxy) == ["out", "in"])
    before = looks(first)
    await until(lambda: looks(first) > before + 3)
    assert not asked.done() and not chats(second)
    gate.open()
    assert await asked == "default/1"


async def test_one_that_is_out_by_its_requests_is_found_stuck_in_one_round(
    start_proxy: StartProxy, servers: Servers
) -> None:
    gate = Gate()
    first, second = await servers([gate, *OK], OK)
    seldom = {"interval": 1000, "failures": 3, "pause": 1000, "longest_pause": 1000}
    tables = {"timeouts": {"probe": 0.5}, "health": seldom}
    proxy = await start(start_proxy, first, second, tables=tables, retry="unstarted")
    await until(lambda: looks(first))
    asked = asyncio.create_task(ask(proxy))
    await gate.reached.wait()
    proxy.service.looks.watch(())
    first.script(HEALTH, [Stall()])
    ejection = ejections(proxy)[0]
    for _ in range(3):
        ejection.note_failure("connect_timeout", ejection.round)
    assert states(proxy) == ["out", "in"]
    before = looks(first)
    proxy.service.looks.watch(proxy.service.state.router.targets)
    assert await asked == "default/2"
    assert looks(first) == before + 3


async def test_what_the_proxy_itself_lacks_says_nothing_of_a_server(
    start_proxy: StartProxy, servers: Servers
) -> None:
    """Without a file descriptor left, all servers would be out at once."""
    first, second = await servers(OK, OK)
    first.script(HEALTH, LOADING)
    proxy = await start(start_proxy, first, second)
    await until(lambda: states(proxy) == ["out", "in"])
    failed = 0

    async def fail(path: str) -> int:
        nonlocal failed
        failed += 1
        raise UpstreamError("descriptors", "no file descriptors are left")

    for target in proxy.service.state.router.targets:
        assert target.upstream is not None
        target.upstream.probe = fail  # type: ignore[method-assign]
    await until(lambda: failed > 12)
    assert states(proxy) == ["out", "in"] and not ejections(proxy)[0].is_open


def config(*servers: Upstream, **health: float) -> Config:
    """Return a configuration like that of `start`."""
    tables: dict[str, Any] = {"server": {"listen": "127.0.0.1:0"}, "health": {**OFTEN, **health}}
    return load(None, {**tables, "backend": [settings(*servers)]}, {})


async def test_a_server_that_a_reload_takes_out_is_looked_at_no_more(
    start_proxy: StartProxy, servers: Servers
) -> None:
    first, second, third = await servers(OK, OK, OK)
    proxy = await start(start_proxy, first, second)
    reloader = Reloader(proxy.service)
    await until(lambda: looks(first) and looks(second))
    await reloader.apply(config(first, third))
    await until(lambda: looks(third))  # nor does anyone have to tell that there is a new one
    gone, before = looks(second), looks(third)
    await until(lambda: looks(third) > before + 4)
    await reloader.apply(config(third))  # the only one, which nobody could replace
    assert not ejections(proxy)
    await reloader.apply(config(third, first))
    then = looks(first), looks(third)
    await until(lambda: looks(first) > then[0] + 1 and looks(third) > then[1] + 1)
    assert looks(second) == gone


async def test_a_reload_says_how_often_they_are_from_then_on(
    start_proxy: StartProxy, servers: Servers
) -> None:
    first, second = await servers(OK, OK)
    proxy = await start(start_proxy, first, second, tables={"health": {"interval": 1000.0}})
    reloader = Reloader(proxy.service)
    await until(lambda: looks(first) and looks(second))  # the first one is at once
    await reloader.apply(config(first, second))
    await until(lambda: looks(first) > 4 and looks(second) > 4)
    kept = ejections(proxy)
    assert kept[0].rules.failures == 2
    await reloader.apply(config(first, second, interval=0, failures=1, pause=50))
    assert not proxy.service.looks._tasks and ejections(proxy) == kept
    await first.refuse()
    answered = [await ask(proxy) for _ in range(2)]
    assert answered == ["default/2"] * 2 and states(proxy) == ["out", "in"]
    assert 30 < kept[0].pause_left < 70


@pytest.mark.parametrize("more", [{}, {"headers": [("Content-Encoding", "br")]}], ids=str)
async def test_an_answer_that_is_too_long_to_be_read_is_one(
    start_proxy: StartProxy, servers: Servers, more: dict[str, Any]
) -> None:
    """A `health_path` may be a list of models, or metrics."""
    first, second = await servers(OK, OK)
    first.script(HEALTH, whole(b"a" * 100_000, **more))
    proxy = await start(start_proxy, first, second)
    await until(lambda: looks(first) > 4)
    assert ejections(proxy)[0].ejections == 0


async def test_the_end_ends_them(start_proxy: StartProxy, servers: Servers) -> None:
    first, second = await servers(OK, OK)
    proxy = await start(start_proxy, first, second)
    await until(lambda: looks(first))
    tasks = list(proxy.service.looks._tasks.values())
    await proxy.service.stop()
    assert len(tasks) == 2 and all(task.cancelled() for task in tasks)
