"""Writes what the README says of speed, its table and its picture, from what a run wrote as JSON.

The numbers that they are made of are kept in figures.json, so that a test can make them again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.adapters.servers.servers_table import rewritten
from tests.bench.judge.growth import Point
from tests.bench.judge.picture import picture
from tests.bench.judge.rounds import Measured
from tests.bench.judge.servers import ROOT

README = ROOT / "README.md"
FIGURES = Path(__file__).with_name("figures.json")
SHOWN = "proxy/guides/growth.svg"
PICTURE = ROOT / SHOWN
MARKS = ("<!-- made by python -m tests.bench --readme -->", "<!-- end of the speeds -->")
KEPT = ("proxy", "limits", "calls", "targets", "growth")
"""What of a run is kept: what stands in the README, and what it was judged by."""
WHEN = ("date", "machine", "versions")
"""The same of the run that measured the proxy."""

_NAMES = {
    "ours": "wellspoken",
    "nginx": "nginx",
    "vllm-router": "vllm-router",
    "LiteLLM": "LiteLLM",
}
_ROWS = {
    "small": "a body of 20 tokens",
    "b": "a body of 100 tokens with 5 alternatives",
    "c": "a body of 4,000 tokens with 20 alternatives",
    "burst": "a stream with 5 alternatives, sent at once",
    "paced64": "64 streams with 5 alternatives, an event every 5 ms",
    "paced16": "16 such streams",
    "wide16": "16 streams with 20 alternatives",
    "same": "a body of 20 tokens that conforms",
    "same16": "16 streams with 5 alternatives that conform",
}
_TEXT = """\
CPU of a request, or of an event of a stream, over that of a bare aiohttp + uvloop pass-through of
the same answers in the same run: one process on a core of its own, all defaults on. Only wellspoken
translates and checks what it passes on. Measured on {date}, {python}{versions}:
"""


def keep(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of one or several runs, of which a later one wins. Raises ValueError."""
    found: dict[str, Any] = {}
    for run in runs:
        if run.get("quick"):
            raise ValueError("a quick run is not for the README")
        names = (*WHEN, *KEPT) if "proxy" in run else KEPT
        found |= {name: run[name] for name in names if name in run}
    for name in ("proxy", "growth"):
        if name not in found:
            raise ValueError(f"no run has {name!r}: make bench, and make bench ARGS=--growth")
    return found


def section(figures: dict[str, Any]) -> str:
    """Return what stands between the marks."""
    loads = [Measured(**each) for each in figures["proxy"]]
    names = [name for name in _NAMES if any(name in each.servers for each in loads)]
    head = ["load", *("wellspoken" if name == "ours" else name for name in names)]
    rows = [head, ["---"] * len(head)]
    rows += [[_ROWS[each.name], *(_ratio(each, name) for name in names)] for each in loads]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("| --- ", "|---")
    said = figures["versions"]
    versions = "".join(f", {name} {said[name]}" for name in names if name in said)
    python = figures["machine"].partition(",")[0]
    text = _TEXT.format(date=figures["date"], python=python, versions=versions)
    shown = f"![CPU and memory over tokens, alternatives, streams and connections]({SHOWN})"
    return "\n\n".join((MARKS[0], text.strip(), table, shown, MARKS[1]))


def _ratio(each: Measured, name: str) -> str:
    """Return two digits of a ratio, or as many as it has before the point."""
    if name not in each.servers:
        return "-"
    value = each.over(name)
    digits = 0 if value >= 9.95 else 1 if value >= 0.995 else 2
    return f"{value:.{digits}f}"


def growth(figures: dict[str, Any]) -> str:
    """Return the picture."""
    return picture([Point(**each) for each in figures["growth"]])


def write(paths: list[Path]) -> None:
    """Write the README's section, the picture and the figures anew. Raises ValueError."""
    figures = keep([json.loads(path.read_text()) for path in paths])
    README.write_text(rewritten(README.read_text(), section(figures), MARKS))
    PICTURE.write_text(growth(figures))
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
