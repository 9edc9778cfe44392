"""A check that work grows with its size alone: a ratio of two runs, never a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_TRIES = 3


def linear(work: Callable[[int], T], size: int) -> T:
    """Do the work for `size` and four times that, which may not take twelve times as long.

    Quadratic work takes sixteen. Returns what the smaller work gave. A processor that others use
    as well may be slower at times, so that the work has three tries.
    """

    def timed(times: int) -> tuple[float, T]:
        gc.disable()  # its rounds cost what the whole test run holds, not what the work does
        try:
            begun = time.process_time()
            result = work(times)
            return time.process_time() - begun, result
        finally:
            gc.enable()

    for _ in range(_TRIES):
        small, result = timed(size)
        large, most = timed(4 * size)[0], 12 * max(small, 0.02)
        if large < most:
            return result
    raise AssertionError(f"{large:.3f} s of at most {most:.3f} s, {_TRIES} times in a row")
