"""A process without file descriptors says so, harms nobody, and goes on when there are some."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import sys
from pathlib import Path

import httpx2
import pytest

from tests.bench.process import cpu_seconds
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.waiting import until
from wellspoken.proxy.limits import descriptors
from wellspoken.proxy.upstream.failures import Peer, not_connected

LIMIT = 60
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
# Nobody of the crowd is late with its head, however slow the machine is, and no descriptor is given
# back because the connection to the backend was idle.
_SETTINGS = {
    "WELLSPOKEN_LIMITS_CONNECTIONS": "1000",
    "WELLSPOKEN_TIMEOUTS_CLIENT_HEADER": "600",
    "WELLSPOKEN_TIMEOUTS_UPSTREAM_KEEP_ALIVE": "600",
}
_RUN = """
import sys
if {plain}: sys.modules["uvloop"] = None
from wellspoken.proxy.cli.main import main
sys.exit(main())
"""


def limited(pid: int, many: int) -> None:
    """Give a process so many descriptors."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (many, many))


def held(pid: int) -> int:
    """Return how many a process holds."""
    return len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="the limit is set from outside")
@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
async def test_a_crowd_takes_all(upstream: Upstream, tmp_path: Path, plain: bool) -> None:
    upstream.script(CHAT, *[whole(PLAIN)] * 3)
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _RUN.format(plain=plain), upstream.url),
            *("--adapter", "openai", "--listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, **_SETTINGS},
        )
    assert process.stdout is not None
    try:
        base = (await process.stdout.readline()).decode().split("listens on ")[1].split()[0]
        port = int(base.rpartition(":")[2])
        async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
            assert (await client.post(CHAT, json=BODY)).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        limited(process.pid, LIMIT)
        crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(LIMIT * 2)]
        for each in crowd:  # none is idle, nor the one before, so that none makes room
            each.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ")
        await until(lambda: b"have to wait" in log.read_bytes())
        await until(lambda: held(process.pid) >= LIMIT)
        writer.write(b"\r\n")
        ready = await reader.read()
        writer.close()
        assert ready.startswith(b"HTTP/1.1 503 ")
        assert b'"reason":"no file descriptors are left: raise the limit' in ready
        used = cpu_seconds(process.pid)
        await asyncio.sleep(1)
        assert not cpu_seconds(process.pid) - used > 0.5  # no loop is busy
        for each in crowd:
            each.close()
        async with httpx2.AsyncClient(base_url=base, timeout=60) as client:

            async def is_ready() -> bool:  # those who waited are taken first, and have gone
                return (await client.get("/readyz")).status_code == 200

            await until(is_ready)
        async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
            assert (await client.post(CHAT, json=BODY)).status_code == 200
        said = log.read_bytes()
        assert said.count(b"have to wait") == 1 and b"Traceback" not in said
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("url", ["http://a:1", "unix:/a", "https://a"])
def test_a_backend_is_not_blamed(number: int, url: str) -> None:
    error = not_connected(Peer.of(url), OSError(number, os.strerror(number)), 5.0)
    assert error.reason == "descriptors"
    assert (error.fault.status, error.fault.code) == (503, "proxy_unavailable")
    assert "not to blame" in error.fault.message and "raise" in error.fault.message


def test_a_name_that_nothing_can_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert not_connected(Peer.of("http://a"), unknown, 5.0).reason == "dns"

    def fail(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", fail)
    assert not_connected(Peer.of("http://a"), unknown, 5.0).reason == "descriptors"


def test_it_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    times = iter((0.0, 1.0, 2.0, 59.0, 60.0))
    log = descriptors.ShortageLog(lambda: next(times))
    with caplog.at_level(logging.ERROR, "wellspoken"):
        for text in ("a", "a", "b", "a", "a"):
            log.tell(text)
    assert caplog.messages == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("soft", "most"), [(1024, 448), (65_536, 32_704), (256, 64), (2, 1), (-1, 32_704)]
)
def test_the_default_leaves_two_for_each_request(
    soft: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert descriptors.default_connections() == most
