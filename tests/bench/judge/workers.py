"""What a second worker is worth, on two cores which the load and the upstream need a part of.

One worker has a core, and the load and the upstream the other one. Two workers have both cores,
and the load and the upstream take their share of the same (`used`), so that the plain ratio of the
rates (`plain`) cannot be two. What counts is the rate for each second of a core that was left:
twice that of two workers over that of one is what they would be worth were the load elsewhere
(`worth`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from tests.bench import load
from tests.bench.judge import servers
from tests.bench.judge.loads import Case, Effort, verify
from tests.bench.measure import median
from tests.bench.process import Child, cores, cost, pinned, run


@dataclass(frozen=True)
class Scaling:
    """Two workers over one, and the cores which load and upstream used beside two workers."""

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
            rate, _ = _rate(loop, one.url, job, effort.seconds, backend)
            with pinned(both):
                pair, used = _rate(loop, two.url, job, effort.seconds, backend)
            if n:  # the first one warms up
                rounds.append(
                    {"worth": 2 * pair / (2 - used) / rate, "plain": pair / rate, "used": used}
                )
    return Scaling(*(median(rounds, name) for name in ("worth", "plain", "used")))


def _rate(
    loop: asyncio.Runner, url: str, job: load.Job, seconds: float, backend: Child
) -> tuple[float, float]:
    """Return answers a second, and the cores that load and upstream used meanwhile."""
    before = time.process_time() + cost(backend.pid).cpu
    done = loop.run(load.run(url, job, seconds))
    used = time.process_time() + cost(backend.pid).cpu - before
    return done.answers / done.seconds, used / done.seconds
