"""What is said of a PostgreSQL that does not work: the right kind, what to do, and no password."""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import unquote

import asyncpg
import pytest

from tests.ports import free_port
from tests.postgres import PASSWORD, Pooler, Server
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.postgres import pool as module
from wellspoken.proxy.store.postgres.pool import PostgresDatabase
from wellspoken.proxy.store.rows import Row

SECRETS = (PASSWORD, unquote(PASSWORD), "s3cr3t")
ROW = Row("chatcmpl-1", "o", 1, "m", "req", {}, b"{}", b"{}", b"[]")


def told(error: StoreError) -> str:
    """Return what an error says, which is one line and, with all behind it, has no secret."""
    shown = "".join(traceback.format_exception(error))
    behind: BaseException | None = error
    while behind is not None:
        shown += repr(behind) + str(vars(behind))
        behind = behind.__cause__ or behind.__context__
    for secret in SECRETS:
        assert secret not in shown
    assert "\n" not in str(error)
    return str(error)


async def refused(url: str, kind: type[StoreError]) -> str:
    """Return what is said where a database cannot be opened."""
    database = None
    with pytest.raises(StoreError) as raised:
        database = PostgresDatabase(url)
        await database.open()
    assert type(raised.value) is kind, raised.value
    if database is not None:
        await database.close()
    return told(raised.value)


@pytest.fixture
def user(postgres: Server) -> str:
    """A user who may do nothing but connect."""
    postgres.run(
        "drop role if exists visitor; "
        "create role visitor login password 's3cr3t'; "
        "revoke create on schema public from public",
        "template1",
    )
    return "visitor"


async def test_a_wrong_password(postgres: Server) -> None:
    url = postgres.url("postgres", password="s3cr3t")
    said = await refused(url, Unusable)
    assert re.search("password authentication failed.*check the user and the password", said)
    assert f"127.0.0.1:{postgres.port}/postgres" in said


async def test_a_user_or_a_database_that_is_not_there(postgres: Server) -> None:
    assert "password" in await refused(postgres.url("postgres", user="nobody-knows"), Unusable)
    said = await refused(postgres.url("nowhere"), Unusable)
    assert re.search('"nowhere" does not exist.*create the database', said)
    assert "search_path" in await refused(f"{postgres.database()}?search_path=none", Unusable)


async def test_no_right_to_make_tables(postgres: Server, user: str) -> None:
    name = postgres.database().rsplit("/", 1)[1]
    url = postgres.url(name, user=user, password="s3cr3t")
    assert re.search("permission denied.*grant the user CREATE", await refused(url, Unusable))


async def test_tables_of_somebody_else(postgres: Server, user: str) -> None:
    url = postgres.database()
    owner = PostgresDatabase(url)
    await owner.open()
    await owner.close()
    name = url.rsplit("/", 1)[1]
    said = await refused(postgres.url(name, user=user, password="s3cr3t"), Unusable)
    assert "grant the user" in said


async def test_too_many_connections(postgres: Server, user: str) -> None:
    postgres.run(f"alter role {user} connection limit 0")
    url = postgres.url("postgres", user=user, password="s3cr3t")
    assert "too many connections" in await refused(url, Unavailable)


async def test_nothing_listens(postgres: Server) -> None:
    url = postgres.url("x").replace(str(postgres.port), str(free_port()))
    assert "cannot be reached" in await refused(url, Unavailable)
    assert "cannot be reached" in await refused(
        f"postgresql://u:{PASSWORD}@no-such-host.invalid/x", Unavailable
    )


