"""What `store: true` adds to a request, and how many rows a second the store takes.

Latency: one request at a time, on one connection to each of two proxies that share a core (one with
a store, one without), while client and backend share the other. Each round asks three times, in
drawn order: the proxy without a store, the other without `store`, the other with it. So what the
machine does to one it does to all three, and what the writer's thread does to requests that store
nothing is seen as well. No target is compared with anything but the p99 of the same run.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
from msgspec import json

from tests.bench.load import Client, LoadError, connected, runner
from tests.bench.measure import Round, median, ratio
from tests.bench.process import cores, cost, pinned
from tests.bench.store_check import Ledger, Line, quantile
from tests.bench.store_data import Captures
from tests.bench.store_engines import Engine, Place, PostgresPlace, SqlitePlace, opened
from tests.bench.store_load import Kind, Upstream, note, upstream
from tests.bench.store_loss import ready
from tests.bench.store_proxy import Proxy, configured, proxy
from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.rows import Capture, Row, row_of

ADDED = 300.0
"""Microseconds that storing may add to the p99 of a request."""
ROWS = 5000.0
"""Rows of 4 kB a second that the store takes at least."""
BATCH = 256
PAUSE = 0.002
BLOCKS = 10
CPU_ROUNDS = 7
COMMITTING = 256
"""How many wait for their commit at a time."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the collector out of what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def latency(engine: Engine, rounds: int) -> list[Line]:
    """Return what `store: true` adds to a request, seen by its client and within the process."""
    lines: list[Line] = []
    alone, rest = cores() or (None, None)
    for durability in ("async", "commit"):
        with (
            tempfile.TemporaryDirectory() as folder,
            engine.fresh(Path(folder)) as place,
            upstream(rest) as backend,
            proxy(configured(Path(folder), backend.url, {}), alone) as bare,
            proxy(_config(Path(folder), backend, place, durability), alone) as storing,
            pinned(rest),
            runner() as loop,
        ):
            count = rounds if durability == "async" else max(1, rounds // 5)
            times = loop.run(_interleaved(backend, bare.url, storing.url, count))
            lines += _added(engine.name, times, durability)
            lines.append(
                loop.run(_processor(engine.name, backend, bare, storing, durability, rounds))
            )
    return lines + _kept(engine, rounds)


def _config(folder: Path, backend: Upstream, place: Place, durability: str) -> Path:
    return configured(folder, backend.url, place.table | {"durability": durability})


Times = dict[str, list[float]]
"""Microseconds of each request, by arm."""


async def _interleaved(backend: Upstream, bare: str, storing: str, rounds: int) -> Times:
    await asyncio.gather(ready(bare), ready(storing))
    arms: dict[str, tuple[Client, Kind]] = {}
    for name, url, store in (
        ("bare", bare, False),
        ("plain", storing, False),
        ("stored", storing, True),
    ):
        (client,) = await connected(url, 1)
        arms[name] = (client, backend.kind(url, "body", store=store))
    ledger, rng = Ledger(), random.Random(7)
    times: Times = {name: [] for name in arms}
    order = list(arms)
    with quiet():
        for n in range(-rounds // 10, rounds):
            rng.shuffle(order)
            for name in order:
                await asyncio.sleep(rng.uniform(0, PAUSE))
                client, kind = arms[name]
                began = time.perf_counter()
                answer = await client.ask(kind.data)
                spent = time.perf_counter() - began
                note(ledger, kind, answer, 0.0)
                if n >= 0:
                    times[name].append(spent * 1e6)
    for client, _ in arms.values():
        assert client.transport is not None
        client.transport.close()
    if wrong := [*ledger.errors, *ledger.warnings]:
        raise LoadError(f"{len(wrong)} answers failed or were not stored: {wrong[0]}")
    return times


def _added(engine: str, times: Times, durability: str) -> list[Line]:
    """Return the lines of one durability; only `async` has a target."""
    lines = []
    for share in (0.5, 0.99):
        of = {name: quantile(values, share) for name, values in times.items()}
        added = of["stored"] - of["bare"]
        between = f"{of['stored']:,.0f} us over {of['bare']:,.0f} us with no store configured"
        also = f"x {of['stored'] / of['bare']:.2f}; {of['plain']:,.0f} us where nothing is stored"
        bound = ADDED if durability == "async" else None
        what = f"added to p{share * 100:.0f} of a request, {durability}"
        lines.append(
            Line("latency", engine, what, added, "us", "<=", bound, False, f"{between}, {also}")
        )
    spread = _spread(times)
    what = f"added to p99, median of {BLOCKS} parts of the run, {durability}"
    told = f"{min(spread):,.0f} to {max(spread):,.0f} us"
    lines.append(Line("latency", engine, what, statistics.median(spread), "us", baseline=told))
    return lines


async def _processor(
    engine: str, backend: Upstream, bare: Proxy, storing: Proxy, durability: str, count: int
) -> Line:
    """Return the CPU time that storing adds to a request, the writer's threads included."""
    ledger, requests = Ledger(), max(1, count // 50)
    sides = []
    for running, store in ((bare, False), (storing, True)):
        (client,) = await connected(running.url, 1)
        sides.append((running.pid, client, backend.kind(running.url, "body", store=store)))
    rounds: list[Round] = []
    for _ in range(CPU_ROUNDS):
        spent: Round = {}
        for name, (pid, client, kind) in zip(("bare", "stored"), sides, strict=True):
            before = cost(pid)
            for _ in range(requests):
                note(ledger, kind, await client.ask(kind.data), 0.0)
            await asyncio.sleep(0.1)  # the last of them are written
            spent[name] = (cost(pid).cpu - before.cpu) / requests * 1e6
        rounds.append(spent)
    for _, client, _ in sides:
        assert client.transport is not None
        client.transport.close()
    base = median(rounds, "bare")
    told = f"x {ratio(rounds, 'stored', 'bare'):.2f} of {base:,.0f} us"
    what = f"CPU time added to a request, {durability}"
    return Line("latency", engine, what, median(rounds, "stored") - base, "us", baseline=told)


def _spread(times: Times) -> list[float]:
    """Return how much the p99 differs in each part of the run."""
    count = len(times["bare"])
    size = max(1, count // BLOCKS)
    return [
        quantile(times["stored"][at : at + size], 0.99)
        - quantile(times["bare"][at : at + size], 0.99)
        for at in range(0, count - size + 1, size)
    ]


def _kept(engine: Engine, rounds: int) -> list[Line]:
    """Return how long `CompletionStore.add` keeps its caller, captures coming as requests do."""
    with (
        tempfile.TemporaryDirectory() as folder,
        engine.fresh(Path(folder)) as place,
        runner() as loop,
    ):
        nothing, spent = loop.run(_adds(place, rounds))
    base = quantile(nothing, 0.99)
    return [
        Line(
            "latency",
            engine.name,
            f"p{share * 100:.0f} of CompletionStore.add in the process, async",
            quantile(spent, share),
            "us",
            "<=",
            ADDED,
            False,
            f"{base:.1f} us is the p99 of a coroutine that does nothing",
        )
        for share in (0.5, 0.99)
    ]


async def _adds(place: Place, rounds: int) -> tuple[list[float], list[float]]:
    captures = Captures([""]).some(rounds)
    nothing, spent = [], []
    rng = random.Random(7)
    async with opened(place) as store:
        with quiet():
            for capture in captures:
                await asyncio.sleep(rng.uniform(0, PAUSE))
                nothing.append(await _timed(_nothing(capture)))
                spent.append(await _timed(_add(store, capture)))
    return nothing, spent


async def _timed(work: Coroutine[Any, Any, str]) -> float:
    began = time.perf_counter()
    problem = await work
    spent = time.perf_counter() - began
    if problem:
        raise LoadError(f"not stored: {problem}")
    return spent * 1e6


async def _add(store: CompletionStore, capture: Capture) -> str:
    return await store.add(capture)


async def _nothing(_: Capture) -> str:
    return ""


def rate(engine: Engine, rows: int) -> list[Line]:
    """Return how many rows a second `CompletionStore.add` takes until all are committed."""
    captures = Captures([""]).some(rows)
    sizes = statistics.fmean(len(each.answer) for each in captures)
    lines = []
    with tempfile.TemporaryDirectory() as folder, runner() as loop:
        for durability, adders in (("async", 1), ("commit", COMMITTING)):
            name = f"{durability}-{adders}"
            (Path(folder) / name).mkdir()
            with engine.fresh(Path(folder) / name) as place:
                spent = loop.run(_taken(place, captures, durability, adders))
                bare = _bare(place, [row_of(each) for each in captures], loop)
            speed, base = rows / spent, rows / bare
            also = f"x {speed / base:.2f} of {base:,.0f} by a bare executemany, {BATCH} a commit"
            what = f"rows of {sizes / 1000:.1f} kB a second, {durability}, {adders} at a time"
            lines.append(Line("rate", engine.name, what, speed, "", ">=", ROWS, False, also))
    return lines


async def _taken(place: Place, captures: Sequence[Capture], durability: str, adders: int) -> float:
    """Return the seconds until all captures are committed."""
    async with opened(place, durability=durability) as store:
        waiting = iter(captures)

        async def add() -> None:
            for capture in waiting:
                if problem := await store.add(capture):
                    raise LoadError(f"not stored: {problem}")

        began = time.perf_counter()
        await asyncio.gather(*(add() for _ in range(adders)))
        last = row_of(captures[-1])
        found = await store.get(last.owner, last.id)  # waits for what was added before
        spent = time.perf_counter() - began
        if found is None or found.answer != last.answer:
            raise LoadError("the last row is not there as it was added")
    if await place.count() != len(captures):
        raise LoadError(f"{await place.count()} rows are there of {len(captures)}")
    return spent


_TABLE = """CREATE TABLE bare (seq {serial}, owner TEXT, id TEXT, created BIGINT, model TEXT,
    request_id TEXT, metadata TEXT, answer {blob}, parameters {blob}, messages {blob},
    UNIQUE (owner, id))"""
_COLUMNS = "owner, id, created, model, request_id, metadata, answer, parameters, messages"


def _bare(place: Place, rows: Sequence[Row], loop: asyncio.Runner) -> float:
    """Return the seconds that the same rows take without the store, unpacked and unmarked."""
    values: list[tuple[object, ...]] = [
        (
            row.owner,
            row.id,
            row.created,
            row.model,
            row.request_id,
            json.encode(row.metadata).decode(),
            row.answer,
            row.parameters,
            row.messages,
        )
        for row in rows
    ]
    batches = [values[at : at + BATCH] for at in range(0, len(values), BATCH)]
    if isinstance(place, PostgresPlace):
        return loop.run(_bare_postgres(place.url, batches))
    assert isinstance(place, SqlitePlace)
    return _bare_sqlite(place.path.with_name("bare.db"), batches)


def _bare_sqlite(path: Path, batches: list[list[tuple[object, ...]]]) -> float:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(_TABLE.format(serial="INTEGER PRIMARY KEY", blob="BLOB"))
        began = time.perf_counter()
        for batch in batches:
            db.execute("BEGIN IMMEDIATE")
            db.executemany(f"INSERT INTO bare ({_COLUMNS}) VALUES (?{', ?' * 8})", batch)
            db.execute("COMMIT")
        return time.perf_counter() - began


async def _bare_postgres(url: str, batches: list[list[tuple[object, ...]]]) -> float:
    db = await asyncpg.connect(url)
    try:
        await db.execute(_TABLE.format(serial="BIGSERIAL PRIMARY KEY", blob="BYTEA"))
        marks = ", ".join(f"${n}" for n in range(1, 10))
        began = time.perf_counter()
        for batch in batches:
            await db.executemany(f"INSERT INTO bare ({_COLUMNS}) VALUES ({marks})", batch)
        return time.perf_counter() - began
    finally:
        await db.close()
