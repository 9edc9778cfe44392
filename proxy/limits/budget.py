"""How many bytes all requests together may hold: their bodies, and answers that are read whole.

A connection reads a few dozen kilobytes before anybody asks for room, and a stream passes on what
comes, so what is counted is what grows with a request: its body until its answer has ended, twice,
since its text and its payload are made beside it before it is sent (measured: 2.6 times for a
hundred of 1 MB that come at once, once while their answers are waited for); and of an answer that
is translated whole, four times its bytes.

Nobody who holds waits for ever: after `PATIENCE` it fails, and gives back what it holds. So two
that wait for each other's room end, as does all else.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.engine.cgroups import find_limits

BODY: Final = 2
ANSWER: Final = 4
PATIENCE: Final = 1.0
"""Seconds for which one waits for room, in order of arrival."""


class MemoryBudget:
    """The room of one process, in bytes. It belongs to the loop's thread.

    `used`: what requests hold now. `refused` is told of each that found no room in time.
    """

    __slots__ = ("_waiting", "limit", "refused", "used")

    def __init__(self, limit: int, refused: Callable[[], None] = lambda: None) -> None:
        self.limit = limit
        self.used = 0
        self.refused = refused
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take(self, size: int) -> bool:
        """Take so much at once; False where there is no room, or others wait for it."""
        if self._waiting or self.used + size > self.limit:
            return False
        self.used += size
        return True

    async def wait(self, size: int) -> None:
        """Take so much once there is room. Raises RequestError 503."""
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, room)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout(PATIENCE):
                await room
        except BaseException as error:
            if room.done() and not room.cancelled():  # it was given in the same step
                self.give(size)
            else:
                with suppress(ValueError):  # another that left in the same step passed it over
                    self._waiting.remove(entry)
                self._admit()  # those behind it may need less
            if isinstance(error, TimeoutError):
                self.refused()
                raise full() from None
            raise

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.used -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.limit:
            size, room = self._waiting.popleft()
            if not room.done():
                self.used += size
                room.set_result(None)


def full() -> RequestError:
    """Return the error for who finds no room."""
    return RequestError(
        "The proxy holds as many bytes of requests and answers as it may. Send the request again "
        "in a moment, or raise limits.memory in the configuration.",
        status=503,
        type="server_error",
        code="memory_limit",
        headers={"Retry-After": "1"},
    )


def too_large() -> RequestError:
    """Return the error for a request that would not find room alone."""
    return RequestError(
        "The request's body needs more memory than the proxy may hold at all. Send less, or raise "
        "limits.memory in the configuration.",
        status=413,
        code="memory_limit",
    )


def default_limit(workers: int) -> int:
    """Return what one of so many processes may hold: its part of half of the memory there is."""
    return max(available() // 2 // workers, 1)


def available(root: Path = Path("/")) -> int:
    """Return how many bytes this process may use: the machine's memory, or its cgroup's limit."""
    found = [size for size, _ in find_limits(root)]
    return min(found) if found else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
