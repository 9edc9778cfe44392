"""What is done again: after a pause that can be cut short, or by halves where a row is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from wellspoken.proxy.store.database import Unavailable, Unusable

T = TypeVar("T")


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait for an event, no longer than `seconds`; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


async def write_or_halve(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[None]],
    leave_out: Callable[[T, Exception], None],
) -> None:
    """Write items or, if one of them is refused, each half by itself, down to that one.

    Raises Unavailable, Unusable: then the same may be tried again.
    """
    if not items:
        return
    try:
        await write(items)
    except (Unavailable, Unusable):
        raise
    except Exception as error:
        # StoreError alone, or what no one foresaw, such as text that a driver cannot encode.
        if len(items) == 1:
            leave_out(items[0], error)
            return
        half = len(items) // 2
        await write_or_halve(items[:half], write, leave_out)
        await write_or_halve(items[half:], write, leave_out)
