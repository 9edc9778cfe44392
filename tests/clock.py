"""A clock for bounds on what code takes, which other work on the machine does not move."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDULING = Path("/proc/thread-self/schedstat")


def own_time() -> float:
    """Return a time in seconds that stands still while this thread could run and got no processor.

    What it sleeps or waits counts, so a difference is what an idle machine would show. Where the
    system does not tell (Linux alone does), it is the plain time.
    """
    try:
        waited = int(_SCHEDULING.read_text().split()[1])
    except OSError:
        waited = 0
    return time.monotonic() - waited / 1e9
