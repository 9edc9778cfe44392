"""Databases to store in, one engine after the other, and rows to store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.fakes.database import row as answered
from tests.postgres import Server
from wellspoken.proxy.store.database import Database, StoreError
from wellspoken.proxy.store.postgres.pool import PostgresDatabase
from wellspoken.proxy.store.rows import Row
from wellspoken.proxy.store.spool import Spool
from wellspoken.proxy.store.sqlite.file import SqliteDatabase

Connect = Callable[[], Database]

ENGINES = ("sqlite", "postgres")
LIMIT = 8 * 1024 * 1024
"""Bytes of a spool."""


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


def spool_of(path: Path, limit: int = LIMIT) -> Spool:
    """Return a spool in a folder that is not there yet."""
    return Spool(path / "state" / "spool.db", limit, sync=False, busy=0.2)


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
