"""PostgreSQL with a spool before it: rows that it does not take now wait in the spool."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.database import Database, StoreError, Unavailable, Unusable
from wellspoken.proxy.store.rows import Row
from wellspoken.proxy.store.spool import Spool
from wellspoken.proxy.store.tries import wait_until_set, write_or_halve

ROWS = 256
BYTES = 4 * 1024 * 1024
"""How much is replayed at once."""
INSERT_SECONDS = 10.0
"""How long a transaction may take; longer, and its rows go to the spool as well."""
CAUGHT_UP_SECONDS = 10.0
"""How long a reader waits for the end of a replay."""
IDLE_SECONDS = 30.0
"""How often it looks for what another process may have left in the same spool."""
SPOOL_SECONDS = 1.0
"""How long a spool that fails is left alone."""
RETRY_SECONDS = (0.25, 2.0)
"""How long the database is left alone, at first and at most."""


# Two tasks use the database at once: the queue's, through `write`, and `_run`, which replays the
# spool. A row that both write is skipped the second time. An insert that takes too long is
# cancelled but not waited for: it stays in `_late` until it has ended, or for two seconds of
# `close`. Rows leave the spool only after their insert has returned.
class Failover:
    """Writes to a database or, while it is down, to the spool, and replays that in order.

    `down`: "" or why the database does not take rows. `trouble`: "" or why that will not end by
    itself, though the spool takes them.
    """

    def __init__(
        self, database: Database, spool: Spool, metrics: StoreMetrics, log: logging.Logger
    ) -> None:
        self.down = self.trouble = ""
        self._database, self._spool = database, spool
        self._metrics, self._log = metrics, log
        self._work = asyncio.Event()  # there is something to replay, or the database is down
        self._empty = asyncio.Event()
        self._again = asyncio.Event()  # try now
        self._spool_fails = ""  # why the spool cannot be read or emptied
        self._held = False  # until the database is open
        self._task: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[object]] = set()

    def start(self) -> None:
        """Begin to replay what an earlier process may have left."""
        self._note_rows()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop replaying; what is left is replayed by the next process."""
        tasks: list[asyncio.Task[Any]] = [*self._late, *filter(None, [self._task])]
        self._task = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=2.0)

    def hold(self, problem: str) -> None:
        """Give the database nothing before `up`: it is not open, for the reason that is told."""
        self._held = True
        self._go_down(Unavailable(problem))

    def up(self) -> None:
        """Try the database now: it is open."""
        self._held = False
        self._again.set()

    async def write(self, rows: Sequence[Row]) -> None:
        """Give rows to the database or the spool, whichever takes them. Raises StoreError."""
        if not self.down:
            try:
                await self._insert(rows)
                return
            except (Unavailable, Unusable) as error:
                self._go_down(error)
        await self._spool.append(rows)
        self._note_rows()

    async def wait_until_empty(self) -> None:
        """Return once nothing is left in the spool. Raises Unavailable if that takes too long."""
        if self._empty.is_set() and not self.down:
            return
        hopeful = not self.down and not self._spool_fails
        if hopeful and await wait_until_set(self._empty, CAUGHT_UP_SECONDS):
            return
        raise Unavailable(
            self.down
            or self._spool_fails
            or f"{self._spool.rows} rows of the spool are being replayed"
        )

    def _note_rows(self) -> None:
        self._metrics.note_spool(self._spool.rows, self._spool.size)
        if self._spool.rows:
            self._empty.clear()
            self._work.set()
        else:
            self._empty.set()

    def _go_down(self, error: StoreError) -> None:
        usable = isinstance(error, Unavailable)
        self._metrics.count_failure("unavailable" if usable else "unusable")
        if not self.down:
            self._log.warning("the store's rows go to the spool %s: %s", self._spool.path, error)
        self.down = str(error)
        self.trouble = "" if usable else str(error)
        self._work.set()

    def _come_up(self) -> None:
        if self.down:
            self._log.info("the store is reached again; %d rows are replayed", self._spool.rows)
        self.down = self.trouble = ""

    async def _run_bounded(self, work: Coroutine[Any, Any, object]) -> None:
        """Do work in the database. One that hangs is not waited for, nor is the end of its
        transaction: whatever becomes of that, the same rows may be written again."""
        task: asyncio.Task[object] = asyncio.get_running_loop().create_task(work)
        self._late.add(task)
        task.add_done_callback(self._forget_task)
        try:
            await asyncio.wait({task}, timeout=INSERT_SECONDS)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            raise Unavailable(f"PostgreSQL did not answer within {INSERT_SECONDS:.0f} seconds")
        task.result()

    def _forget_task(self, task: asyncio.Task[object]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            task.exception()  # looked at by whoever still waits for it

    async def _run(self) -> None:
        wait, longest = RETRY_SECONDS
        while True:
            await wait_until_set(self._work, IDLE_SECONDS)
            try:
                await self._replay()
                wait = RETRY_SECONDS[0]
                continue
            except (Unavailable, Unusable) as error:
                self._go_down(error)
            except Exception:
                self._metrics.count_failure("internal")
                self._log.exception("the spool %s could not be replayed", self._spool.path)
            self._again.clear()
            await wait_until_set(self._again, wait)
            wait = min(2 * wait, longest)

    async def _replay(self) -> None:
        """Replay some rows, or find out that none are left."""
        if self._held:
            raise Unavailable(self.down)
        try:
            found = await self._spool.first(ROWS, BYTES)
        except (Unavailable, Unusable) as error:
            await self._do_without_spool(error)
            return
        if not found:
            if self.down:
                await self._run_bounded(self._database.position("", ""))  # whether it answers
            self._spool_fails = ""
            self._work.clear()
            self._note_rows()
            self._come_up()
            return
        rows = [row for _, row in found if row is not None]
        if len(rows) < len(found):
            self._count_lost(len(found) - len(rows), "the spool holds something that is no row")
        await write_or_halve(rows, self._insert, self._leave_out)
        self._come_up()
        try:
            await self._spool.remove([number for number, _ in found])
        except (Unavailable, Unusable) as error:
            await self._do_without_spool(error)
            return
        self._spool_fails = ""
        self._note_rows()

    async def _do_without_spool(self, error: StoreError) -> None:
        """Go on with the database alone for now: a spool that fails says nothing of it."""
        if str(error) != self._spool_fails:
            self._log.error("the spool fails, and what it may hold waits: %s", error)
        self._spool_fails = str(error)
        self._metrics.count_failure("spool")
        if self.down:
            await self._run_bounded(self._database.position("", ""))  # whether it answers
            self._come_up()
        await asyncio.sleep(SPOOL_SECONDS)

    async def _insert(self, rows: Sequence[Row]) -> None:
        await self._run_bounded(self._database.insert(rows))

    def _leave_out(self, row: Row, error: Exception) -> None:
        self._count_lost(1, f"{row.request_id}: {type(error).__name__}: {error}"[:300])

    def _count_lost(self, rows: int, problem: str) -> None:
        self._metrics.count_failure("row")
        self._metrics.dropped.inc(rows)
        self._log.warning("%d rows of the spool cannot be stored: %s", rows, problem)
