"""What requests hold: large ones through a long prefill, and answers that nobody reads."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.bench.process import forget_peak, memory
from tests.bench.store_check import Line, quantile
from tests.bench.store_proxy import proxy
from tests.clock import own_time
from tests.conforming import chunk
from tests.fakes.upstream import DONE, Gate, event, stream
from tests.soak.proxies import (
    EVENTS,
    answers,
    ask,
    at_most,
    backend,
    exactly,
    inflight,
    is_whole,
    read_all,
    request,
    send,
    write_config,
)
from tests.waiting import until

MEGABYTE = 1_000_000
PER_REQUEST_MB = 2.0
"""Of a request of 1 MB that waits for its backend: the body, and what is sent of it."""
PER_READER_MB = 0.512
LIVE_MS = 250.0


async def prefill(requests: int) -> list[Line]:
    """Send so many requests of 1 MB that all wait for their first token."""
    gate = Gate()
    with tempfile.TemporaryDirectory() as folder:
        async with backend(answers()) as server:
            server.scripts = [[gate, *answers()]]
            with proxy(write_config(Path(folder), server.url), None) as running:
                gate.open()
                await ask(running.url, request(True, MEGABYTE))
                gate = Gate()
                server.scripts = [[gate, *answers()]]
                first = memory(running.pid).now
                forget_peak(running.pid)
                there = len(server.requests)
                opened = [await send(running.url, request(True, MEGABYTE)) for _ in range(requests)]
                await server.request(there + requests - 1)
                held = (memory(running.pid).now - first) / requests
                peak = (memory(running.pid).peak - first) / requests
                gate.open()
                good = sum(map(is_whole, await asyncio.gather(*map(read_all, opened))))
    of = f"{requests} requests of 1 MB that wait"
    return [
        at_most("memory", f"held by each of {of}", held, "MB", PER_REQUEST_MB),
        at_most("memory", "the same, at most", peak, "MB", PER_REQUEST_MB),
        exactly("memory", "answers that were whole", good, requests),
    ]


async def crowd(requests: int, limit: int) -> list[Line]:
    """Send so many requests of 1 MB at once, more than `limits.memory` has room for.

    In a container of twice as much, for which it is the default, the proxy lives.
    """
    gate = Gate()
    with tempfile.TemporaryDirectory() as folder:
        async with backend(stream(gate, *EVENTS, DONE)) as server:
            config = write_config(Path(folder), server.url, limits={"memory": limit})
            with proxy(config, None) as running:
                asked = request(True, MEGABYTE)
                sent = [asyncio.create_task(ask(running.url, asked)) for _ in range(requests)]

                def are_told() -> bool:
                    return len(server.requests) + sum(each.done() for each in sent) >= requests

                await until(are_told, "each waits for its answer or is refused", 300)
                gate.open()
                found = await asyncio.gather(*sent)
                peak = memory(running.pid).peak
    other = [each for each in found if not is_whole(each) and b'"memory_limit"' not in each]
    of = f"{requests} of 1 MB at once, limits.memory of {limit / MEGABYTE:.0f} MB"
    return [
        at_most("crowd", f"resident at most, {of}", peak, "MB", 2 * limit / MEGABYTE),
        exactly("crowd", "neither whole nor refused for memory", len(other), 0),
    ]


async def slow_readers(clients: int) -> list[Line]:
    """Ask for streams of 4 MB, so many, and read none of them; then leave.

    Their logprobs are large and their text is small: text is held besides what is on its way, up to
    64 KB of it, and all where tokens may have to be counted of it.
    """
    top = [{"token": chr(97 + n), "logprob": -1.0 - n, "bytes": [97 + n]} for n in range(20)]
    entry = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": top}
    scores = {"content": [entry], "refusal": None}
    large = [event(chunk({"content": "a"}, logprobs=scores))] * 2000
    asked = request(True, logprobs=True, top_logprobs=20)
    with tempfile.TemporaryDirectory() as folder:
        async with backend(stream(EVENTS[0], *large, EVENTS[-1], DONE)) as server:
            with proxy(write_config(Path(folder), server.url), None) as running:
                await ask(running.url, asked)
                first = memory(running.pid).now
                sent = [await send(running.url, asked, 4096) for _ in range(clients)]
                await server.request(clients)
                level = -1
                while level != server.sent:  # until nobody takes any more
                    level = server.sent
                    await asyncio.sleep(0.5)
                held = (memory(running.pid).now - first) / clients
                for _, writer in sent:
                    writer.transport.abort()
                await until(lambda: not server.connections, "the backend hears of it")
                still = await inflight(running.url)
    return [
        at_most("slow readers", f"held for each of {clients}", held, "MB", PER_READER_MB),
        exactly("slow readers", "requests that count as open, once they left", still, 0),
    ]


async def livez(seconds: float) -> list[Line]:
    """Ask for /livez all the time while bodies of 4 MB come in and go out."""
    asked = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    over = asyncio.Event()
    waits: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with backend(answers()) as server:
            with proxy(write_config(Path(folder), server.url), None) as running:
                heavy = request(True, 4 * MEGABYTE)

                async def load() -> int:
                    wrong = 0
                    while not over.is_set():
                        wrong += not is_whole(await ask(running.url, heavy))
                    return wrong

                loads = [asyncio.create_task(load()) for _ in range(4)]
                end = asyncio.get_running_loop().time() + seconds
                while asyncio.get_running_loop().time() < end:
                    began = own_time()
                    alive = (await ask(running.url, asked)).startswith(b"HTTP/1.1 200 ")
                    waits.append((own_time() - began) * 1e3 if alive else float("inf"))
                over.set()
                wrong = sum(await asyncio.gather(*loads))
    return [
        at_most("livez", "p99 during bodies of 4 MB", quantile(waits, 0.99), "ms", LIVE_MS),
        exactly("livez", "answers that were not whole", wrong, 0),
    ]
