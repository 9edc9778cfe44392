"""How long a server leaves a cheap question waiting, asked again and again from outside.

    python -m tests.bench.judge.probe URL SECONDS

Prints JSON: the longest wait in milliseconds and the number of questions (GET /livez), one every
half millisecond after the other's answer. It takes the core from whatever else runs there, where it
may, so that the load beside it delays no look at the clock.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from contextlib import suppress
from urllib.parse import urlsplit

PAUSE = 0.0005


def probe(url: str, seconds: float) -> dict[str, float]:
    """Ask for this long."""
    parts = urlsplit(url)
    ask = b"GET /livez HTTP/1.1\r\nHost: bench\r\n\r\n"
    longest, count = 0.0, 0
    with socket.create_connection((parts.hostname or "", parts.port or 80)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked = time.monotonic()
            connection.sendall(ask)
            answer = connection.recv(65536)
            longest = max(longest, time.monotonic() - asked)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"probe: {answer[:200]!r}")
            count += 1
            time.sleep(PAUSE)
    return {"longest": longest * 1e3, "count": count}


def main() -> None:
    """Print what was found."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print(json.dumps(probe(sys.argv[1], float(sys.argv[2]))))


if __name__ == "__main__":
    main()
