"""A client's quota is one for all workers, whichever of them its requests reach."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.upstream import Gate, Upstream, whole
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.workers.test_workers import ASKED, Workers, alive, workers
from tests.redis_server import redis_server as redis_server
from tests.waiting import until

KEY = {"Authorization": "Bearer a-key"}


def configure(folder: Path, upstream: Upstream, quota: str) -> Path:
    """Write a configuration with one client and its key."""
    (folder / "keys").write_text("a-key")
    file = folder / "w.toml"
    file.write_text(
        f"[[backend]]\nurl = '{upstream.url}'\nadapter = 'openai'\n"
        f"[[auth.client]]\nname = 'a'\nkeys = ['file:{folder}/keys']\n{quota}\n"
    )
    return file


async def ask(running: Workers) -> int:
    """Return the status of a request over a connection of its own, which any worker may have."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(running.url + CHAT, json=ASKED, headers=KEY) as answer,
    ):
        await answer.read()
        return answer.status


def asked(upstream: Upstream) -> int:
    """Return how many requests have reached the backend."""
    return sum(request.target == CHAT for request in upstream.requests)


@pytest.mark.parametrize("shared", [False, True], ids=["by the parent", "in Redis"])
async def test_requests_at_once_are_those_of_all_workers(
    upstream: Upstream, tmp_path: Path, request: pytest.FixtureRequest, shared: bool
) -> None:
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, [gate, *whole(PLAIN)])
    config = configure(tmp_path, upstream, "concurrent = 5")
    if shared:
        url = request.getfixturevalue("redis_server").url
        config.write_text(f"[auth]\ncounters = '{url}'\n{config.read_text()}")
    async with workers(upstream, config=config, count=3) as running:
        await running.all(3)
        asking = [asyncio.create_task(ask(running)) for _ in range(40)]
        await until(lambda: sum(task.done() for task in asking) == 35 and asked(upstream) == 5)
        gate.open()
        assert Counter(await asyncio.gather(*asking)) == {429: 35, 200: 5}

        async def free() -> bool:
            return await ask(running) == 200

        await until(free)  # the ends are told beside the answers
        counted = await running.metrics()
        assert counted['wellspoken_quota_events_total{client="a",event="concurrent"}'] >= 35


async def test_requests_a_minute_are_those_of_all_workers(
    upstream: Upstream, tmp_path: Path
) -> None:
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    config = configure(tmp_path, upstream, "requests_per_minute = 20")
    async with workers(upstream, config=config, count=3) as running:
        await running.all(3)
        began = time.monotonic()
        found = Counter(await asyncio.gather(*(ask(running) for _ in range(60))))
        most = 20 + (time.monotonic() - began) / 3  # one comes back every three seconds
        assert found.keys() == {200, 429}
        assert 20 <= found[200] <= most


async def test_a_worker_that_is_killed_leaves_no_place_taken(
    upstream: Upstream, tmp_path: Path
) -> None:
    gate = Gate()
    upstream.script("/health", whole({}))
    upstream.script(CHAT, [gate, *whole(PLAIN)])
    config = configure(tmp_path, upstream, "concurrent = 3")
    async with workers(upstream, config=config, count=2) as running:
        asking = [asyncio.create_task(ask(running)) for _ in range(3)]
        await until(lambda: asked(upstream) == 3)
        assert await ask(running) == 429
        pids = await running.all(2)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: not any(map(alive, pids)))  # one may have had no request
        gate.open()
        await running.all(2)
        assert [await ask(running) for _ in range(3)] == [200] * 3


async def uncounted(running: Workers) -> float:
    """Return how many requests passed without being counted."""
    name = 'wellspoken_quota_events_total{client="a",event="uncounted"}'
    return (await running.metrics()).get(name, 0)


async def test_a_parent_that_stands_still_stops_nobody(upstream: Upstream, tmp_path: Path) -> None:
    """What it answers when nobody waits any more takes no place."""
    upstream.script("/health", whole({}))
    upstream.script(CHAT, whole(PLAIN))
    config = configure(tmp_path, upstream, "concurrent = 1")
    async with workers(upstream, config=config, count=2, counting=3.0) as running:
        await running.all(2)
        assert await ask(running) == 200
        before = await uncounted(running)
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            assert await ask(running) == 200  # uncounted, after a while
            assert await ask(running) == 200
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
        assert await uncounted(running) == before + 2

        async def has_its_place() -> bool:
            """Say whether one passes that was counted: the ends of others are told beside them."""
            before = await uncounted(running)
            return await ask(running) == 200 and await uncounted(running) == before

        for _ in range(3):
            await until(has_its_place)
        await until(lambda: any("requests pass uncounted" in line for line in running.said))
