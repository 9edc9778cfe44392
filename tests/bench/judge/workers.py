"""What a second worker is worth, on two cores which the load and the upstream need a part of.

One worker has a core, and the load and the upstream the other one. Two workers have both cores, and
the load and the upstream take their share of the same (`used`), so that the plain ratio of the
rates (`plain`) cannot be two. `worth` is that ratio as it were with the load elsewhere: of the
answers for a CPU second of the workers, times the share of the time in which they had work, whether
they got a core for it or waited. A worker that idles lowers it, and so does one that hinders the
other.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.bench import load
from tests.bench.judge import servers
from tests.bench.judge.loads import Case, Effort, verify
from tests.bench.measure import Round, median
from tests.bench.process import Child, cores, cost, pinned, run


@dataclass(frozen=True)
class Scaling:
    """Two workers over one; the cores which load and upstream used beside two."""

    worth: float
    plain: float
    used: float


def measure(loop: asyncio.Runner, each: Case, backend: Child, effort: Effort) -> Scaling:
    """Return what a second worker is worth. Raises WrongAnswer, LoadError, StartError."""
    split = cores()
    alone = split[0] if split else None
    both = alone | split[1] if split and alone else None
    with (
        run(servers.ours(backend.url), alone) as one,
        run(servers.ours(backend.url, "--workers", "2"), both) as two,
    ):
        job = loop.run(verify(each, one.url))
        loop.run(verify(each, two.url))
        rounds = []
        for n in range(effort.rounds + 1):
            alike = _take(loop, one, job, effort.seconds, backend)
            with pinned(both):
                pair = _take(loop, two, job, effort.seconds, backend)
            if n:  # the first one warms up
                rounds.append(_compare(alike, pair))
    return Scaling(*(median(rounds, name) for name in ("worth", "plain", "used")))


def _compare(one: Round, two: Round) -> Round:
    ratio = {name: two[name] / one[name] for name in ("rate", "answers", "busy")}
    worth = ratio["answers"] * ratio["busy"]
    return {"worth": worth, "plain": ratio["rate"], "used": two["used"]}


def _take(
    loop: asyncio.Runner, server: Child, job: load.Job, seconds: float, backend: Child
) -> Round:
    """Return answers a second and a CPU second, the server's `busy` cores, the load's `used`."""
    before, rest = cost(server.pid), time.process_time() + cost(backend.pid).cpu
    done = loop.run(load.run(server.url, job, seconds))
    after, used = cost(server.pid), time.process_time() + cost(backend.pid).cpu - rest
    cpu = after.cpu - before.cpu
    return {
        "rate": done.answers / done.seconds,
        "answers": done.answers / cpu,
        "busy": (cpu + after.waited - before.waited) / done.seconds,
        "used": used / done.seconds,
    }
