"""The tables for people."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from tests.bench.kernels import BodySpeed, EventCost

_PACKAGES = ("msgspec", "aiohttp", "uvloop")
_BODIES = {"b": "100 tokens x 5", "c": "4,000 tokens x 20"}


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
    return f"{title}\n\n{markdown(head, rows)}\n"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a table whose columns stand under each other too; numbers are to the right."""
    widths = [max(3, *(len(row[n]) for row in [head, *rows])) for n in range(len(head))]
    right = [all(_is_number(row[n]) for row in rows) for n in range(len(head))]
    ends = [":" if to else "-" for to in right]
    ruler = ["-" * (width - 1) + end for width, end in zip(widths, ends, strict=True)]
    lines = []
    for row in [head, ruler, *rows]:
        cells = [
            cell.rjust(width) if to else cell.ljust(width)
            for cell, width, to in zip(row, widths, right, strict=True)
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    bare = cell.lstrip("~<>= ")
    return not cell or (bare[:1].isdigit() and " " not in bare)


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
