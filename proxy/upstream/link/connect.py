"""Where a backend listens, and how a connection to it is made: over TCP, TLS or a unix socket."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from wellspoken.proxy.tls.certificates import ClientContext
from wellspoken.proxy.upstream.link.wire import Wire

UNIX = "unix:"
SHUTDOWN = 3.0  # seconds that a server gets to take leave of TLS in order
PAUSES = (0.001, 0.05)  # seconds between two tries of a full unix socket: the first and the longest


class Address:
    """Where a backend listens, from a URL that `normal_url` gave.

    `host` is what the Host header says, `prefix` what comes before each path. `tls`: how new
    connections to an https URL are secured; None: as this machine trusts.
    """

    def __init__(self, url: str) -> None:
        self._path = url.removeprefix(UNIX) if url.startswith(UNIX) else ""
        parts = urlsplit("http://localhost" if self._path else url)
        self.host = parts.netloc
        self.prefix = parts.path
        self._name = parts.hostname or ""
        self._secure = parts.scheme == "https"
        self.tls: ClientContext | None = None
        self._port = parts.port or (443 if self._secure else 80)

    async def connect(self, make: Callable[[], Wire]) -> Wire:
        """Return a new connection, which `make` gave. Raises OSError."""
        loop = asyncio.get_running_loop()
        if not self._path:
            _, wire = await loop.create_connection(
                make, self._name, self._port, **self._secured() if self._secure else {}
            )
            return wire
        made = await _unix(self._path)
        try:
            _, wire = await loop.create_unix_connection(make, sock=made)
        except BaseException:
            made.close()
            raise
        return wire

    def _secured(self) -> dict[str, Any]:
        """Return what a connection is secured with, this machine's own trust where none is set."""
        if self.tls is None:
            self.tls = ClientContext(ssl.create_default_context())
        return {
            "ssl": self.tls.context,
            "server_hostname": self.tls.server_name,
            "ssl_shutdown_timeout": SHUTDOWN,
        }


async def _unix(path: str) -> socket.socket:
    """Return a socket that is connected to `path`.

    Where the queue of a server that accepts slowly is full, TCP waits, but a unix socket says
    EAGAIN, which uvloop makes an error and asyncio takes for a connection. So it is tried again
    here, until the caller's time is over.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    pause, longest = PAUSES
    try:
        made.setblocking(False)
        while True:
            try:
                made.connect(path)
            except BlockingIOError:
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
            else:
                return made
    except BaseException:
        made.close()
        raise
