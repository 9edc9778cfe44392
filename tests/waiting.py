"""Waiting until something holds: in a coroutine, or in a thread of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

SECONDS = 120.0
"""How long anything may take on a machine that is busy with something else."""


async def until(
    condition: Callable[[], object], what: str = "what is waited for", seconds: float = SECONDS
) -> None:
    """Wait until a condition, which may be a coroutine's, holds; fail the test if it never does."""
    try:
        async with asyncio.timeout(seconds):
            while not await _outcome(condition):
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {seconds:g} s: {what}") from None


async def _outcome(condition: Callable[[], object]) -> object:
    found = condition()
    return await found if isinstance(found, Awaitable) else found


def block_until(
    condition: Callable[[], object],
    what: Callable[[], str] = lambda: "what is waited for",
    seconds: float = SECONDS,
) -> None:
    """Do the same where no event loop runs, or none has to."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what()}"
        time.sleep(0.005)


async def read_until(read: Callable[[], Awaitable[bytes]], part: bytes, times: int = 1) -> bytes:
    """Return what `read` gives until `part` has come so often; fail if it ends before."""
    data = b""
    while data.count(part) < times:
        piece = await read()
        assert piece, f"it ended before {part!r} had come {times} times: {data[-500:]!r}"
        data += piece
    return data
