"""A scrape as Prometheus reads it: nothing is wrong with it, and a real server counts the same."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL, body
from tests.deploy.prometheus import EVERY, Promtool, prometheus, promtool
from tests.deploy.traffic import (
    REPAIRED,
    installation,
    left_streaming,
    left_waiting,
    whole_answers,
)
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, Proxy, StartProxy, start_proxy, upstream

__all__ = ["promtool", "start_proxy", "upstream"]  # fixtures

WRONG = (
    ("wellspoken_store_dropped_total", "wellspoken_store_dropped", "_total"),
    ("_seconds", "_ms", "abbreviated"),
    ("# HELP wellspoken_repairs_total", "# HELP wellspoken_other_total", "no help text"),
    ('phase="waiting"} 1.0', 'phase="waiting"} one', "expected float"),
)


async def test_promtool_finds_nothing_wrong(
    promtool: Promtool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with installation(monkeypatch, tmp_path) as running:
        await running.traffic()
        text = await running.text()
    assert promtool.run("check", "metrics", given=text) == (0, "")
    for good, bad, found in WRONG:
        assert good in text
        code, said = promtool.run("check", "metrics", given=text.replace(good, bad))
        assert code and found in said, said


async def test_a_scrape_that_fails_takes_nothing_away(
    environment_as_given: dict[str, str], upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    async with prometheus(environment_as_given, [f"127.0.0.1:{proxy.port}"]) as server:
        await server.scraped()
        time.sleep(3 * EVERY)  # nobody answers, as on a machine that does something else
        assert await server.value("wellspoken_inflight_requests") == 1


async def test_a_server_returns_exactly_what_happened(
    environment_as_given: dict[str, str], upstream: Upstream, start_proxy: StartProxy
) -> None:
    """17 requests, of which 3 were left and 5 needed a repair."""
    proxy = await start_proxy(upstream)
    async with prometheus(environment_as_given, [f"127.0.0.1:{proxy.port}"]) as server:
        await whole_answers(proxy, upstream, whole(body()), 9)
        await whole_answers(proxy, upstream, whole(REPAIRED), 5)
        await left_streaming(proxy, upstream)
        await left_streaming(proxy, upstream)
        await left_waiting(proxy, upstream)
        await server.scraped()
        asked = 'wellspoken_requests_total{route="chat_completions"}'
        assert await server.value(f"sum({asked})") == 17
        assert {(one["code"], one["stream"]): n for one, n in await server.query(asked)} == {
            ("200", "false"): 14,
            ("499", "false"): 1,
            ("499", "true"): 2,
        }
        found = await server.query("wellspoken_client_disconnects_total")
        left = {one["phase"]: n for one, n in found}
        # A scrape that took too long was left as well.
        late = await server.value("count_over_time(up[1h]) - sum_over_time(up[1h])")
        assert left.pop("request") <= late
        assert left == {"waiting": 1, "streaming": 2, "stalled": 0}
        ((repair, times),) = await server.query("wellspoken_repairs_total")
        assert (repair["rule"], times) == ("finish_reason_eos_token", 5)
        assert await server.value("wellspoken_request_duration_seconds_count{stream='false'}") == 15
        assert await server.value("sum(wellspoken_time_to_first_token_seconds_count)") == 2
        assert await server.value("wellspoken_inflight_requests") == 1  # the scrape itself
        tokens = await server.query("wellspoken_tokens_total")
        # Of the two streams that their clients left, what had come until then is counted: a word.
        wanted = {"prompt": 14 * 19 + 2, "completion": 14 * 6 + 2}
        assert {one["kind"]: n for one, n in tokens} == wanted


def hostile(number: int) -> str:
    """Return a model's name that no configuration has, and that would break a label."""
    drawn = random.Random(number)
    odd = "".join(drawn.choices('"\\\n{}=,#\0é\u2028 aZ0', k=drawn.randint(1, 24)))
    return f"{odd}{number}"


async def flood(proxy: Proxy, first: int, last: int, together: int = 16) -> set[int]:
    """Send a request for each hostile name, with hostile parameters; return the statuses."""
    numbers = iter(range(first, last))
    statuses = set()

    async def some() -> None:
        for number in numbers:
            name = hostile(number)
            ask = {"model": name, "messages": [{"role": "user", "content": "Hi"}], name: 1}
            path = CHAT if number % 8 else f"/v1/{number}"
            data = json.dumps(ask)
            headers = {"Content-Type": "application/json", "x-request-id": str(number)}
            async with proxy.session.post(proxy.url(path), data=data, headers=headers) as response:
                await response.read()
                statuses.add(response.status)

    await asyncio.gather(*(some() for _ in range(together)))
    return statuses


async def series(proxy: Proxy) -> set[str]:
    """Return the names and labels of a scrape's samples."""
    return set(await proxy.metrics())


@pytest.mark.parametrize(("lone", "names"), [(True, 1_000), (False, 2_000)])
async def test_hostile_names_make_no_series(
    upstream: Upstream, start_proxy: StartProxy, lone: bool, names: int
) -> None:
    """Before one backend, which takes any model, and before two, which do not."""
    plain = whole(body())
    upstream.scripts = [plain]
    backend = {"url": upstream.url, "models": [MODEL], "name": "one"}
    others = () if lone else ({**backend, "name": "two", "models": ["other"]},)
    proxy = await start_proxy(backend, *others)
    async with await proxy.chat() as response:
        assert response.status == 200
    statuses = await flood(proxy, 0, 50)
    assert statuses == ({200, 404} if lone else {404})
    await series(proxy)  # a scrape is a request too
    before = await series(proxy)
    counter: Any = proxy.service.hooks.observers[0]
    held = len(counter._series)
    assert await flood(proxy, 50, names) == statuses
    assert await series(proxy) == before
    assert len(counter._series) == held
