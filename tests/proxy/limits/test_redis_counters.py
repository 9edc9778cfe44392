"""Quotas that several proxies share in a real Redis, and what they do without it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.upstream import Gate, Upstream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.limits.clients import MakeClient, key_of
from tests.proxy.limits.clients import client as client
from tests.redis_server import PASSWORD, RedisServer
from tests.redis_server import redis_server as redis_server
from tests.waiting import until
from wellspoken.proxy.config.tables import Auth
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import open_counters
from wellspoken.proxy.limits import redis_counters
from wellspoken.proxy.limits.accounts import Account
from wellspoken.proxy.limits.quota import Quota
from wellspoken.proxy.limits.redis_counters import RedisCounters

A = key_of("a")
LONG = 100.0  # seconds


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine take its time, but where a test says otherwise."""
    for name in ("WAIT", "CONNECT"):
        monkeypatch.setattr(redis_counters, name, LONG)


@asynccontextmanager
async def counting(server: RedisServer, **settings: Any) -> AsyncIterator[RedisCounters]:
    counters = RedisCounters(server.url, **settings)
    try:
        yield counters
    finally:
        await counters.close()


def told(counters: RedisCounters) -> bool:
    """Say whether all was said."""
    return counters._sending is None or counters._sending.done()


async def ask(counters: RedisCounters, *arguments: str) -> Any:
    """Run a command on the server."""
    return await counters._redis.execute_command(*arguments)  # type: ignore[no-untyped-call]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 120),  # tokens that are reserved
        st.integers(-60, 120),  # of which so many are given back when one is settled
        st.booleans(),  # whether that one had failed
        st.booleans(),  # whether one is settled at all
    ),
    max_size=12,
)


async def test_scripts_count_as_accounts_do(redis_server: RedisServer) -> None:
    """Step by step, but for what fills in the meantime, which is bounded by the time it takes."""

    async def compare(steps: list[tuple[int, int, bool, bool]], quota: Quota, name: str) -> None:
        account, going, began = Account(), list[str](), time.monotonic()
        for at, (tokens, back, failed, ends) in enumerate(steps):
            now, id = time.monotonic(), f"{name}-{at}"
            expected = account.take(quota, tokens, now)
            found = await counters.reserve(name, quota, id, tokens)
            assert found is not None
            gone = time.monotonic() - began  # it may have filled for so long
            if found.refused != expected.refused:  # near the edge: the other way round in between
                assert abs(expected.wait or found.wait) <= gone + 0.01, (found, expected)
                return
            assert found.wait == pytest.approx(expected.wait, abs=gone + 0.01)
            assert found.requests == pytest.approx(expected.requests, abs=gone + 0.01)
            assert found.tokens == pytest.approx(expected.tokens, abs=gone + 0.01)
            if found.refused is None:
                going.append(id)
            if ends and going:
                account.settle(quota, int(failed), back, time.monotonic())
                counters.settle(name, quota, going.pop(), int(failed), back)
                await until(lambda: not counters._queue and told(counters))

    async with counting(redis_server) as counters:
        loop = asyncio.get_running_loop()
        names = iter(range(10_000))

        @settings(max_examples=60, suppress_health_check=list(HealthCheck))
        @given(STEPS, st.integers(0, 5), st.sampled_from([0, 1, 7, 100]), st.integers(0, 3))
        def run(steps: Any, requests: int, tokens: int, concurrent: int) -> None:
            quota = Quota(requests, tokens, concurrent)
            work = compare(steps, quota, f"c{next(names)}")
            asyncio.run_coroutine_threadsafe(work, loop).result()

        await asyncio.to_thread(run)


StartTwo = Callable[..., Awaitable[list[Proxy]]]


@pytest.fixture
def start_two(
    start_proxy: StartProxy, client: MakeClient, redis_server: RedisServer, upstream: Upstream
) -> StartTwo:
    """Start two proxies with one Redis and the same client."""

    async def start(**quota: Any) -> list[Proxy]:
        auth = {"client": [client("a", **quota)], "counters": redis_server.url}
        return [await start_proxy(upstream, auth=auth) for _ in range(2)]

    return start


async def status(proxy: Proxy, tokens: int = 100) -> int:
    async with await proxy.chat(A, max_tokens=tokens) as answer:
        await answer.read()
        return answer.status


async def test_two_proxies_count_requests_together(upstream: Upstream, start_two: StartTwo) -> None:
    upstream.script(CHAT, whole(PLAIN))
    proxies = await start_two(requests_per_minute=20)
    began = time.monotonic()
    found = Counter(await asyncio.gather(*(status(proxies[n % 2]) for n in range(60))))
    most = 20 + (time.monotonic() - began) / 3
    assert found.keys() == {200, 429} and 20 <= found[200] <= most


