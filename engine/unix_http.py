"""Small HTTP requests to an engine on its unix socket, apart from the proxied path."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST = 16 * 1024 * 1024
"""Bytes of an answer that are read at most."""
CONNECT_SECONDS = 5.0


class Silent(Exception):
    """The engine did not answer: nobody listens, it broke off, or it took too long."""


class Client:
    """Asks the engine behind one unix socket, with a connection for each question."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def json(self, target: str, seconds: float) -> dict[str, Any]:
        """Return the JSON object that GET `target` answers with a 200; {} for anything else."""
        try:
            status, body = await self.request(target, seconds)
            decoded = json.loads(body)
        except (Silent, ValueError, RecursionError):
            return {}
        return decoded if status == 200 and isinstance(decoded, dict) else {}

    async def request(
        self, target: str, seconds: float, body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of GET `target`, or of a POST of the JSON `body`.

        Raises Silent, after `seconds` at most.
        """
        method = "GET" if body is None else "POST"
        wire = _Wire(self.path, seconds)
        asking = asyncio.create_task(asyncio.to_thread(_send_request, wire, method, target, body))
        asking.add_done_callback(_take_failure)
        try:
            await asyncio.wait({asking}, timeout=seconds)
        finally:
            # A socket's own timeout holds for each piece of an answer only, and a thread that went
            # on to wait would hold up the end of the process.
            wire.abort()
            await asyncio.wait({asking})
        failed = asking.exception()
        # A RuntimeError is what Python makes of a thread that the system refuses.
        if isinstance(failed, (OSError, http.client.HTTPException, RuntimeError)):
            raise Silent(f"{method} {target}: {failed or type(failed).__name__}") from failed
        return asking.result()


class _Wire(http.client.HTTPConnection):
    """One connection to a unix socket, which may be ended from another thread."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("engine", timeout=seconds)
        self._path = path
        self._aborted = False

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(min(self.timeout or CONNECT_SECONDS, CONNECT_SECONDS))
        self.sock.connect(str(self._path))
        self.sock.settimeout(self.timeout)
        if self._aborted:
            raise ConnectionAbortedError("it is not waited for any more")

    def abort(self) -> None:
        """Make whatever waits for this connection fail now."""
        self._aborted = True
        wire = self.sock
        if wire is not None:
            try:
                wire.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it is over already


def _take_failure(asking: asyncio.Task[tuple[int, bytes]]) -> None:
    """Look at a failure: one that nobody waits for any more is no error in the log."""
    if not asking.cancelled():
        asking.exception()


def _send_request(wire: _Wire, method: str, target: str, body: bytes | None) -> tuple[int, bytes]:
    headers = {"Connection": "close"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    try:
        # It may have answered, and closed, before it read all of the body.
        with suppress(BrokenPipeError, ConnectionResetError):
            wire.request(method, target, body, headers)
        answer = wire.getresponse()
        return answer.status, answer.read(MOST)
    finally:
        wire.close()
