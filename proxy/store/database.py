"""What a database does for the store; sqlite.py and postgres.py are the two that do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from wellspoken.proxy.store.rows import Position, Query, Row


class StoreError(Exception):
    """The database did not do it; the message says why and what to do, without any secret."""


class Unavailable(StoreError):
    """It cannot be reached now, or was lost on the way: the same again may work later.

    Whether the work was done is unknown; `insert` may be repeated, since it skips what is there.
    """


class Unusable(StoreError):
    """It will not work until somebody changes something.

    A corrupt file, a disk that is full or read-only, a schema newer than this program, a password
    that is refused.
    """


class Unreadable(Unusable):
    """One row cannot be read, though others can; the message names the row, no path and no host."""


class Database(Protocol):
    """Stored completions in a database. Every method raises StoreError and nothing else."""

    name: str
    """The engine, `sqlite` or `postgres`: a label of metrics."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date. May be called again after a failure."""

    async def close(self) -> None:
        """Let go of everything; never raises."""

    async def insert(self, rows: Sequence[Row]) -> None:
        """Write rows in one transaction, durable on return; a row whose owner and id are there
        already is skipped, so that the same rows may be written again."""

    async def get(self, owner: str, id: str) -> Row | None:
        """Return one row with all its columns."""

    async def position(self, owner: str, id: str) -> Position | None:
        """Return where a row stands."""

    async def find(self, query: Query) -> list[Row]:
        """Return the rows that are wanted, in order."""

    async def set_metadata(self, owner: str, id: str, metadata: dict[str, str]) -> Row | None:
        """Replace a row's metadata and return it with all columns; None: there is none."""

    async def delete(self, owner: str, id: str) -> Row | None:
        """Delete a row and return what it was, with all columns; None: there was none."""

    async def prune(self, *, before: int | None, over: int | None, limit: int) -> list[Row]:
        """Delete at most `limit` of the oldest rows, everybody's, and return them.

        Those created before `before` (epoch seconds), and while all rows take more than `over`
        bytes (of answers, parameters and messages as stored), the oldest.
        """

    async def size(self) -> tuple[int, int]:
        """Return how many rows there are, and how many bytes their columns take."""
