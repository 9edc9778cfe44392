"""What survives: SIGTERM under load, kill -9 at random points, PostgreSQL away for a minute.

The proxy runs as a process of its own. What its clients were given whole is acknowledged; what is
there afterwards is read from the database without the proxy's code, and compared.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.load import LoadError, connected, runner
from tests.bench.process import cores, pinned
from tests.bench.store_check import (
    Ack,
    Line,
    Stored,
    compare,
    correctness,
    oldest_lost,
    quantile,
    some,
)
from tests.bench.store_engines import Engine, Place
from tests.bench.store_load import Load, Upstream, upstream
from tests.bench.store_proxy import Proxy, configured, proxy
from tests.waiting import SECONDS

WINDOW = 50.0
"""Milliseconds of acknowledged answers that `async` durability may lose to a kill."""
CONNECTIONS = 8
KILLED_WITHIN = 0.6
"""Seconds of load at most before the kill."""


async def asked(url: str, path: bytes) -> str:
    """Return "" for an answer with status 200, else the answer."""
    (client,) = await connected(url, 1)
    ask = b"GET %b HTTP/1.1\r\nHost: %b\r\n\r\n" % (path, url.partition("//")[2].encode())
    answer = await asyncio.wait_for(client.ask(ask), 60)
    assert client.transport is not None
    client.transport.close()
    return "" if answer.startswith(b"HTTP/1.1 200") else answer.decode("utf-8", "replace")


async def ready(url: str, path: bytes = b"/readyz", seconds: float = SECONDS) -> None:
    """Wait until that is answered with status 200. Raises LoadError with what it says instead."""
    until = time.monotonic() + seconds
    while reason := await asked(url, path):
        if time.monotonic() > until:
            raise LoadError(f"{path.decode()}: {reason[-500:]}")
        await asyncio.sleep(0.05)


async def settled(url: str) -> None:
    """Wait until the store is open and has all that an earlier process left behind."""
    await ready(url, b"/v1/chat/completions?limit=1")


def sigterm(engine: Engine, answers: int) -> list[Line]:
    """Store so many answers, then end the proxy by SIGTERM while more are asked for."""
    lines: list[Line] = []
    alone, rest = cores() or (None, None)
    for durability in ("async", "commit"):
        with (
            tempfile.TemporaryDirectory() as folder,
            engine.fresh(Path(folder)) as place,
            upstream(rest) as backend,
            proxy(_config(Path(folder), backend, place, durability), alone) as running,
            pinned(rest),
            runner() as loop,
        ):
            lines += loop.run(_sigterm(engine.name, place, backend, running, durability, answers))
    return lines


async def _sigterm(
    engine: str, place: Place, backend: Upstream, running: Proxy, durability: str, answers: int
) -> list[Line]:
    await ready(running.url)
    load = Load(running.url, backend.kinds(running.url), CONNECTIONS)
    await load.start()
    await load.until(answers, 60 + answers / 50)
    at = asyncio.get_running_loop().time()
    running.terminate()
    code = await running.ended()
    await load.ended()
    acks = load.ledger.acks
    recent = sum(ack.at > at - 0.02 for ack in acks.values())
    found = compare(acks, await place.stored())
    trouble = [*load.ledger.errors, *load.ledger.warnings]
    tell(trouble, running)
    return [
        some("sigterm", engine, f"acknowledged, {durability}", len(acks)),
        *correctness("sigterm", engine, found, durability),
        Line("sigterm", engine, f"exit code, {durability}", code, "", "==", 0, True),
        Line(
            "sigterm",
            engine,
            f"answers that failed or were not stored, {durability}",
            len(trouble),
            "",
            "==",
            0,
            True,
            f"{recent} answered in the last 20 ms",
        ),
    ]


def tell(trouble: list[str], running: Proxy) -> None:
    """Print the first of what went wrong, and the end of the proxy's log."""
    if trouble:
        print(f"  the first of {len(trouble)}: {trouble[0]}\n{running.log[-1500:]}", flush=True)


