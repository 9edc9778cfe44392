"""A real Redis, or Valkey, on a port of 127.0.0.1, which can be stopped, frozen and started again.

Without a redis-server or a valkey-server the tests are skipped, unless WELLSPOKEN_REQUIRE_REDIS is
set.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.waiting import block_until

PROGRAMS = ("redis-server", "valkey-server")
REQUIRE = "WELLSPOKEN_REQUIRE_REDIS"
PASSWORD = "canary-r3dis"
"""What must appear in no message."""


class RedisServer:
    """One server that keeps nothing on disk; what it holds is gone when it was stopped."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="wellspoken-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        options = {"port": self.port, "bind": "127.0.0.1", "requirepass": PASSWORD, "save": ""}
        arguments = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            [self._program, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            start_new_session=True,
        )
        block_until(self._answers, lambda: f"{self._program} does not start")

    def stop(self) -> None:
        """End it at once, as a crash does."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """Have it stand still: connections are taken, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _answers(self) -> bool:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", self.port)):
                return False
            client.sendall(b"PING\r\n")
            return client.recv(1) == b"-"  # it wants the password


@pytest.fixture
def redis_server(environment_as_given: dict[str, str]) -> Iterator[RedisServer]:
    """A server of the test's own, empty."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        assert not environment_as_given.get(REQUIRE), f"none of {PROGRAMS} is here"
        pytest.skip("no Redis: apt-get install redis-server")
    server = RedisServer(program)
    try:
        server.start()
        yield server
    finally:
        server.close()
