"""The store of completions as the rest of the proxy sees it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from wellspoken.proxy import config as configuration
from wellspoken.proxy.config.values import store_url
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.database import Database, StoreError, Unavailable, Unusable
from wellspoken.proxy.store.failover import Failover
from wellspoken.proxy.store.packing import pack_rows, unpack_rows, warn_of_leftovers
from wellspoken.proxy.store.queue import FAILS, WriteQueue
from wellspoken.proxy.store.retention import Retention
from wellspoken.proxy.store.rows import Position, Query, Row, Storable
from wellspoken.proxy.store.spool import Spool, default_path
from wellspoken.proxy.store.sqlite.file import SqliteDatabase
from wellspoken.proxy.store.tries import wait_until_set

T = TypeVar("T")

FLUSH_SECONDS = 30.0
"""How long `close` may write what waits."""
OPEN_SECONDS = 5.0
"""How long a database may take to open until rows go to the spool."""
READY_SECONDS = 30.0
"""How long a reader waits for a database that is being opened."""
RETRY_SECONDS = (1.0, 5.0)
"""How long a database that does not open is left alone, at first and at most."""


def open_store(
    config: configuration.Store,
    metrics: StoreMetrics | None = None,
    log: logging.Logger | None = None,
) -> CompletionStore:
    """Return a store for use outside of a proxy, without a spool; the caller opens and closes it.

    Raises ConfigError, StoreError for a configuration that names what is not there.
    """
    log = log or logging.getLogger("wellspoken")
    return CompletionStore(config, metrics or StoreMetrics(), log, spooled=False)


def database_of(config: configuration.Store) -> Database:
    """Return the database that is configured, not yet open. Raises ConfigError."""
    sync = config.durability == "commit"
    if config.path is not None:
        return SqliteDatabase(config.path, sync=sync)
    from wellspoken.proxy.store.postgres.pool import PostgresDatabase  # asyncpg: an extra

    return PostgresDatabase(store_url(config))


class CompletionStore:
    """Stored completions: added through a queue, read when all that was added is written.

    Every method but `open` and `close` may be called before `open` has ended: it then waits.
    Raises ConfigError where the configuration names what is not there.
    """

    def __init__(
        self,
        config: configuration.Store,
        metrics: StoreMetrics,
        log: logging.Logger,
        *,
        database: Database | None = None,
        spooled: bool = True,
    ) -> None:
        self._config, self._metrics, self._log = config, metrics, log
        self._database = database or database_of(config)
        self._spool: Spool | None = None
        self._relay: Failover | None = None
        if config.url is not None and spooled:
            path = config.spool or default_path(store_url(config))
            sync = config.durability == "commit"
            self._spool = Spool(path, config.spool_size, sync=sync)
            self._relay = Failover(self._database, self._spool, metrics, log)
        self._writer = WriteQueue(config, metrics, log, write=self._write)
        self._retention = Retention(
            self._database,
            max_age=config.max_age,
            max_size=config.max_size,
            count=metrics.count_failure,
            log=log,
        )
        self.others: Callable[[], Awaitable[None]] | None = None
        """Has other processes of this proxy write what they were given, before something is read
        here; None: there are none."""
        self._failure: StoreError | None = None  # why the database did not open, if it did not
        self._tried = asyncio.Event()  # whether it opens is known
        self._opener: asyncio.Task[None] | None = None

    @property
    def trouble(self) -> str:
        """Why completions cannot be stored now; "" if they can."""
        if self._failure is not None:
            return str(self._failure)
        if not self._tried.is_set():
            return "the database is being opened"
        return self._writer.trouble or (self._relay.trouble if self._relay is not None else "")

    @property
    def down(self) -> str:
        """Why rows go to the spool now; "" if they do not."""
        return self._relay.down if self._relay is not None else ""

    @property
    def refuses(self) -> str:
        """Why a new request with `store: true` is to be refused; "" if it is not."""
        if self._config.full == "refuse" and self._writer.full:
            return "the store's queue is full"
        return ""

    def start(self) -> None:
        """Begin to open the database, without waiting for it."""
        if self._opener is None:
            self._writer.start()
            self._opener = asyncio.get_running_loop().create_task(self._open())

    async def open(self) -> None:
        """Open the database; never raises. Returns once it is known whether that went well.

        What is wrong is one line in the log and `trouble`, and is tried again where it can help.
        """
        self.start()
        await self._tried.wait()

    async def wait_tried(self, seconds: float) -> None:
        """Wait until it is known whether the database opens, at most so long."""
        await wait_until_set(self._tried, seconds)

    async def close(self, hurry: asyncio.Event | None = None) -> None:
        """Write what waits, for at most 30 s, or 3 s once `hurry` is set, and let go of everything.

        What then is left goes to the spool or, without one, is lost, and counted in the log.
        """
        left = await self._writer.close(FLUSH_SECONDS, hurry)
        if self._opener is not None:
            self._opener.cancel()
            # However it ended: what waits is still to be written.
            await asyncio.gather(self._opener, return_exceptions=True)
            self._opener = None
        await self._retention.close()
        if left and self._spool is not None:
            with suppress(Unavailable, Unusable):
                await self._spool.append(left)
                left = []
        if left:
            self._metrics.dropped.inc(len(left))
            self._log.error("%d completions could not be stored and are lost", len(left))
        if self._relay is not None:
            await self._relay.close()
        if self._spool is not None:
            await self._spool.close()
        await self._database.close()

    async def add(self, capture: Storable) -> str:
        """Take an answer; return "" or why it is not stored, as a client may know it. Never raises.

        Returns at once or, with `durability = "commit"`, when it is committed. Until it is known
        whether the database opens it waits, no longer than for room, since a process that died then
        would lose all.
        """
        if not self._tried.is_set():
            await wait_until_set(self._tried, self._config.block)
        if isinstance(self._failure, Unusable):
            self._metrics.dropped.inc()
            return FAILS
        return await self._writer.add(capture)

    async def share(self) -> None:
        """Wait until others who have the database can read what was added, at most `store.block`.

        Never raises: where that takes longer, it is written later.
        """
        if self._config.url is not None:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(self._config.block):
                    await self._writer.barrier()

    async def get(self, owner: str, id: str) -> Row | None:
        """Return one row, its columns as JSON. Raises StoreError, as all that follow."""
        behind = await self._ready()
        row = await self._database.get(owner, id)
        return await self._unpack(_found(row, behind))

    async def find(self, query: Query) -> list[Row]:
        """Return the rows that are wanted, in order, their columns as JSON."""
        await self._ready()
        return await asyncio.to_thread(unpack_rows, await self._database.find(query))

    async def positions(self, query: Query) -> list[Position]:
        """Return where the rows that are wanted stand, whether or not they can be read."""
        await self._ready()
        return [row.position for row in await self._database.find(query)]

    async def position(self, owner: str, id: str) -> Position | None:
        """Return where a row stands."""
        behind = await self._ready()
        return _found(await self._database.position(owner, id), behind)

    async def set_metadata(self, owner: str, id: str, metadata: dict[str, str]) -> Row | None:
        """Replace a row's metadata and return it, its columns as JSON; None: there is none."""
        behind = await self._ready()
        row = await self._database.set_metadata(owner, id, metadata)
        return await self._unpack(_found(row, behind))

    async def delete(self, owner: str, id: str) -> Row | None:
        """Delete a row and return it, its columns as they were stored; None: there was none."""
        behind = await self._ready()
        row = _found(await self._database.delete(owner, id), behind)
        if row is not None:
            warn_of_leftovers([row], self._log)
        return row

    async def insert(self, rows: Sequence[Row]) -> None:
        """Write rows whose columns are JSON, past the queue; durable on return."""
        await self._ready()
        await self._database.insert(await asyncio.to_thread(pack_rows, rows))

    async def _unpack(self, row: Row | None) -> Row | None:
        return None if row is None else (await asyncio.to_thread(unpack_rows, [row]))[0]

    async def _ready(self) -> Unusable | None:
        """Wait until all that was added can be read. Raises StoreError where nothing can.

        Where it cannot be written, as on a full disk, what was written is there all the same:
        then, the reason why the rest is not.
        """
        if not await wait_until_set(self._tried, READY_SECONDS):
            raise Unavailable("the database is still being opened")
        if self._failure is not None:
            raise type(self._failure)(str(self._failure))
        try:
            await asyncio.gather(self._wait_for_writes(), *([self.others()] if self.others else []))
        except Unusable as error:
            return error
        return None

    async def settle(self) -> None:
        """Write what was added here, as far as that is possible now: another process will read."""
        with suppress(StoreError):
            await self._wait_for_writes()

    async def _wait_for_writes(self) -> None:
        await self._writer.barrier()
        if self._relay is not None:
            await self._relay.wait_until_empty()

    async def _write(self, rows: Sequence[Row]) -> None:
        await self._tried.wait()
        if self._relay is not None:
            await self._relay.write(rows)
        else:
            await self._database.insert(rows)

    async def _open(self) -> None:
        """Open everything; go on until the database has been opened once."""
        await self._open_spool()
        wait, longest = RETRY_SECONDS
        while True:
            if await self._try_to_open():
                break
            self._tried.set()
            await asyncio.sleep(wait)
            wait = min(2 * wait, longest)
        if self._failure is not None:
            self._log.info("the store is open")
            self._failure = None
        if self._relay is not None:
            self._relay.start()
            self._relay.up()
        self._tried.set()
        self._retention.start()

    async def _try_to_open(self) -> bool:
        """Try to open the database."""
        task = asyncio.get_running_loop().create_task(self._database.open())
        try:
            await asyncio.wait({task}, timeout=OPEN_SECONDS)
            if not task.done() and self._relay is not None:
                # It hangs, or brings a large schema up to date; rows must not wait for that.
                self._hold(f"PostgreSQL has not answered for {OPEN_SECONDS:.0f} seconds")
                self._tried.set()
            await task
            return True
        except Unavailable as error:
            self._metrics.count_failure("unavailable")
            if self._relay is not None:
                self._failure = None
                self._hold(str(error))
            else:
                self._note_failure(error, "what is to be stored waits")
        except StoreError as error:
            self._metrics.count_failure("unusable")
            self._note_failure(Unusable(str(error)), "nothing is stored")
        except Exception as error:
            self._metrics.count_failure("internal")
            self._log.debug("the store did not open", exc_info=error)
            self._note_failure(Unusable(f"{type(error).__name__}: {error}"), "nothing is stored")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)  # until it has let go of everything
        return False

    def _note_failure(self, error: StoreError, what: str) -> None:
        if str(error) != str(self._failure):
            self._log.error("%s: %s", what, error)
        self._failure = error

    def _hold(self, problem: str) -> None:
        assert self._relay is not None
        self._relay.start()
        self._relay.hold(problem)

    async def _open_spool(self) -> None:
        if self._spool is None:
            return
        try:
            await self._spool.open()
        except (Unavailable, Unusable) as error:
            self._log.error(
                "no spool: while PostgreSQL is down, rows wait in memory only (%s). Set "
                "store.spool to a file that can be written.",
                error,
            )
            await self._spool.close()
            self._spool = self._relay = None


def _found(found: T | None, behind: Unusable | None) -> T | None:
    """Return what was found; raise `behind` for what may wait to be written."""
    if found is None and behind is not None:
        raise behind
    return found
