"""The two engines: databases made for one measurement each, and read without the proxy's code."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import asyncpg
from msgspec import convert

from tests.bench.load import LoadError
from tests.bench.store_check import Stored
from tests.postgres import Server
from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.packing import unpack


class Place(Protocol):
    """One database; `table` is what the configuration says of it under [store]."""

    table: dict[str, object]

    async def stored(self) -> list[Stored]:
        """Return every row."""

    async def added(self) -> list[Stored]:
        """Return the rows that came since the last call."""

    async def count(self) -> int:
        """Return how many rows there are."""

    async def unsound(self) -> str:
        """Return what the engine finds wrong with the database, "" for nothing."""


class Engine(Protocol):
    """Where databases are made."""

    name: str

    def fresh(self, folder: Path) -> AbstractContextManager[Place]:
        """Return a new database for the block; `folder` is the block's own."""

    def stop(self) -> None:
        """Take the server away, as a crash does."""

    def start(self) -> None:
        """Bring it back."""


class SqlitePlace:
    """A file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table: dict[str, object] = {"path": str(path)}
        self._seen = 0

    async def stored(self) -> list[Stored]:
        """Return every row."""
        return await asyncio.to_thread(self._since, 0)

    async def added(self) -> list[Stored]:
        """Return the rows that came since the last call."""
        return await asyncio.to_thread(self._since, self._seen)

    async def count(self) -> int:
        """Return how many rows there are."""
        return int((await asyncio.to_thread(self._all, "SELECT count(*) FROM completion"))[0][0])

    async def unsound(self) -> str:
        """Return what SQLite's own check says."""
        said = (await asyncio.to_thread(self._all, "PRAGMA integrity_check"))[0][0]
        return "" if said == "ok" else str(said)

    def _since(self, seq: int) -> list[Stored]:
        found = self._all("SELECT id, answer, seq FROM completion WHERE seq > ?", seq)
        self._seen = max([self._seen, *(row[2] for row in found)])
        return [(id, unpack(answer)) for id, answer, _ in found]

    def _all(self, sql: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=30)) as db:
            return db.execute(sql, values).fetchall()


class Sqlite:
    """The embedded engine: files in the measurement's folder."""

    name = "sqlite"

    @contextmanager
    def fresh(self, folder: Path) -> Iterator[SqlitePlace]:
        """Yield a file that is not there yet."""
        yield SqlitePlace(folder / "bench.db")

    def stop(self) -> None:
        """There is no server. Raises RuntimeError."""
        raise RuntimeError("SQLite has no server to stop")

    def start(self) -> None:
        """There is no server. Raises RuntimeError."""
        raise RuntimeError("SQLite has no server to start")


class PostgresPlace:
    """A database of its own on the server."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.table: dict[str, object] = {"url": url, "spool": str(folder / "spool.db")}
        self._seen = 0

    async def stored(self) -> list[Stored]:
        """Return every row."""
        return await self._since(0)

    async def added(self) -> list[Stored]:
        """Return the rows that came since the last call."""
        return await self._since(self._seen)

    async def count(self) -> int:
        """Return how many rows there are; none while the server is away or has no table yet."""
        try:
            return int((await self._all("SELECT count(*) FROM wellspoken_completion"))[0][0])
        except (OSError, asyncpg.CannotConnectNowError, asyncpg.UndefinedTableError):
            return 0

    async def unsound(self) -> str:
        """Return "": what is there after a kill of the proxy the server answers for."""
        return ""

    async def _since(self, seq: int) -> list[Stored]:
        sql = "SELECT convert_from(id, 'UTF8'), answer, seq FROM wellspoken_completion"
        found = await self._all(f"{sql} WHERE seq > $1", seq)
        self._seen = max([self._seen, *(row[2] for row in found)])
        return [(id, unpack(answer)) for id, answer, _ in found]

    async def _all(self, sql: str, *values: object) -> list[Any]:
        connection = await asyncpg.connect(self.url, timeout=10)
        try:
            return list(await connection.fetch(sql, *values))
        finally:
            await connection.close()


class Postgres:
    """A PostgreSQL server; `url` gives the address of one of its databases by name."""

    name = "postgres"

    def __init__(
        self, url: Callable[[str], str], stop: Callable[[], None], start: Callable[[], None]
    ) -> None:
        self._url = url
        self.stop = stop
        self.start = start
        self._numbers = itertools.count(1)

    @contextmanager
    def fresh(self, folder: Path) -> Iterator[PostgresPlace]:
        """Yield a new database, dropped at the end; its spool lies in `folder`."""
        name = f"bench_{next(self._numbers)}"
        asyncio.run(self._do(f"CREATE DATABASE {name}"))
        try:
            yield PostgresPlace(self._url(name), folder)
        finally:
            asyncio.run(self._do(f"DROP DATABASE {name} WITH (FORCE)"))

    async def _do(self, sql: str) -> None:
        connection = await asyncpg.connect(self._url("postgres"), timeout=10)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Run a PostgreSQL that waits for the disk, and give databases on it."""
    with Server(fsync=True) as server:
        yield Postgres(server.url, server.stop, server.start)


@asynccontextmanager
async def opened(place: Place, **changed: object) -> AsyncIterator[CompletionStore]:
    """Open the store on a database in this process. Raises LoadError if it is in trouble."""
    made = CompletionStore(
        convert(place.table | changed, config.Store), StoreMetrics(), logging.getLogger("bench")
    )
    await made.open()
    try:
        if made.trouble:
            raise LoadError(f"the store does not open: {made.trouble}")
        yield made
    finally:
        await made.close()
