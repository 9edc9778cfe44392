"""What was found, as tables in Markdown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.bench.process import cores
from tests.bench.table import markdown

if TYPE_CHECKING:
    from tests.bench.judge.growth import Point
    from tests.bench.judge.limits import Limits
    from tests.bench.judge.rounds import Compared, Measured
    from tests.bench.judge.targets import Verdict


def loads(compared: Compared) -> str:
    """Return every load on every server."""
    where = "on a core of its own" if cores() else "sharing the only core with its load"
    rows = [_row(each, name) for each in compared.loads for name in each.servers]
    lines = [
        f"Each server {where}, over the bare aiohttp + uvloop pass-through; only ours translates.",
        "CPU in microseconds and context switches a request, or an event of a stream; cores that",
        "the server used, and its load and upstream together. A rate is the server's own where it",
        "always had work, or else the load's (~).",
        "",
        markdown(
            ["load", "server", "CPU", "over bare", "a second", "switches", "core", "rest"], rows
        ),
    ]
    return "\n".join(lines + [f"{name}: {why}" for name, why in compared.missing.items()]) + "\n"


def _row(each: Measured, name: str) -> list[str]:
    def number(what: str) -> float:
        return each.median(name, what)

    rate = f"{number('rate'):,.0f}"
    return [
        each.title,
        name,
        f"{number('cpu'):,.1f}",
        f"{each.over(name):.2f}",
        rate if each.is_bound(name) else f"~ {rate}",
        f"{number('switches'):.2f}",
        f"{number('share'):.2f}",
        f"{number('rest'):.2f}",
    ]


def limits(found: Limits) -> str:
    """Return what is no ratio of CPU."""
    scaling = found.scaling
    rows = [
        ("start to the first answer", f"{found.start:.2f} s"),
        ("resident when idle", f"{found.idle:.0f} MB"),
        ("the loop held by large answers, one at a time, CPU", f"{found.held:.1f} ms"),
        ("eight at once, CPU", f"{found.held_many:.1f} ms"),
        ("one at a time, with whatever else ran there", f"{found.waited:.1f} ms"),
        ("eight at once, likewise", f"{found.waited_many:.1f} ms"),
        ("resident at most with eight at once", f"{found.peak:.0f} MB"),
        ("more than before", f"{found.growth:.0f} MB"),
        ("an event's way, p99: straight", f"{found.direct:.2f} ms"),
        ("through bare", f"{found.bare:.2f} ms"),
        ("through ours", f"{found.ours:.2f} ms"),
        ("added by bare", f"{found.added_bare:.2f} ms"),
        ("added by ours", f"{found.added:.2f} ms"),
        ("added by ours, events spread", f"{found.added_spread:.2f} ms"),
        ("two workers over one, were the load elsewhere", f"{scaling.worth:.2f}"),
        ("two workers over one, rates", f"{scaling.plain:.2f}"),
        ("cores that load and upstream used beside two", f"{scaling.used:.2f}"),
    ]
    title = "One process on a core of its own; large answers, and 3,000 events a second.\n\n"
    return title + markdown(["what", "measured"], [list(row) for row in rows]) + "\n"


def growth(found: list[Point]) -> str:
    """Return how time and memory grow."""
    rows = [
        [point.axis, f"{point.size:,}", f"{point.cpu:,.1f}", point.unit, f"{point.peak:.0f}"]
        for point in found
    ]
    title = "CPU microseconds a unit, and MB that were resident at most, of one process.\n\n"
    return title + markdown(["what grows", "to", "CPU", "a", "MB"], rows) + "\n"


def verdicts(found: list[Verdict]) -> str:
    """Return the targets beside what was measured."""
    rows = [
        [each.title, _bound(each, each.must), _bound(each, each.goal), _number(each), each.mark]
        for each in found
    ]
    table = markdown(["target", "must", "goal", "measured", ""], rows)
    noisy = any(each.mark == "?" for each in found)
    return table + ("\n?: the machine had other work to do.\n" if noisy else "\n")


def _bound(verdict: Verdict, bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{'>=' if verdict.least else '<='} {bound:,}"


def _number(verdict: Verdict) -> str:
    if math.isnan(verdict.measured):
        return "?"
    return f"{verdict.measured:,.{verdict.digits}f}"
