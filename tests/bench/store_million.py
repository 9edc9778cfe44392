"""A million rows: pages, filters, single rows and the export, in the process and through HTTP.

Before a question is timed its answer is checked against what was written. Every owner, cursor and
order is drawn anew for each, so that no page is asked for twice.
"""

from __future__ import annotations

import gc
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.bench.load import LoadError, runner
from tests.bench.process import cores
from tests.bench.store_check import Line, quantile
from tests.bench.store_data import EVERYTHING, FILTERS, OWNERS, Captures, Filter, Tally
from tests.bench.store_engines import Engine, Place, opened
from tests.bench.store_http import DEEP, FILTER_MS, LIMIT, LIST_MS, exported, through_http
from tests.bench.store_speed import quiet
from wellspoken.proxy.http.auth import owner_of
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.rows import Position, Query, Row

DEPTHS = (0.0, 0.1, 0.5, 0.9, 0.999)
INSERTED = 2000


def keys() -> list[str]:
    """Return the clients' keys; the first one's owner has half of all rows."""
    return [f"bench-key-{n}-{'k' * 24}" for n in range(OWNERS)]


async def fill(store: CompletionStore, tally: Tally, rows: int) -> float:
    """Write rows through the store, as an import does; return the seconds that the store took."""
    owners, spent = [owner_of(key) for key in keys()], 0.0
    for batch in Captures(owners).batches(rows, INSERTED):
        tally.add(batch)
        began = time.perf_counter()
        await store.insert(batch)
        spent += time.perf_counter() - began
    return spent


