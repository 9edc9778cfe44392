"""`python -m tests.walk [--moves]`: the walk of one streamed chat; with its moves, if asked."""

from __future__ import annotations

import argparse
from collections import Counter

from tests.walk import count


def main() -> int:
    """Print what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.walk", description=__doc__)
    parser.add_argument("--moves", action="store_true", help="list the moves between files")
    options = parser.parse_args()
    found = count.run()
    print(count.text(found))
    if options.moves:
        for move, times in Counter(found.walk.steps).most_common():
            print(f"  {times:3} {move}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
