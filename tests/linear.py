"""A check that work grows with its size alone: a ratio of two runs, never a time."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def linear(work: Callable[[int], T], size: int) -> T:
    """Do the work for `size` and four times that, which may not take twelve times as long.

    Quadratic work takes sixteen. Returns what the smaller work gave.
    """

    def timed(times: int) -> tuple[float, T]:
        gc.disable()  # its rounds cost what the whole test run holds, not what the work does
        try:
            begun = time.process_time()
            result = work(times)
            return time.process_time() - begun, result
        finally:
            gc.enable()

    small, result = timed(size)
    assert timed(4 * size)[0] < 12 * max(small, 0.02)
    return result
