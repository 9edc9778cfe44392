"""50 clients in front of three real llama.cpp: one is killed, one is stopped for a while, one slow.

What `make faults` does for two minutes by the clock, here as soon as each fault is seen.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.clients import Load
from tests.faults.fronts import wellspoken
from tests.faults.script import FAST, SLOW
from tests.faults.servers import Server, serve
from tests.soak.proxies import metric
from tests.waiting import SECONDS, until

CLIENTS = 50
HEALTH = {"interval": 1}
TIMEOUTS = {"probe": 1}


class Watch:
    """Waits for what clients and the proxy see of a server, called A, B or C."""

    def __init__(self, load: Load) -> None:
        self.load = load

    async def answers(self, server: Server, count: int = 5) -> None:
        """Wait for so many whole answers more."""
        before = self.load.record.served(server.name)
        async with asyncio.timeout(SECONDS):
            await self.load.wait_for(lambda record: record.served(server.name) >= before + count)

    async def ejections(self, server: Server) -> float:
        """Return how often the server was put out."""
        return await self._metric("ejections_total", f'backend="{_label(server)}"')

    async def state(self, server: Server, state: str) -> None:
        """Wait until the server has this state."""
        labels = f'backend="{_label(server)}",state="{state}"'

        async def has_it() -> bool:
            return await self._metric("state", labels) == 1

        await until(has_it, f"{server.name} {state}")

    async def _metric(self, name: str, labels: str) -> float:
        return await metric(self.load.url, rf"wellspoken_backend_{name}{{{labels}}}")


def _label(server: Server) -> str:
    return f"llama/{'ABC'.index(server.name) + 1}"


@pytest.mark.parametrize("retry", ["unsent", "unstarted"])
async def test_no_request_fails_that_was_not_begun(
    tiny_model: Path, tmp_path: Path, retry: str
) -> None:
    front = wellspoken({"health": HEALTH, "timeouts": TIMEOUTS}, retry=retry)
    async with serve(tiny_model, (FAST, FAST, SLOW)) as servers:
        killed, paused, slow = servers
        with front(servers, tmp_path) as running:
            load = Load(running.url, CLIENTS, running.name_server)
            watch = Watch(load)
            load.begin()
            for server in servers:
                await watch.answers(server)

            await killed.kill()
            await watch.state(killed, "out")
            await watch.answers(paused, 20)
            await killed.start()
            await watch.answers(killed)

            await paused.pause()
            await watch.state(paused, "out")
            await watch.answers(killed, 20)
            await paused.resume()
            await watch.answers(paused)
            await watch.answers(slow)

            await load.stop(SECONDS)
            assert await watch.ejections(killed) >= 1
            assert await watch.ejections(paused) >= 1
            left = await metric(running.url, 'wellspoken_failovers_total{backend="llama/1",[^}]*}')
            assert left >= 1
    assert load.record.ended("unstarted") == []
    broken = load.record.ended("broken")
    assert {each.streams for each in broken} <= {True}, broken
    assert {each.server for each in broken} <= {killed.name}, broken
