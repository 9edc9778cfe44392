"""`python -m tests.bench [--quick] [--json FILE]`: prints tables, writes them as JSON if asked."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import kernels, proxy, table
from tests.bench.data import Source
from tests.bench.load import LoadError
from tests.bench.process import StartError
from tests.walk import count

TABLES = ("events", "bodies", "proxy", "calls")


def main() -> int:
    """Run the benchmark; return the exit code, 1 if an answer was wrong or a server missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 30 seconds, less exact")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the numbers there as well")
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": table.machine(), "quick": options.quick}
    print(f"{found['machine']}\n")
    try:
        for name in [options.only] if options.only else TABLES:
            found[name] = _run(name, options.quick)
    except (kernels.WrongAnswer, LoadError, StartError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _run(name: str, quick: bool) -> list[dict[str, Any]]:
    """Measure and print one table; return its rows."""
    source = Source()
    effort = kernels.QUICK if quick else kernels.FULL
    if name == "events":
        costs = kernels.events(source, effort)
        print(table.events(costs), flush=True)
        return [asdict(row) for row in costs]
    if name == "bodies":
        speeds = kernels.bodies(source, effort)
        print(table.bodies(speeds), flush=True)
        return [asdict(row) for row in speeds]
    if name == "calls":
        counted = count.run()
        print(count.text(counted), flush=True)
        return [asdict(counted)]
    compared = proxy.compare(source, proxy.QUICK if quick else proxy.FULL)
    print(table.proxy(compared), flush=True)
    return [asdict(row) for row in compared]


if __name__ == "__main__":
    raise SystemExit(main())
