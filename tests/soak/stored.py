"""What is left in memory of many completions that are stored."""

from __future__ import annotations

import asyncio
import base64
import random
import tempfile
from pathlib import Path

from tests.bench.process import memory
from tests.bench.store_check import Line
from tests.bench.store_proxy import Proxy, proxy
from tests.conforming import body
from tests.fakes.upstream import whole
from tests.proxy.conftest import CHAT
from tests.soak.proxies import ask, at_most, backend, exactly, is_whole, request, write_config

AT_ONCE = 4
CACHES_MB = 60.0
"""Beside an idle proxy: the writer's cache of 32 MiB once it is full, and a reader's. Of rows of
60 kB it was full after 800 (+39 MB); 1,600 more added 1.3 MB."""
GROWTH_MB = 10.0
FIRST = b"GET " + CHAT.encode() + b"?limit=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def stored(rows: int, size: int) -> list[Line]:
    """Store so many completions whose messages have so many bytes, and twice as many more.

    The first are enough to fill the caches, so that the others tell what grows without an end.
    """
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as folder:
        async with backend(whole(body())) as server:
            path = str(Path(folder) / "completions.db")
            config = write_config(Path(folder), server.url, store={"path": path})
            with proxy(config, None) as running:
                wrong = await _store(running, 1, size, rng)
                idle = memory(running.pid).now
                wrong += await _store(running, rows, size, rng)
                full = memory(running.pid).now
                wrong += await _store(running, 2 * rows, size, rng)
                grown = memory(running.pid).now - full
    of = f"{rows:,} rows of {size / 1000:g} kB"
    return [
        at_most("store", f"resident memory grown by {of}", full - idle, "MB", CACHES_MB),
        at_most("store", f"and by {2 * rows:,} more", grown, "MB", GROWTH_MB),
        exactly("store", "answers that were not whole", wrong, 0),
    ]


async def _store(running: Proxy, rows: int, size: int, rng: random.Random) -> int:
    """Return how many got no whole answer, once all the others can be read."""
    wrong = 0
    left = iter(range(rows))

    async def client() -> None:
        nonlocal wrong
        for _ in left:
            text = base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
            asked = request(False, store=True, messages=[{"role": "user", "content": text}])
            wrong += not is_whole(await ask(running.url, asked))

    await asyncio.gather(*(client() for _ in range(AT_ONCE)))
    wrong += not (await ask(running.url, FIRST)).startswith(b"HTTP/1.1 200 ")
    return wrong
