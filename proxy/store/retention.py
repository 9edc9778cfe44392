"""Deletes what is too old, or the oldest where all is too much, in the background."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable
from contextlib import suppress

from wellspoken.proxy.store.database import Database, StoreError
from wellspoken.proxy.store.packing import warn_of_leftovers

BATCH = 100
"""Rows in one transaction. What is written waits for it: for 500 rows that was 0.1 s and more."""
_PAUSE = 0.02
_SHARE = 1.0  # a pause is as many times the batch before it: at most half of the writer's time
_REST = (5.0, 300.0)
_log = logging.getLogger(__name__)


class Retention:
    """Keeps a database within an age and a size, in batches with pauses between them.

    `max_age`: seconds since an answer was created, 0 or infinity for any age. `max_size`: bytes of
    all columns as they are stored, 0 for any size. `interval`: seconds between two rounds, a little
    more or less each time so that several proxies do not go together; they do each other no harm.
    `count(reason)` is told of failures (`retention`), `deleted(rows)` of each batch. A failure is
    said in the log, and the next round is later: 5 s, then up to 5 min.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_age: float = 0.0,
        max_size: int = 0,
        interval: float = 10.0,
        count: Callable[[str], object] = lambda reason: None,
        deleted: Callable[[int], object] = lambda rows: None,
        log: logging.Logger = _log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._max_age = 0.0 if math.isinf(max_age) else max_age
        self._max_size = max_size
        self._interval = interval
        self._count = count
        self._deleted = deleted
        self._log = log
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin in the background, if anything is to be deleted ever."""
        if (self._max_age or self._max_size) and self._task is None:
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
            begun = time.monotonic()
            rows = await self._database.prune(
                before=int(self._clock() - self._max_age) if self._max_age else None,
                over=self._max_size or None,
                limit=BATCH,
            )
            took = time.monotonic() - begun
            if not rows:
                return total
            total += len(rows)
            self._deleted(len(rows))
            warn_of_leftovers(rows, self._log)
            await asyncio.sleep(max(_PAUSE, _SHARE * took))

    async def _run(self) -> None:
        rest = _REST[0]
        while True:
            try:
                await self.round()
                rest = _REST[0]
                pause = self._interval
            except StoreError as error:
                self._log.warning("retention: %s; next try in %g s", error, rest)
                self._count("retention")
                rest, pause = min(rest * 2, _REST[1]), rest
            except Exception:  # a fault of ours must not end it for the life of the process
                self._log.exception("retention: next try in %g s", rest)
                self._count("retention")
                rest, pause = min(rest * 2, _REST[1]), rest
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
