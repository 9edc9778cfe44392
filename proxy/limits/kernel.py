"""What the system knows of a connection and the loop does not: bytes on their way, who has gone."""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios


def count_unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Return how many bytes of what was sent the other side's kernel has not said to have."""
    found = bytearray(4)
    socket = transport.get_extra_info("socket")
    if socket is None:  # TLS whose connection below has gone already
        return 0
    try:
        fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, found)
    except (OSError, ValueError):  # not Linux's TCP, or closed
        return 0
    return int.from_bytes(found, sys.byteorder)
