"""Stored completions in PostgreSQL, which several proxies share.

Nothing here outlives a transaction (no prepared statement, no session lock, no setting), so that it
works behind pgbouncer in transaction pooling too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec import json

from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.marks import LEAST, MOST, bounds, clamp, digest, marks, marks_of
from wellspoken.proxy.store.migrations import migrations
from wellspoken.proxy.store.postgres import sql
from wellspoken.proxy.store.rows import COLUMNS, Position, Query, Row

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

CONNECT, COMMAND, MIGRATE = 5.0, 30.0, 600.0
"""Seconds to connect in, for one piece of work, and to bring the schema up to date."""
_CONNECTIONS = 4
_LOCK = 0x77656C6C  # "well": the first half of our advisory locks' numbers
_MIGRATING, _PRUNING = 1, 2
_PART = 8 * 1024 * 1024
"""How many bytes of rows one statement takes, a row alone may have more."""
_HELD = 16 * 1024 * 1024
"""How many bytes one batch to prune has at most, unless one row alone has more."""
_RARE = 1000
"""As many rows of a mark are counted to find the rarest."""
_TEXTS = ("owner", "id", "model", "request_id")

_encode = json.Encoder().encode
_metadata_of = json.Decoder(dict[str, str]).decode


class PostgresDatabase:
    """A `Database` in PostgreSQL 13 or newer, by a URL as libpq takes it.

    What `Database` says of a method is not said here once more. `connections`: as many are held at
    most. `timeout`: seconds for one piece of work, waiting for a connection included. Tables are
    made in the first schema of the search_path, which the URL can set (`?search_path=name`). Raises
    Unusable when asyncpg is not installed or the URL is wrong.
    """

    name = "postgres"

    def __init__(
        self, url: str, *, connections: int = _CONNECTIONS, timeout: float = COMMAND
    ) -> None:
        try:
            from wellspoken.proxy.store.postgres.address import DatabaseAddress
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise Unusable("store.url needs asyncpg: pip install 'asyncpg>=0.30'") from error
        self._url = url
        self._address = DatabaseAddress(url)
        self._connections = connections
        self._timeout = timeout
        self._pool: asyncpg.Pool[asyncpg.Record] | None = None

    async def open(self) -> None:
        """Connect, and bring the schema up to date, one proxy at a time."""
        import asyncpg

        await self.close()
        named = "application_name" in self._address.settings
        self._pool = asyncpg.create_pool(
            self._url,
            min_size=0,  # none is made here, so that all that goes wrong does so in a transaction
            max_size=self._connections,
            timeout=CONNECT,
            statement_cache_size=0,  # pgbouncer gives the next transaction another session
            server_settings={} if named else {"application_name": "wellspoken"},
            reset=_reset_nothing,
        )
        try:
            await self._pool
            await self._migrate()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of the connections, at once those that do not answer."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CONNECT):
                await pool.close()
        except Exception:  # nothing is left to be done with it
            pool.terminate()

    async def insert(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        async with self._transaction(sql.WRITE) as connection:
            for part in _parts(rows):
                await connection.execute(sql.INSERT, *_columns(part))

    async def get(self, owner: str, id: str) -> Row | None:
        async with self._transaction(sql.READ) as connection:
            found = await connection.fetchrow(sql.GET, *_named(owner, id))
        return None if found is None else _row(found)

    async def position(self, owner: str, id: str) -> Position | None:
        async with self._transaction(sql.READ) as connection:
            found = await connection.fetchrow(sql.POSITION, *_named(owner, id))
        return None if found is None else Position(found["created"], found["seq"])

    async def find(self, query: Query) -> list[Row]:
        low, high = bounds(query)
        ends = (low.created, low.seq, high.created, high.seq)
        async with self._transaction(sql.READ) as connection:
            if query.metadata or query.model is not None:
                found = await self._find_marked(connection, query, ends)
            elif query.owner is None:
                found = await connection.fetch(sql.everybody(query), *ends, query.limit)
            else:
                owner = _bytes(query.owner)
                found = await connection.fetch(sql.page(query), *ends, query.limit, owner)
        return [_row(each) for each in found]

    async def set_metadata(self, owner: str, id: str, metadata: dict[str, str]) -> Row | None:
        async with self._transaction(sql.WRITE) as connection:
            found = await connection.fetchrow(sql.GET + " FOR UPDATE", *_named(owner, id))
            if found is None:
                return None
            row = _row(found)
            old = set(marks_of(row))
            row.metadata = dict(metadata)
            new = marks_of(row)
            await connection.execute(
                sql.SET_METADATA,
                row.created,
                row.seq,
                _encode(metadata),
                _hex(new),
                _hex(old.difference(new)),
                _hex(set(new) - old),
            )
        return row

    async def delete(self, owner: str, id: str) -> Row | None:
        async with self._transaction(sql.WRITE) as connection:
            locked = await connection.fetch(sql.LOCKED, *_named(owner, id))
            gone = await _delete_rows(connection, locked)
        return gone[0] if gone else None

    async def prune(self, *, before: int | None, over: int | None, limit: int) -> list[Row]:
        """See `Database.prune`.

        Fewer than `limit` where they hold much. One proxy at a time, else two of them would each
        delete what is too much.
        """
        async with self._transaction(sql.WRITE) as connection:
            await connection.execute(sql.LOCK, _LOCK, _PRUNING)
            total = await connection.fetchrow(sql.SIZE) if over is not None else None
            excess = 0 if total is None or over is None else max(total["bytes"] - over, 0)
            since = LEAST if before is None else clamp(before)
            oldest = await connection.fetch(sql.OLDEST, since, min(excess, MOST), limit)
            return await _delete_rows(connection, _too_much(oldest, since, excess))

    async def size(self) -> tuple[int, int]:
        async with self._transaction(sql.READ) as connection:
            total = await connection.fetchrow(sql.SIZE)
        return (total["completions"], total["bytes"]) if total is not None else (0, 0)

    @asynccontextmanager
    async def _transaction(
        self, begin: str, seconds: float | None = None
    ) -> AsyncIterator[Connection]:
        import asyncpg

        pool = self._pool
        if pool is None:
            raise Unavailable(f"{self._address.place} is not open")
        try:
            async with asyncio.timeout(seconds or self._timeout):
                connection = await self._begin(pool, begin)
                try:
                    yield connection
                    await connection.execute("COMMIT")
                except BaseException:
                    _terminate(connection)
                    raise
                finally:
                    await pool.release(connection)
        except (
            OSError,
            ValueError,
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
        ) as error:
            if getattr(error, "sqlstate", None) == sql.READ_ONLY:
                await pool.expire_connections()  # the one that writes may be elsewhere now
            # A ValueError quotes the part of the URL that it is about.
            shown = None if isinstance(error, ValueError) else error
            raise self._address.explain_error(error) from shown

    async def _begin(self, pool: asyncpg.Pool[asyncpg.Record], begin: str) -> Connection:
        """Return a connection with a transaction that has begun.

        One that was lost while nobody used it is left for another, since nothing was done on it:
        the server's last word may be read, and the end of the connection not yet.
        """
        from wellspoken.proxy.store.postgres.address import is_loss

        left = self._connections  # so many can have been lost
        while True:
            connection = await pool.acquire()
            try:
                await connection.execute(begin)
                return connection
            except BaseException as error:
                _terminate(connection)
                await pool.release(connection)
                if not left or not is_loss(error):
                    raise
                left -= 1

    async def _find_marked(
        self, connection: Connection, query: Query, ends: tuple[int, int, int, int]
    ) -> list[asyncpg.Record]:
        """Find rows by their marks: those of the rarest in order, where they have the others.

        Everybody's rows are found owner by owner, since a mark is an owner's.
        """
        owners = [query.owner]
        if query.owner is None:
            owners = [_text(each["owner"]) for each in await connection.fetch(sql.OWNERS)]
        asked = [_hex(marks(owner or "", query.model, query.metadata)) for owner in owners]
        if asked and len(asked[0]) > 1:
            asked, ends = await _narrow_marks(connection, query, asked, ends)
        if not asked:
            return []
        rarest = [each[0] for each in asked]
        others = [mark for each in asked for mark in each[1:]]
        values = (rarest, others, len(asked[0]) - 1, [_bytes(owner or "") for owner in owners])
        return await connection.fetch(sql.marked(query), *ends, query.limit, *values)

    async def _migrate(self) -> None:
        steps = migrations("postgres")
        newest = steps[-1][0]
        async with self._transaction("BEGIN", MIGRATE) as connection:
            if await connection.fetchval(sql.HAS_MIGRATIONS):
                version = await connection.fetchval(sql.VERSION)
                if version == newest:
                    return
            # Behind the lock, and anew: another proxy may be at it.
            await connection.execute(sql.LOCK, _LOCK, _MIGRATING)
            await connection.execute(sql.MIGRATIONS)
            version = await connection.fetchval(sql.VERSION)
            if version > newest:
                raise Unusable(
                    f"{self._address.place} has schema {version}, and this version knows schemas "
                    f"up to {newest}: run the newer version that made it, or use another database"
                )
            for number, step in steps[version:]:
                await connection.execute(step)
                await connection.execute(sql.MIGRATED, number)


def _terminate(connection: Connection) -> None:
    """End a connection at once.

    A new one costs less than to find out what this one is still doing, and nobody waits for a
    server that is gone. One that the pool has lost already must not hide why.
    """
    import asyncpg

    with suppress(asyncpg.InterfaceError):
        connection.terminate()


async def _delete_rows(connection: Connection, locked: Sequence[asyncpg.Record]) -> list[Row]:
    """Delete rows that this transaction has locked, and return them."""
    if not locked:
        return []
    places = [each["created"] for each in locked], [each["seq"] for each in locked]
    return [_row(each) for each in await connection.fetch(sql.DELETE, *places)]


def _too_much(
    oldest: Sequence[asyncpg.Record], since: int, excess: int
) -> Sequence[asyncpg.Record]:
    """Return those of the oldest rows that are to go, no more than may be held in memory."""
    ahead = 0
    for at, each in enumerate(oldest):
        if each["created"] >= since and ahead >= excess:
            return oldest[:at]
        if at and ahead + each["size"] > _HELD:
            return oldest[:at]
        ahead += each["size"]
    return oldest


async def _narrow_marks(
    connection: Connection, query: Query, asked: list[list[str]], ends: tuple[int, int, int, int]
) -> tuple[list[list[str]], tuple[int, int, int, int]]:
    """Return each owner's marks, the rarest first, and the bounds that they leave.

    All of it is looked up and not left to statistics, which lag behind. An owner without one of
    the marks is left out. The bounds end where one of the marks does: pairs such as the name of an
    experiment are often of a time.
    """
    flat = [mark for each in asked for mark in each]
    at_most = max(_RARE // len(asked), 10)
    found = await connection.fetch(sql.spread(query), *ends, at_most, flat)
    spread = dict(zip(flat, found, strict=True))
    kept, lows, highs = [], [], []
    for each in asked:
        spreads = [spread[mark] for mark in each]
        if all(one["rows"] for one in spreads):
            # By their rows; where these are not counted to the end, by how close they lie.
            order = {mark: (spread[mark]["rows"], -int(spread[mark]["seconds"])) for mark in each}
            kept.append(sorted(each, key=order.__getitem__))
            lows.append(max((one["since"], one["first"] - 1) for one in spreads))
            highs.append(min((one["until"], one["last"] + 1) for one in spreads))
    return kept, ((*min(lows), *max(highs)) if kept else ends)


async def _reset_nothing(connection: object) -> None:
    """Reset nothing of a connection that goes back: nothing outlives a transaction."""


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def _hex(digests: Sequence[bytes] | set[bytes]) -> list[str]:
    return [each.hex() for each in digests]


def _named(owner: str, id: str) -> tuple[str, bytes, bytes]:
    return digest(owner, id).hex(), _bytes(owner), _bytes(id)


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    held = 0
    for row in rows:
        if part and held + row.size > _PART:
            yield part
            part, held = [], 0
        part.append(row)
        held += row.size
    yield part


def _columns(rows: list[Row]) -> list[list[Any]]:
    """Return the values of rows by column, in the order that sql.INSERT has."""
    return [
        [clamp(row.created) for row in rows],
        [digest(row.owner, row.id).hex() for row in rows],
        # An array of arrays would have to be as wide everywhere.
        [f"{{{','.join(_hex(marks_of(row)))}}}" for row in rows],
        *([_bytes(getattr(row, name)) for row in rows] for name in _TEXTS),
        [_encode(row.metadata) for row in rows],
        *([getattr(row, name) for row in rows] for name in COLUMNS),
    ]


def _row(found: asyncpg.Record) -> Row:
    texts: dict[str, Any] = {name: _text(found[name]) for name in _TEXTS}
    others = {name: found[name] for name in ("created", *COLUMNS, "seq")}
    return Row(metadata=_metadata_of(found["metadata"]), **texts, **others)
