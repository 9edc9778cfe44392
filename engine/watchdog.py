"""Whether a running engine still works, as seen from outside.

GET /health alone does not tell: vLLM answers it while its EngineCore hangs (#36451), and a busy
llama.cpp may not get to it. So it decides only where nothing is under way. While requests are open,
the engine works if its own counters move or it answers one token, and where it gives no counters,
if bytes of answers come. These alone prove little: vLLM sends an answer's head before it computes.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from wellspoken.engine.unix_http import Client, Silent

if TYPE_CHECKING:
    from wellspoken.engine.kind import Facts, Kind, Settings

TICK = 10.0
"""Seconds between two looks where only stalls are watched."""
AGAIN = 1.0
"""Seconds until a server that says of itself that it is dead is asked once more."""
QUIET = 4.0
"""The counters are read after the first of so many parts of `stall_timeout`."""


class Watchdog:
    """Watches one running engine; `verdict` returns once it must be ended.

    `problem` then says why, to follow the engine's name; `closed`: nobody listens on the socket, so
    the engine ends by itself. The watchdog ends nothing: the supervisor does, in whose task
    `verdict` is awaited and may be cancelled at any moment. Requests call `idle` and `look`.
    """

    def __init__(
        self,
        kind: Kind,
        settings: Settings,
        client: Client,
        facts: Facts,
        heard: Callable[[], float],
        open_: Callable[[], int],
    ) -> None:
        self.problem = ""
        self.closed = False
        self._kind, self._settings, self._client, self._facts = kind, settings, client, facts
        self._heard, self._open = heard, open_
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._looked = asyncio.Event()
        self._moved = self._loop.time()  # when the engine last showed that it works
        self._counters = b""
        self._misses = 0
        self._dead = 0

    def idle(self) -> None:
        """Note that no request is open any more: what was counted of those that were is over."""
        self._moved = self._loop.time()

    async def look(self) -> None:
        """Look now; return once that is done."""
        looked = self._looked
        self._asked.set()
        await looked.wait()

    async def verdict(self) -> None:
        """Look again and again, and return when the engine must be ended or has closed."""
        settings = self._settings
        tick = settings.health_interval or TICK
        if settings.stall_timeout:
            tick = min(tick, settings.stall_timeout / QUIET)
        while True:
            try:
                async with asyncio.timeout(AGAIN if self._dead else tick):
                    await self._asked.wait()
            except TimeoutError:
                pass
            asked = self._asked.is_set()
            self._asked.clear()
            if settings.health_interval or asked:
                await self._health()
            if settings.stall_timeout and not self.closed and not self.problem:
                await self._stall()
            # For those that asked before this look; later ones wait for the next.
            self._looked.set()
            self._looked = asyncio.Event()
            if self.problem or self.closed:
                return

    async def _health(self) -> None:
        settings = self._settings
        try:
            status, _ = await self._client.request("/health", settings.health_timeout)
        except Silent as error:
            if _ours(error):
                return
            self.closed = isinstance(error.__cause__, (ConnectionRefusedError, FileNotFoundError))
            self._dead = 0
            busy = self._open() > 0 and settings.stall_timeout > 0
            self._misses = 0 if busy or self._is_lively() else self._misses + 1
            if self._misses >= settings.health_failures:
                self.problem = f"did not answer GET /health {self._misses} times in a row"
            return
        self._misses = 0
        self._dead = self._dead + 1 if status >= 500 else 0
        if self._dead > 1:
            self.problem = f"said that it is dead (GET /health answered {status})"

    def _is_lively(self) -> bool:
        return self._loop.time() - self._heard() < self._settings.health_timeout

    async def _stall(self) -> None:
        now, longest = self._loop.time(), self._settings.stall_timeout
        if not self._open():
            self._moved = now
            return
        if now - self._moved < longest / QUIET:
            self._counters = b""
            return
        try:
            _, metrics = await self._client.request("/metrics", longest / QUIET)
        except Silent as error:
            # It is too busy with others to answer this, or could not be asked.
            self._moved = self._loop.time() if _ours(error) else max(self._moved, self._heard())
        else:
            counters = self._kind.progress(metrics)
            if not counters or (self._counters and counters != self._counters):
                self._moved = self._loop.time()
            self._counters = counters
        if self._loop.time() - self._moved < longest or not self._open():
            return
        if await self._computes(longest / QUIET):
            self._moved = self._loop.time()
            return
        quiet = self._loop.time() - self._moved
        self.problem = f"worked on nothing for {quiet:.0f} s while {self._open()} requests wait"

    async def _computes(self, seconds: float) -> bool:
        """Say whether a request of one token is answered: a request may also be open because its
        client does not read, and the engine has nothing to do."""
        path, body = self._kind.warm_up(self._facts)
        try:
            status, _ = await self._client.request(path, seconds, body)
        except Silent:
            return False
        return status < 500


def _ours(error: Silent) -> bool:
    """Say whether it was this process that could not ask: many clients use up its descriptors."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)
