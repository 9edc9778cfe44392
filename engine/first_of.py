"""Waiting for the first of several things."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def first_of(*awaited: Coroutine[Any, Any, object]) -> int:
    """Return the place of the first one that is done, of several the first in order.

    The others are cancelled and waited for, also where this wait is cancelled itself: nothing goes
    on behind it. What must survive is awaited through asyncio.wait. Raises what one of them raised.
    """
    tasks = [asyncio.create_task(each) for each in awaited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(place for place, task in enumerate(tasks) if task.done())
    finally:
        for task in tasks:
            task.cancel()
        for failed in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failed, Exception):
                raise failed
