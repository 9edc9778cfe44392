"""Who is refused and still sends has the answer: the connection is closed in stages (RFC 9112 9.6).

Mutants: a connection that is closed right behind its answer; one that reads no more.
"""

from __future__ import annotations

import pytest

from tests.fakes.upstream import Upstream
from tests.proxy.conftest import Proxy, StartProxy, envelope
from tests.proxy.http.test_requests import post, status_of
from tests.proxy.limits.test_client_connections import connected
from tests.waiting import until
from wellspoken.proxy.http import connection

MEGABYTE = b"x" * 1_000_000
MORE = 16
"""So many megabytes are not on their way between two sockets: who reads no more does not get rid
of them."""
HEAD = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
LONG = post(body=b"{" + b" " * 20_000_000)
REFUSED: dict[str, tuple[bytes, int]] = {
    "a body that is late": (LONG[:1000], 408),
    "a head that is late": (LONG[:40], 408),
    "a head behind an answer": (b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTT", 408),
    "a head that is too large": (
        HEAD + b"".join(b"X%d: %s\r\n" % (n, b"x" * 900) for n in range(100)),
        431,
    ),
    "a line that is too long": (HEAD + b"X: " + b"x" * 70_000 + b"\r\n", 431),
    "no request": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}
"""What of a request comes at first, and how it is refused."""


@pytest.fixture
async def proxy(upstream: Upstream, start_proxy: StartProxy, status: int) -> Proxy:
    """A proxy that waits for little, where something is to be late."""
    late = {"client_body": 0.2, "client_header": 0.2} if status == 408 else {}
    return await start_proxy(upstream, timeouts=late)


@pytest.mark.parametrize(("beginning", "status"), REFUSED.values(), ids=REFUSED)
async def test_who_sends_on_is_told_and_not_reset(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, beginning: bytes, status: int
) -> None:
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 600.0)
    async with connected(proxy.port) as (reader, writer):
        writer.write(beginning)
        answers = await reader.read()  # to its end, which comes at once
        answer = answers[answers.rindex(b"HTTP/1.1 4") :]
        assert status_of(answer) == status
        assert envelope(answer.partition(b"\r\n\r\n")[2])["type"] == "invalid_request_error"
        for _ in range(MORE):
            writer.write(MEGABYTE)
            await writer.drain()
    await until(lambda: not proxy.service.listener.connections)


@pytest.mark.parametrize(("beginning", "status"), REFUSED.values(), ids=REFUSED)
async def test_who_stays_is_closed(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, beginning: bytes, status: int
) -> None:
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 0.05)
    async with connected(proxy.port) as (reader, writer):
        writer.write(beginning)
        assert f"HTTP/1.1 {status} ".encode() in await reader.read()
        await until(lambda: not proxy.service.listener.connections)
