"""Another configuration for several servers: who comes, goes, stays, and what they keep."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from tests.conforming import body, chunk, finish, role
from tests.fakes.upstream import DONE, Gate, Upstream, event, stream, whole
from tests.proxy.conftest import PROBE, Proxy, StartProxy
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import until
from wellspoken.proxy.config import Config, load
from wellspoken.proxy.lifecycle.reload import Reloader
from wellspoken.proxy.upstream.target import Target

OK: Final = whole(body())
BUSY: Final = whole({"error": {"message": "busy"}}, status=503)
UNSEEN: Final = {"interval": 0, "failures": 2, "pause": 50}
KEPT: Final = {"upstream_keep_alive": 3600, "probe": PROBE}


@pytest.fixture
async def servers() -> AsyncIterator[list[Upstream]]:
    """Three servers that answer each chat."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Upstream(OK)) for _ in range(3)]


def table(*servers: Upstream, **more: Any) -> dict[str, Any]:
    """Return a backend's table."""
    urls = [server.url for server in servers]
    return {"adapter": "openai", "name": "gpu", "url": urls, **more}


def config(*backends: dict[str, Any], **tables: Any) -> Config:
    """Return a configuration like that of `start`."""
    tables = {"server": {"listen": "127.0.0.1:0"}, "health": UNSEEN, "timeouts": KEPT, **tables}
    return load(None, {**tables, "backend": backends}, {})


async def start(start_proxy: StartProxy, *backends: dict[str, Any]) -> tuple[Proxy, Reloader]:
    proxy = await start_proxy(*backends, health=UNSEEN, timeouts=KEPT)
    return proxy, Reloader(proxy.service)


def named(proxy: Proxy) -> dict[str, Target]:
    return {target.name: target for target in proxy.service.state.router.targets}


async def ask(proxy: Proxy, times: int = 1) -> Counter[str]:
    """Send chats one after the other, each answered; return how many each server had."""
    found = Counter[str]()
    for _ in range(times):
        async with await proxy.chat() as response:
            assert response.status == 200, await response.text()
            found[response.headers.get("x-wellspoken-backend", "")] += 1
    return found


async def keep_connections(proxy: Proxy) -> None:
    """Let the connection of each server be one that is kept."""
    for target in named(proxy).values():
        assert target.upstream is not None
        if target.upstream.busy:
            await pass_trial(target.upstream.connections)


async def series(proxy: Proxy, name: str) -> set[str]:
    """Return the families that tell what a server has now."""
    labels = f'{{backend="{name}"'
    found = (sample.partition(labels) for sample in await proxy.metrics())
    families = {family for family, there, _ in found if there}
    return {family for family in families if family.startswith("wellspoken_backend_")}


