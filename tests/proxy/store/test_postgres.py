"""What PostgreSQL alone can get wrong: several proxies, pgbouncer, restarts, plans.

What both engines do alike is in test_database.py. The servers are real (tests/postgres.py).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from tests.clock import own_time
from tests.postgres import Pooler, Server
from tests.proxy.store.conftest import OpenDatabase
from tests.waiting import until
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.marks import marks_of
from wellspoken.proxy.store.migrations import migrations
from wellspoken.proxy.store.postgres import pool as module
from wellspoken.proxy.store.postgres import sql
from wellspoken.proxy.store.postgres.pool import PostgresDatabase
from wellspoken.proxy.store.rows import Query, Row

KEEP_TRYING = 120.0


def row(number: int, owner: str = "o", model: str = "m", **metadata: str) -> Row:
    """Return a row that takes 1000 bytes; three at a time are of one second."""
    id = f"chatcmpl-{number:024x}"
    answer = b'{"n":%d}' % number + b" " * 1000
    return Row(id, owner, number // 3, model, "req", metadata, answer[:996], b"{}", b"[]")


def named(database: str) -> str:
    return database.rsplit("/", 1)[1]


async def in_time(work: Callable[[], Awaitable[Any]]) -> Any:
    """Do `work` again while the database is away."""
    deadline = time.monotonic() + KEEP_TRYING
    while True:
        try:
            return await work()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


async def counted(postgres: Server, url: str) -> None:
    """Assert that the kept totals, and the marks, are those of the rows."""
    rows, size, marked, listed = (
        await asyncio.to_thread(
            postgres.run,
            f"""select count(*), coalesce(sum({sql._BYTES}), 0),
            coalesce(sum(cardinality(marks)), 0), (select count(*) from wellspoken_mark)
            from wellspoken_completion""",
            named(url),
        )
    ).split("|")
    assert marked == listed
    total = await asyncio.to_thread(
        postgres.run, "select sum(completions), sum(bytes) from wellspoken_total", named(url)
    )
    assert total == f"{rows}|{size}"


@pytest.mark.parametrize("pooled", [False, True])
async def test_eight_proxies_migrate_at_once(
    postgres: Server, open_database: OpenDatabase, pooled: bool, request: pytest.FixtureRequest
) -> None:
    url = postgres.database()
    if pooled:
        url = request.getfixturevalue("pgbouncer").url(url)
    databases = await asyncio.gather(*(open_database(url) for _ in range(8)))
    applied = postgres.run("select number from wellspoken_migration", named(url))
    assert applied.split() == [str(number) for number, _ in migrations("postgres")]
    await asyncio.gather(*(each.insert([row(at)]) for at, each in enumerate(databases)))
    assert await databases[0].size() == (8, 8000)


async def test_a_step_that_fails_leaves_nothing(
    postgres: Server, open_database: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.database()
    steps = migrations("postgres")
    broken = (len(steps) + 1, "CREATE TABLE half (a integer); SELECT nothing_of_that_name()")
    with monkeypatch.context() as patch:
        patch.setattr(module, "migrations", lambda engine: [*steps, broken])
        with pytest.raises(Unusable, match="nothing_of_that_name"):
            await open_database(url)
    tables = "select count(*) from pg_tables where schemaname = 'public'"
    assert postgres.run(tables, named(url)) == "0"
    await (await open_database(url)).insert([row(1)])


async def test_a_schema_of_a_newer_program(postgres: Server, open_database: OpenDatabase) -> None:
    url = postgres.database()
    await open_database(url)
    postgres.run("insert into wellspoken_migration (number) values (99)", named(url))
    with pytest.raises(Unusable, match=r"schema 99.*newer version"):
        await open_database(url)


async def test_schemas_of_one_database_are_stores_of_their_own(
    postgres: Server, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    postgres.run("create schema one; create schema two", named(url))
    one = await open_database(f"{url}?search_path=one")
    two = await open_database(f"{url}?options=-csearch_path%3Dtwo")
    await one.insert([row(1)])
    assert (await one.size())[0] == 1
    assert (await two.size())[0] == 0


async def test_many_clients_share_two_sessions_of_pgbouncer(
    postgres: Server, pgbouncer: Pooler, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    databases = [await open_database(pgbouncer.url(url)) for _ in range(4)]

    async def use(database: PostgresDatabase, at: int) -> None:
        own = row(at, even="yes" if at % 2 else "no", at=str(at))
        await database.insert([own, row(1000)])
        found = await database.find(Query(owner="o", limit=3, metadata=own.metadata))
        assert [each.id for each in found] == [own.id]
        await database.set_metadata("o", own.id, {"after": "it"})
        kept = await database.get("o", own.id)
        assert kept is not None and kept.metadata == {"after": "it"}

    await asyncio.gather(*(use(databases[at % 4], at) for at in range(60)))
    assert (await databases[0].size())[0] == 61
    sessions = f"select count(*) from pg_stat_activity where datname = '{named(url)}'"
    assert int(postgres.run(sessions)) <= 2
    await counted(postgres, url)


async def test_the_server_goes_and_comes_back(
    postgres: Server, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    database = await open_database(url)
    await database.insert([row(1)])
    await postgres.stop_beside()
    try:
        for work in (lambda: database.insert([row(2)]), lambda: database.size()):
            with pytest.raises(Unavailable):
                await work()
        with pytest.raises(Unavailable):
            await open_database(url)
    finally:
        await postgres.start_beside()
    await in_time(lambda: database.insert([row(1), row(2)]))
    assert (await database.size())[0] == 2
    await postgres.restart_beside()  # its sessions are gone, and nobody has told us
    await in_time(lambda: database.insert([row(2), row(3)]))
    assert (await database.size())[0] == 3
    await counted(postgres, url)


async def test_pgbouncer_stays_while_the_server_goes(
    postgres: Server, pgbouncer: Pooler, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    database = await open_database(pgbouncer.url(url), timeout=2.0)
    await in_time(lambda: database.insert([row(1)]))
    await postgres.stop_beside()
    try:
        with pytest.raises(Unavailable):
            await database.insert([row(2)])
    finally:
        await postgres.start_beside()
    await in_time(lambda: database.insert([row(2)]))
    assert (await in_time(database.size))[0] == 2


async def test_what_was_going_on_at_a_crash_is_done_or_not(
    postgres: Server, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    database = await open_database(url)
    written = 0

    async def write() -> None:
        nonlocal written
        for start in count(0, 50):  # however late the server's end is
            await database.insert([row(at) for at in range(start, start + 50)])
            written = start + 50

    task = asyncio.create_task(write())
    await until(lambda: written > 0)
    try:
        await postgres.stop_beside()
        with pytest.raises(Unavailable):
            await task
    finally:
        await postgres.start_beside()
    rows, _ = await in_time(database.size)
    assert written > 0 and rows in (written, written + 50)
    await counted(postgres, url)


async def test_a_lock_that_somebody_holds(postgres: Server, open_database: OpenDatabase) -> None:
    url = postgres.database()
    database = await open_database(url, timeout=0.3, connections=1)
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute("lock table wellspoken_completion")
            begun = own_time()
            with pytest.raises(Unavailable, match="in time"):
                await database.insert([row(1)])
            assert own_time() - begun < 20  # without a timeout of its own: 30
            database._timeout = 600.0  # what is cancelled is not over time before, however late
            cancelled = asyncio.create_task(database.get("o", "x"))
            await asyncio.sleep(0.1)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
    finally:
        await other.close()
    await in_time(lambda: database.insert([row(2)]))  # the one connection was not lost


async def test_proxies_write_the_same_rows_at_once(
    postgres: Server, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    databases = [await open_database(url) for _ in range(3)]
    rows = [row(at, kind=str(at % 3)) for at in range(300)]
    await asyncio.gather(
        *(
            each.insert(rows[start : start + 50])
            for start in range(0, 300, 50)
            for each in databases
        )
    )
    assert await databases[0].size() == (300, 300_000)
    await counted(postgres, url)


async def test_proxies_prune_at_once(postgres: Server, open_database: OpenDatabase) -> None:
    url = postgres.database()
    databases = [await open_database(url) for _ in range(4)]
    await databases[0].insert([row(at, kind="a") for at in range(400)])
    gone = await asyncio.gather(
        *(each.prune(before=None, over=250_000, limit=60) for each in databases)
    )
    ids = [each.id for part in gone for each in part]
    assert sorted(ids) == [row(at).id for at in range(150)]
    assert await databases[0].size() == (250, 250_000)
    aged = await asyncio.gather(
        *(each.prune(before=80, over=None, limit=500) for each in databases)
    )
    assert sum(len(part) for part in aged) == 240 - 150
    await counted(postgres, url)


async def test_metadata_is_set_and_rows_deleted_by_several(
    postgres: Server, open_database: OpenDatabase
) -> None:
    url = postgres.database()
    databases = [await open_database(url) for _ in range(2)]
    await databases[0].insert([row(1, first="1"), row(2)])
    await asyncio.gather(
        *(databases[at % 2].set_metadata("o", row(1).id, {"last": str(at)}) for at in range(20)),
        *(each.delete("o", row(2).id) for each in databases),
    )
    await counted(postgres, url)
    kept = await databases[0].get("o", row(1).id)
    assert kept is not None
    assert await databases[1].find(Query(owner="o", limit=9, metadata=kept.metadata)) == [kept]


async def test_a_database_that_cannot_hold_the_text(
    postgres: Server, open_database: OpenDatabase
) -> None:
    url = postgres.database(options="encoding 'LATIN1' locale 'C' template template0")
    database = await open_database(url)
    odd = {"nul\0": "a\0b", "語": "🙂", "'; drop table x; --": '"\\'}
    rows = [row(1, "o\0", "m\0語", **odd), row(2, "o\0", "m\0語", **odd | {"nul\0": "a"})]
    await database.insert(rows)
    found = await database.find(Query(owner="o\0", limit=9, model="m\0語", metadata=odd))
    assert [(each.id, each.model, each.metadata) for each in found] == [
        (rows[0].id, rows[0].model, odd)
    ]
    assert await database.get("o\0", "\0") is None
    assert await database.get("o\0", "\ud800") is None


async def test_numbers_and_ids_beyond_what_an_index_holds(
    postgres: Server, open_database: OpenDatabase
) -> None:
    database = await open_database(postgres.database())
    far = row(1)
    far.created, far.id = 10**30, "x" * 100_000
    await database.insert([far, row(2)])
    kept = await database.get("o", far.id)
    assert kept is not None and kept.created == 2**63 - 1
    assert len(await database.find(Query(owner="o", limit=9, since=-(10**30), until=10**30))) == 1
    assert len(await database.find(Query(owner="o", limit=9))) == 2


async def test_without_asyncpg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "wellspoken.proxy.store.postgres.address", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(Unusable, match=r"pip install 'asyncpg>=0.30'"):
        PostgresDatabase("postgresql://localhost/x")


async def test_before_it_is_open_and_behind_its_close(postgres: Server) -> None:
    database = PostgresDatabase(postgres.database())
    await database.close()
    with pytest.raises(Unavailable, match="not open"):
        await database.insert([row(1)])
    await database.open()
    await database.open()
    await database.insert([])
    await database.close()
    await database.close()
    with pytest.raises(StoreError, match="not open"):
        await database.size()


@pytest.mark.parametrize("by", ["delete", "prune"])
async def test_a_deletion_beside_new_metadata_leaves_no_mark(
    postgres: Server, open_database: OpenDatabase, by: str
) -> None:
    """A mark without its row would make pages of that filter short."""
    url = postgres.database()
    database = await open_database(url)
    await database.insert([row(1, k="old")])
    found = await database.get("o", row(1).id)
    assert found is not None
    changed = structs.replace(found, metadata={"k": "new"})
    old, new = set(marks_of(found)), set(marks_of(changed))
    other = await asyncpg.connect(url)
    try:
        async with other.transaction():
            await other.execute(
                sql.SET_METADATA,
                found.created,
                found.seq,
                b'{"k":"new"}',
                [each.hex() for each in marks_of(changed)],
                [each.hex() for each in old - new],
                [each.hex() for each in new - old],
            )
            # It waits for the row, or (prune) leaves it alone.
            work: Awaitable[object] = (
                database.delete("o", found.id)
                if by == "delete"
                else database.prune(before=10, over=None, limit=10)
            )
            deletion = asyncio.ensure_future(work)
            await asyncio.wait({deletion}, timeout=0.3)
        gone = await deletion
    finally:
        await other.close()
    if by == "delete":
        assert isinstance(gone, Row) and gone.metadata == {"k": "new"}
        assert (
            await asyncio.to_thread(
                postgres.run, "select count(*) from wellspoken_mark", named(url)
            )
            == "0"
        )
    await counted(postgres, url)
