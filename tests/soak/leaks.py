"""What is left of many requests with clients that leave, and how soon a backend hears of those."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

from tests.bench.process import memory
from tests.bench.store_check import Line, quantile
from tests.bench.store_proxy import Proxy, proxy
from tests.clock import own_time
from tests.conforming import body
from tests.fakes.upstream import Pause, Stall, Upstream, stream, whole
from tests.proxy.conftest import CHAT
from tests.soak.proxies import (
    EVENTS,
    answers,
    ask,
    at_most,
    backend,
    chat,
    descriptors,
    exactly,
    is_whole,
    request,
    send,
    settle_inflight,
    write_config,
)
from tests.waiting import SECONDS, until

AT_ONCE = 16
ABORTED = 0.3
GROWTH_MB = 10.0
CLOSED_MS = 250.0


async def leaks(requests: int) -> list[Line]:
    """Ask so often, streams and bodies, and leave a third of the answers in their middle."""
    rng = random.Random(11)
    with tempfile.TemporaryDirectory() as folder:
        async with backend(answers(Pause(0.002)), whole(body())) as server:
            scripts = [answers(Pause(0.002)), answers()]
            server.by_path[CHAT] = scripts * (requests + 5000)
            with proxy(write_config(Path(folder), server.url), None) as running:
                wrong = await _load(running, requests // 5, rng)
                await _settle(running, server)
                first, files = memory(running.pid).now, descriptors(running.pid)
                wrong += await _load(running, requests, rng)
                open_there = await _settle(running, server)
                grown = memory(running.pid).now - first
                left = descriptors(running.pid) - files
    of = f"after {requests:,} requests, {ABORTED:.0%} of them left"
    return [
        at_most("leaks", f"resident memory grown {of}", grown, "MB", GROWTH_MB),
        at_most("leaks", "files and sockets more than before", left, "", 0),
        exactly("leaks", "requests that count as open", open_there, 0),
        exactly("leaks", "answers that were not whole", wrong, 0),
    ]


async def _load(running: Proxy, requests: int, rng: random.Random) -> int:
    """Send the requests, some at once; return how many who waited got no whole answer."""
    wrong = 0
    plans = iter([(rng.random() < 0.5, rng.random() < ABORTED) for _ in range(requests)])

    async def client() -> None:
        nonlocal wrong
        for streams, leaves in plans:
            data = request(streams)
            if not leaves:
                wrong += not is_whole(await ask(running.url, data))
                continue
            _, writer = await send(running.url, data[: rng.choice([60, len(data), 10**6])])
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random() * 0.01)
            if rng.random() < 0.5:
                writer.transport.abort()
            writer.close()

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    return wrong


async def _settle(running: Proxy, server: Upstream) -> float:
    """Wait until nothing is open but what asks for it; return what counts as open besides."""
    await until(lambda: not server.connections, "the backend's connections idle out")
    return await settle_inflight(running.url)


async def disconnects(count: int) -> list[Line]:
    """Leave so many answers, before and in their middle; return when the backend heard of it."""
    waits: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with backend(stream(*EVENTS[:3], Stall())) as server:
            with proxy(write_config(Path(folder), server.url), None) as running:
                for number in range(count):
                    streams = number % 2 == 0
                    reader, writer = await send(running.url, request(streams))
                    there = await chat(server, number)
                    if streams:
                        await reader.readuntil(b"data: ")
                    left = own_time()
                    writer.transport.abort()
                    async with asyncio.timeout(SECONDS):
                        await there.closed.wait()
                    waits.append((there.closed_at - left) * 1e3)
                still = await settle_inflight(running.url)
    middle, slow = quantile(waits, 0.5), quantile(waits, 0.99)
    return [
        exactly("disconnects", f"closed of {count}", len(waits), count),
        at_most("disconnects", "until the backend's socket closed, p50", middle, "ms", 100.0),
        at_most("disconnects", "the same, p99", slow, "ms", CLOSED_MS),
        exactly("disconnects", "requests that count as open", still, 0),
    ]
