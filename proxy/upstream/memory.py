"""What a server tells once, and is not asked again for while it may still be the same server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

Told = TypeVar("Told")

Server = Callable[[], tuple[object, ...]]
"""Returns all by which one server is told from the next in its place, as `Target.server` does."""

AGAIN: Final = 60.0  # seconds an answer holds, since another model may be served by then
SOON: Final = 5.0  # seconds until a server that did not answer is asked again


@dataclass(slots=True, eq=False)
class Memory(Generic[Told]):
    """What one target's server told, `nothing` where it told nothing.

    However many requests need it at a time, one asking is under way. It is asked anew `AGAIN`
    seconds later, at the next need, and when it is another server.
    """

    nothing: Told
    _told: Told = field(init=False)
    _asked: float = 0.0  # when the asking began whose answer holds
    _server: tuple[object, ...] = ()
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self._told = self.nothing

    async def recall(
        self, server: Server, ask: Callable[[], Coroutine[None, None, Told | None]]
    ) -> Told:
        """Return what the server tells, asked with `ask` if need be; it gives None for nothing."""
        now, current = asyncio.get_running_loop().time(), server()
        if current != self._server or now > self._asked + AGAIN:
            self._server, self._asked, self._told = current, now, self.nothing
            self._task = asyncio.create_task(self._ask(ask, server, current))
        if self._task is not None and not self._task.done():
            # Shielded: the client that came first may leave, the others still wait.
            await asyncio.shield(self._task)
        return self._told

    async def _ask(
        self,
        ask: Callable[[], Coroutine[None, None, Told | None]],
        server: Server,
        asked: tuple[object, ...],
    ) -> None:
        """Ask, and keep the answer unless another server was asked meanwhile."""
        told = await ask()
        if self._server is not asked:
            return
        if told is not None:
            self._told = told
        else:
            # Where the asking broke off, another server may stand there: it was asked just now.
            self._server = server()
            self._asked += SOON - AGAIN
