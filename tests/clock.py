"""Clocks: one that other work on the machine does not move, and one that goes on at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

_SCHEDULING = Path("/proc/thread-self/schedstat")


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


def skip(seconds: float) -> None:
    """Let the running loop's clock go on at once; its timers that are due by then run now."""
    loop = asyncio.get_running_loop()
    time_before = loop.time
    loop.time = lambda: time_before() + seconds  # type: ignore[method-assign]
