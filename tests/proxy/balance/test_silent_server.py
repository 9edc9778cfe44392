"""A server that answers nothing any more, no look either, loses the requests that wait for it."""

from __future__ import annotations

import asyncio

import pytest

from tests.conforming import MODEL, body
from tests.fakes.upstream import Gate, Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.waiting import until
from wellspoken.proxy.balance.server_pool import SAVED

EACH = 15  # requests of each server, more than may be sent again at once


@pytest.mark.parametrize(("share", "moving"), [(0.2, int(SAVED)), (0.0, 0)])
async def test_what_waits_moves_as_far_as_it_may_and_the_rest_waits_on(
    start_proxy: StartProxy, share: float, moving: int
) -> None:
    gates = Gate(), Gate()
    async with (
        Upstream([gates[0], *whole(body())]) as silent,
        Upstream([gates[1], *whole(body())]) as other,
    ):
        proxy = await start_proxy(
            {"url": [silent.url, other.url], "retry": "unstarted"},
            health={"interval": 0},
            limits={"retries": share},
        )
        asked = [asyncio.create_task(proxy.chat(model=MODEL)) for _ in range(2 * EACH)]
        await until(lambda: len(silent.requests) == len(other.requests) == EACH, "all requests")
        target, _ = proxy.service.state.router.targets
        assert target.upstream is not None
        target.upstream.drop_waiting()
        await until(lambda: len(other.requests) == EACH + moving, "what moves")
        for gate in gates:
            gate.open()
        answers = await asyncio.gather(*asked)
        assert [answer.status for answer in answers] == [200] * (2 * EACH)
        assert (len(silent.requests), len(other.requests)) == (EACH, EACH + moving)
        samples = await proxy.metrics()
    name = f'wellspoken_failovers_total{{backend="{target.name}",reason="stuck",to="server"}}'
    assert samples.get(name, 0) == moving


async def test_what_nobody_else_has_waits_on(start_proxy: StartProxy) -> None:
    """Two models share a silent server, and the other one's requests have nowhere to go."""
    gate = Gate()
    async with Upstream([gate, *whole(body())]) as silent, Upstream(whole(body())) as other:
        proxy = await start_proxy(
            {"name": "a", "url": silent.url, "models": ["own", "shared"], "retry": "unstarted"},
            {"name": "b", "url": other.url, "models": ["shared"], "retry": "unstarted"},
            health={"interval": 0},
        )
        names = ["own", "shared", "own"]
        asked = [asyncio.create_task(proxy.chat(model=name)) for name in names]
        await until(lambda: len(silent.requests) >= 2, "the requests")
        upstream = proxy.service.state.router.targets[0].upstream
        assert upstream is not None
        await gate.reached.wait()
        upstream.drop_waiting()
        assert (await asked[1]).headers["x-wellspoken-backend"] == "b"
        assert not asked[0].done() and not asked[2].done()
        gate.open()
        assert [(await each).status for each in asked] == [200, 200, 200]


async def test_what_moved_to_a_server_that_falls_silent_too_waits_there(
    start_proxy: StartProxy,
) -> None:
    gates = Gate(), Gate()
    async with (
        Upstream([gates[0], *whole(body())]) as first,
        Upstream([gates[1], *whole(body())]) as second,
    ):
        proxy = await start_proxy(
            {"url": [first.url, second.url], "retry": "unstarted"}, health={"interval": 0}
        )
        asked = asyncio.create_task(proxy.chat(model=MODEL))
        for gate, target in zip(gates, proxy.service.state.router.targets, strict=True):
            await gate.reached.wait()
            assert target.upstream is not None
            target.upstream.drop_waiting()
        gates[1].open()
        assert (await asked).status == 200
    assert len(first.requests) == len(second.requests) == 1
