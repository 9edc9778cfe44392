"""Tells that a client has gone of whom nothing is read for now, which the loop does not see."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from contextlib import suppress


class Hangups:
    """Connections whose reading is paused, by their sockets' numbers.

    A loop looks for a connection's end only by reading. One epoll of our own, which the loop looks
    at, waits for the end alone, however much there is to read. Where a system has none, the end is
    noticed when something is written.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: select.epoll | None = None
        self._waiting: dict[int, Callable[[], None]] = {}

    def watch(self, number: int, tell: Callable[[], None]) -> None:
        """Have `tell` called when the other side of this socket has ended the connection."""
        if number in self._waiting or not hasattr(select, "epoll"):
            return
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._look)
        self._waiting[number] = tell
        self._epoll.register(number, select.EPOLLRDHUP)

    def forget(self, number: int) -> None:
        """Wait for it no longer; call it before the socket is closed, and as often as you like."""
        if self._waiting.pop(number, None) is not None and self._epoll is not None:
            with suppress(OSError):
                self._epoll.unregister(number)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        assert self._epoll is not None
        for number, _ in self._epoll.poll(0):
            tell = self._waiting.get(number)
            self.forget(number)
            if tell is not None:
                tell()
