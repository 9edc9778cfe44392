"""Measures the translation and the proxy: prints tables in Markdown, writes JSON if asked.

events and bodies are the translation alone; proxy is the whole proxy beside other servers, limits
what of it is no ratio, calls the calls of a request; last stand the targets and what was measured.
--growth measures over tokens, alternatives, streams and connections; --readme takes one or several
runs' JSON and writes what the README says of speed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench import kernels, table
from tests.bench.data import Source
from tests.bench.judge import growth, limits, loads, readme, report, rounds, targets
from tests.bench.load import LoadError
from tests.bench.process import StartError
from tests.walk import count

TABLES = ("events", "bodies", "proxy", "limits", "calls")


def main() -> int:
    """Run the benchmark; return the exit code, 1 if an answer was wrong or a server missing."""
    options = _parser().parse_args()
    if options.readme:
        return _write_readme(options.readme)
    bench = Bench(options)
    print(f"{bench.found['machine']}\n")
    try:
        for name in ["growth"] if options.growth else options.only or TABLES:
            print(getattr(bench, name)(), flush=True)
    except (kernels.WrongAnswer, LoadError, StartError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if said := bench.targets():
        print(said)
    if options.json:
        options.json.write_text(json.dumps(bench.found, indent=1) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute, less exact")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there as well")
    parser.add_argument("--only", choices=TABLES, nargs="+", help="these tables")
    parser.add_argument("--loads", metavar="NAME", nargs="+", help="these loads of the proxy")
    parser.add_argument("--peers", action="store_true", help="LiteLLM and vllm-router beside it")
    parser.add_argument("--growth", action="store_true", help="instead: over what time grows")
    parser.add_argument(
        "--readme", metavar="FILE", type=Path, nargs="+", help="write the README's part from JSON"
    )
    return parser


def _write_readme(paths: list[Path]) -> int:
    try:
        readme.write(paths)
    except (OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


class Bench:
    """One run: each table's method measures, keeps its numbers in `found`, returns the table."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.source = Source()
        self.alone = kernels.QUICK if options.quick else kernels.FULL
        self.whole = loads.QUICK if options.quick else loads.FULL
        self.run = targets.Run({})
        self.found: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": table.machine(),
            "versions": {"wellspoken": version("wellspoken")},
            "quick": options.quick,
        }

    def events(self) -> str:
        """What an event costs."""
        costs = kernels.events(self.source, self.alone)
        self.found["events"] = [asdict(row) for row in costs]
        return table.events(costs)

    def bodies(self) -> str:
        """How fast bodies are translated."""
        speeds = kernels.bodies(self.source, self.alone)
        self.found["bodies"] = [asdict(row) for row in speeds]
        return table.bodies(speeds)

    def proxy(self) -> str:
        """The proxy beside others."""
        options = self.options
        compared = rounds.compare(self.source, self.whole, options.peers, options.loads, _tell)
        self.run.loads.update({each.name: each for each in compared.loads})
        self.found["proxy"] = [asdict(each) for each in compared.loads]
        self.found["versions"] |= compared.versions
        self.found["missing"] = compared.missing
        return report.loads(compared)

    def limits(self) -> str:
        """What is no ratio of CPU."""
        self.run.limits = limits.measure(self.source, self.whole, _tell)
        self.found["limits"] = asdict(self.run.limits)
        return report.limits(self.run.limits)

    def calls(self) -> str:
        """The calls of a request and of an event."""
        self.run.counted = count.run()
        self.found["calls"] = asdict(self.run.counted)
        return count.text(self.run.counted) + "\n"

    def growth(self) -> str:
        """How time and memory grow."""
        sizes = growth.QUICK if self.options.quick else growth.FULL
        points = growth.measure(self.source, sizes, _tell)
        self.found["growth"] = [asdict(point) for point in points]
        return report.growth(points)

    def targets(self) -> str:
        """What must be, and what was; empty where nothing of it was measured."""
        found = targets.judge(self.run)
        self.found["targets"] = [asdict(each) for each in found]
        return report.verdicts(found) if found else ""


def _tell(what: str) -> None:
    """Say how far it is, to who looks at a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{what} ", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
