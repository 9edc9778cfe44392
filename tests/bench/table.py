"""The tables for people."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from tests.bench.kernels import BodySpeed, EventCost
from tests.bench.process import cores
from tests.bench.proxy import Compared

_PACKAGES = ("msgspec", "aiohttp", "uvloop")
_BODIES = {"b": "100 tokens x 5", "c": "4,000 tokens x 20"}
_LOADS = {
    "small": "body of 20 tokens, 16 connections",
    "b": "body of 100 tokens x 5, 16 connections",
    "c": "body of 4,000 tokens x 20, 1 connection",
    "burst": "stream x 5 sent at once, 16 connections",
    "paced": "16 streams x 5, an event every 5 ms",
}


def machine() -> str:
    """Return what the numbers were made on."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {os.cpu_count()} x {_processor()}, {platform.system()}; {packages}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _lines(title: str, head: list[str], rows: list[list[str]]) -> str:
    """Return a table, its first column to the left, the others to the right."""
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]
    lines = [title]
    for row in [head, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  " + "  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def events(costs: list[EventCost]) -> str:
    """Return the table of stream events."""
    return _lines(
        "CPU microseconds per translated stream event (one event a read; reads of 64 KiB), and\n"
        "msgspec's decode of the same bytes (our strict Structs; dicts)",
        ["form", "alternatives", "bytes", "one", "burst", "typed", "dicts", "one/typed"],
        [
            [
                cost.form,
                str(cost.k),
                str(cost.size),
                f"{cost.single:.2f}",
                f"{cost.burst:.2f}",
                f"{cost.typed:.2f}",
                f"{cost.generic:.2f}",
                f"{cost.over_typed:.1f}x",
            ]
            for cost in costs
        ],
    )


def bodies(speeds: list[BodySpeed]) -> str:
    """Return the table of bodies."""
    return _lines(
        "MB of input per CPU second, translated, and msgspec's decode of the same bytes",
        ["form", "body", "KB", "translated", "typed", "dicts", "typed/translated"],
        [
            [
                speed.form,
                _BODIES.get(speed.name, speed.name),
                f"{speed.size / 1e3:.0f}",
                f"{speed.ours:.0f}",
                f"{speed.typed:.0f}",
                f"{speed.generic:.0f}",
                f"{speed.over_typed:.1f}x",
            ]
            for speed in speeds
        ],
    )


def proxy(found: list[Compared]) -> str:
    """Return the table of the proxy beside the bare pass-through."""
    where = "on a core of its own" if cores() else "sharing the only core with its load"
    return _lines(
        f"The proxy {where}, over a bare aiohttp + uvloop pass-through that translates nothing;\n"
        "CPU in microseconds and context switches per request, or per event of a stream",
        ["load", "per s", "bare", "ratio", "CPU", "bare", "ratio", "switches", "bare"],
        [
            [
                _LOADS.get(row.name, row.name),
                f"{row.ours:,.0f}",
                f"{row.bare:,.0f}",
                f"{row.rate:.2f}" if row.rate is not None else "-",
                f"{row.cpu_ours:,.1f}",
                f"{row.cpu_bare:,.1f}",
                f"{row.cpu:.2f}",
                f"{row.switches_ours:.2f}",
                f"{row.switches_bare:.2f}",
            ]
            for row in found
        ],
    )
