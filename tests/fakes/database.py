"""A database in memory that fails, hangs and refuses when it is told to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.store.rows import Capture, Position, Query, Row


class Memory:
    """A `Database` whose rows are a dict.

    `failure`: raised by everything while it is set. `after`: raised by inserts that were done.
    `refuses`: says of a row what is raised for it alone. `gate`: inserts wait until it is set.
    `batches`: the ids of each insert that was done, in order.
    """

    name = "memory"

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], Row] = {}
        self.batches: list[list[str]] = []
        self.attempts = 0
        self.doubled = 0
        self.failure: BaseException | None = None
        self.after: StoreError | None = None
        self.refuses: Callable[[Row], Exception | None] = lambda row: None
        self.gate = asyncio.Event()
        self.gate.set()
        self.opened = self.closed = 0

    @property
    def ids(self) -> list[str]:
        """The ids of all rows, in the order in which they came."""
        return [id for _, id in self.rows]

    async def open(self) -> None:
        self._fail()
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def insert(self, rows: Sequence[Row]) -> None:
        self.attempts += 1
        await self.gate.wait()
        self._fail()
        for row in rows:
            problem = self.refuses(row)
            if problem is not None:
                raise problem
        for row in rows:
            self.doubled += (row.owner, row.id) in self.rows
            self.rows.setdefault((row.owner, row.id), row)
        self.batches.append([row.id for row in rows])
        if self.after is not None:
            raise self.after

    async def get(self, owner: str, id: str) -> Row | None:
        self._fail()
        return self.rows.get((owner, id))

    async def position(self, owner: str, id: str) -> Position | None:
        row = await self.get(owner, id)
        return None if row is None else Position(row.created, row.seq)

    async def find(self, query: Query) -> list[Row]:
        self._fail()
        found = [row for row in self.rows.values() if query.owner in (None, row.owner)]
        return found[: query.limit]

    async def set_metadata(self, owner: str, id: str, metadata: dict[str, str]) -> Row | None:
        row = await self.get(owner, id)
        if row is not None:
            row.metadata = metadata
        return row

    async def delete(self, owner: str, id: str) -> Row | None:
        self._fail()
        return self.rows.pop((owner, id), None)

    async def prune(self, *, before: int | None, over: int | None, limit: int) -> list[Row]:
        self._fail()
        return []

    async def size(self) -> tuple[int, int]:
        self._fail()
        return len(self.rows), 0

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure


def capture(number: int, owner: str = "", size: int = 0, created: int = 1_700_000_000) -> Capture:
    """Return a capture whose row has the id `c<number>`, and about `size` bytes of text."""
    answer = {"id": f"c{number}", "created": created, "model": "m", "text": "x" * size}
    request = {"model": "m", "messages": [], "metadata": {"n": str(number)}, "store": True}
    return Capture(
        owner, f"req_{number}", json.dumps(answer).encode(), json.dumps(request).encode()
    )


def row(number: int, owner: str = "", size: int = 0) -> Row:
    """Return the row of `capture(number)`, unpacked."""
    answer = b'{"id":"c%d","text":"%b"}' % (number, b"x" * size)
    return Row(f"c{number}", owner, 1_700_000_000, "m", f"req_{number}", {}, answer, b"{}", b"[]")
