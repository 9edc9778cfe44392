"""The columns of a row on their way into the database and back: packed, and put away if large."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

from msgspec import json, structs

from wellspoken.proxy.store.database import Unavailable, Unreadable, Unusable
from wellspoken.proxy.store.packing import PLACE, pack, unpack
from wellspoken.proxy.store.places import Place, PlaceError
from wellspoken.proxy.store.rows import Row

Column = Literal["answer", "parameters", "messages"]
COLUMNS: tuple[Column, ...] = ("answer", "parameters", "messages")

_AT_ONCE = 8
_REST = (1.0, 60.0)  # seconds without a try after failures in a row: the first, the longest
_SAY = 60.0  # seconds between two lines in the log about the same trouble
_PROBE = "00/70726f62652d6f662d77656c6c73706f6b656e"
_log = logging.getLogger(__name__)


class _Large(NamedTuple):
    at: int
    column: Column
    key: str


class Columns:
    """Packs columns, and keeps what is larger than `large` bytes after that in a place.

    A column that lies in the place is a reference, `@` and a key made of the row's owner and id,
    the column and its content. So no reference leads to another row's object, a lost or changed
    object is noticed, and to write the same row again writes the same object again.

    An object is written before its row and deleted after it, so that no row lacks one, unless the
    same row is deleted and imported again in one moment. What can be left over is an object without
    a row: where the process dies in between, where the row was there already with other content,
    where a deletion fails (its key is in the log). Nobody can reach it through the API, and it
    takes space until a lifecycle rule of the bucket, or somebody, deletes what is older than
    `store.max_age`.

    Where the place fails, columns stay whole in the row, and for a while (1 s at first, then up to
    60 s) it is not tried again, so that a dead bucket does not hold up the writer. `count(reason)`
    is told `place_full`, `place_timeout`, ... (`places.Reason`) of each column.
    """

    def __init__(
        self,
        large: int,
        place: Place | None,
        *,
        count: Callable[[str], object] = lambda reason: None,
        log: logging.Logger = _log,
    ) -> None:
        self._large = large
        self._place = place
        self._count = count
        self._log = log
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._failure: PlaceError | None = None
        self._rest = _REST[0]
        self._until = self._said = -_SAY  # before any clock
        self._unsaid = 0

    async def open(self) -> None:
        """Try the place, and say in the log if it cannot be used now. Never raises."""
        if self._place is None:
            return
        try:
            await self._place.put(_PROBE, b"")
            await self._place.delete(_PROBE)
        except PlaceError as error:
            self._failed(error, "large answers stay in the database")

    async def close(self) -> None:
        """Let go of the place. Never raises."""
        if self._place is not None:
            await self._place.close()

    async def away(self, row: Row) -> Row:
        """Return the row as it is stored, a new one. Never raises."""
        return (await self.away_all([row]))[0]

    async def away_all(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows as they are stored: packed in one thread, large columns put side by side.

        Never raises. Rows that are packed already come back the same.
        """
        limit = self._large if self._place is not None else None
        packed, large = await asyncio.to_thread(_packed, rows, limit)
        await asyncio.gather(*(self._put(packed[found.at], found) for found in large))
        return packed

    async def back(self, row: Row) -> Row:
        """Return the row with all its columns as JSON; see `back_all`."""
        return (await self.back_all([row]))[0]

    async def back_all(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows with all their columns as JSON; b"" stays b"".

        Raises Unavailable where the place does not answer now, Unusable where an object is missing
        or a column is corrupt; the message names the row and the column.
        """
        fetched = await asyncio.gather(
            *(self._fetched(row, column) for row in rows for column in references(row))
        )
        return await asyncio.to_thread(_unpacked, rows, fetched)

    async def drop(self, row: Row) -> bool:
        """Delete what a deleted row (as it was stored) had in the place; see `drop_all`."""
        return await self.drop_all([row])

    async def drop_all(self, rows: Sequence[Row]) -> bool:
        """Delete what deleted rows had in the place. Never raises.

        False where the place failed, so that other rows had better be deleted later.
        """
        done = await asyncio.gather(
            *(self._delete(row, column) for row in rows for column in references(row))
        )
        return all(done)

    async def _put(self, row: Row, found: _Large) -> None:
        assert self._place is not None
        async with self._slots:
            if self._failure is not None and time.monotonic() < self._until:
                self._count(f"place_{self._failure.reason}")
                return
            try:
                await self._place.put(found.key, getattr(row, found.column))
            except PlaceError as error:
                self._failed(error, "large answers stay in the database")
                return
        self._failure, self._rest = None, _REST[0]
        setattr(row, found.column, PLACE + found.key.encode())

    async def _fetched(self, row: Row, column: Column) -> bytes:
        key = _key_of(row, column)
        what = f"the {column} of {row.id} cannot be read"
        if key is None:
            raise Unreadable(f"{what}: its reference is corrupt")
        if self._place is None:
            raise Unreadable(f"{what}: it lies where store.large_to was, and that is not set now")
        async with self._slots:
            try:
                return await self._place.get(key)
            except PlaceError as error:
                self._count(f"place_{error.reason}")
                if error.reason == "missing":
                    raise Unreadable(
                        f"{what}: store.large_to has no object {key}. If store.large_to was "
                        "another place then, copy its objects here"
                    ) from error
                raise Unavailable(f"{what}: store.large_to: {error}") from error

    async def _delete(self, row: Row, column: Column) -> bool:
        key = _key_of(row, column)
        if key is None:
            self._count("place_missing")
            return True
        if self._place is None:
            self._count("place_missing")
            self._say("it is not set, and what deleted rows have where it was stays there")
            return True
        async with self._slots:
            try:
                await self._place.delete(key)
            except PlaceError as error:
                self._count(f"place_{error.reason}")
                self._log.warning("not deleted from store.large_to: %s (%s)", key, error)
                return False
        return True

    def _failed(self, error: PlaceError, what: str) -> None:
        """Count a failure, say it, and let the place rest."""
        self._count(f"place_{error.reason}")
        now = time.monotonic()
        if now >= self._until:  # not for each of those that were under way together
            self._until = now + self._rest
            self._rest = min(self._rest * 2, _REST[1])
        self._failure = error
        self._say(f"{error}; {what}")

    def _say(self, what: str) -> None:
        """Write a line to the log, one a minute at most."""
        now = time.monotonic()
        if now - self._said < _SAY:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} such lines left out before this)" if self._unsaid else ""
        self._log.warning("store.large_to: %s%s", what, more)
        self._said, self._unsaid = now, 0


def references(row: Row) -> Iterator[Column]:
    """Return the columns of a stored row that lie in a place."""
    return (column for column in COLUMNS if getattr(row, column).startswith(PLACE))


def _packed(rows: Sequence[Row], large: int | None) -> tuple[list[Row], list[_Large]]:
    """Return rows with packed columns, and which columns are larger than `large`: thread's work."""
    packed, found = [], []
    for at, row in enumerate(rows):
        row = structs.replace(
            row,
            answer=pack(row.answer),
            parameters=pack(row.parameters),
            messages=pack(row.messages),
        )
        packed.append(row)
        if large is None:
            continue
        for column in COLUMNS:
            data = getattr(row, column)
            if len(data) > large and not data.startswith(PLACE):
                found.append(_Large(at, column, _key(row, column, data)))
    return packed, found


def _unpacked(rows: Sequence[Row], fetched: Sequence[bytes]) -> list[Row]:
    """Return rows with JSON columns, `fetched` being what their references named, in order."""
    objects = iter(fetched)
    return [_json(row, objects) for row in rows]


def _json(row: Row, objects: Iterator[bytes]) -> Row:
    away = set(references(row))
    columns: dict[str, bytes] = {}
    for column in COLUMNS:
        data = getattr(row, column)
        if column in away:
            reference, data = data, next(objects)
            if PLACE + _key(row, column, data).encode() != reference:
                raise Unreadable(
                    f"the {column} of {row.id} cannot be read: its object "
                    f"{_told(row, column)} in store.large_to is not what was put there"
                )
        try:
            columns[column] = unpack(data)
        except Unusable as error:
            raise Unreadable(f"the {column} of {row.id} cannot be read: {error}") from error
    return structs.replace(row, **columns)


def _key(row: Row, column: Column, data: bytes) -> str:
    """Return the key of an object: whose it is, then what it is."""
    return f"{_owned(row, column)}-{sha256(data).hexdigest()[:32]}"


def _owned(row: Row, column: Column) -> str:
    # JSON keeps the parts apart, whatever they hold.
    whose = sha256(json.encode([row.owner, row.id, column])).hexdigest()
    return f"{whose[:2]}/{whose[2:34]}"


def _key_of(row: Row, column: Column) -> str | None:
    """Return the key that a reference names; None where it is none of this row and column."""
    whose, _, content = _told(row, column).rpartition("-")
    return f"{whose}-{content}" if whose == _owned(row, column) else None


def _told(row: Row, column: Column) -> str:
    return bytes(getattr(row, column))[1:200].decode("ascii", "replace")
