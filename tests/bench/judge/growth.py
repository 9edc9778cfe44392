"""How time and memory grow with what is asked of one process: four sizes, each taken alone.

tokens        a body of so many tokens with five alternatives, one at a time
alternatives  streams of so many alternatives a token, sent at once, 16 connections
streams       so many streams with five alternatives at once, an event of each every 200 ms
connections   so many connections which ask for a small body again and again

Every size but the one in question stays as it is; each has a process of its own, whose memory is
that of all points so far: what a process once had it rarely gives back.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.bench import load
from tests.bench.data import Source
from tests.bench.judge import servers
from tests.bench.judge.loads import Case, case, upstream, verify
from tests.bench.measure import Round, median
from tests.bench.process import Child, cores, cost, forget_peak, memory, pinned, run

EVENTS = 25  # of a slow stream: five seconds
MANY = {"WELLSPOKEN_LIMITS_INFLIGHT": "10000"}  # the default is 1,000


@dataclass(frozen=True)
class Sizes:
    """What is measured: the sizes in ascending order, seconds of load a point, rounds."""

    tokens: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    alternatives: tuple[int, ...] = (0, 1, 2, 5, 10, 20)
    streams: tuple[int, ...] = (1, 10, 100, 1_000, 2_000)
    connections: tuple[int, ...] = (1, 10, 100, 1_000, 2_000)
    seconds: float = 1.0
    rounds: int = 3
    events: int = EVENTS


FULL = Sizes()
QUICK = Sizes((100, 1000), (0, 5, 20), (1, 10), (1, 10), seconds=0.2, rounds=1, events=3)


@dataclass(frozen=True)
class Point:
    """One size: CPU microseconds for each `unit`, and MB that were resident at most."""

    axis: str
    size: int
    unit: str
    cpu: float
    peak: float


@dataclass(frozen=True)
class Axis:
    """One size that grows: for each of its values the load, and units in one answer to it."""

    name: str
    unit: str
    loads: list[tuple[int, Case, int]]


def measure(
    source: Source, sizes: Sizes, tell: Callable[[str], None] = lambda _: None
) -> list[Point]:
    """Return all points. Raises WrongAnswer, LoadError, StartError."""
    _open_many()
    axes = _axes(source, sizes)
    split = cores()
    alone, rest = split if split else (None, None)
    found: list[Point] = []
    named = {each.name: each for axis in axes for _, each, _ in axis.loads}
    with upstream(named.values(), rest) as backend, pinned(rest), load.runner() as loop:
        for axis in axes:
            tell(axis.name)
            with run(servers.ours(backend.url, **MANY), alone) as ours:
                found += _grow(loop, axis, ours, backend.url, sizes)
    return found


def _axes(source: Source, sizes: Sizes) -> list[Axis]:
    small = case("small", "", source.answer(20, 0), "json")
    slow = case("slow", "", source.answer(sizes.events, 5), "slow")
    bodies = [case(f"t{n}", "", source.answer(n, 5), "json", 1) for n in sizes.tokens]
    bursts = [case(f"k{k}", "", source.answer(400, k), "sse") for k in sizes.alternatives]
    return [
        Axis("tokens", "token", _of(sizes.tokens, bodies)),
        Axis("alternatives", "event", _of(sizes.alternatives, bursts)),
        Axis("streams", "event", [(n, _many(slow, n), slow.units) for n in sizes.streams]),
        Axis("connections", "request", [(n, _many(small, n), 1) for n in sizes.connections]),
    ]


def _of(sizes: tuple[int, ...], loads: list[Case]) -> list[tuple[int, Case, int]]:
    return [(n, each, len(each.answer.positions)) for n, each in zip(sizes, loads, strict=True)]


def _many(each: Case, connections: int) -> Case:
    return replace(each, job=replace(each.job, connections=connections))


def _grow(loop: asyncio.Runner, axis: Axis, ours: Child, backend: str, sizes: Sizes) -> list[Point]:
    """Return the points of one axis."""
    found = []
    for n, (size, each, units) in enumerate(axis.loads):
        job = loop.run(verify(each, ours.url))
        if n == 0 and not job.once:
            loop.run(_settle(ours.url, job, backend))
        forget_peak(ours.pid)
        rounds = [_take(loop, ours, job, units, sizes.seconds) for _ in range(sizes.rounds)]
        cpu = median(rounds, "cpu")
        found.append(Point(axis.name, size, axis.unit, cpu, memory(ours.pid).peak))
    return found


async def _settle(url: str, job: load.Job, backend: str) -> None:
    client = await load.connect(url, load.Client)
    await load.settle(client, url, job, backend)
    client.close()


def _take(loop: asyncio.Runner, ours: Child, job: load.Job, units: int, seconds: float) -> Round:
    before = cost(ours.pid).cpu
    done = loop.run(load.run(ours.url, job, seconds))
    return {"cpu": (cost(ours.pid).cpu - before) / done.answers / units * 1e6}


def _open_many() -> None:
    """Let this process and those that it starts have as many connections as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