async def test_a_server_that_is_taken_out_drains(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    first, second, _ = servers
    gate = Gate()
    words = event(role()), event(chunk({"content": "Hi"}))
    second.scripts = [stream(*words, gate, event(finish()), DONE), OK]
    proxy, reloader = await start(start_proxy, table(*servers))
    assert await ask(proxy) == {"gpu/1": 1}
    async with await proxy.chat(stream=True) as response:
        assert response.headers["x-wellspoken-backend"] == "gpu/2"
        await gate.reached.wait()
        assert "wellspoken_backend_state" in await series(proxy, "gpu/2")
        await reloader.apply(config(table(first, servers[2])))
        assert reloader.described == "backends: 1 (1 changed)"
        assert list(named(proxy)) == ["gpu/1", "gpu/3"]
        assert await ask(proxy, 6) == {"gpu/1": 3, "gpu/3": 3}
        assert not await series(proxy, "gpu/2")
        assert not second.requests[0].closed.is_set()
        gate.open()
        text = await response.text()
    assert text.endswith("data: [DONE]\n\n") and "Hi" in text and "error" not in text
    await asyncio.wait_for(second.requests[0].closed.wait(), 60)
    await until(lambda: not second.connections)
    assert len(second.requests) == 1
    await until(lambda: not proxy.service.state.inflight)
    assert not await series(proxy, "gpu/2")


async def test_idle_connections_of_one_that_is_taken_out_close_at_once(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    proxy, reloader = await start(start_proxy, table(*servers))
    await ask(proxy, 3)
    await keep_connections(proxy)
    assert [len(server.connections) for server in servers] == [1, 1, 1]
    await reloader.apply(config(table(*servers[:2])))
    await until(lambda: not servers[2].connections)
    await ask(proxy, 4)
    assert [server.opened for server in servers] == [1, 1, 1]


async def test_a_server_that_comes_gets_requests_and_the_others_keep_all(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    first, second, third = servers
    proxy, reloader = await start(start_proxy, table(first, second))
    await ask(proxy, 2)
    await keep_connections(proxy)
    before = named(proxy)
    out = before["gpu/2"].ejection
    assert out is not None
    for _ in range(2):
        out.note_failure("refused", out.take())
    until_then = out.until
    await reloader.apply(config(table(third, second, first)))  # in another order, too
    after = named(proxy)
    assert list(after) == ["gpu/3", "gpu/2", "gpu/1"]
    assert after["gpu/1"] is before["gpu/1"] and after["gpu/2"] is before["gpu/2"]
    assert after["gpu/2"].ejection is out
    assert (out.state, out.until, out.reason) == ("out", until_then, "refused")
    assert await ask(proxy, 4) == {"gpu/1": 2, "gpu/3": 2}
    assert (first.opened, second.opened) == (1, 1)
    samples = await proxy.metrics()
    assert samples['wellspoken_backend_state{backend="gpu/2",state="out"}'] == 1
    assert samples['wellspoken_backend_ejections_total{backend="gpu/2"}'] == 1


async def test_a_number_that_became_free_is_given_again(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    first, second, third = servers
    proxy, reloader = await start(start_proxy, table(first, second))
    await reloader.apply(config(table(second, third)))
    assert list(named(proxy)) == ["gpu/2", "gpu/1"]
    assert await ask(proxy, 2) == {"gpu/1": 1, "gpu/2": 1}
    assert not first.requests


async def test_another_weight_holds_at_once_and_on_the_same_connections(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    one, two = servers[:2]
    tables = {"name": "a", "models": ["m"]}, {"name": "b", "models": ["m"]}
    proxy, reloader = await start(start_proxy, table(one, **tables[0]), table(two, **tables[1]))
    before = named(proxy)

    async def share(weight: float) -> Counter[str]:
        await reloader.apply(
            config(table(one, **tables[0]), table(two, **tables[1], weight=weight))
        )
        found = Counter[str]()
        for _ in range(8):
            async with await proxy.chat(model="m") as response:
                found[response.headers["x-wellspoken-backend"]] += 1
        return found

    for _ in range(2):
        async with await proxy.chat(model="m") as response:
            assert response.status == 200
    await keep_connections(proxy)
    assert await share(1) == {"a": 4, "b": 4}
    assert await share(3) == {"a": 2, "b": 6}
    assert await share(0) == {"a": 8}
    assert await share(1) == {"a": 4, "b": 4}
    assert named(proxy) == before and (one.opened, two.opened) == (1, 1)


async def test_a_second_server_gives_the_first_a_number(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    first, second, _ = servers
    proxy, reloader = await start(start_proxy, table(first))
    assert await ask(proxy, 2) == {"": 2} and list(named(proxy)) == ["gpu"]
    assert named(proxy)["gpu"].ejection is None
    await reloader.apply(config(table(first, second)))
    assert await ask(proxy, 2) == {"gpu/1": 1, "gpu/2": 1}
    assert not await series(proxy, "gpu")
    await reloader.apply(config(table(second)))
    assert await ask(proxy, 2) == {"": 2}
    assert await series(proxy, "gpu") == {"wellspoken_backend_outstanding"}
    await until(lambda: not first.connections)


async def test_health_and_the_share_of_retries_follow(
    start_proxy: StartProxy, servers: list[Upstream]
) -> None:
    first, second, _ = servers
    first.scripts, second.scripts = [BUSY], [BUSY]
    backend = table(first, second, retry="unstarted")
    proxy, reloader = await start(start_proxy, backend)
    out = [target.ejection for target in named(proxy).values()]

    async def sent() -> int:
        """Return to how many servers a request goes that none of them takes."""
        before = len(first.requests) + len(second.requests)
        async with await proxy.chat() as response:
            assert response.status == 503
        return len(first.requests) + len(second.requests) - before

    assert await sent() == 2
    await reloader.apply(config(backend, limits={"retries": 0}))
    assert await sent() == 1
    await reloader.apply(config(backend, limits={"retries": 1}))
    assert await sent() == 2
    assert [each.ejection for each in named(proxy).values()] == out
    states = [each.state for each in out if each is not None]
    assert states.count("out") >= 1  # two failures in a row, as [health] said
    first.scripts, second.scripts = [OK], [OK]
    await ask(proxy, 2)
    rules = {"interval": 0, "failures": 4, "pause": 7}
    await reloader.apply(config(backend, limits={"retries": 0}, health=rules))
    ejection = named(proxy)["gpu/1"].ejection
    assert ejection is out[0] and ejection is not None
    assert ejection.rules.failures == 4
    if ejection.state != "in":
        ejection.note_success(ejection.round)
    for state in ("in", "in", "in", "out"):
        ejection.note_failure("cut", ejection.take())
        assert ejection.state == state
