"""The queue before a database: bounded in bytes, emptied in groups, in order.

What waits is taken up to 256 rows or 4 MiB at a time, at the latest 10 ms after the first of them.
Rows are made in threads and written in one transaction, while those of the next batch are made if
it is full already. A database that fails leaves the rows where they are, and is tried again; a row
that cannot be stored is left out, and no other.

All state belongs to the event loop; threads get items to make rows of, and nothing else. Three
kinds of tasks: callers of `add` and `barrier`, who may be cancelled at any time; `_run`, which
takes batches and makes their rows; and one `_write_batch` at a time, so that rows are written in
the order in which they came. Only `close` cancels the latter two.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.packing import pack_rows
from wellspoken.proxy.store.rows import Row, Storable
from wellspoken.proxy.store.tries import wait_until_set, write_or_halve

T = TypeVar("T")

ROWS = 256
BYTES = 4 * 1024 * 1024
SECONDS = 0.01
"""How much is written at once, and how long the first of it waits for more."""
COMMIT_SECONDS = 30.0
"""How long `durability = "commit"` waits for its batch, and a reader for what was added before."""
RETRY_SECONDS = (0.1, 5.0)
"""How long a failing database is left alone, at first and at most."""
HURRY_SECONDS = 3.0
"""How long `close` still writes once it is to hurry, or while the database fails."""
LOG_SECONDS = 10.0
"""How often the log tells of rows that are left out."""
_ITEM = 512  # what a capture takes in memory beside its two texts

_FULL = "the store's queue is full"
_CLOSED = "the store is closed"
FAILS = "the store fails, and the server's log says why"
_NOT_YET = f"not committed yet: {FAILS}"
"""What a client is told: the reasons hold paths and hosts, which are for the log and /readyz."""


@dataclass(slots=True, eq=False)
class _Item:
    """One capture on its way; `row` once it is made, `done` where somebody waits for it."""

    capture: Storable
    size: int
    row: Row | None = None
    done: asyncio.Future[str] | None = None

    def tell(self, problem: str) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_result(problem)


class WriteQueue:
    """Takes captures and gives their rows to `write`, which raises StoreError.

    `trouble`: "" or why nothing is written now.
    """

    def __init__(
        self,
        config: config.Store,
        metrics: StoreMetrics,
        log: logging.Logger,
        *,
        write: Callable[[Sequence[Row]], Awaitable[None]],
    ) -> None:
        self.trouble = ""
        self._failure: StoreError | None = None
        self._limit, self._policy, self._block = config.queue, config.full, config.block
        self._commits = config.durability == "commit"
        self._metrics, self._log = metrics, log
        self._write = write
        self._items: deque[_Item] = deque()
        self._taken: list[list[_Item]] = []  # batches that are being made or written
        self._bytes = 0  # of both
        self._waiting_bytes = 0  # of the first
        self._added = self._finished = 0
        self._due = asyncio.Event()
        self._late = False  # it is due, and waits for the batch before it
        self._hurry = asyncio.Event()  # a pause between two attempts ends
        self._timer: asyncio.TimerHandle | None = None
        self._room: deque[tuple[_Item, asyncio.Future[None]]] = deque()
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        self._left_out = 0  # rows that could not be stored for themselves
        self._told = -LOG_SECONDS
        metrics.watch_queue(lambda: self._added - self._finished, lambda: self._bytes)

    @property
    def full(self) -> bool:
        """Whether the queue has no room."""
        return self._bytes >= self._limit or bool(self._room)

    def start(self) -> None:
        """Begin to write."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def add(self, capture: Storable) -> str:
        """Take a capture; return "" or why it will not be stored, or is not committed yet."""
        item = _Item(capture, capture.size + _ITEM)
        if self._closed:
            return self._drop(_CLOSED)
        if self._room or not self._fits(item):
            if self._policy == "drop" or not await self._wait_for_room(item):
                return self._drop(_CLOSED if self._closed else _FULL)
        else:
            self._enqueue(item)
        if not self._commits:
            return ""
        if self.trouble:
            return _NOT_YET
        return await self._wait_for_commit(item)

    async def barrier(self) -> None:
        """Return once all that was added before is committed. Raises StoreError if it cannot be."""
        if self._finished >= self._added:
            return
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        future = asyncio.get_running_loop().create_future()
        self._barriers.append((self._added, future))
        self._due.set()
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                await future
        except TimeoutError:
            raise Unavailable("the store is behind with writing") from None

    async def close(self, seconds: float, hurry: asyncio.Event | None = None) -> list[Row]:
        """Write what waits, for at most `seconds`; return the rows that were not written.

        Once `hurry` is set, and while the database fails, three seconds must do. What is added
        from now on is refused.
        """
        self._closed = True
        for _, future in self._room:
            if not future.done():
                future.cancel()
        self._due.set()
        self._hurry.set()
        await self._wait_until_empty(monotonic() + seconds, hurry)
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._task, self._writing):
            if task is not None:
                task.cancel()
                await asyncio.wait({task})
        self._task = self._writing = None
        left = self._unwritten()
        for item in left:
            item.tell(_CLOSED)
        rows, _ = await asyncio.to_thread(_make_rows, left)
        return rows

    async def _wait_until_empty(self, deadline: float, hurry: asyncio.Event | None) -> None:
        hurried = False
        while self._task is not None and self._finished < self._added:
            now = monotonic()
            if not hurried and (self.trouble or (hurry is not None and hurry.is_set())):
                deadline, hurried = min(deadline, now + HURRY_SECONDS), True
            if now >= deadline:
                return
            await asyncio.sleep(0.01)

    def _fits(self, item: _Item) -> bool:
        return not self._bytes or self._bytes + item.size <= self._limit

    def _enqueue(self, item: _Item) -> None:
        self._items.append(item)
        self._bytes += item.size
        self._waiting_bytes += item.size
        self._added += 1
        if self._commits:
            item.done = asyncio.get_running_loop().create_future()
        if self._commits or len(self._items) >= ROWS or self._waiting_bytes >= BYTES:
            self._due.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self._due.set)

    async def _wait_for_room(self, item: _Item) -> bool:
        """Wait in line for room; whoever makes it puts the item into the queue."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (item, future)
        self._room.append(entry)
        try:
            await asyncio.wait({future}, timeout=self._block)
            return future.done() and not future.cancelled()
        finally:
            if not future.done() or future.cancelled():
                with suppress(ValueError):
                    self._room.remove(entry)

    async def _wait_for_commit(self, item: _Item) -> str:
        assert item.done is not None
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                return await item.done
        except TimeoutError:
            return f"not committed within {COMMIT_SECONDS:.0f} seconds"

    def _unwritten(self) -> list[_Item]:
        return [*(item for batch in self._taken for item in batch), *self._items]

    def _drop(self, problem: str) -> str:
        self._metrics.dropped.inc()
        return problem

    async def _run(self) -> None:
        # Between `_take` and `_write_batch` a batch is in `_taken` alone, so that `close` finds
        # its rows wherever this task is cancelled.
        while True:
            await self._due.wait()
            if self._writing is not None and not self._writing.done() and not self._enough():
                # Taken now, it would be smaller, and would only wait for the one before it.
                self._late = True
                self._due.clear()
                continue
            self._late = False
            batch = self._take()
            made = await self._guard(batch, self._make_rows_of(batch))
            if self._writing is not None:
                await asyncio.wait({self._writing})
            self._writing = asyncio.get_running_loop().create_task(self._write_batch(batch, made))

    async def _write_batch(self, batch: list[_Item], made: list[_Item] | None) -> None:
        if made:
            await self._guard(batch, self._write_until_done(made))
        self._finish(batch)

    async def _guard(self, batch: list[_Item], work: Coroutine[Any, Any, T]) -> T | None:
        """Do a part of the work on a batch; where we are at fault, its rows alone are lost."""
        try:
            return await work
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            self._metrics.count_failure("internal")
            self._metrics.dropped.inc(len(batch))
            self._log.exception("the store failed in itself; %d rows are lost", len(batch))
            for item in batch:
                item.tell("the store failed")
            return None

    def _enough(self) -> bool:
        return len(self._items) >= ROWS or self._waiting_bytes >= BYTES

    def _take(self) -> list[_Item]:
        """Take the next batch from the queue."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        size = 0
        batch: list[_Item] = []
        while self._items and len(batch) < ROWS and size < BYTES:
            item = self._items.popleft()
            size += item.size
            batch.append(item)
        self._waiting_bytes -= size
        self._taken.append(batch)
        if self._items:
            self._due.set()
        return batch

    def _finish(self, batch: list[_Item]) -> None:
        """Let go of a batch, and of all who waited for it or for its room."""
        # Must not await: a caller of `add` would see room that those before it in line shall have.
        self._taken.remove(batch)
        if self._late:
            self._due.set()
        self._bytes -= sum(item.size for item in batch)
        self._finished += len(batch)
        for item in batch:
            item.tell("")
        while self._room and self._fits(self._room[0][0]):
            item, future = self._room.popleft()
            if not future.done():
                self._enqueue(item)
                future.set_result(None)
        waiting, self._barriers = self._barriers, []
        for target, future in waiting:
            if self._finished < target:
                self._barriers.append((target, future))
                self._due.set()
            elif not future.done():
                future.set_result(None)

    async def _make_rows_of(self, items: list[_Item]) -> list[_Item]:
        """Make the rows of items; return those that have one, as it is stored."""
        if not items:
            return []
        _, bad = await asyncio.to_thread(_make_rows, items)
        for item, error in bad:
            self._leave_out(item, error)
        return [item for item in items if item.row is not None]

    async def _write_until_done(self, items: list[_Item]) -> None:
        """Write rows, however often that must be tried."""
        wait, longest = RETRY_SECONDS
        while True:
            # Those that an earlier attempt has left out have no row any more.
            left = [item for item in items if item.row is not None]
            try:
                await write_or_halve(left, self._write_once, self._leave_out)
                return
            except (Unavailable, Unusable) as error:
                self._note_failure(error)
                self._hurry.clear()
                await wait_until_set(self._hurry, wait)
                wait = min(2 * wait, longest)

    async def _write_once(self, items: Sequence[_Item]) -> None:
        began = monotonic()
        try:
            await self._write([item.row for item in items if item.row is not None])
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise Unavailable("the database broke off") from None
        self._metrics.wrote(len(items), monotonic() - began)
        if self.trouble:
            self._log.info("the store is written again")
            self.trouble, self._failure = "", None

    def _leave_out(self, item: _Item, error: Exception) -> None:
        """Leave out a row that cannot be stored."""
        self._metrics.count_failure("row")
        self._metrics.dropped.inc()
        self._left_out += 1
        if monotonic() - self._told >= LOG_SECONDS:
            self._told = monotonic()
            self._log.warning(
                "%s: its answer cannot be stored: %s: %.300s (%d such answers so far)",
                item.capture.request_id,
                type(error).__name__,
                error,
                self._left_out,
            )
        item.row = None
        item.tell("it cannot be stored as it is")

    def _note_failure(self, error: StoreError) -> None:
        """Note that the database fails, and tell those who wait for it."""
        self._metrics.count_failure("unavailable" if isinstance(error, Unavailable) else "unusable")
        if not self.trouble:
            self._log.error("the store cannot be written, and is tried again: %s", error)
        self.trouble, self._failure = str(error), error
        for item in self._unwritten():
            item.tell(_NOT_YET)
        for _, future in self._barriers:
            if not future.done():
                future.set_exception(type(error)(str(error)))
        self._barriers = []


def _is_cancelled() -> bool:
    """Say whether it is this task that is cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _make_rows(items: Sequence[_Item]) -> tuple[list[Row], list[tuple[_Item, Exception]]]:
    """Make the rows of items that have none; return all rows, and the items that cannot be one."""
    rows, bad = [], []
    for item in items:
        try:
            if item.row is None:
                (item.row,) = pack_rows([item.capture.make_row()])
            rows.append(item.row)
        except Exception as error:
            # Whatever one client's request does to the decoder must not stop the others' rows.
            bad.append((item, error))
    return rows, bad