def million(engine: Engine, rows: int, samples: int) -> list[Line]:
    """Fill a database with so many rows, and measure what is asked of it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        engine.fresh(Path(folder)) as place,
        runner() as loop,
    ):
        tally = Tally(owner_of(keys()[0]))
        lines = loop.run(_in_process(engine.name, place, tally, rows, samples))
        split, scratch = cores() or (None, None), Path(folder)
        lines += through_http(engine.name, place, tally, keys(), scratch, samples, loop, split)
        lines += exported(engine.name, place, rows - tally.deleted, scratch)
    return lines


async def _in_process(
    engine: str, place: Place, tally: Tally, rows: int, samples: int
) -> list[Line]:
    async with opened(place) as store:
        spent = await fill(store, tally, rows)
        lines = [Line("million", engine, f"rows a second, import of {rows:,}", rows / spent, "")]
        asking = Asking(store, tally, engine, samples)
        gc.collect()
        lines += await asking.pages()
        lines += await asking.filters()
        lines += await asking.depths()
        lines += await asking.single()
        return lines


class Asking:
    """Asks a store, and times it."""

    def __init__(self, store: CompletionStore, tally: Tally, engine: str, samples: int) -> None:
        self.store = store
        self.tally = tally
        self.engine = engine
        self.samples = samples
        self.rng = random.Random(11)

    async def asked(self, queries: Sequence[Query]) -> list[float]:
        """Return the milliseconds that each page takes."""
        spent = []
        with quiet():
            for query in queries:
                began = time.perf_counter()
                await self.store.find(query)
                spent.append((time.perf_counter() - began) * 1e3)
        return spent

    async def done(self, work: Callable[[], Awaitable[object]]) -> list[float]:
        """Return the milliseconds that each of many goes takes."""
        spent = []
        with quiet():
            for _ in range(self.samples):
                began = time.perf_counter()
                await work()
                spent.append((time.perf_counter() - began) * 1e3)
        return spent

    def query(self, wanted: Filter, limit: int = LIMIT, after: Position | None = None) -> Query:
        """Return a question of the owner with most rows, in a drawn order."""
        return Query(
            owner=self.tally.owner,
            limit=limit + 1,  # one more than a page tells whether there is another page
            model=wanted.model,
            metadata=dict(wanted.metadata),
            after=after,
            descending=self.rng.random() < 0.5,
            messages=False,
        )

    async def checked(self, wanted: Filter, after: Position | None = None) -> None:
        """Raise LoadError unless the page is right."""
        query = self.query(wanted, after=after)
        rows = await self.store.find(query)
        verify_page(query, wanted, rows, self.tally.expected(wanted))

    async def spot(self) -> Position:
        """Return the position of a drawn row."""
        found = await self.store.position(self.tally.owner, self.rng.choice(self.tally.ids))
        if found is None:
            raise LoadError("a row that was written has no position")
        return found

    def line(
        self, what: str, spent: list[float], share: float, bound: float | None, base: str = ""
    ) -> Line:
        """Return one quantile."""
        name = f"p{share * 100:g} of {what}"
        value = quantile(spent, share)
        return Line("million", self.engine, name, value, "ms", "<=", bound, False, base)

    async def somewhere(self, wanted: Filter, share: float, limit: int = LIMIT) -> list[Query]:
        """Return questions, `share` of them behind a drawn row, the others from the start."""
        found = []
        for _ in range(self.samples):
            after = await self.spot() if self.rng.random() < share else None
            found.append(self.query(wanted, limit, after))
        return found

    async def pages(self) -> list[Line]:
        """Time pages at drawn places, of 20 and of 100."""
        lines = []
        usual = quantile(await self.done(self._get), 0.5)
        for limit in (LIMIT, 100):
            await self.checked(EVERYTHING)
            spent = await self.asked(await self.somewhere(EVERYTHING, 1.0, limit))
            what = f"a page of {limit} anywhere"
            base = f"x {quantile(spent, 0.5) / usual:.1f} of one row by its id (p50)"
            lines.append(self.line(what, spent, 0.5, None, base))
            lines.append(self.line(what, spent, 0.99, LIST_MS))
        return lines

    async def filters(self) -> list[Line]:
        """Time each filter, half of the pages from the start and half from drawn places."""
        plain = await self.asked(await self.somewhere(EVERYTHING, 0.5))
        usual = quantile(plain, 0.5)
        lines = []
        for wanted in FILTERS:
            await self.checked(wanted)
            await self.checked(wanted, await self.spot())
            spent = await self.asked(await self.somewhere(wanted, 0.5))
            middle = quantile(spent, 0.5)
            base = f"p50 {middle:.2f} ms, x {middle / usual:.1f} of no filter"
            lines.append(self.line(wanted.name, spent, 0.99, FILTER_MS, base))
        return lines

    async def depths(self) -> list[Line]:
        """Time pages at several depths against the first one, all in turn."""
        owner, ids = self.tally.owner, self.tally.ids
        spots: dict[float, Position | None] = {0.0: None}
        for depth in DEPTHS[1:]:
            id = ids[min(len(ids) - 1, int(depth * len(ids)))]
            spots[depth] = await self.store.position(owner, id)
        spent: dict[float, list[float]] = {depth: [] for depth in DEPTHS}
        with quiet():
            for _ in range(self.samples):
                for depth in self.rng.sample(DEPTHS, len(DEPTHS)):
                    query = Query(owner=owner, limit=LIMIT + 1, after=spots[depth], messages=False)
                    began = time.perf_counter()
                    await self.store.find(query)
                    spent[depth].append((time.perf_counter() - began) * 1e3)
        first = quantile(spent[0.0], 0.5)
        return [
            Line(
                "million",
                self.engine,
                f"p50 of a page at {depth:.1%} over the first one's",
                quantile(spent[depth], 0.5) / first,
                "x",
                "<=",
                DEEP,
                False,
                f"the first takes {first:.2f} ms",
            )
            for depth in DEPTHS[1:]
        ]

    async def single(self) -> list[Line]:
        """Time one row read, changed and deleted."""
        works = {"get": self._get, "set_metadata": self._set, "delete": self._delete}
        lines = []
        for name, work in works.items():
            spent = await self.done(work)
            lines.append(self.line(name, spent, 0.5, None))
            lines.append(self.line(name, spent, 0.99, None))
        return lines

    async def _get(self) -> None:
        if await self.store.get(self.tally.owner, self.rng.choice(self.tally.ids)) is None:
            raise LoadError("a row that was written is not there")

    async def _set(self) -> None:
        id = self.rng.choice(self.tally.ids)
        if await self.store.set_metadata(self.tally.owner, id, {"split": "changed"}) is None:
            raise LoadError("a row that was written cannot be changed")

    async def _delete(self) -> None:
        ids = self.tally.ids
        at = self.rng.randrange(len(ids))
        ids[at], ids[-1] = ids[-1], ids[at]
        self.tally.deleted += 1
        if await self.store.delete(self.tally.owner, ids.pop()) is None:
            raise LoadError("a row that was written cannot be deleted")


def verify_page(query: Query, wanted: Filter, rows: list[Row], expected: int) -> None:
    """Raise LoadError unless these are rows that the query asks for, in order and enough of them.

    `expected`: how many there are altogether; a page behind a cursor may have fewer.
    """
    places = [Position(row.created, row.seq) for row in rows]
    right = [
        (all(row.owner == query.owner for row in rows), "a row of another owner"),
        (all(wanted.matches(row) for row in rows), "a row that does not match"),
        (places == sorted(places, reverse=query.descending), "rows out of order"),
        (len(set(places)) == len(places), "a row twice"),
        (len(rows) <= query.limit, "too many rows"),
        (query.after is not None or len(rows) == min(query.limit, expected), "rows missing"),
    ]
    for good, what in right:
        if not good:
            raise LoadError(f"{wanted.name}: {what} ({len(rows)} of {expected}, {query})")
