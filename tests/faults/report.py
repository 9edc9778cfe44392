"""The tables of what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tests.bench.table import markdown
from tests.faults.script import Measured

_HEAD = ["front", "requests", "failed before a byte", "broken", "answers/s", "ratio"]
_HEAD += ["p50 s", "p99 s", "longest s", "first byte p50 s", "first byte p99 s"]


def table(found: Mapping[str, Measured]) -> str:
    """Return what clients had of each front; the ratio is of answers to those of the first."""
    rates = {name: _rate(each) for name, each in found.items()}
    first = next(iter(rates.values()), math.nan)
    rows = [_row(name, each, rates[name] / first) for name, each in found.items()]
    servers = next((each.servers for each in found.values()), [])
    return markdown([*_HEAD, *(f"{name} %" for name in servers)], rows)


def shares(found: Mapping[str, Measured]) -> str:
    """Return what each of several equal servers answered of the requests, in percent."""
    servers = next((each.servers for each in found.values()), [])
    rows = [[name, f"{_rate(each):.1f}", *_shares(each)] for name, each in found.items()]
    return markdown(["equal servers", "answers/s", *(f"{name} %" for name in servers)], rows)


def quantile(values: Sequence[float], part: float) -> float:
    """Return the value that so large a part of all is not above; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else math.nan


def _rate(measured: Measured) -> float:
    return len(measured.record.ended("whole")) / measured.seconds


def _shares(measured: Measured) -> list[str]:
    whole = len(measured.record.ended("whole")) or 1
    return [f"{100 * measured.record.served(name) / whole:.1f}" for name in measured.servers]


def _row(name: str, measured: Measured, ratio: float) -> list[str]:
    record = measured.record
    whole = record.ended("whole")
    all_of, first = ([each.seconds for each in whole], [each.first for each in whole])
    return [
        name,
        str(len(record.samples)),
        str(len(record.ended("unstarted"))),
        str(len(record.ended("broken"))),
        f"{_rate(measured):.1f}",
        f"{ratio:.2f}",
        f"{quantile(all_of, 0.5):.2f}",
        f"{quantile(all_of, 0.99):.2f}",
        f"{max((each.seconds for each in record.samples), default=0.0):.1f}",
        f"{quantile(first, 0.5):.2f}",
        f"{quantile(first, 0.99):.2f}",
        *_shares(measured),
    ]
