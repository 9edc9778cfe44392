"""Times in metrics against other clocks: the client's, the backend's, and work of known length."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest

from tests.conforming import body, chunk, finish, role
from tests.fakes.engine import engine_proxy
from tests.fakes.upstream import DONE, Gate, Step, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy
from tests.waiting import until
from wellspoken.adapters import translate
from wellspoken.proxy.endpoints import chat

GAP = 0.04
WORK = 0.05
WORDS = 6
EXACT = 0.001  # seconds: a thousand looks at the clock

INTER = 'wellspoken_inter_token_seconds_{}{{backend="{}",model="_other"}}'
OVERHEAD = 'wellspoken_overhead_seconds_{}{{phase="{}"}}'


class Clock:
    """Stands for perf_counter: it goes on by a microsecond with each look, else as it is told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.seen = 0  # words and finishes of streams that the client has

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    async def pass_by(self, seconds: float) -> None:
        """Let the proxy do what it can, and then some time go by."""
        for _ in range(50):
            await asyncio.sleep(0)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of the whole proxy, which other work on the machine does not move."""
    made = Clock()
    for name, module in list(sys.modules.items()):
        if name.startswith("wellspoken.") and vars(module).get("perf_counter") is perf_counter:
            monkeypatch.setattr(module, "perf_counter", made)
    return made


class Gap(Gate):
    """A step of a script in which time goes by, once the client has seen so much."""

    def __init__(self, clock: Clock, seconds: float = GAP, seen: int = 0) -> None:
        super().__init__()
        self._clock, self._seconds, self._seen = clock, seconds, seen

    async def wait(self) -> None:
        await until(lambda: self._clock.seen >= self._seen)
        await self._clock.pass_by(self._seconds)


def spoken(clock: Clock, *end: Step, streams: int = 0) -> list[Step]:
    """Return a stream of a role and some words, each after a gap.

    `streams`: of so many the client has each word before the next gap begins.
    """
    words: list[Step] = []
    for count in range(WORDS):
        words += [Gap(clock, GAP, count * streams), event(chunk({"content": "a"}))]
    return list(stream(event(role()), *words, *end))


async def arrivals(proxy: Proxy, clock: Clock, **more: Any) -> list[float]:
    """Return when each piece of a stream came."""
    found = []
    async with await proxy.chat(stream=True, **more) as response:
        async for piece in response.content.iter_any():
            found.append(clock())
            clock.seen += piece.count(b'"a"') + piece.count(b'"stop"')
    return found


@pytest.mark.parametrize("rest", [0.0, 0.3])
async def test_gaps_are_those_that_a_client_sees(
    upstream: Upstream, start_proxy: StartProxy, clock: Clock, rest: float
) -> None:
    """The role comes with the first word, and an end is no token, however late it is."""
    last = Gap(clock, rest, WORDS)
    end = [event(finish()), last, DONE] if rest else [event(finish()) + DONE]
    upstream.scripts = [spoken(clock, Gap(clock, GAP, WORDS), *end, streams=1)]
    proxy = await start_proxy(upstream)
    seen = (await arrivals(proxy, clock))[:WORDS]
    scraped = await proxy.metrics()
    assert scraped[INTER.format("count", "default")] == WORDS - 1
    total = scraped[INTER.format("sum", "default")]
    assert total == pytest.approx((WORDS - 1) * GAP, abs=EXACT)
    assert total == pytest.approx(seen[-1] - seen[0], abs=EXACT)
    bucket = 'wellspoken_inter_token_seconds_bucket{backend="default",le="0.01",model="_other"}'
    assert scraped[bucket] == 0


async def test_a_first_token_is_when_the_client_sees_it(
    upstream: Upstream, start_proxy: StartProxy, clock: Clock
) -> None:
    upstream.scripts = [[Gap(clock, 0.2), *spoken(clock, event(finish()) + DONE, streams=1)]]
    proxy = await start_proxy(upstream)
    began = clock()
    seen = await arrivals(proxy, clock)
    scraped = await proxy.metrics()
    labels = 'backend="default",model="_other"'
    waited = scraped[f"wellspoken_time_to_first_token_seconds_sum{{{labels}}}"]
    assert waited == pytest.approx(0.2 + GAP, abs=EXACT)
    assert waited == pytest.approx(seen[0] - began, abs=EXACT)
    took = scraped[f'wellspoken_request_duration_seconds_sum{{{labels},stream="true"}}']
    assert took == pytest.approx(0.2 + WORDS * GAP, abs=EXACT)
    assert took == pytest.approx(seen[-1] - began, abs=EXACT)


def slowed(patch: pytest.MonkeyPatch, clock: Clock, owner: Any, name: str) -> None:
    """Let a function work so much longer, as a larger request would make it."""
    real: Callable[..., Any] = getattr(owner, name)

    def slow(*arguments: Any, **more: Any) -> Any:
        clock.now += WORK
        return real(*arguments, **more)

    patch.setattr(owner, name, slow)


async def overhead(proxy: Proxy) -> tuple[float, float]:
    """Return the seconds of the two phases, each of one request."""
    scraped = await proxy.metrics()
    for phase in ("request", "response"):
        assert scraped[OVERHEAD.format("count", phase)] == 1
    return scraped[OVERHEAD.format("sum", "request")], scraped[OVERHEAD.format("sum", "response")]


async def test_work_on_a_request_is_overhead(
    upstream: Upstream, start_proxy: StartProxy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    slowed(monkeypatch, clock, chat, "parse_chat")
    async with await proxy.chat() as response:
        assert response.status == 200
    request, answer = await overhead(proxy)
    assert WORK <= request < WORK + EXACT
    assert 0 < answer < EXACT


async def test_work_on_a_body_is_overhead(
    upstream: Upstream, start_proxy: StartProxy, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream)
    slowed(monkeypatch, clock, translate.StreamTranslator, "whole")
    async with await proxy.chat() as response:
        assert response.status == 200
    request, answer = await overhead(proxy)
    assert 0 < request < EXACT
    assert WORK <= answer < WORK + EXACT


@pytest.mark.parametrize("n", [1, 2])
async def test_work_on_each_piece_of_a_stream_is_overhead(
    upstream: Upstream,
    start_proxy: StartProxy,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    n: int,
) -> None:
    """With n=2 the answer is made of two streams; each piece of both is translated."""
    upstream.scripts = [spoken(clock, event(finish()) + DONE, streams=n) for _ in range(n)]
    proxy = await start_proxy(upstream, adapter="llama.cpp")
    slowed(monkeypatch, clock, translate.StreamTranslator, "feed")
    assert await arrivals(proxy, clock, n=n)
    _, answer = await overhead(proxy)
    assert n * WORDS * WORK <= answer + WORK < n * (WORDS + 3) * WORK


async def test_waiting_for_others_is_no_overhead(
    upstream: Upstream, start_proxy: StartProxy, clock: Clock
) -> None:
    """A client that sends slowly, a backend that thinks, a client that reads slowly."""
    upstream.scripts = [[Gap(clock, 0.3), *spoken(clock, event(finish()) + DONE)]]
    proxy = await start_proxy(upstream)
    data = json.dumps({"model": "m", "messages": MESSAGES, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data[:10])
    await until(lambda: proxy.service.state.inflight)
    await clock.pass_by(0.3)
    writer.write(data[10:])
    assert await reader.readuntil(b"[DONE]")
    writer.close()
    await until(lambda: not proxy.service.state.inflight)
    request, answer = await overhead(proxy)
    assert request < EXACT and answer < EXACT


async def test_asking_for_the_vocabularys_size_is_no_overhead(
    upstream: Upstream, start_proxy: StartProxy, clock: Clock
) -> None:
    """llama.cpp is asked for it where a request names token ids."""
    upstream.scripts = [whole(body())]
    listed = {"object": "list", "data": [{"id": "m", "meta": {"n_vocab": 9}}]}
    upstream.script("/v1/models", [Gap(clock, 0.3), *whole(listed)])
    proxy = await start_proxy(upstream, adapter="llama.cpp")
    async with await proxy.chat(logit_bias={"3": 1}) as response:
        assert response.status == 200
    assert [one.target for one in upstream.requests] == ["/v1/models", CHAT]
    request, _ = await overhead(proxy)
    assert request < EXACT


async def test_waiting_for_an_engine_is_no_overhead(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine_proxy(monkeypatch, whole(body())) as running:
        await running.ready()
        await running.end()
        asked = asyncio.create_task(running.proxy.chat())
        await until(lambda: running.supervisor._waiting)
        await clock.pass_by(0.3)
        running.gate.set()
        async with await asked as response:
            assert response.status == 200
        request, _ = await overhead(running.proxy)
        took = (await running.proxy.metrics())[
            'wellspoken_request_duration_seconds_sum{backend="engine",model="_other",stream="false"}'
        ]
    assert request < EXACT and took == pytest.approx(0.3, abs=EXACT)


async def test_a_backend_that_is_not_there_makes_no_answers_overhead(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    await upstream.refuse()
    await proxy.error(502)
    scraped = await proxy.metrics()
    assert scraped[OVERHEAD.format("count", "request")] == 1
    assert scraped[OVERHEAD.format("count", "response")] == 0