def _config(folder: Path, backend: Upstream, place: Place, durability: str) -> Path:
    return configured(folder, backend.url, place.table | {"durability": durability})


@dataclass
class Kills:
    """What the kills of one durability did."""

    durability: str
    acknowledged: int = 0
    recent: int = 0
    lost: int = 0
    runs_with_loss: int = 0
    doubled: int = 0
    altered: int = 0
    window: float = 0.0
    unsound: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def add(self, acks: dict[str, Ack], stored: list[Stored], killed: float) -> None:
        """Judge one kill."""
        found = compare(acks, stored)
        self.acknowledged += found.acknowledged
        self.recent += sum(ack.at > killed - WINDOW / 1e3 for ack in acks.values())
        self.lost += len(found.lost)
        self.runs_with_loss += bool(found.lost)
        self.doubled += len(found.doubled)
        self.altered += len(found.altered)
        self.window = max(self.window, oldest_lost(acks, found.lost, killed))

    def lines(self, engine: str, kills: int) -> list[Line]:
        """Return what is told of them."""
        of = f"{kills} kills, {self.durability}"
        told = f"{self.recent} answered in the last {WINDOW:.0f} ms of {self.acknowledged:,}"
        hard = self.durability == "commit"
        lost = "lost" if hard else f"lost in {self.runs_with_loss} of the runs"
        lines = [
            some("kill", engine, f"acknowledged, {of}", self.acknowledged),
            Line("kill", engine, f"{lost}, {of}", self.lost, "rows", "==", *_bound(hard), told),
        ]
        if not hard:
            oldest = "oldest that was lost, before the kill"
            lines.append(
                Line("kill", engine, f"{oldest}, {of}", self.window, "ms", "<=", WINDOW, True)
            )
        counts = {"doubled": self.doubled, "altered": self.altered}
        counts["opens that were not clean"] = len(self.unsound)
        counts["answers that failed or were not stored"] = len(self.trouble)
        for what, count in counts.items():
            lines.append(Line("kill", engine, f"{what}, {of}", count, "", "==", 0, True))
        return lines


def _bound(hard: bool) -> tuple[float | None, bool]:
    return (0, True) if hard else (None, False)


