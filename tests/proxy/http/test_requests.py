"""What the proxy refuses before any handler, on raw sockets: framing, targets, sizes, deadlines."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from tests.clock import own_time, skip
from tests.conforming import MODEL
from tests.fakes.upstream import Gate, Stall, Upstream, whole
from tests.fakes.upstream import stream as stream_script
from tests.proxy.conftest import CHAT, MESSAGES, StartProxy, envelope, raw
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.waiting import until
from wellspoken.adapters import translate
from wellspoken.proxy import routes
from wellspoken.proxy.endpoints import chat
from wellspoken.proxy.relay import call
from wellspoken.proxy.upstream import client as upstream_client

ASKED = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()


def post(*lines: str, body: bytes = ASKED, length: bool = True, path: str = CHAT) -> bytes:
    """Return a POST with these extra header lines, which asks for the connection's end."""
    top = [f"POST {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines]
    if length:
        top.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*top, "", ""]).encode("latin-1") + body


def status_of(answer: bytes) -> int:
    """Return the status of the only response in `answer`, whose error envelope is checked."""
    top, _, rest = answer.partition(b"\r\n\r\n")
    assert top.count(b"HTTP/1.1 ") == 1, answer
    status = int(top.split(b" ")[1])
    if status >= 400:
        envelope(rest)
    return status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post(), 200),
        (post("Content-Type: application/json; charset=utf-8"), 200),
        (post("Transfer-Encoding: chunked", length=False, body=b"0\r\n\r\n"), 400),
        (post("Transfer-Encoding: identity, chunked", length=False, body=b"0\r\n\r\n"), 400),
        (post("Transfer-Encoding: chunked"), 400),
        (post("Content-Length: 3"), 400),
        (post("Content-Encoding: gzip"), 415),
        (post("Content-Type: text/plain"), 415),
        (post("Content-Type: multipart/form-data; boundary=x"), 415),
        (post("X-Odd: \xff"), 400),
        (post("X-Odd: a\x00b"), 400),
        (post(path=f"http://evil.example{CHAT}"), 400),
        (post(path="/v1/../metrics"), 400),
        (post(path="/v1/%2e%2E/metrics"), 400),
        (post(path="/./v1/chat/completions"), 400),
        (post(path="//v1/chat/completions"), 404),
        (b"GET /livez HTTP/0.9\r\nHost: x\r\n\r\n", 505),
        (b"GET /livez HTTP/2.0\r\nHost: x\r\nConnection: close\r\n\r\n", 505),
        (b"GET /livez HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n", 400),
        (b"TRACE /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /livez\r\n\r\n", 505),
        (b"GET /livez HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        (b"GET /livez HTTP/1.1\r\nHost: known.example:80\r\nConnection: close\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nHost: 10.1.2.3\r\nConnection: close\r\n\r\n", 200),
        (b"GET /livez HTTP/1.1\r\nHost: host.internal\r\nConnection: close\r\n\r\n", 200),
    ],
)
async def test_what_is_accepted(
    upstream: Upstream, start_proxy: StartProxy, data: bytes, status: int
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, server={"hosts": ["Known.example"]})
    assert status_of(await raw(proxy.port, data)) == status
    assert len(upstream.requests) == (status == 200 and data.startswith(b"POST"))