@asynccontextmanager
async def listening(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    """Yield a URL behind which `answer` talks, and not PostgreSQL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield f"postgresql://u:{PASSWORD}@127.0.0.1:{port}/x"


async def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with listening(silent) as url, asyncio.timeout(60):
        assert "in time" in await refused(url, Unavailable)


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"N" + b"\0" * 400])
async def test_a_server_that_is_something_else(data: bytes) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await writer.drain()

    async with listening(odd) as url, asyncio.timeout(60):
        await refused(url, Unavailable)


async def test_a_server_that_has_become_read_only(postgres: Server) -> None:
    url = postgres.database()
    database = PostgresDatabase(url)
    await database.open()
    await database.insert([ROW])
    name = url.rsplit("/", 1)[1]
    postgres.run(f"alter database {name} set default_transaction_read_only = on")
    await database.close()
    await database.open()  # nothing to migrate
    assert await database.get("o", ROW.id) is not None
    with pytest.raises(Unavailable) as raised:
        await database.insert([ROW])
    assert "read-only" in told(raised.value)
    postgres.run(f"alter database {name} reset default_transaction_read_only")
    await database.insert([ROW])  # in a new session: the old one stays read-only
    await database.close()


async def test_tables_that_are_gone(postgres: Server) -> None:
    url = postgres.database()
    database = PostgresDatabase(url)
    await database.open()
    postgres.run("drop table wellspoken_mark", url.rsplit("/", 1)[1])
    with pytest.raises(Unusable) as raised:
        await database.insert([ROW])
    assert "its tables are gone" in told(raised.value)
    await database.close()


async def test_what_pgbouncer_does_not_pass_on(postgres: Server, pgbouncer: Pooler) -> None:
    url = pgbouncer.url(postgres.database())
    said = await refused(f"{url}?search_path=public", Unusable)
    assert re.search("unsupported startup parameter: search_path.*ALTER ROLE", said)


async def test_a_session_is_ours_by_name(postgres: Server) -> None:
    for more, name in (("", "wellspoken"), ("?application_name=mine", "mine")):
        url = postgres.database()  # a session that was closed is there for a moment longer
        database = PostgresDatabase(url + more)
        await database.open()
        await database.size()
        shown = (
            f"select application_name from pg_stat_activity where datname='{url.rsplit('/')[-1]}'"
        )
        assert postgres.run(shown) == name
        await database.close()


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:s3cr3t@h/db",
        "postgresql:/u:s3cr3t@h/db",
        "postgresql://u:s3cr3t@x@h/db",
        "postgresql://u:12@s3cr3t@h/db",
        "postgresql://u:s3cr3t/x@h/db",
        "postgresql://u:12/s3cr3t@h/db",
        "postgresql://u:s3cr3t?x@h/db",
        "postgresql://u:12?s3cr3t=x@h/db",
        "postgresql://u:s3cr3t#x@h/db",
        "postgresql://u:a:s3cr3t/x@h/db",
        "postgresql://h:port/db?password=s3cr3t",
        "u:s3cr3t@h/db",
        "s3cr3t",
    ],
)
async def test_urls_that_a_password_has_spoilt(url: str) -> None:
    said = await refused(url, Unusable)
    assert "%40" in said and "12" not in said


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t@localhost/db?sslmode=s3cr3t",
        "postgresql://u:s3cr3t@localhost/db?s3cr3t",
        "postgresql://u:s3cr3t@localhost/db?target_session_attrs=s3cr3t",
    ],
)
async def test_urls_that_asyncpg_does_not_take(url: str) -> None:
    database = PostgresDatabase(url)
    with pytest.raises(Unusable, match="question mark") as raised:
        await database.open()
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


def test_what_an_error_repeats_of_a_password() -> None:
    from wellspoken.proxy.store.postgres.address import DatabaseAddress

    address = DatabaseAddress("postgres://u:a%2Fb%40c@[::1]:5432,other/db?sslpassword=key%20word")
    assert address.place == "PostgreSQL at [::1]:5432,other/db"
    error = asyncpg.PostgresError()
    error.__dict__["message"] = "a/b@c and a%2Fb%40c\nand key word"
    assert "*** and *** and ***" in str(address.explain_error(error))
    assert "***" in str(address.explain_error(OSError("a/b@c")))
