"""Translate many drawn answers, and tell what is wrong with which of them.

    python -m tests.adapters.properties.runs N [--from SEED] [--only WORD]   many, a table of them
    python -m tests.adapters.properties.runs --seed S                        one, beside the truth

WORD is one of an answer's tag (shape/form/way/kinds), several joined by "/". Exits 1 on any
violation.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

from tests.adapters.properties.runs.draw import draw_case
from tests.adapters.properties.runs.oracle import check
from tests.adapters.properties.runs.product import translate
from tests.adapters.properties.runs.show import tell

Key = tuple[str, str, str]
FIRST = 6  # seeds told of each kind of violation
BATCH = 200


def examine(seeds: range, only: tuple[str, ...] = ()) -> tuple[int, list[tuple[Key, int]]]:
    """Return how many answers were examined, and (way, form, violation) with its seed."""
    found: list[tuple[Key, int]] = []
    size = 0
    for seed in seeds:
        case = draw_case(seed)
        if only and not set(only) <= set(case.tag.split("/")):
            continue
        size += 1
        form = case.form if case.shape == "chat" else f"text-{case.form}"
        names = {wrong.label for wrong in check(case, translate(case))}
        found += [((case.way, form, name), seed) for name in sorted(names)]
    return size, found


def _job(given: tuple[range, tuple[str, ...]]) -> tuple[int, list[tuple[Key, int]]]:
    return examine(*given)


def _batches(start: int, size: int) -> Iterator[range]:
    for at in range(start, start + size, BATCH):
        yield range(at, min(at + BATCH, start + size))


def main() -> int:
    """Run what the command line says; 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", nargs="?", type=int, default=10_000, help="how many")
    parser.add_argument("--from", dest="start", default="0", help="first seed, or `new`")
    parser.add_argument("--seed", type=int, help="show this one answer")
    parser.add_argument("--show", action="store_true", help="the same, kept for its sound")
    parser.add_argument("--only", default="", help="words of the tag")
    given = parser.parse_args()
    if given.seed is not None:
        case = draw_case(given.seed)
        output = translate(case)
        wrong = check(case, output)
        print(tell(case, output, wrong))
        return int(bool(wrong))
    start = int.from_bytes(os.urandom(5)) if given.start == "new" else int(given.start)
    only = tuple(word for word in given.only.split("/") if word)
    began = time.monotonic()
    seeds: defaultdict[Key, list[int]] = defaultdict(list)
    size = 0
    with multiprocessing.Pool() as pool:
        jobs = [(batch, only) for batch in _batches(start, given.answers)]
        for examined, found in pool.imap_unordered(_job, jobs):
            size += examined
            for key, seed in found:
                seeds[key].append(seed)
    ill = {seed for group in seeds.values() for seed in group}
    took = time.monotonic() - began
    print(f"{len(ill)} ill of {size} answers (seeds from {start}; {size / took:.0f}/s)")
    for key, group in sorted(seeds.items(), key=lambda item: (item[0][2], -len(item[1]))):
        told = " ".join(str(seed) for seed in sorted(group)[:FIRST])
        print(f"{key[2]:26}{key[0]:18}{key[1]:14}{len(group):6}   {told}")
    return int(bool(ill))


if __name__ == "__main__":
    sys.exit(main())
