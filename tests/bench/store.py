"""`python -m tests.bench.store [--rows N] [--kills N] ...`: the targets of stored completions.

Prints a table, and writes it as JSON if asked. Exit code 1 if something was lost, doubled, altered
or answered with an error; a machine that is too slow for a target of speed is told and fails
nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from tests.bench import store_loss, store_million, store_speed, table
from tests.bench.load import LoadError
from tests.bench.process import StartError
from tests.bench.store_check import Line, exit_code, failed
from tests.bench.store_check import table as shown
from tests.bench.store_engines import Engine, Sqlite, postgres
from tests.postgres import Missing

SECTIONS = ("latency", "rate", "sigterm", "kill", "million", "outage")
ENGINES = ("sqlite", "postgres")


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = argparse.ArgumentParser(
        prog="make bench-store ARGS=...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    made.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    made.add_argument("--rows", type=int, default=1_000_000, help="rows of `million`")
    made.add_argument("--samples", type=int, default=500, help="questions of each kind")
    made.add_argument("--answers", type=int, default=10_000, help="answers before SIGTERM")
    made.add_argument("--kills", type=int, default=200, help="kill -9 of each engine's proxy")
    made.add_argument("--rounds", type=int, default=5000, help="pairs of `latency`")
    made.add_argument("--added", type=int, default=20_000, help="rows of `rate`")
    made.add_argument("--down", type=float, default=60.0, help="seconds without PostgreSQL")
    made.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there as well")
    return made


def works(options: argparse.Namespace) -> dict[str, Callable[[Engine], list[Line]]]:
    """Return what measures each section."""
    return {
        "latency": lambda engine: store_speed.latency(engine, options.rounds),
        "rate": lambda engine: store_speed.rate(engine, options.added),
        "sigterm": lambda engine: store_loss.sigterm(engine, options.answers),
        "kill": lambda engine: store_loss.kill(engine, options.kills),
        "million": lambda engine: store_million.million(engine, options.rows, options.samples),
        "outage": lambda engine: store_loss.outage(engine, options.down),
    }


def measured(options: argparse.Namespace) -> list[Line]:
    """Measure all that is wanted; a section that cannot be measured is a line that fails."""
    lines: list[Line] = []
    asked = works(options)
    for name in options.engines:
        with ExitStack() as stack:
            engine: Engine = Sqlite() if name == "sqlite" else stack.enter_context(postgres())
            for section in options.only:
                if section == "outage" and name == "sqlite":
                    continue  # a file does not go away
                began = time.monotonic()
                try:
                    found = asked[section](engine)
                except (LoadError, StartError) as error:
                    found = [failed(section, name, str(error))]
                lines += found
                spent = time.monotonic() - began
                print(f"\n{section}, {name} ({spent:.0f} s)\n{shown(found)}", flush=True)
    return lines


def main(argv: list[str] | None = None) -> int:
    """Run the measurements; return the exit code."""
    options = parser().parse_args(argv)
    print(table.machine(), flush=True)
    try:
        lines = measured(options)
    except Missing as error:
        print(f"bench-store: {error}", file=sys.stderr)
        return 1
    missed = [line for line in lines if line.ok is False]
    wrong = [line for line in missed if line.hard]
    print(f"\n{len(lines)} lines, {len(missed)} targets missed, {len(wrong)} of them faults")
    if missed:
        print(shown(missed))
    if options.json:
        found = [asdict(line) | {"ok": line.ok} for line in lines]
        options.json.write_text(json.dumps({"machine": table.machine(), "lines": found}, indent=1))
    return exit_code(lines)


if __name__ == "__main__":
    raise SystemExit(main())
