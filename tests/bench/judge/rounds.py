"""Rounds: every load on every server, one after the other, so that a ratio stays within a round.

The measured server has a core to itself; load and upstream share the other one. What an idle moment
or a neighbour does to the numbers, it does to all of a round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench import load
from tests.bench.data import Source
from tests.bench.judge import servers
from tests.bench.judge.loads import Case, Effort, cases, look, upstream, verify
from tests.bench.measure import Round, median, ratio
from tests.bench.process import Child, cores, cost, pinned

SATURATED = 0.9
"""Share of the time for which a server has work that the load and the upstream do not hold up."""


@dataclass(frozen=True)
class Measured:
    """One load on all servers: each round's numbers, named SERVER.WHAT.

    `size`: bytes of the backend's answer. WHAT: `rate`, units a second; `cpu`, microseconds a unit
    (NaN where the kernel does not tell); `switches`, of context, a unit; `share` of a core that the
    server used, and `rest`, what the load and the upstream did of theirs; `busy`, the share of the
    time in which it had work: it used its core, or waited for what else ran there.
    """

    name: str
    title: str
    unit: str
    paced: bool
    size: int
    servers: list[str]
    rounds: list[Round]

    def median(self, server: str, what: str) -> float:
        """Return the median of one number."""
        return median(self.rounds, f"{server}.{what}")

    def over(self, server: str, other: str = "bare", what: str = "cpu") -> float:
        """Return the median of one server's number over another's in the same round."""
        return ratio(self.rounds, f"{server}.{what}", f"{other}.{what}")

    def is_bound(self, server: str) -> bool:
        """Return whether the server was what set the pace: it always had work."""
        return not self.paced and not self.median(server, "busy") < SATURATED


@dataclass(frozen=True)
class Compared:
    """All loads, the versions of what was compared, and why a server is missing."""

    loads: list[Measured]
    versions: dict[str, str]
    missing: dict[str, str]


@dataclass(frozen=True)
class Side:
    """A server and a load for it, whose answer was looked at."""

    name: str
    server: Child
    job: load.Job


def compare(
    source: Source,
    effort: Effort,
    peers: bool = False,
    only: list[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Compared:
    """Return every load's numbers; `only`: these alone.

    Raises WrongAnswer, LoadError, StartError.
    """
    found = [each for each in cases(source, effort) if not only or each.name in only]
    split = cores()
    alone, rest = split if split else (None, None)
    with (
        upstream(found, rest) as backend,
        servers.serving(backend.url, alone, peers) as (running, missing),
        pinned(rest),
        load.runner() as loop,
    ):
        sides = {each.name: loop.run(_check(each, running, missing)) for each in found}
        loop.run(_settle(found, running["ours"].url, backend.url))
        _round(loop, backend, found, sides, effort.seconds / 4)  # warms up
        rounds = []
        for n in range(effort.rounds):
            tell(f"round {n + 1} of {effort.rounds}")
            rounds.append(_round(loop, backend, found, sides, effort.seconds))
            sides = {name: each[1:] + each[:1] for name, each in sides.items()}
    measured = [
        _measured(each, [one.name for one in sides[each.name]], [one[n] for one in rounds])
        for n, each in enumerate(found)
    ]
    return Compared(measured, servers.versions(list(running)), missing)


async def _check(each: Case, running: dict[str, Child], missing: dict[str, str]) -> list[Side]:
    """Return who is asked for this load, after each has answered it once."""
    found = []
    for name, server in running.items():
        if name in servers.FIRST:
            job = await (verify if name == "ours" else look)(each, server.url)
        else:
            try:
                job = await look(each, server.url)
            except (load.LoadError, TimeoutError, OSError) as error:
                missing[f"{name}, {each.name}"] = str(error) or type(error).__name__
                continue
        found.append(Side(name, server, job))
    if each.untouched:
        job = await look(each, running["ours"].url, each.asked_untouched())
        found.append(Side("untouched", running["ours"], job))
    return found


async def _settle(found: list[Case], url: str, backend: str) -> None:
    """Let the proxy have found out that the upstream keeps connections, after either kind."""
    kinds = {each.kind == "json": each for each in found}
    for each in kinds.values():
        client = await load.connect(url, load.Client)
        await load.settle(client, url, each.job, backend)
        client.close()


def _round(
    loop: asyncio.Runner,
    backend: Child,
    found: list[Case],
    sides: dict[str, list[Side]],
    seconds: float,
) -> list[Round]:
    """Put every load on each server; return the numbers of each load."""
    numbers: list[Round] = []
    for each in found:
        one: Round = {}
        for side in sides[each.name]:
            before = _costs(side.server, backend)
            done = loop.run(load.run(side.server.url, side.job, seconds))
            after = _costs(side.server, backend)
            used, rest, switches, waited = (b - a for a, b in zip(before, after, strict=True))
            count = done.answers * each.units
            one[f"{side.name}.rate"] = count / done.seconds
            one[f"{side.name}.cpu"] = used / count * 1e6
            one[f"{side.name}.switches"] = max(switches, 0) / count  # threads may have ended
            one[f"{side.name}.share"] = used / done.seconds
            one[f"{side.name}.rest"] = rest / done.seconds
            one[f"{side.name}.busy"] = (used + waited) / done.seconds
        numbers.append(one)
    return numbers


def _costs(server: Child, backend: Child) -> tuple[float, float, float, float]:
    """Return CPU seconds of the server, of load and upstream; the server's switches, and waits."""
    spent = cost(server.pid)
    rest = time.process_time() + cost(backend.pid).cpu
    return spent.cpu, rest, spent.switches, spent.waited


def _measured(each: Case, names: list[str], rounds: list[Round]) -> Measured:
    paced = each.job.once
    unit = "request" if each.kind == "json" else "event"
    order = [name for name in (*servers.FIRST, "untouched", "nginx") if name in names]
    order += [name for name in names if name not in order]
    return Measured(each.name, each.title, unit, paced, len(each.data()), order, rounds)
