"""How PostgreSQL finds a page: along an index, looking at no more rows than it must."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from msgspec import json

from tests.postgres import Server
from wellspoken.proxy.store.marks import bounds, marks
from wellspoken.proxy.store.postgres import sql
from wellspoken.proxy.store.postgres.pool import PostgresDatabase
from wellspoken.proxy.store.rows import Query, Row


def row(number: int, **metadata: str) -> Row:
    """Return a row; three at a time are of one second."""
    id = f"chatcmpl-{number:024x}"
    return Row(id, "o", number // 3, "m", "req", metadata, b'{"n":1}' + b" " * 900, b"{}", b"[]")


def named(database: str) -> str:
    return database.rsplit("/", 1)[1]


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()


@pytest.fixture
async def database(url: str) -> AsyncIterator[PostgresDatabase]:
    opened = PostgresDatabase(url)
    await opened.open()
    yield opened
    await opened.close()


def read(plan: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Return table, way and rows of each scan in a plan that was run, rows filtered out too."""
    found = []
    if "Relation Name" in plan:
        rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        rows += plan.get("Rows Removed by Index Recheck", 0)
        found.append((plan["Relation Name"], plan["Node Type"], rows * plan["Actual Loops"]))
    for child in plan.get("Plans", ()):
        found += read(child)
    return found


async def explained(url: str, begin: str, statement: str, *values: Any) -> float:
    """Run a statement and return how many rows of tables it has looked at. Fails where it reads
    a table from end to end."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(begin)
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", *values)
    finally:
        await connection.close()
    scans = read(json.decode(text)[0]["Plan"])
    assert scans
    for table, way, _ in scans:
        assert way in ("Index Scan", "Index Only Scan"), f"{way} of {table}"
    return sum(rows for _, _, rows in scans)


class Watching:
    """A connection that remembers the last statement's values and what it found."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.last: tuple[tuple[Any, ...], list[Any]] = ((), [])

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        found: list[Any] = await self._connection.fetch(statement, *values)
        self.last = values, found
        return found


async def watched(
    database: PostgresDatabase, url: str, query: Query
) -> tuple[tuple[Any, ...], list[Any]]:
    """Return the values of the statement that finds a query's rows by marks, and these."""
    connection = await asyncpg.connect(url)
    try:
        watching = Watching(connection)
        low, high = bounds(query)
        await database._find_marked(watching, query, (*low, *high))  # type: ignore[arg-type]
    finally:
        await connection.close()
    return watching.last


@pytest.mark.parametrize("stale", [True, False])
@pytest.mark.parametrize("descending", [False, True])
async def test_pages_are_read_along_an_index(
    postgres: Server, url: str, database: PostgresDatabase, descending: bool, stale: bool
) -> None:
    """Also where statistics are of a table that was empty, as after a quick start."""
    tables = "wellspoken_completion, wellspoken_mark"
    for table in tables.split(", "):
        postgres.run(f"alter table {table} set (autovacuum_enabled = off)", named(url))
    postgres.run(f"analyze {tables}", named(url))
    rows = [row(at, kind="rare" if at % 1000 == 7 else "often", all="y") for at in range(5000)]
    await database.insert(rows)
    if not stale:
        postgres.run(f"analyze {tables}", named(url))

    async def looked(query: Query) -> float:
        values: list[Any] = [*bounds(query)[0], *bounds(query)[1], query.limit]
        if query.owner is None:
            return await explained(url, sql.READ, sql.everybody(query), *values)
        wanted = [each.hex() for each in marks(query.owner, query.model, query.metadata)]
        if wanted:
            values += [wanted[:1], wanted[1:], len(wanted) - 1, [query.owner.encode()]]
            return await explained(url, sql.READ, sql.marked(query), *values)
        values.append(query.owner.encode())
        return await explained(url, sql.READ, sql.page(query), *values)

    def query(owner: str | None = "o", **wanted: Any) -> Query:
        return Query(owner=owner, limit=20, descending=descending, **wanted)

    middle = await database.position("o", rows[2500].id)
    for after in (None, middle):
        assert await looked(query(after=after)) == 20
        assert await looked(query(owner=None, after=after)) == 20
        assert await looked(query(after=after, metadata={"all": "y"})) == 40
        assert await looked(query(after=after, metadata={"all": "y"}, model="m")) == 60
    rare = query(metadata={"kind": "rare", "all": "y"}, model="m")
    assert await looked(rare) == 5 * 4
    # The rarest is put first whatever the order in which they are asked for.
    swapped = query(metadata={"all": "y", "kind": "rare"}, model="m")
    values, found = await watched(database, url, swapped)
    assert len(found) == 5
    assert values[5] == [marks("o", None, {"kind": "rare"})[0].hex()]


async def test_marks_leave_a_narrow_part_of_time_and_the_rarest_first(
    url: str, database: PostgresDatabase
) -> None:
    """Also where each has more rows than are counted: then by how close they lie."""
    rows = [row(at, phase=str(at // 4000), third=str(at % 3), all="y") for at in range(8000)]
    await database.insert(rows)
    for descending in (False, True):
        for phase in "01":
            query = Query(
                owner="o",
                limit=5,
                metadata={"all": "y", "phase": phase, "third": "1"},
                descending=descending,
            )
            values, found = await watched(database, url, query)
            assert values[5] == [marks("o", None, {"third": "1"})[0].hex()]
            first = int(phase) * 4000
            assert (values[0], values[2]) == (first // 3, (first + 3999) // 3)
            wanted = [at for at in range(first, first + 4000) if at % 3 == 1]
            wanted = wanted[::-1][:5] if descending else wanted[:5]
            assert [each["id"].decode() for each in found] == [row(at).id for at in wanted]
    absent = Query(owner="o", limit=5, metadata={"all": "y", "phase": "2"})
    assert await database.find(absent) == []


async def test_a_plan_that_reads_the_whole_table_is_noticed(
    url: str, database: PostgresDatabase
) -> None:
    await database.insert([row(at) for at in range(500)])
    slow = "SELECT * FROM wellspoken_completion WHERE octet_length(metadata) > $1 LIMIT 5"
    with pytest.raises(AssertionError, match="Seq Scan"):
        await explained(url, "BEGIN", slow, 0)
    filtered = "SELECT id FROM wellspoken_completion WHERE created >= 0 AND octet_length(id) < $1"
    assert await explained(url, sql.READ, filtered, 1) == 500
