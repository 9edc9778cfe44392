"""What a server has under way is counted down again however a request ends, and trials end too."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.conforming import body, chunk, finish, role
from tests.fakes.upstream import DONE, Cut, Gate, Reset, Script, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.proxy.posting import post
from tests.waiting import until
from wellspoken.proxy.upstream.target import Target

OK: Final = whole(body())
BEGUN: Final = event(role()), event(chunk({"content": "Hi"}))
UNSEEN: Final = {"interval": 0, "failures": 1, "pause": 0.01}


def targets(proxy: Proxy) -> tuple[Target, ...]:
    return proxy.service.state.router.targets


async def settled(proxy: Proxy) -> None:
    """Wait until the proxy has no request; then no server may have one."""
    await until(lambda: not proxy.service.state.inflight)
    assert [target.outstanding for target in targets(proxy)] == [0] * len(targets(proxy))


ENDS: dict[str, Script] = {
    "answered": OK,
    "streamed": stream(*BEGUN, event(finish()), DONE),
    "broken off": stream(*BEGUN, Reset(), end=False),
    "closed at once": [Cut()],
    "busy": whole({"error": {"message": "busy"}}, status=503),
    "refused": whole({"error": {"message": "no"}}, status=400),
    "no answer": whole(b"<html>", content_type="text/html"),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("retry", ["unsent", "unstarted"])
async def test_nothing_is_left_of_what_has_ended(
    start_proxy: StartProxy, end: str, retry: str
) -> None:
    async with Upstream(ENDS[end]) as one, Upstream(ENDS[end]) as two:
        proxy = await start_proxy(
            {"url": [one.url, two.url, "http://127.0.0.1:9"], "retry": retry}, health=UNSEEN
        )
        kinds: list[dict[str, Any]] = [{}, {"stream": True}, {"n": 2}, {"oai_compat": False}]

        async def ask(more: dict[str, Any]) -> None:
            async with await proxy.chat(**more) as response:
                await response.read()

        await asyncio.gather(*(ask(more) for more in kinds * 3))
        asked = {"model": "m", "query": "a", "documents": ["b"]}
        async with await post(proxy, "/v1/rerank", asked) as response:
            await response.read()
        await settled(proxy)


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 2}, {"oai_compat": False}])
async def test_nothing_is_left_of_what_its_client_has_left(
    start_proxy: StartProxy, more: dict[str, Any]
) -> None:
    waits, speaks = Gate(), Gate()
    async with Upstream([waits]) as one, Upstream(stream(*BEGUN, speaks)) as two:
        backend = {"url": [one.url, two.url, "http://127.0.0.1:9"]}
        proxy = await start_proxy(backend, health=UNSEEN)
        asked = [asyncio.create_task(proxy.chat(**more)) for _ in range(6)]
        await until(lambda: len(one.requests) + len(two.requests) == 6)
        assert sum(target.outstanding for target in targets(proxy)) == 6
        for each in asked:
            each.cancel()
        for found in await asyncio.gather(*asked, return_exceptions=True):
            if not isinstance(found, BaseException):  # its head had come
                found.close()
        await settled(proxy)


async def test_a_trial_whose_client_leaves_decides_nothing_and_the_next_one_does(
    start_proxy: StartProxy,
) -> None:
    gate = Gate()
    async with Upstream([gate, *OK], OK) as one, Upstream(OK) as two:
        proxy = await start_proxy({"url": [one.url, two.url]}, health=UNSEEN)
        ejection = targets(proxy)[0].ejection
        assert ejection is not None
        ejection.note_failure("refused", ejection.take())
        await until(lambda: ejection.is_open)
        trial = asyncio.create_task(proxy.chat())
        await gate.reached.wait()
        assert ejection.state == "trial"
        for _ in range(3):
            async with await proxy.chat() as response:
                assert response.headers["x-wellspoken-backend"] == "default/2"
        trial.cancel()
        await until(lambda: ejection.state == "out")
        async with await proxy.chat() as response:
            assert response.headers["x-wellspoken-backend"] == "default/1"
        assert ejection.reason == "" and len(one.requests) == 2
        assert [request.target for request in one.requests] == [CHAT] * 2
        await settled(proxy)
