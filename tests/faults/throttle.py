"""Keeps a process to a share of one core, as the quota of a container does.

    throttle.py PID SHARE

A tiny model answers far sooner than a real one. What is throttled answers as late as a real one and
leaves the machine to the rest. It stands alone, to start soon; it ends when the process has ended.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

BEAT = 0.002  # seconds between two looks
SAVED = 0.004  # seconds of CPU that an idle process may save up


def throttle(pid: int, share: float) -> None:
    """Stop the process whenever it has used more than its share, until the share has grown."""
    process = os.pidfd_open(pid)  # a number may be another process's by the time that it is used
    clock = ~pid << 3 | 2  # as Linux's clock_getcpuclockid has it
    left = SAVED
    runs = True
    now, used = time.monotonic(), time.clock_gettime(clock)
    while not select.select([process], [], [], BEAT)[0]:
        before, used_before = now, used
        now, used = time.monotonic(), time.clock_gettime(clock)
        left = min(SAVED, left + (now - before) * share) - (used - used_before)
        before_runs, runs = runs, left >= 0
        if not runs:  # each time, since others may have let it go on
            signal.pidfd_send_signal(process, signal.SIGSTOP)
        elif not before_runs:
            signal.pidfd_send_signal(process, signal.SIGCONT)


if __name__ == "__main__":
    try:
        throttle(int(sys.argv[1]), float(sys.argv[2]))
    except (ProcessLookupError, OSError):
        pass  # it has ended
