"""Ports for programs that have to be told one."""

from __future__ import annotations

import atexit
import socket


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, and that nobody gets until this process ends.

    It stays bound here without listening, so that connecting is refused, and the system gives it
    to no connection and to no other test; a server that is told it may bind it beside.
    """
    holder = hold(0)
    atexit.register(holder.close)
    return int(holder.getsockname()[1])


def hold(port: int) -> socket.socket:
    """Return a socket that holds this port, or any, and does not listen."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    return holder
