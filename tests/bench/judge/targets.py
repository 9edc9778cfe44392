"""What a run is judged by: what each number must be, what it should be, and what it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.judge.limits import Limits
from tests.bench.judge.rounds import Measured
from tests.walk.count import Found as Counted

QUIET = 1.0  # ms that an event needs straight from the upstream at p99, where nothing else runs


@dataclass
class Run:
    """What was measured, as far as it was."""

    loads: dict[str, Measured]
    limits: Limits | None = None
    counted: Counted | None = None


@dataclass(frozen=True)
class Target:
    """One number: at most `must`, and better `goal`; `least`: at least. None: no such bound."""

    title: str
    find: Callable[[Run], float]
    must: float | None = None
    goal: float | None = None
    least: bool = False
    digits: int = 2


@dataclass(frozen=True)
class Verdict:
    """A number beside its bounds; `mark`: goal, met, missed, ? for NaN, "" without a bound."""

    title: str
    measured: float
    must: float | None
    goal: float | None
    least: bool
    digits: int
    mark: str


class NotMeasured(Exception):
    """A run without this number."""


def _load(run: Run, name: str) -> Measured:
    if name not in run.loads:
        raise NotMeasured
    return run.loads[name]


def _over(name: str, other: str = "bare") -> Callable[[Run], float]:
    return lambda run: _load(run, name).over("ours", other)


def _limit(name: str) -> Callable[[Run], float]:
    def find(run: Run) -> float:
        if run.limits is None:
            raise NotMeasured
        found = getattr(run.limits, name)
        assert isinstance(found, float)
        return found

    return find


def _added(run: Run) -> float:
    """Return what is added to an event's way; NaN where the machine had other work to do."""
    direct, added = _limit("direct")(run), _limit("added")(run)
    return added if direct < QUIET else math.nan


def _worth(run: Run) -> float:
    if run.limits is None:
        raise NotMeasured
    return run.limits.scaling.worth


def _calls(run: Run) -> float:
    if run.counted is None:
        raise NotMeasured
    return run.counted.request.total


def _speed(run: Run) -> float:
    """Return MB of the backend's answer a CPU second."""
    found = _load(run, "c")
    return found.size / found.median("ours", "cpu")


def _events(run: Run) -> float:
    return 1e6 / _load(run, "burst").median("ours", "cpu")


TARGETS = (
    Target("small body, CPU over bare", _over("small"), 1.0, 0.5),
    Target("small body, calls", _calls, 330, digits=0),
    Target("18 KB legacy -> 48 KB, CPU over bare", _over("b"), 2.3, 1.6),
    Target("2.4 MB legacy, MB a CPU second", _speed, 55, 80, least=True, digits=0),
    Target("2.4 MB legacy, ms for which the loop is held", _limit("held"), 5, digits=1),
    Target("2.4 MB legacy, 8 at once: MB more", _limit("growth"), 300, digits=0),
    Target("paced stream x 5, 64 streams, CPU over bare", _over("paced64"), 1.2, 1.0),
    Target("paced stream x 5, 16 streams, CPU over bare", _over("paced16"), 1.35, 1.15),
    Target("paced stream x 20, 16 streams, CPU over bare", _over("wide16")),
    Target("burst x 5, events a CPU second", _events, 90_000, 130_000, least=True, digits=0),
    Target("conforming body, CPU over untouched", _over("same", "untouched"), 1.1, 1.0),
    Target("conforming stream x 5, 16 streams, CPU over bare", _over("same16")),
    Target("3,000 events a second, ms more at p99", _added, 1.0),
    Target("start to the first answer, s", _limit("start"), 0.5),
    Target("idle, MB resident", _limit("idle"), 50, digits=1),
    Target("two workers over one, were the load elsewhere", _worth, 1.8, least=True),
)


def judge(run: Run) -> list[Verdict]:
    """Return what was measured of the targets, in their order."""
    found = []
    for target in TARGETS:
        try:
            value = target.find(run)
        except NotMeasured:
            continue
        found.append(_verdict(target, value))
    return found


def _verdict(target: Target, value: float) -> Verdict:
    def holds(bound: float) -> bool:
        return value >= bound if target.least else value <= bound

    if target.must is None:
        mark = ""
    elif math.isnan(value):
        mark = "?"
    elif target.goal is not None and holds(target.goal):
        mark = "goal"
    else:
        mark = "met" if holds(target.must) else "missed"
    return Verdict(target.title, value, target.must, target.goal, target.least, target.digits, mark)