async def test_two_proxies_count_tokens_together(upstream: Upstream, start_two: StartTwo) -> None:
    """Each pays 900 of 6000 in the end, so that the 1500 that it reserves come back."""
    used = {"prompt_tokens": 800, "completion_tokens": 100, "total_tokens": 900}
    upstream.script(CHAT, whole({**json.loads(PLAIN), "usage": used}))
    one, other = await start_two(tokens_per_minute=6000)
    for proxy in (one, other, one):
        assert await status(proxy, 1500) == 200
    counters = one.service.state.counters
    assert isinstance(counters, RedisCounters)

    async def settled() -> bool:
        return not await ask(counters, "ZCARD", "wellspoken:{a}:open")

    await until(settled)
    full = float(await ask(counters, "GET", "wellspoken:{a}:tokens"))
    seconds, micros = map(int, await ask(counters, "TIME"))
    assert 0 < full - (seconds + micros / 1e6) <= 3 * 900 / 100  # it fills meanwhile
    async with await other.chat(A, max_tokens=3000) as answer:
        assert answer.status in (200, 429)  # as it has filled meanwhile
        assert answer.headers["x-ratelimit-limit-tokens"] == "6000"


async def test_two_proxies_count_requests_at_once_together(
    upstream: Upstream, start_two: StartTwo
) -> None:
    gate = Gate()
    upstream.script(CHAT, [gate, *whole(PLAIN)])
    one, other = await start_two(concurrent=3)
    asking = [asyncio.create_task(status(proxy)) for proxy in (one, other) * 10]
    await until(lambda: sum(task.done() for task in asking) == 17)
    await until(lambda: len(upstream.requests) >= 3)  # which may come there behind the refusals
    gate.open()
    assert Counter(await asyncio.gather(*asking)) == {429: 17, 200: 3}

    async def free() -> bool:
        return await status(other) == 200

    await until(free)  # the ends are told beside the answers


