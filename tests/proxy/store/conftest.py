"""Databases to store in, one engine after the other, rows to store, and stores on these."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.fakes.database import row as answered
from tests.postgres import Server
from tests.waiting import SECONDS
from wellspoken.proxy import config
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.store import completions, failover, queue
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.database import Database, StoreError
from wellspoken.proxy.store.postgres.pool import PostgresDatabase
from wellspoken.proxy.store.rows import Position, Query, Row
from wellspoken.proxy.store.spool import Spool
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

Connect = Callable[[], Database]
MakeStore = Callable[..., CompletionStore]
OpenDatabase = Callable[..., Awaitable[PostgresDatabase]]

EVERYTHING = Query(owner=None, limit=10_000)
URL = "postgresql://me:canary@127.0.0.1:1/nowhere"

ENGINES = ("sqlite", "postgres")
LIMIT = 8 * 1024 * 1024
"""Bytes of a spool."""

Items = Sequence[queue._Item]
Before = Callable[[Callable[[Items], object]], None]


@pytest.fixture(params=ENGINES)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Connect:
    """Makes databases, not yet open, that all hold the same rows; none at first."""
    if request.param == "sqlite":
        return lambda: SqliteDatabase(tmp_path / "store.db")
    server: Server = request.getfixturevalue("postgres")
    url = server.database()
    return lambda: PostgresDatabase(url)


@pytest.fixture
async def database(connect: Connect) -> AsyncIterator[Database]:
    """A database that is open and empty."""
    made = connect()
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def open_database() -> AsyncIterator[OpenDatabase]:
    """Opens PostgreSQL's databases by their URLs, and closes them when the test ends."""
    async with AsyncExitStack() as stack:

        async def opened(url: str, **options: Any) -> PostgresDatabase:
            database = PostgresDatabase(url, **options)
            stack.push_async_callback(database.close)
            await database.open()
            return database

        yield opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a SQLite database is to lie."""
    return tmp_path / "store.db"


@pytest.fixture
async def file_database(path: Path) -> AsyncIterator[SqliteDatabase]:
    """A SQLite database that is open and empty."""
    made = SqliteDatabase(path)
    await made.open()
    yield made
    await made.close()


def one_line(error: pytest.ExceptionInfo[StoreError], path: Path) -> str:
    """Return what an error says: one line that begins with the file's path."""
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(str(path))
    return text


def row(
    number: int,
    *,
    owner: str = "ann",
    created: int | None = None,
    model: str = "m",
    metadata: dict[str, str] | None = None,
    size: int = 30,
) -> Row:
    """Return a row whose id, time (unless it is given) and contents tell its number.

    `size`: how many bytes its three columns take, 30 or more.
    """
    return Row(
        f"chatcmpl-{number}",
        owner,
        number if created is None else created,
        model,
        f"req-{number}",
        metadata or {},
        b'{"n":%06d}' % number + b" " * (size - 30),
        b'{"p":%d}  ' % (number % 10),
        b"[%04d]   " % number,
    )


def rows(first: int, end: int) -> list[Row]:
    """Return rows of answers, as the writer makes them."""
    return [answered(number) for number in range(first, end)]


def spool_of(path: Path, limit: int = LIMIT, *, busy: float = SECONDS) -> Spool:
    """Return a spool in a folder that is not there yet."""
    return Spool(path / "state" / "spool.db", limit, sync=False, busy=busy)


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    """A spool that is open and empty."""
    made = spool_of(tmp_path)
    await made.open()
    yield made
    await made.close()


async def held(spool: Spool) -> list[str]:
    """Return the ids of the rows that a spool holds."""
    return [found.id for _, found in await spool.first(10_000, LIMIT) if found is not None]


def numbers(rows: Sequence[Row]) -> list[int]:
    return [int(each.id.removeprefix("chatcmpl-")) for each in rows]


def plain(found: Row | None) -> Row:
    """Return a row as it was given, without what the database adds."""
    assert found is not None
    assert found.seq > 0
    return structs.replace(found, seq=0)


async def everything(database: Database, query: Query) -> list[Row]:
    """Page through all that a query finds; every page but the last is full."""
    rows: list[Row] = []
    after = query.after
    while True:
        page = await database.find(structs.replace(query, after=after))
        assert len(page) <= query.limit
        rows += page
        if len(page) < query.limit:
            return rows
        after = Position(page[-1].created, page[-1].seq)


def names(first: int, end: int) -> list[str]:
    return [f"c{number}" for number in range(first, end)]


def value(metrics: StoreMetrics, name: str, **labels: str) -> float:
    found = metrics.registry.get_sample_value(f"wellspoken_store_{name}", labels)
    return found or 0.0


@pytest.fixture
def metrics() -> StoreMetrics:
    return StoreMetrics()


@pytest.fixture
def before_rows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Items], object]], None]:
    """Have a function called, in their thread, before rows are made of items."""

    def put(look: Callable[[Items], object]) -> None:
        make_rows = queue._make_rows

        def looked(items: Items) -> Any:
            look(items)
            return make_rows(items)

        monkeypatch.setattr(queue, "_make_rows", looked)

    return put


@pytest.fixture
async def make_store(
    tmp_path: Path, metrics: StoreMetrics, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeStore]:
    """Make a store, on a SQLite file unless a database is given; keys are those of [store]."""
    for module in (failover, completions, queue):
        monkeypatch.setattr(module, "RETRY_SECONDS", (0.01, 0.02))
    made = []

    def start(database: Database | None = None, **keys: Any) -> CompletionStore:
        if "url" in keys:
            keys.setdefault("spool", str(tmp_path / "spool.db"))
        else:
            keys.setdefault("path", str(tmp_path / "store.db"))
        log = logging.getLogger("wellspoken")
        made.append(CompletionStore(config.Store(**keys), metrics, log, database=database))
        return made[-1]

    yield start
    for each in made:
        await each.close()
