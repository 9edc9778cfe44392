"""Numbers from rounds: each round measures everything once, so that a ratio stays within a round.

The clock is the thread's CPU time, which a busy neighbour on the machine disturbs least.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

Round = dict[str, float]


def seconds(work: Callable[[], None]) -> float:
    """Return the CPU seconds that `work` takes on this thread."""
    before = time.thread_time_ns()
    work()
    return (time.thread_time_ns() - before) / 1e9


@contextmanager
def started() -> Iterator[None]:
    """Leave the collector what it has to do in a proxy that has started: only what is new."""
    before = gc.get_freeze_count()  # in a test all that was collected is frozen already
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not before:
            gc.unfreeze()


def interleaved(works: Mapping[str, Callable[[], None]], rounds: int) -> list[Round]:
    """Run all of `works` once a round, in turning order, after a first round that is not counted.

    Returns CPU seconds by name, one dict a round.
    """
    names = list(works)
    for work in works.values():
        work()
    found = []
    with started():
        for n in range(rounds):
            turned = names[n % len(names) :] + names[: n % len(names)]
            found.append({name: seconds(works[name]) for name in turned})
    return found


def median(rounds: list[Round], name: str) -> float:
    """Return the median of one number over the rounds."""
    return statistics.median(each[name] for each in rounds)


def ratio(rounds: list[Round], name: str, other: str) -> float:
    """Return the median of `name` over `other`, each taken within a round."""
    return statistics.median(each[name] / each[other] for each in rounds)
