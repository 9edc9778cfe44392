"""Deletes what is too old, or the oldest where all is too much, in the background."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic, time

from wellspoken.proxy.store.database import Database, StoreError
from wellspoken.proxy.store.packing import warn_of_leftovers

BATCH = 100
"""Rows in one transaction. What is written waits for it: for 500 rows that was 0.1 s and more."""
_PAUSE = 0.02
_SHARE = 1.0  # a pause is as many times the batch before it: at most half of the writer's time
_REST = (5.0, 300.0)
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Retention:
    """Keeps a database within an age and a size, in batches with pauses between them.

    `max_age`: seconds since an answer was created, 0 or infinity for any age. `max_size`: bytes of
    all columns as they are stored, 0 for any size. `interval`: seconds between two rounds, a little
    more or less each time so that several proxies do not go together; they do each other no harm.
    `count(reason)` is told of failures (`retention`). A failure is said in the log, and the next
    round is later: 5 s, then up to 5 min.
    """

    database: Database
    max_age: float = 0.0
    max_size: int = 0
    interval: float = 10.0
    count: Callable[[str], object] = lambda reason: None
    log: logging.Logger = _log
    _task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.max_age = 0.0 if math.isinf(self.max_age) else self.max_age

    def start(self) -> None:
        """Begin in the background, if anything is to be deleted ever."""
        if (self.max_age or self.max_size) and self._task is None:
            self._task = asyncio.create_task(self._run(), name="store-retention")

    async def close(self) -> None:
        """End it, between two batches or in one. Never raises."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def round(self) -> int:
        """Delete all that is too old or too much now; how many rows. Raises StoreError."""
        total = 0
        while True:
            begun = monotonic()
            rows = await self.database.prune(
                before=int(time() - self.max_age) if self.max_age else None,
                over=self.max_size or None,
                limit=BATCH,
            )
            took = monotonic() - begun
            if not rows:
                return total
            total += len(rows)
            warn_of_leftovers(rows, self.log)
            await asyncio.sleep(max(_PAUSE, _SHARE * took))

    async def _run(self) -> None:
        rest = _REST[0]
        while True:
            try:
                await self.round()
                rest = _REST[0]
                pause = self.interval
            except Exception as error:
                if isinstance(error, StoreError):
                    self.log.warning("retention: %s; next try in %g s", error, rest)
                else:  # a fault of ours must not end it for the life of the process
                    self.log.exception("retention: next try in %g s", rest)
                self.count("retention")
                rest, pause = min(rest * 2, _REST[1]), rest
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311  spreads work over time
