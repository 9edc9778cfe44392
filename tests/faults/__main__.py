"""`make faults`: what clients have of three servers that fail, through wellspoken and others.

Each front has three real llama.cpp behind it and 50 clients before it. One server is slow all the
time, one is killed and started again twice, one is stopped for a while and goes on. With --share
the servers are alike and nothing happens to them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.bench.process import StartError
from tests.bench.table import machine
from tests.faults.fronts import FRONTS, Front
from tests.faults.report import shares, table
from tests.faults.script import FAST, Measured, Plan, measure
from tests.models.tiny import write_model

CAUSES = 8  # of a front's failures, the most frequent


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and print the tables; return the exit code."""
    families = list(dict.fromkeys(front.family for front in FRONTS))
    parser = argparse.ArgumentParser(prog="make faults ARGS=...", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="that the faults take")
    parser.add_argument("--share", type=float, default=20, help="seconds of health; 0: none")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--only", nargs="+", choices=families, default=families)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for logs and each request")
    options = parser.parse_args(arguments)
    fronts = [front for front in FRONTS if front.family in options.only and _is_there(front)]
    plan = Plan(options.seconds, options.clients)
    even = Plan(options.share, options.clients, (FAST, FAST, FAST), ())
    print(f"{machine()}\n")
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        print(table(_run(fronts, plan, folder / "faults")), flush=True)
        if options.share:
            print(f"\n{shares(_run(fronts, even, folder / 'share'))}", flush=True)
    return 0


def _is_there(front: Front) -> bool:
    if why := front.missing():
        print(f"{front.name} is left out: {why}", file=sys.stderr)
    return not why


def _run(fronts: Sequence[Front], plan: Plan, folder: Path) -> dict[str, Measured]:
    found = {}
    for number, front in enumerate(fronts):
        own = folder / f"{number}-{front.family}"
        own.mkdir(parents=True, exist_ok=True)
        try:
            found[front.name] = asyncio.run(measure(front, plan, write_model(own / "m.gguf"), own))
        except StartError as error:
            print(f"{front.name} is left out: {error}", file=sys.stderr)
            continue
        _tell(front.name, found[front.name])
        samples = [asdict(sample) for sample in found[front.name].record.samples]
        (own / "samples.json").write_text(json.dumps(samples))
    return found


def _tell(name: str, measured: Measured) -> None:
    """Say why requests failed."""
    causes = Counter(
        f"{sample.end}: {sample.why}" for sample in measured.record.samples if sample.why
    )
    for cause, count in causes.most_common(CAUSES):
        print(f"{name}: {count} x {cause}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
