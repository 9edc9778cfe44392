"""Ends the connection of a client that takes nothing of what is written to it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import Final

from wellspoken.proxy.limits.kernel import count_unacknowledged

_LOOKS: Final = 8  # in the time that a client has
_RESET: Final = struct.pack("ii", 1, 0)  # the system keeps nothing of it, and says so


class WriteWatch:
    """Looks now and then at what one client has still to take, while there is something.

    It counts what the transport holds and what the system has sent without an acknowledgement:
    the transport hears of a slow client only when a third of the system's buffer is free. A client
    that takes nothing for `seconds`, or has not taken all within `total` (0.0: no limit), is told
    to `end`. `watch` costs nothing while a look is under way, so that it may be called often.
    """

    __slots__ = ("_began", "_end", "_left", "_loop", "_moved", "_seconds", "_timer", "_total")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seconds: float,
        total: float,
        end: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._seconds = seconds
        self._total = total
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._began = self._moved = 0.0
        self._left = 0

    def watch(self, transport: asyncio.Transport) -> None:
        """Begin to look, if there is something to take and nobody looks already."""
        if self._timer is None and self._seconds and transport.get_write_buffer_size():
            self._began = self._moved = self._loop.time()
            self._left = _count_left(transport)
            self._again(transport)

    def stop(self) -> None:
        """Look never again, and hold nobody."""
        self._end = _do_nothing
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self, transport: asyncio.Transport) -> None:
        self._timer = self._loop.call_later(self._seconds / _LOOKS, self._look, transport)

    def _look(self, transport: asyncio.Transport) -> None:
        self._timer = None
        if not transport.get_write_buffer_size():
            return
        now, left = self._loop.time(), _count_left(transport)
        if left != self._left:  # more: something was written, which is bounded by `pause_writing`
            self._left, self._moved = left, now
        if now - self._moved >= self._seconds or 0 < self._total <= now - self._began:
            self._end()
        else:
            self._again(transport)


def _do_nothing() -> None:
    pass


def _count_left(transport: asyncio.Transport) -> int:
    return transport.get_write_buffer_size() + count_unacknowledged(transport)


def reset(transport: asyncio.Transport) -> None:
    """Close a connection at once, without what was written and not sent."""
    found = transport.get_extra_info("socket")
    if found is not None:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()
