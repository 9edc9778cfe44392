"""What is refused before it is a request: counted, and told to observers, as any other is."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.upstream import Upstream
from tests.proxy.conftest import StartProxy, envelope, raw
from wellspoken.proxy.logs.bodies import log_answer, tap_request
from wellspoken.proxy.relay.call import Call

HEAD = b"GET /livez HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
        (b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (HEAD + b"X: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (HEAD + b"".join(b"X%d: %s\r\n" % (n, b"x" * 900) for n in range(100)), 431),
        (HEAD, 408),
    ],
)
async def test_it_is_counted_once_and_has_an_id(
    upstream: Upstream, start_proxy: StartProxy, sent: bytes, status: int
) -> None:
    timeouts = {"client_header": 0.2} if status == 408 else {}
    proxy = await start_proxy(upstream, timeouts=timeouts)
    told: list[tuple[Call, int]] = []
    proxy.service.hooks.observers.append(lambda call, code: told.append((call, code)))
    answer = await raw(proxy.port, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert envelope(body)["type"] == "invalid_request_error"
    ((call, code),) = told
    routing = call.routing
    assert (code, routing.route, routing.backend, routing.label) == (status, "other", "", "_other")
    assert f"x-request-id: {call.id}".encode() in head
    labels = f'backend="",code="{status}",model="_other",route="other",stream="false"'
    assert (await proxy.metrics())[f"wellspoken_requests_total{{{labels}}}"] == 1
    assert proxy.service.state.inflight == 0


async def test_it_is_no_bug_where_bodies_are_logged(
    upstream: Upstream, start_proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "wellspoken")
    proxy = await start_proxy(upstream)
    proxy.service.hooks.tap = tap_request
    proxy.service.hooks.observers.append(log_answer)
    assert (await raw(proxy.port, b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400 ")
    assert [one.getMessage() for one in caplog.records if one.levelname == "ERROR"] == []
    assert proxy.service.state.inflight == 0


async def test_a_request_before_it_is_counted_by_itself(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    told: list[int] = []
    proxy.service.hooks.observers.append(lambda call, code: told.append(code))
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(HEAD + b"\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.write(b"nonsense\r\n\r\n")
    assert b"HTTP/1.1 400 " in await reader.read()
    writer.close()
    assert told == [200, 400]
