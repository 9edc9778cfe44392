"""What clients' connections begin at: made, counted and ended here."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Final

from aiohttp.web_request import BaseRequest

from wellspoken.proxy.http.connection import Connection, ConnectionOwner, Surplus
from wellspoken.proxy.http.handshake import BUFFER, NO_LIMIT, explain_handshake
from wellspoken.proxy.http.hangups import Hangups
from wellspoken.proxy.http.room import Room
from wellspoken.proxy.limits.descriptors import NONE_LEFT, SHORTAGES, explain_shortage

TOLD_SECONDS: Final = 60.0
"""How long the same failure of handshakes is not told again."""
REFUSALS: Final = 64
"""Connections beyond the limit that are told so at a time; the others are closed as they come."""
_LOG: Final = logging.getLogger("wellspoken")


class Listener(ConnectionOwner):
    """aiohttp's low-level server over `Connection`, with handler cancellation always on.

    Low-level because the routes are a handful of fixed paths, compared as bytes came: nothing is
    decoded, normalised or matched by pattern on the way to a handler. `refused` is told of what no
    handler gets, and the status that is answered, and returns the answer's id. `room`: for
    at most so many connections; those beyond it are refused.
    """

    def __init__(
        self,
        handler: Any,
        refused: Callable[[BaseRequest, int], str],
        most: int = sys.maxsize,
        **connection: Any,
    ) -> None:
        super().__init__(handler, handler_cancellation=True)
        self.refused = refused
        self.settings = connection  # of the connections to come
        self.hangups = Hangups(self._loop)
        self.tls: ssl.SSLContext | None = None  # likewise
        self.handshakes: set[asyncio.Task[None]] = set()
        self.room = Room(most, self._loop)
        self._told: dict[str, float] = {}  # why handshakes failed: when that was last said

    def __call__(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(self, loop=self._loop, **self.settings)

    def take(self, client: socket.socket) -> None:
        """Begin a connection on an accepted socket, which is the listener's from now on."""
        connection: Connection
        if self.room.has_place():
            connection = self()
            self.room.enter(connection)
        elif len(self.room.surplus) < REFUSALS:
            connection = Surplus(self, loop=self._loop, **self.settings)
            self.room.surplus.add(connection)
        else:
            client.close()
            return
        task = self._loop.create_task(self._begin(client, connection))
        self.handshakes.add(task)
        task.add_done_callback(self.handshakes.discard)

    async def _begin(self, client: socket.socket, connection: Connection) -> None:
        """Make the transport, with TLS shake hands. Whoever stops the listener cancels it.

        The leave of TLS comes behind all that is still to be sent, and what is not sent when its
        time is over is lost, however well the client reads.
        """
        tls: dict[str, Any] = {}
        if self.tls is not None:
            tls["ssl_handshake_timeout"] = self.settings["head_seconds"]
            tls["ssl_shutdown_timeout"] = self.settings["write_seconds"] or NO_LIMIT
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: connection, client, ssl=self.tls, **tls
            )
            if tls:
                transport.set_write_buffer_limits(high=BUFFER)
        except OSError as error:  # ssl.SSLError and TimeoutError are some
            client.close()
            self.room.leave(connection)
            self.note_failure(error)
        except BaseException:
            client.close()
            self.room.leave(connection)
            raise

    def fail_to_accept(self, error: OSError) -> None:
        """Log that clients wait outside, and where descriptors are what it lacks give some back."""
        SHORTAGES.tell(f"connections of clients have to wait: {explain_shortage(error)}")
        if error.errno in NONE_LEFT:
            self.room.close_quiet()

    def note_failure(self, error: OSError) -> None:
        """Log why a client's TLS handshake came to nothing, each reason once a minute.

        A port that machines look at, probes and scanners, sees many; reasons there are few.
        """
        reason = explain_handshake(error)
        now = self._loop.time()
        if reason and now >= self._told.get(reason, 0.0):
            self._told[reason] = now + TOLD_SECONDS
            _LOG.warning("a client's TLS handshake failed: %s", reason)

    async def shutdown(self, timeout: float | None = None) -> None:
        """End every connection, those whose handshake is not over first."""
        handshakes = tuple(self.handshakes)
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)
        await super().shutdown(timeout)
        self.hangups.close()

    async def flush(self, seconds: float) -> None:
        """Wait until what was answered has left the process, at most `seconds`."""
        end = self._loop.time() + seconds
        while self._loop.time() < end and any(
            isinstance(connection, Connection) and connection.unsent
            for connection in self.connections
        ):
            await asyncio.sleep(0.01)

    def close_idle(self) -> None:
        """Close the connections on which no request is open."""
        for connection in self.connections:
            if isinstance(connection, Connection) and connection.idle:
                connection.force_close()