@pytest.mark.parametrize("how", ["stop", "freeze"])
async def test_while_it_is_away_requests_pass_and_it_is_tried_again(
    upstream: Upstream,
    start_two: StartTwo,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    caplog.set_level(logging.INFO)
    upstream.script(CHAT, whole(PLAIN))
    proxy, _ = await start_two(requests_per_minute=1)
    assert [await status(proxy) for _ in range(2)] == [200, 429]
    monkeypatch.setattr(redis_counters, "WAIT", 0.05)
    monkeypatch.setattr(redis_counters, "PAUSES", (0.01, 0.02))
    getattr(redis_server, how)()
    assert [await status(proxy) for _ in range(3)] == [200] * 3
    found = await proxy.get("/readyz")
    assert found[0] == 200
    assert found[1]["warning"].startswith("the store of auth.counters cannot be reached")
    events = await proxy.metrics()
    assert events['wellspoken_quota_events_total{client="a",event="uncounted"}'] == 3
    assert caplog.text.count("requests pass uncounted") == caplog.text.count("WARNING") == 1
    monkeypatch.setattr(redis_counters, "WAIT", LONG)
    redis_server.start() if how == "stop" else redis_server.thaw()
    await until(lambda: not proxy.service.state.counters.trouble)
    assert await proxy.get("/readyz") == (200, {"status": "ok"})
    if how == "stop":  # it has forgotten all
        assert [await status(proxy) for _ in range(2)] == [200, 429]
    assert "counts again" in caplog.text and PASSWORD not in caplog.text


async def test_one_that_answers_and_may_not_count_is_away(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried with what a request needs, else it would be good again between two errors."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(redis_counters, "PAUSES", (0.01, 0.02))
    async with counting(redis_server) as counters, counting(redis_server) as other:
        quota = Quota(60, 0, 1)
        assert await counters.reserve("a", quota, "1", 0) is not None
        await ask(other, "ACL", "SETUSER", "default", "-zadd")
        for id in ("2", "3"):
            assert await counters.reserve("b", quota, id, 0) is None
        counters.settle("a", quota, "1", 0, 0)
        tries = len(caplog.records)
        exchanges: list[int] = []
        original = counters._exchange

        async def exchange(words: Any) -> None:
            exchanges.append(len(words))
            await original(words)

        monkeypatch.setattr(counters, "_exchange", exchange)
        await until(lambda: len(exchanges) >= 3)
        assert counters.trouble and len(caplog.records) == tries == 1
        assert "The user executing the script" in caplog.text
        await ask(other, "ACL", "SETUSER", "default", "+zadd")
        await until(lambda: not counters.trouble)
        # The end that could not be told then was told now.
        decision = await counters.reserve("a", quota, "4", 0)
        assert decision is not None and decision.refused is None


@pytest.mark.parametrize("query", ["foo=1", "protocol=9", "db=x"])
async def test_a_url_that_no_connection_can_use_is_refused_at_once(query: str) -> None:
    """Each request had waited for a connection that could never be made."""
    with pytest.raises(ConfigError, match=r"auth\.counters: .*Correct the URL"):
        open_counters(Auth(counters=f"redis://:secret@127.0.0.1:1?{query}"))


async def test_a_query_changes_no_answer(redis_server: RedisServer) -> None:
    counters = RedisCounters(f"{redis_server.url}?decode_responses=true")
    try:
        decision = await counters.reserve("a", Quota(1), "1", 0)
        assert decision is not None and decision.refused is None
    finally:
        await counters.close()


async def test_a_bug_lets_nobody_wait(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counting(redis_server) as counters:
        fails = True
        original = counters._exchange

        async def exchange(words: Any) -> None:
            if fails:
                raise KeyError("a bug")
            await original(words)

        monkeypatch.setattr(counters, "_exchange", exchange)
        assert await counters.reserve("a", Quota(1), "1", 0) is None
        fails = False
        await until(lambda: not counters.trouble)


async def test_a_burst_is_said_in_few_words(redis_server: RedisServer) -> None:
    """However many come at once, each is counted, in its turn."""
    async with counting(redis_server) as counters:
        exchanges: list[int] = []
        original = counters._exchange

        async def exchange(words: Any) -> None:
            exchanges.append(len(words))
            await original(words)

        counters._exchange = exchange  # type: ignore[method-assign]
        quota = Quota(concurrent=600)
        asked = (counters.reserve("a", quota, str(n), 0) for n in range(1000))
        found = [each.refused for each in await asyncio.gather(*asked) if each is not None]
        assert found == [None] * 600 + ["concurrent"] * 400
        assert len(exchanges) < 10


async def test_a_request_waits_for_it_no_longer_than_it_says(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is the only timer: once it is over nothing is left to wait for."""
    monkeypatch.setattr(redis_counters, "WAIT", 0.05)
    async with counting(redis_server) as counters:
        redis_server.freeze()
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await counters.reserve("a", Quota(1), "1", 0) is None
        assert loop.time() - began >= 0.04
        assert counters.trouble
        queue = list(counters._queue)
        assert await counters.reserve("a", Quota(1), "2", 0) is None  # which asks nobody
        assert counters._queue == queue
        redis_server.thaw()


async def test_one_that_was_counted_too_late_takes_nothing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its end is told although it passed uncounted, since the server may have heard of it."""
    async with counting(redis_server) as counters:
        quota = Quota(60, 6000, 1)
        for cancelled in (True, False):
            redis_server.freeze()
            monkeypatch.setattr(redis_counters, "WAIT", LONG if cancelled else 0.05)
            task = asyncio.create_task(counters.reserve("a", quota, "1", 500))
            if cancelled:
                await asyncio.sleep(0.05)  # for its words to leave
                task.cancel()
            await asyncio.wait({task})
            redis_server.thaw()
            monkeypatch.setattr(redis_counters, "WAIT", LONG)

            async def free() -> bool:
                if counters.trouble or not told(counters):
                    return False
                return not await ask(counters, "EXISTS", *KEYS)

            await until(free)
        decision = await counters.reserve("a", quota, "2", 500)
        assert decision is not None and decision.refused is None
        assert decision.tokens == pytest.approx(5.0, abs=0.5)


KEYS = [f"wellspoken:{{a}}:{what}" for what in ("requests", "tokens", "open")]


async def test_an_open_request_is_renewed_and_a_killed_ones_place_is_free(
    redis_server: RedisServer,
) -> None:
    quota = Quota(concurrent=1)
    async with counting(redis_server, lease=12.0) as alive, counting(redis_server) as other:
        first = await alive.reserve("a", quota, "1", 0)
        assert first is not None and first.refused is None
        begun = float(await ask(other, "ZSCORE", KEYS[2], "1"))

        async def renewed() -> bool:
            return float(await ask(other, "ZSCORE", KEYS[2], "1")) > begun

        await until(renewed)
        second = await other.reserve("a", quota, "2", 0)
        assert second is not None and second.refused == "concurrent"
        assert alive._renewing is not None
        alive._renewing.cancel()  # as if it had been killed

        async def free() -> bool:
            found = await other.reserve("a", quota, "3", 0)
            return found is not None and found.refused is None

        await until(free)


async def test_keys_end_by_themselves(redis_server: RedisServer) -> None:
    async with counting(redis_server) as counters:
        quota = Quota(2, 6000, 1)
        await counters.reserve("a", quota, "1", 3000)
        for key, most in zip(KEYS, (30.0, 30.0, 60.0), strict=True):
            assert 0 < await ask(counters, "PTTL", key) <= most * 1000
        counters.settle("a", quota, "1", 0, -6000)
        assert await ask(counters, "PTTL", KEYS[1]) <= 91_000


async def test_an_end_counts_once_and_only_after_its_begin(redis_server: RedisServer) -> None:
    """It may be told again, when the store was away in between."""
    async with counting(redis_server) as counters:
        quota = Quota(0, 6000)
        for id in ("1", "2"):
            await counters.reserve("a", quota, id, 3000)
        for id in ("1", "1", "3"):
            counters.settle("a", quota, id, 0, 1000)
        decision = await counters.reserve("a", quota, "4", 0)  # said behind them
        assert decision is not None and decision.tokens > 31  # 50, less what fills meanwhile


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_both_names_are_one(redis_server: RedisServer, scheme: str) -> None:
    counters = RedisCounters(redis_server.url.replace("redis://", f"{scheme}://"))
    try:
        assert await counters.reserve("a", Quota(1), "1", 0) is not None
    finally:
        await counters.close()
