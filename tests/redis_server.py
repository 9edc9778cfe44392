"""A real Redis, or Valkey, of a test's own, which can be stopped, frozen and started again.

Without a redis-server or a valkey-server the tests are skipped, unless WELLSPOKEN_REQUIRE_REDIS is
set.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.certificates import Pair
from tests.ports import free_port
from tests.waiting import block_until

PROGRAMS = ("redis-server", "valkey-server")
REQUIRE = "WELLSPOKEN_REQUIRE_REDIS"
PASSWORD = "canary-r3dis"
"""What must appear in no message."""


class RedisServer:
    """One server that keeps nothing on disk; what it holds is gone when it was stopped.

    It listens on a port of 127.0.0.1, on `socket`, and with a certificate on `tls_port`.
    """

    def __init__(self, program: str, certificate: Pair | None = None) -> None:
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="wellspoken-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._certificate = certificate
        self.port, self.tls_port = free_port(), free_port()
        self.socket = self._folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        options: dict[str, object] = {"port": self.port, "bind": "127.0.0.1 127.0.0.2", "save": ""}
        options |= {"requirepass": PASSWORD, "unixsocket": self.socket}
        if self._certificate is not None:
            options |= {"tls-port": self.tls_port, "tls-auth-clients": "no"}
            options["tls-cert-file"] = self._certificate.certificate
            options["tls-key-file"] = self._certificate.key
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


def find_program(environment: Mapping[str, str]) -> str:
    """Return the program's path, or skip the test where it may be missing."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        assert not environment.get(REQUIRE), f"none of {PROGRAMS} is here"
        pytest.skip("no Redis: apt-get install redis-server")
    return program


@contextmanager
def run_redis(program: str, certificate: Pair | None = None) -> Iterator[RedisServer]:
    """Yield a server that answers, empty."""
    server = RedisServer(program, certificate)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def redis_server(environment_as_given: dict[str, str]) -> Iterator[RedisServer]:
    """A server of the test's own, empty."""
    with run_redis(find_program(environment_as_given)) as server:
        yield server
