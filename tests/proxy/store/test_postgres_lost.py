"""Connections to PostgreSQL that are lost while nobody uses them: no request is to notice.

The server is real, with a relay before it that decides when the client sees what the server said
last, and the end of its connection. Between these two asyncpg takes such a connection for usable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.postgres import Server
from tests.proxy.store.conftest import OpenDatabase, rows
from tests.waiting import until
from wellspoken.proxy.store.database import Unavailable
from wellspoken.proxy.store.postgres.address import is_loss
from wellspoken.proxy.store.postgres.pool import PostgresDatabase

CONNECTIONS = 3


class Relay:
    """Passes connections on to a server, and keeps its end of one from the client.

    `lets_through`: the client gets the server's last word at once and the end once it has written
    something more; else both once it has written. `cuts`: a connection ends where the client
    writes this.
    """

    def __init__(self, server: Server) -> None:
        self.lets_through = True
        self.cuts: bytes | None = None
        self.made = 0
        self.lost = 0
        self._to = server.port
        self._tasks: set[asyncio.Task[None]] = set()

    def url(self, url: str) -> str:
        """Return the URL of the same database through this relay."""
        return url.replace(f":{self._to}/", f":{self.port}/")

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _pass_on(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.made += 1
        server, to = await asyncio.open_connection("127.0.0.1", self._to)
        down = asyncio.create_task(self._pass_down(server, back))
        try:
            while data := await client.read(65536):
                if down.done() or (self.cuts and self.cuts in data):
                    break
                to.write(data)
                if data.startswith(b"X"):  # Terminate: the client waits for the end
                    break
        except ConnectionResetError:
            pass
        finally:
            to.close()
            back.write(await down)
            back.close()

    async def _pass_down(self, server: asyncio.StreamReader, back: asyncio.StreamWriter) -> bytes:
        """Pass on what the server says to its end, and return what is kept of it."""
        kept = b""
        while data := await server.read(65536):
            if self.lets_through:
                back.write(data)
            else:
                kept += data
        self.lost += 1
        return kept


@pytest.fixture
async def relay(postgres: Server) -> AsyncIterator[Relay]:
    made = Relay(postgres)
    await made.start()
    yield made
    await made.close()


def end_sessions(server: Server, url: str) -> str:
    name = url.rsplit("/", 1)[1]
    return server.run(
        f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'"
    )


async def hold_connections(database: PostgresDatabase, relay: Relay) -> None:
    """Make the pool hold as many connections as it may."""
    await asyncio.gather(*(database.size() for _ in range(CONNECTIONS)))
    assert relay.made == CONNECTIONS


@pytest.mark.parametrize("last_word", [True, False], ids=["last word read", "nothing read"])
async def test_a_connection_lost_while_idle_costs_no_request(
    postgres: Server, relay: Relay, open_database: OpenDatabase, last_word: bool
) -> None:
    url = postgres.database()
    database = await open_database(relay.url(url), connections=CONNECTIONS)
    await hold_connections(database, relay)
    relay.lets_through = last_word
    await asyncio.to_thread(end_sessions, postgres, url)
    await until(lambda: relay.lost == CONNECTIONS)
    for _ in range(3):  # what the relay wrote is read in the loop's next round
        await asyncio.sleep(0)
    relay.lets_through = True
    await asyncio.gather(*(database.insert([row]) for row in rows(0, CONNECTIONS)))
    assert (await database.size())[0] == CONNECTIONS
    assert relay.made == 2 * CONNECTIONS


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (asyncpg.ConnectionDoesNotExistError(), True),
        (asyncpg.exceptions.AdminShutdownError(), True),
        (asyncpg.exceptions.CrashShutdownError(), True),
        (asyncpg.exceptions.IdleSessionTimeoutError(), True),
        (asyncpg.InterfaceError("connection is closed"), True),
        (asyncpg.InternalClientError("another operation (2) is in progress"), True),
        (ConnectionResetError(), True),
        (asyncpg.QueryCanceledError(), False),
        (asyncpg.ReadOnlySQLTransactionError(), False),
        (asyncpg.PostgresError(), False),
        (asyncio.CancelledError(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_which_errors_are_of_a_connection_that_is_gone(error: BaseException, lost: bool) -> None:
    assert is_loss(error) == lost


async def test_connections_that_end_at_once_are_not_tried_without_end(
    postgres: Server, relay: Relay, open_database: OpenDatabase
) -> None:
    database = await open_database(relay.url(postgres.database()), connections=CONNECTIONS)
    before = relay.made
    relay.cuts = b"BEGIN"
    with pytest.raises(Unavailable, match=r"PostgreSQL at .*: connection was closed"):
        await database.size()
    assert relay.made - before == CONNECTIONS
    relay.cuts = None
    assert await database.size() == (0, 0)


async def test_a_connection_lost_in_a_transaction_is_told_as_what_it_is(
    postgres: Server, relay: Relay, open_database: OpenDatabase
) -> None:
    """What was done on it may be done, so nothing is done again; the pool, which has lost it too,
    must not hide why."""
    database = await open_database(relay.url(postgres.database()), connections=1)
    relay.cuts = b"COMMIT"
    with pytest.raises(Unavailable, match=r"PostgreSQL at .*: connection was closed"):
        await database.insert(rows(0, 1))
    assert relay.made == 1
    relay.cuts = None
    assert await database.size() == (0, 0)
