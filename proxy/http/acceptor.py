"""Takes the connections that wait at a listening socket, and outlives a lack of descriptors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Final

AT_ONCE: Final = 64
"""Connections that one step of the loop takes, so that others have their turn."""
PAUSE: Final = 0.1
"""Seconds until the next try, after one that the system did not let be."""


class Acceptor:
    """Gives each connection at a listening socket to `take`, whose socket it then is.

    The loops do this themselves (`create_server`), but not where no descriptors are left. uvloop
    0.23 then ends every connection that waits, or, if another thread was faster, closes the
    listening socket for good, and says neither. asyncio (3.11) logs a traceback a hundred times,
    and tries again as many times at once, a second later. Here those who wait go on waiting, in
    the system's queue, until a descriptor is free; `failed` is told of each try that came to
    nothing.
    """

    def __init__(
        self,
        listening: socket.socket,
        take: Callable[[socket.socket], None],
        failed: Callable[[OSError], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = listening
        self._take = take
        self._failed = failed
        self._timer: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Take none any more, and close the socket; likewise the second time."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _listen(self) -> None:
        self._timer = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                client, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._loop.remove_reader(self._socket.fileno())
                self._timer = self._loop.call_later(PAUSE, self._listen)
                self._failed(error)
                return
            client.setblocking(False)
            self._take(client)
