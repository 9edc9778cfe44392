"""Keeps the configured engine running, and the target that stands for it at the right address."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from wellspoken.engine.llamacpp import EngineError, LlamaCpp
from wellspoken.proxy.upstream import Upstream

if TYPE_CHECKING:
    import logging

    from wellspoken.proxy.config import Engine, Timeouts
    from wellspoken.proxy.routing import Target

BACKOFF = (1.0, 30.0)  # seconds before a restart: the first, doubled each time up to the last
RESTARTS = 5  # within WINDOW; then the engine stays down
WINDOW = 600.0


class Keeper:
    """Starts the engine, starts it again when it dies, and gives up after too many deaths."""

    def __init__(
        self, settings: Engine, target: Target, timeouts: Timeouts, log: logging.Logger
    ) -> None:
        self.engine = LlamaCpp(
            Path(settings.model).expanduser(),
            context=settings.context,
            parallel=settings.parallel,
            threads=settings.threads,
            gpu_layers=settings.gpu_layers,
            alias=settings.alias,
            start_timeout=settings.start_timeout,
        )
        self._target = target
        self._timeouts = timeouts
        self._log = log
        self._state = "it has not been started"
        target.state = lambda: self._state
        self._deaths: deque[float] = deque()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the engine and watch it from then on. Raises EngineError if it cannot start."""
        await self._start()
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching, then the engine."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.engine.stop()

    async def _start(self) -> None:
        self._state = f"{self.engine.model.name} is being loaded"
        url = await self.engine.start()
        self._target.upstream = Upstream(url, self._timeouts)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = BACKOFF[0]
        while True:
            await self.engine.wait()
            upstream, self._target.upstream = self._target.upstream, None
            if upstream is not None:
                await upstream.close()
            while self._target.upstream is None:
                now = loop.time()
                self._deaths.append(now)
                while self._deaths[0] < now - WINDOW:
                    self._deaths.popleft()
                if len(self._deaths) > RESTARTS:
                    self._state = (
                        f"it ended {RESTARTS + 1} times within {WINDOW:g} s; its log says why"
                    )
                    self._log.error("the engine stays down: %s", self._state)
                    return
                self._state = f"it ended and starts again in {backoff:g} s"
                self._log.warning("the engine: %s", self._state)
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, BACKOFF[1])
                try:
                    await self._start()
                except EngineError as error:
                    self._log.error("the engine could not be started: %s", error)
