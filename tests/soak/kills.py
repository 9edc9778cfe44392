"""Ends without order: a worker, and the proxy with completions that it has acknowledged."""

from __future__ import annotations

import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

from tests.bench import store_loss
from tests.bench.process import family
from tests.bench.store_check import Line
from tests.bench.store_engines import Sqlite
from tests.bench.store_loss import ready
from tests.bench.store_proxy import Proxy, proxy
from tests.soak.proxies import answers, ask, backend, exactly, is_whole, request, write_config
from tests.waiting import until


def stored(kills: int) -> list[Line]:
    """Kill the proxy again and again while it stores; what it acknowledged in `commit` is there.

    How long before the kill `async` had acknowledged what it lost is hard on a quiet machine alone.
    """
    lines = store_loss.kill(Sqlite(), kills)
    return [replace(line, hard=line.hard and line.unit != "ms") for line in lines]


async def workers(kills: int) -> list[Line]:
    """Kill one worker after another; another takes its place, and the service goes on."""
    with tempfile.TemporaryDirectory() as folder:
        async with backend(answers()) as server:
            config = write_config(Path(folder), server.url, server={"workers": 2})
            with proxy(config, None) as running:
                await ready(running.url)
                replaced = 0
                for _ in range(kills):
                    replaced += await _kill_worker(running)
                good = [is_whole(await ask(running.url, request(n % 2 == 0))) for n in range(40)]
                running.terminate()
                code = await running.ended()
    return [
        exactly("workers", f"replaced of {kills} killed", replaced, kills),
        exactly("workers", "answers that were not whole afterwards", good.count(False), 0),
        exactly("workers", "exit code", code, 0),
    ]


async def _kill_worker(running: Proxy) -> bool:
    """Kill a worker, and wait until there are as many processes again and another among them."""
    before = family(running.pid)
    os.kill(before[-1], signal.SIGKILL)

    def is_replaced() -> bool:
        now = family(running.pid)
        return len(now) == len(before) and before[-1] not in now

    await until(is_replaced, "a new worker")
    await ready(running.url)
    return True
