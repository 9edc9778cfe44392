"""What requests hold: large ones through a long prefill, and answers that nobody reads."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

from tests.bench.data import Source
from tests.bench.forms import FORMS
from tests.bench.process import forget_peak, memory
from tests.bench.store_check import Line, quantile
from tests.bench.store_proxy import proxy
from tests.conforming import chunk
from tests.fakes.upstream import DONE, Gate, event, stream, whole
from tests.soak.proxies import (
    EVENTS,
    answers,
    ask,
    at_most,
    backend,
    chat,
    chats_of,
    exactly,
    is_whole,
    read_all,
    request,
    send,
    settle_inflight,
    write_config,
)
from tests.waiting import until

MEGABYTE = 1_000_000
PER_REQUEST_MB = 2.0
"""Of a request of 1 MB that waits for its backend: the body, and what is sent of it."""
PEAK_MB = 2.8
"""Of one that comes: its pieces and the body that is made of them, or the body and what is sent.

Less than three of these. Where all end at the same moment, of a backend that reads none, it is 2.4.
"""
PER_READER_MB = 0.512
LEGACY_TOKENS, LEGACY_TOP = 4000, 20
"""Of a body of 2.4 MB."""
LEGACY_MB = 300.0
LIVE_MS = 250.0
"""By which /livez may be slower than the same question to the scripted backend, asked in turn with
it: a machine that is busy with something else makes both slow."""


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
                there = len(chats_of(server))
                opened = [await send(running.url, request(True, MEGABYTE)) for _ in range(requests)]
                await chat(server, there + requests - 1)
                held = (memory(running.pid).now - first) / requests
                peak = (memory(running.pid).peak - first) / requests
                gate.open()
                good = sum(map(is_whole, await asyncio.gather(*map(read_all, opened))))
    of = f"{requests} requests of 1 MB that wait"
    return [
        at_most("memory", f"held by each of {of}", held, "MB", PER_REQUEST_MB),
        at_most("memory", "the same, at most", peak, "MB", PEAK_MB),
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
                    return len(chats_of(server)) + sum(each.done() for each in sent) >= requests

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
                await chat(server, clients)
                level = -1
                while level != server.sent:  # until nobody takes any more
                    level = server.sent
                    await asyncio.sleep(0.5)
                held = (memory(running.pid).now - first) / clients
                for _, writer in sent:
                    writer.transport.abort()
                await until(lambda: not server.connections, "the backend hears of it")
                still = await settle_inflight(running.url)
    return [
        at_most("slow readers", f"held for each of {clients}", held, "MB", PER_READER_MB),
        exactly("slow readers", "requests that count as open, once they left", still, 0),
    ]


def legacy(choices: int) -> bytes:
    """Return an answer of 2.4 MB with logprobs as arrays, which are those of so many choices."""
    form, source = FORMS["vllm-0.4.2"], Source()
    made = [
        form.whole(source.answer(LEGACY_TOKENS // choices, LEGACY_TOP), form.order)
        for _ in range(choices)
    ]
    found = [{**each["choices"][0], "index": index} for index, each in enumerate(made)]
    data = form.dumps({**made[0], "choices": found}).encode()
    assert 2.2 * MEGABYTE < len(data) < 2.7 * MEGABYTE, len(data)
    return data


async def large_answers(requests: int) -> list[Line]:
    """Ask for so many answers of 2.4 MB, every other one of two choices, which come at once."""
    gate = Gate()
    bodies = [legacy(1), legacy(2)]
    with tempfile.TemporaryDirectory() as folder:
        async with backend() as server:
            with proxy(write_config(Path(folder), server.url), None) as running:
                server.scripts = [whole(bodies[0])]
                warm = await ask(running.url, request(False, logprobs=True, top_logprobs=20))
                first = memory(running.pid).now
                forget_peak(running.pid)
                there, sent = len(chats_of(server)), []
                for place in range(requests):
                    n = place % 2 + 1
                    server.scripts = [[gate, *whole(bodies[n - 1])]]
                    asked = request(False, logprobs=True, top_logprobs=20, n=n)
                    sent.append(await send(running.url, asked))
                    await chat(server, there + place)
                gate.open()
                got = await asyncio.gather(*map(read_all, sent))
                peak = memory(running.pid).peak - first
    of = f"{requests} legacy bodies of 2.4 MB, n = 2 among them"
    good = [is_whole(each) and each.count(b'"index":') == at % 2 + 1 for at, each in enumerate(got)]
    return [
        at_most("large answers", f"grown by {of}", peak, "MB", LEGACY_MB),
        exactly("large answers", "answers that were whole", sum(good), requests),
        exactly("large answers", "of one before", is_whole(warm), True),
    ]


async def time_answer(url: str, asked: bytes) -> float:
    """Return the milliseconds until a question was answered; without end where it was not."""
    began = time.monotonic()
    answer = await ask(url, asked)
    took = (time.monotonic() - began) * 1e3
    return took if answer.startswith(b"HTTP/1.1 200 ") else float("inf")


async def livez(seconds: float) -> list[Line]:
    """Ask for /livez all the time while bodies of 4 MB come in and go out."""
    asked = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    over = asyncio.Event()
    waits: list[float] = []
    others: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        async with backend(answers()) as server:
            server.script("/livez", whole({}, headers=[("Connection", "close")]))
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
                    waits.append(await time_answer(running.url, asked))
                    others.append(await time_answer(server.url, asked))
                over.set()
                wrong = sum(await asyncio.gather(*loads))
    slow, bound = quantile(waits, 0.99), quantile(others, 0.99) + LIVE_MS
    return [
        at_most("livez", "p99 during bodies of 4 MB, at the backend's + 250", slow, "ms", bound),
        exactly("livez", "answers that were not whole", wrong, 0),
    ]