async def test_a_chunked_request_body_is_read(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    body = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (ASKED[:5], len(ASKED) - 5, ASKED[5:])
    answer = await raw(proxy.port, post("Transfer-Encoding: chunked", length=False, body=body))
    assert status_of(answer) == 200
    assert upstream.requests[0].json()["messages"] == MESSAGES
    assert upstream.requests[0].header("Transfer-Encoding") is None


async def test_broken_chunks_are_400(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    answer = await raw(
        proxy.port, post("Transfer-Encoding: chunked", length=False, body=b"zz\r\n{}\r\n0\r\n\r\n")
    )
    assert status_of(answer) == 400
    assert upstream.requests == []


async def test_expect_is_answered(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(post("Expect: 100-continue")[: -len(ASKED)])
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(ASKED)
    assert status_of(await reader.read()) == 200
    writer.close()


@pytest.mark.parametrize("chunked", [True, False])
async def test_a_body_above_the_limit_is_413(
    upstream: Upstream, start_proxy: StartProxy, chunked: bool
) -> None:
    proxy = await start_proxy(upstream, limits={"body": 1000})
    big = b" " * 5000
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(big), big)
        data = post("Transfer-Encoding: chunked", length=False, body=body)
    else:
        data = post(body=big)
    assert status_of(await raw(proxy.port, data)) == 413
    assert upstream.requests == []


async def test_a_body_that_stops_is_408(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, timeouts={"client_body": 0.1})
    began = own_time()
    assert status_of(await raw(proxy.port, post()[:-3])) == 408
    assert own_time() - began < 30


async def test_a_head_that_stops_is_408(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, timeouts={"client_header": 0.1})
    assert status_of(await raw(proxy.port, post()[:40])) == 408


async def test_a_head_that_drips_is_408(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, timeouts={"client_header": 0.2})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    answer = b""
    for byte in post():  # which takes longer than a head may, before it is whole
        writer.write(bytes([byte]))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                answer = await reader.read(65536)
                break
    assert status_of(answer) == 408
    writer.close()


async def test_a_second_head_on_a_kept_connection_is_watched_too(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, timeouts={"client_header": 0.1})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(post().replace(b"Connection: close\r\n", b""))
    await reader.readuntil(PLAIN)
    await asyncio.sleep(0.2)  # idle, which has a longer limit
    writer.write(b"GET /livez HTT")
    assert status_of(await reader.read()) == 408
    writer.close()


async def test_a_slow_answer_is_not_a_slow_head(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[Stall()]]
    proxy = await start_proxy(
        upstream, timeouts={"client_header": 0.1, "first_token_body": 0.4, "client_body": 60}
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    data = post()
    writer.write(data[:-20])
    await asyncio.sleep(0.2)  # the head is complete, so its limit is over
    writer.write(data[-20:])
    assert status_of(await reader.read()) == 504
    writer.close()


async def test_headers_without_end_are_431(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, limits={"header": 20_000})
    lines = [f"X-{number}: {'a' * 4000}" for number in range(10)]
    data = post(*lines)[: -len(ASKED) - 4]
    assert status_of(await raw(proxy.port, data)) in (400, 431)


async def test_an_idle_connection_is_closed(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, timeouts={"client_keep_alive": 100.0})
    for sent in (b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(sent)
        if sent:
            answer = await reader.readuntil(b'{"status":"ok"}')
            assert answer.count(b"HTTP/1.1 200 OK") == 1
        else:
            await until(lambda: proxy.service.listener.connections)
        skip(50.0)
        await asyncio.sleep(0.05)
        assert proxy.service.listener.connections
        skip(60.0)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/completions", "POST"),
        ("PUT", CHAT, "GET, HEAD, POST"),
        ("OPTIONS", CHAT, "GET, HEAD, POST"),
        ("PATCH", f"{CHAT}/chatcmpl-1", "GET, HEAD, POST, DELETE"),
        ("POST", f"{CHAT}/chatcmpl-1/messages", "GET, HEAD"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/v1/models/m", "GET, HEAD"),
        ("POST", "/metrics", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_405(
    upstream: Upstream, start_proxy: StartProxy, method: str, path: str, allow: str
) -> None:
    proxy = await start_proxy(upstream)
    async with proxy.session.request(method, proxy.url(path)) as response:
        assert response.status == 405
        assert response.headers["Allow"] == allow
        assert envelope(await response.text())["code"] == "method_not_supported"


@pytest.mark.parametrize("path", ["//", "/v1", "/v1/files", "/slots", "/v1/chat/completions/"])
async def test_an_unknown_path_is_404_and_says_what_exists(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    async with proxy.session.post(proxy.url(path), json={}) as response:
        assert response.status == 404
        error = envelope(await response.text())
    assert error["code"] == "unknown_url"
    distinct = dict.fromkeys(routes.ROUTES.values())  # the first of each handler's paths
    named = [
        next(path for path in routes.ROUTES if routes.ROUTES[path] == route) for route in distinct
    ]
    assert "/v1/capabilities" in named
    assert all(f"{routes.ROUTES[path][0]} {path}" in error["message"] for path in named)
    assert upstream.requests == []


async def test_head_has_no_body(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    answer = await raw(proxy.port, b"HEAD /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 15\r\n" in answer


@pytest.mark.parametrize(
    "lines",
    [
        ("Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA"),
        ("Upgrade: websocket", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="),
    ],
)
async def test_an_upgrade_is_declined_by_a_plain_answer(
    upstream: Upstream, start_proxy: StartProxy, lines: tuple[str, ...]
) -> None:
    """Java's client asks for h2c with every first request; RFC 9110 lets a server ignore that."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    data = post("Connection: Upgrade", *lines).replace(b"Connection: close\r\n", b"")
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(data)
    assert status_of(await reader.readuntil(PLAIN)) == 200
    writer.write(post())
    assert status_of(await reader.read()) == 200
    writer.close()


async def test_a_path_that_is_no_text(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    data = b"GET /\xff\xed\xa0\x80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert status_of(await raw(proxy.port, data)) in (400, 404)


async def test_a_failure_outside_the_handler_is_500_as_well(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    proxy = await start_proxy(upstream)
    monkeypatch.setattr(call, "fresh_id", fail)
    answer = await raw(proxy.port, post())
    assert status_of(answer) == 500
    assert b"secret detail" not in answer
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_of_our_own_is_500_without_details(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(chat, "prepare", fail)
    proxy = await start_proxy(upstream)
    error = await proxy.error(500, stream=stream)
    assert "secret detail" not in error["message"]
    assert "secret detail" in caplog.text


async def test_a_failure_of_our_own_in_a_stream_is_its_last_event(
    upstream: Upstream,
    start_proxy: StartProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> bytes:
        raise ZeroDivisionError("secret detail")

    gate = Gate()
    upstream.scripts = [stream_script(b": hello\n\n", gate, b"data: {}\n\n", Stall())]
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 0.05})
    async with await proxy.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        monkeypatch.setattr(translate.StreamTranslator, "feed", fail)
        gate.open()
        rest = (await response.read()).replace(b": keepalive\n\n", b"")
    assert rest.startswith(b'data: {"error"')
    assert rest.count(b"data:") == 1
    assert b"secret detail" not in rest
    assert "secret detail" in caplog.text
    await upstream.requests[0].closed.wait()


async def test_a_client_that_leaves_before_a_whole_answer_is_written(
    upstream: Upstream, start_proxy: StartProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer and the client's end come in the same step of the loop."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    read = upstream_client.UpstreamResponse.read

    async def read_and_lose(answer: upstream_client.UpstreamResponse, *limits: Any) -> bytes:
        data = await read(answer, *limits)
        for connection in proxy.service.listener.connections:
            assert connection.transport is not None
            connection.transport.close()
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upstream_client.UpstreamResponse, "read", read_and_lose)
        writer.write(post())
        assert await reader.read() == b""
    writer.close()
    await until(lambda: not proxy.service.state.inflight)
    assert "Traceback" not in caplog.text
    scraped = await proxy.metrics()
    assert scraped['wellspoken_client_disconnects_total{phase="waiting"}'] == 1


async def test_pipelined_requests_are_answered_in_order(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    kept = post().replace(b"Connection: close\r\n", b"")
    live = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await raw(proxy.port, kept + live + post())
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.count(PLAIN) == 2
    assert answer.index(PLAIN) < answer.index(b'{"status":"ok"}') < answer.rindex(PLAIN)


async def test_too_many_open_requests_are_429(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [[Stall()]]
    proxy = await start_proxy(upstream, limits={"inflight": 1})
    first = asyncio.create_task(proxy.chat())
    await upstream.request()
    async with await proxy.chat() as response:
        assert response.status == 429
        assert response.headers["Retry-After"] == "1"
        envelope(await response.text())
    assert (await proxy.get("/livez"))[0] == 200
    first.cancel()
    await upstream.requests[0].closed.wait()


async def test_a_client_that_leaves_while_sending_costs_nothing(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(post()[:-10])
    await writer.drain()
    await until(lambda: proxy.service.state.inflight)
    writer.close()
    await until(lambda: not proxy.service.state.inflight)
    scraped = await proxy.metrics()
    assert scraped['wellspoken_client_disconnects_total{phase="request"}'] == 1
    assert upstream.requests == []
    del reader
