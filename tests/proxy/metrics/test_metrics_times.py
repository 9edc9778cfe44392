"""Times in metrics against other clocks: the client's, the backend's, and work of known length."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.conforming import body, chunk, finish, role
from tests.fakes.engine import engine_proxy
from tests.fakes.upstream import DONE, Pause, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from wellspoken.adapters import translate
from wellspoken.proxy.endpoints import chat

GAP = 0.04
WORK = 0.05
WORDS = 6
SLACK = 0.15  # what a busy machine may add in all

INTER = 'wellspoken_inter_token_seconds_{}{{backend="{}"}}'
OVERHEAD = 'wellspoken_overhead_seconds_{}{{phase="{}"}}'


def spoken(*end: bytes | Pause) -> list[Any]:
    """Return a stream of a role and some words, each after a gap."""
    words = [step for _ in range(WORDS) for step in (Pause(GAP), event(chunk({"content": "a"})))]
    return list(stream(event(role()), *words, *end))


async def arrivals(proxy: Proxy, **more: Any) -> list[float]:
    """Return when each piece of a stream came, by the client's clock."""
    found = []
    async with await proxy.chat(stream=True, **more) as response:
        async for _ in response.content.iter_any():
            found.append(time.perf_counter())
    return found


@pytest.mark.parametrize(
    ("end", "pieces"),
    [
        ((Pause(GAP), event(finish()) + DONE), WORDS + 1),  # the role comes with the first word
        ((Pause(GAP), event(finish()), Pause(0.3), DONE), WORDS + 1),  # [DONE] is no token
    ],
)
async def test_gaps_are_those_that_a_client_sees(
    upstream: Upstream, start_proxy: StartProxy, end: tuple[bytes | Pause, ...], pieces: int
) -> None:
    upstream.scripts = [spoken(*end)]
    proxy = await start_proxy(upstream)
    seen = (await arrivals(proxy))[:pieces]
    scraped = await proxy.metrics()
    assert scraped[INTER.format("count", "default")] == pieces - 1
    total = scraped[INTER.format("sum", "default")]
    assert WORDS * GAP * 0.9 <= total
    assert total == pytest.approx(seen[-1] - seen[0], abs=0.2)
    short = scraped['wellspoken_inter_token_seconds_bucket{backend="default",le="0.01"}']
    assert short <= WORDS / 2  # only a late piece shortens the next gap


async def test_a_first_token_is_when_the_client_sees_it(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[Pause(0.2), *spoken(event(finish()) + DONE)]]
    proxy = await start_proxy(upstream)
    began = time.perf_counter()
    seen = await arrivals(proxy)
    scraped = await proxy.metrics()
    waited = scraped['wellspoken_time_to_first_token_seconds_sum{backend="default"}']
    assert 0.2 + GAP * 0.9 <= waited == pytest.approx(seen[0] - began, abs=0.2)
    took = scraped['wellspoken_request_duration_seconds_sum{backend="default",stream="true"}']
    assert waited + (WORDS - 1) * GAP * 0.9 <= took == pytest.approx(seen[-1] - began, abs=0.2)


def slowed(patch: pytest.MonkeyPatch, owner: Any, name: str, seconds: float = WORK) -> None:
    """Let a function work so much longer, as a larger request would make it."""
    real: Callable[..., Any] = getattr(owner, name)

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(seconds)
        return real(*arguments, **more)

    patch.setattr(owner, name, slow)


async def overhead(proxy: Proxy) -> tuple[float, float]:
    """Return the seconds of the two phases, each of one request."""
    scraped = await proxy.metrics()
    for phase in ("request", "response"):
        assert scraped[OVERHEAD.format("count", phase)] == 1
    return scraped[OVERHEAD.format("sum", "request")], scraped[OVERHEAD.format("sum", "response")]


async def test_work_on_a_request_is_overhead(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    slowed(monkeypatch, chat, "decode_chat")
    async with await proxy.chat() as response:
        assert response.status == 200
    request, answer = await overhead(proxy)
    assert WORK <= request < WORK + SLACK
    assert 0 < answer < WORK


async def test_work_on_a_body_is_overhead(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    slowed(monkeypatch, translate.StreamTranslator, "whole")
    async with await proxy.chat() as response:
        assert response.status == 200
    request, answer = await overhead(proxy)
    assert 0 < request < WORK
    assert WORK <= answer < WORK + SLACK


@pytest.mark.parametrize("n", [1, 2])
async def test_work_on_each_piece_of_a_stream_is_overhead(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    """With n=2 the answer is made of two streams; each piece of both is translated."""
    upstream.scripts = [spoken(event(finish()) + DONE)]
    proxy = await start_proxy(upstream, adapter="llama.cpp")
    slowed(monkeypatch, translate.StreamTranslator, "feed")
    assert await arrivals(proxy, n=n)
    _, answer = await overhead(proxy)
    assert n * WORDS * WORK <= answer + WORK < n * (WORDS + 3) * WORK + SLACK


async def test_waiting_for_others_is_no_overhead(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """A client that sends slowly, a backend that thinks, a client that reads slowly."""
    upstream.scripts = [[Pause(0.3), *spoken(event(finish()) + DONE)]]
    proxy = await start_proxy(upstream)
    data = json.dumps({"model": "m", "messages": MESSAGES, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data[:10])
    await asyncio.sleep(0.3)
    writer.write(data[10:])
    assert await reader.readuntil(b"[DONE]")
    writer.close()
    while proxy.service.state.inflight:
        await asyncio.sleep(0.01)
    request, answer = await overhead(proxy)
    assert request < 0.25 and answer < 0.25


async def test_asking_for_the_vocabularys_size_is_no_overhead(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """llama.cpp is asked for it where a request names token ids."""
    upstream.scripts = [whole(body())]
    listed = {"object": "list", "data": [{"id": "m", "meta": {"n_vocab": 9}}]}
    upstream.script("/v1/models", [Pause(0.3), *whole(listed)])
    proxy = await start_proxy(upstream, adapter="llama.cpp")
    async with await proxy.chat(logit_bias={"3": 1}) as response:
        assert response.status == 200
    assert [one.target for one in upstream.requests] == ["/v1/models", CHAT]
    request, _ = await overhead(proxy)
    assert request < 0.25


async def test_waiting_for_an_engine_is_no_overhead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine_proxy(monkeypatch, whole(body())) as running:
        await running.ready()
        await running.end()
        asked = asyncio.create_task(running.proxy.chat())
        await asyncio.sleep(0.3)
        running.gate.set()
        async with await asked as response:
            assert response.status == 200
        request, _ = await overhead(running.proxy)
        took = (await running.proxy.metrics())[
            'wellspoken_request_duration_seconds_sum{backend="engine",stream="false"}'
        ]
    assert request < 0.25 < 0.3 <= took


async def test_a_backend_that_is_not_there_makes_no_answers_overhead(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    await upstream.refuse()
    await proxy.error(502)
    scraped = await proxy.metrics()
    assert scraped[OVERHEAD.format("count", "request")] == 1
    assert scraped[OVERHEAD.format("count", "response")] == 0
