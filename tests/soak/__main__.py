"""`python -m tests.soak [--short] [--only SECTION...]`: a table of figures with their bounds.

Exit code 1 where a bound is broken. `--short` takes a minute at most, and times break nothing then,
since the machine may be busy; all of it takes some minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from tests.bench.process import StartError
from tests.bench.store_check import Line, exit_code, failed, table
from tests.soak import ends, held, kills, leaks, memory, stored

Section = Callable[[], Coroutine[Any, Any, list[Line]]]


def sections(short: bool) -> dict[str, Section]:
    """Return what measures each section, with its numbers."""

    def some(less: int, more: int) -> int:
        return less if short else more

    return {
        "leaks": lambda: leaks.leaks(some(600, 20_000)),
        "disconnects": lambda: leaks.disconnects(some(60, 1000)),
        "drain": lambda: ends.drain(50),
        "restart": lambda: ends.restart(some(1, 5)),
        "workers": lambda: kills.workers(some(2, 20)),
        "memory": lambda: memory.prefill(some(60, 200)),
        "crowd": lambda: memory.crowd(some(80, 200), some(2**27, 2**28)),
        "large answers": lambda: memory.large_answers(8),
        "slow readers": lambda: memory.slow_readers(some(30, 200)),
        "store": lambda: stored.stored(*((20, 60_000) if short else (1000, 60_000))),
        "unread": lambda: held.unread(some(20, 200)),
        "drips": lambda: held.drips(some(20, 200)),
        "silent": lambda: held.silent(some(5, 50)),
        "one client": lambda: held.one_client(some(30, 200)),
        "budget": lambda: held.budget(some(60, 200)),
        "livez": lambda: memory.livez(some(2, 20)),
    }


def run_sections(short: bool, names: Sequence[str]) -> list[Line]:
    """Return the figures; a section that cannot be measured is one that breaks its bound."""
    lines: list[Line] = []
    asked = sections(short)
    for name in names:
        began = time.monotonic()
        try:
            found = (
                kills.stored(2 if short else 40) if name == "kills" else asyncio.run(asked[name]())
            )
        except (StartError, OSError, AssertionError, TimeoutError) as error:
            found = [failed(name, "", f"{type(error).__name__}: {error}")]
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        lines += found
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the table; return the exit code."""
    names = [*sections(short=True), "kills"]
    parser = argparse.ArgumentParser(prog="make soak ARGS=...", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a minute at most")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args(arguments)
    lines = run_sections(options.short, options.only)
    print(table(lines))
    broken = any(line.ok is False for line in lines)
    return exit_code(lines) if options.short else int(broken)


if __name__ == "__main__":
    sys.exit(main())
