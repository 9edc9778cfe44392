"""Clocks: two that other work on the machine hardly moves, and one that goes on at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")

_SCHEDULING = Path("/proc/thread-self/schedstat")
_TICK, _MOST = 0.005, 0.02  # seconds between two ticks, and what one of them counts at most


def own_time() -> float:
    """Return a time in seconds that stands still while this thread could run and got no processor.

    What it sleeps or waits counts, so a difference is what an idle machine would show. Where the
    system does not tell (Linux alone does), it is the plain time.
    """
    return time.monotonic() - starved_time()


def starved_time() -> float:
    """Return for how many seconds this thread could run and got no processor, so far.

    What a bound on a time that the proxy measured has to allow for. 0.0 where nobody tells.
    """
    try:
        return int(_SCHEDULING.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


@asynccontextmanager
async def steady_clock() -> AsyncIterator[Callable[[], float]]:
    """Give a clock on which each time that nothing runs here counts for 20 ms at most.

    So what waits for one thing after another takes as long as ever, but a machine that stands still
    for seconds, which `own_time` takes for waiting, adds next to nothing.
    """
    passed, last = 0.0, time.monotonic()

    def now() -> float:
        return passed + min(time.monotonic() - last, _MOST)

    async def tick() -> None:
        nonlocal passed, last
        while True:
            await asyncio.sleep(_TICK)
            passed, last = now(), time.monotonic()

    ticking = asyncio.create_task(tick())
    try:
        yield now
    finally:
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)


def skip(seconds: float) -> None:
    """Let the running loop's clock go on at once; its timers that are due by then run now."""
    loop = asyncio.get_running_loop()
    time_before = loop.time
    loop.time = lambda: time_before() + seconds  # type: ignore[method-assign]


async def hurry(work: Awaitable[Found], seconds: float = 5.0) -> Found:
    """Return what comes of `work`, while the loop's clock goes on by so much again and again.

    So a test has the end of a limit at once, and still leaves the program one that no slow machine
    reaches before.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait({task}, timeout=0.02)
        skip(seconds)
    return task.result()
