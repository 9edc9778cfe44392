"""Conversations find the server whose cache has them: real llama.cpp tells how much it had."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.faults.servers import serve
from tests.live.servers.conftest import FULL, InFront, Servers
from tests.live.servers.conversing import Told, converse
from tests.waiting import until
from wellspoken.proxy.balance.server_pool import MORE, SPARE

CONVERSATIONS = 24
SLOTS = {"n_parallel": 4, "n_ctx": 4 * 1280}
SESSION = "header:x-session-id"
OUTSTANDING = "wellspoken_backend_outstanding"


async def tell(model: Path, in_front: InFront, affinity: str, clients: int) -> Told:
    """Return what three servers that have nothing in their caches yet tell of conversations."""
    async with serve(model, [FULL] * 3, **SLOTS) as servers:
        proxy = await in_front({"url": [each.url for each in servers], "affinity": affinity})
        return await converse(proxy.url, CONVERSATIONS, clients)


async def test_one_turn_at_a_time_finds_all_that_was_said(
    tiny_model: Path, in_front: InFront
) -> None:
    """Nothing is left to chance here, so the caches have all but each turn's new words."""
    found = {
        each: await tell(tiny_model, in_front, each, 1) for each in ("none", "prefix", SESSION)
    }
    async with serve(tiny_model, [FULL], **SLOTS) as [alone]:
        best = await converse(alone.url, CONVERSATIONS, 1)
    assert found["prefix"].rate == pytest.approx(best.rate, abs=0.01)
    assert found[SESSION].rate == pytest.approx(best.rate, abs=0.01)
    assert found["prefix"].rate > 1.5 * found["none"].rate
    assert all(len(each.servers) == 3 for each in found.values())


@pytest.mark.parametrize("affinity", ["prefix", SESSION])
async def test_many_at_once_find_most_of_it(
    tiny_model: Path, in_front: InFront, affinity: str
) -> None:
    """A server that has its share is passed over, which costs little of it."""
    told = await tell(tiny_model, in_front, affinity, 8)
    assert told.rate > 1.2 * (await tell(tiny_model, in_front, "none", 8)).rate
    assert len(told.servers) == 3


async def test_a_hot_prefix_overloads_no_server(servers: Servers, in_front: InFront) -> None:
    running = await servers(3, **SLOTS)
    urls = [each.url for each in running]
    proxy = await in_front({"url": urls, "affinity": "prefix"}, health={"interval": 0})
    for server in running:
        await server.pause()  # what is sent now is under way until all of it is
    count = 24
    asked = [asyncio.create_task(proxy.chat("The same for all.")) for _ in range(count)]

    async def all_are_under_way() -> bool:
        return sum((await proxy.counts(OUTSTANDING)).values()) == count

    await until(all_are_under_way)
    spread = sorted((await proxy.counts(OUTSTANDING)).values())
    for server in running:
        await server.resume()
    assert {status for status, _, _ in await asyncio.gather(*asked)} == {200}
    assert spread[-1] <= MORE * count / 3 + SPARE + 1
    assert spread[-1] > count / 3 + 1  # it is the key's own server still
    assert spread[0] > 0