def kill(engine: Engine, kills: int, seed: int = 7) -> list[Line]:
    """Kill the proxy at random points of a load, half of the times in each durability."""
    lines: list[Line] = []
    for durability, count in (("async", kills - kills // 2), ("commit", kills // 2)):
        if count:
            lines += _killed(engine, durability, count, random.Random(seed)).lines(
                engine.name, count
            )
    return lines


def _killed(engine: Engine, durability: str, kills: int, rng: random.Random) -> Kills:
    """Kill again and again on one database, which only proxies open in between."""
    found = Kills(durability)
    alone, rest = cores() or (None, None)
    with (
        tempfile.TemporaryDirectory() as folder,
        engine.fresh(Path(folder)) as place,
        upstream(rest) as backend,
        pinned(rest),
        runner() as loop,
    ):
        config = _config(Path(folder), backend, place, durability)
        killed: list[tuple[dict[str, Ack], float]] = []
        for n in range(kills + 1):
            with proxy(config, alone) as running:
                loop.run(ready(running.url))
                if n % 2 == 0 or n == kills:
                    # Judged while this proxy has the database open: it had to recover it. Before
                    # every other load it is left alone, which then meets a store that has to open.
                    loop.run(_judged(place, running, killed, found))
                    killed = []
                if n < kills:
                    delay = rng.uniform(0.0, KILLED_WITHIN)
                    killed.append(loop.run(_one_kill(backend, running, delay, found)))
    if found.trouble or found.unsound:
        print(f"  the first: {[*found.trouble, *found.unsound][0]}", flush=True)
    return found


async def _judged(
    place: Place, running: Proxy, killed: list[tuple[dict[str, Ack], float]], found: Kills
) -> None:
    await settled(running.url)
    if problem := await place.unsound():
        found.unsound.append(problem)
    stored = await place.added()
    for acks, at in killed:
        found.add(acks, stored, at)


async def _one_kill(
    backend: Upstream, running: Proxy, delay: float, found: Kills
) -> tuple[dict[str, Ack], float]:
    load = Load(running.url, backend.kinds(running.url), CONNECTIONS)
    await load.start()
    await load.until(1, 30)
    await asyncio.sleep(delay)
    killed = asyncio.get_running_loop().time()
    running.kill()
    await running.ended()
    await load.ended()
    found.trouble += [*load.ledger.errors, *load.ledger.warnings]
    return load.ledger.acks, killed


def outage(engine: Engine, seconds: float, rate: float = 100.0) -> list[Line]:
    """Take the database away under load, bring it back, and look what is there."""
    alone, rest = cores() or (None, None)
    lines: list[Line] = []
    for durability in ("async", "commit"):
        with (
            tempfile.TemporaryDirectory() as folder,
            engine.fresh(Path(folder)) as place,
            upstream(rest) as backend,
            runner() as loop,
        ):
            config = _config(Path(folder), backend, place, durability)
            with proxy(config, alone) as running, pinned(rest):
                told = _outage(engine, place, backend, running, durability, seconds, rate)
                lines += loop.run(told)
    return lines


async def _outage(
    engine: Engine,
    place: Place,
    backend: Upstream,
    running: Proxy,
    durability: str,
    seconds: float,
    rate: float,
) -> list[Line]:
    await ready(running.url)
    loop = asyncio.get_running_loop()
    load = Load(running.url, backend.kinds(running.url), CONNECTIONS, rate)
    await load.start()
    before = min(5.0, seconds)
    await asyncio.sleep(before)
    await load.until(1, 60)
    gone = loop.time()
    await asyncio.to_thread(engine.stop)
    try:
        answered = len(load.ledger.acks)
        await asyncio.sleep(seconds)
        await load.until(answered + 2 * CONNECTIONS, 60)  # so many were asked for without it
        refused = await asked(running.url, b"/readyz")
    finally:
        await asyncio.to_thread(engine.start)
    back = loop.time()
    replay = asyncio.create_task(_replayed(place, len(load.ledger.acks), back, 60 + seconds))
    await asyncio.sleep(before)
    await load.stop()
    taken = await replay
    acks = load.ledger.acks
    await _replayed(place, len(acks), loop.time(), 60)
    stored = await place.stored()
    found = compare(acks, stored)
    trouble = [*load.ledger.errors, *load.ledger.warnings]
    if load.broken:
        trouble.append(f"{load.broken} connections broke")
    tell(trouble, running)
    within = [spent for at, spent in load.times if gone <= at < back]
    usual = quantile([spent for at, spent in load.times if at < gone], 0.99)
    what, name = f"{durability}, down {seconds:.0f} s", engine.name
    during = sum(gone <= ack.at < back for ack in acks.values())
    slow = quantile(within, 0.99)
    compared = f"{slow / usual:.1f} x the p99 before"
    return [
        some("outage", name, f"acknowledged while away, {what}", during),
        Line("outage", name, f"errors of clients, {what}", len(trouble), "", "==", 0, True),
        *correctness("outage", name, found, what),
        Line("outage", name, f"not ready while away, {what}", bool(refused), "", "==", 0, True),
        Line("outage", name, f"until all is replayed, {what}", taken, "s"),
        Line(
            "outage", name, f"p99 of answers meanwhile, {what}", slow * 1e3, "ms", baseline=compared
        ),
    ]


async def _replayed(place: Place, rows: int, since: float, seconds: float) -> float:
    """Return the seconds since `since` until so many rows are there, or until it gives up."""
    loop = asyncio.get_running_loop()
    while True:
        count = await place.count()
        taken = loop.time() - since
        if count >= rows or taken > seconds:
            return taken
        await asyncio.sleep(0.05)
