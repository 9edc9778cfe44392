"""How long a server leaves a cheap question waiting, asked again and again from outside.

    python -m tests.bench.judge.probe URL PID SECONDS

Prints JSON: of all questions (GET /livez), one every half millisecond after the other's answer,
the longest wait in milliseconds, `longest` by the clock on the wall and `worked` by that of the
server's own CPU, which no neighbour on its core disturbs. It takes the core from whatever else runs
there, where it may, so that the load beside it delays no look at the clocks.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

from tests.bench.process import cpu_seconds

PAUSE = 0.0005


def probe(url: str, pid: int, seconds: float) -> dict[str, float]:
    """Ask for this long."""
    parts = urlsplit(url)
    ask = b"GET /livez HTTP/1.1\r\nHost: bench\r\n\r\n"
    longest = worked = 0.0
    with socket.create_connection((parts.hostname or "", parts.port or 80)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked, used = time.monotonic(), cpu_seconds(pid)
            connection.sendall(ask)
            answer = connection.recv(65536)
            worked = max(worked, cpu_seconds(pid) - used)
            longest = max(longest, time.monotonic() - asked)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"probe: {answer[:200]!r}")
            time.sleep(PAUSE)
    return {"longest": longest * 1e3, "worked": worked * 1e3}


def main() -> None:
    """Print what was found."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print(json.dumps(probe(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))


if __name__ == "__main__":
    main()
