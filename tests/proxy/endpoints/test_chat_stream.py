"""Chat completions answered as a stream: what arrives when, and how a stream may end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientResponse

from tests.clock import skip, steady_clock
from tests.conforming import MODEL, finish, role, sse
from tests.conforming import chunk as part
from tests.fakes.upstream import (
    DONE,
    LAST_CHUNK,
    Cut,
    Gate,
    Pause,
    Reset,
    Stall,
    Step,
    Upstream,
    chunk,
    event,
    head,
    stream,
    whole,
)
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, envelope, raw
from tests.proxy.endpoints.test_chat_body import BROKEN
from tests.proxy.upstream.trials import pass_trial
from tests.waiting import read_until, until
from wellspoken.proxy.upstream.link import response as link

WORDS = ["Hello", " wide", " world"]
CHUNKS = [role(), *(part({"content": word}) for word in WORDS), finish()]
EVENTS = [sse([one], done=False) for one in CHUNKS]
PLAIN = b"".join(EVENTS) + DONE


def texts(data: bytes) -> Iterator[str]:
    """Yield the content of every delta in a piece of a stream."""
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                if text := choice["delta"].get("content"):
                    yield text


def errors(data: bytes) -> list[dict[str, Any]]:
    """Return the error objects in a stream; checks that nothing follows one."""
    events = [one for one in data.split(b"\n\n") if one.startswith(b"data: ")]
    found = [envelope(one[6:]) for one in events if one.startswith(b'data: {"error"')]
    if found:
        assert events[-1].startswith(b'data: {"error"')
        assert b"data: [DONE]" not in data
    return found


async def read_word(response: ClientResponse, word: str) -> bytes:
    """Read until a piece of content has come."""
    data = b""
    while word not in "".join(texts(data.rpartition(b"\n")[0])):
        more = await response.content.readany()
        assert more, data
        data += more
    return data


async def streamed(proxy: Proxy, headers: dict[str, str] | None = None, **more: Any) -> bytes:
    """Ask for a stream and return all of it; it has to be one, and to end properly."""
    async with await proxy.chat(headers, stream=True, **more) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"] == "text/event-stream"
        return await response.read()


async def test_a_conforming_stream_passes_byte_for_byte(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [stream(PLAIN)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=True) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.headers["x-request-id"]
        assert await response.read() == PLAIN
    assert upstream.requests[0].header("Accept") == "text/event-stream"


async def test_each_events_text_is_there_before_the_next_is_sent(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gates = [Gate() for _ in WORDS]
    steps: list[Step] = [EVENTS[0]]
    for one, gate in zip(EVENTS[1:4], gates, strict=True):
        steps += [one, gate]
    upstream.scripts = [stream(*steps, EVENTS[4], DONE)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=True) as response:
        got = b""
        for word, gate in zip(WORDS, gates, strict=True):
            got += await read_word(response, word)
            await gate.reached.wait()
            gate.open()
        got += await response.read()
    assert got == PLAIN


async def test_events_of_one_read_leave_in_one_write(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [stream(b"".join(EVENTS[:4]), gate, EVENTS[4] + DONE)]
    proxy = await start_proxy(upstream)
    asked = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(
        b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
        % (CHAT.encode(), len(asked), asked)
    )
    await reader.readuntil(b"\r\n\r\n")
    size = int(await reader.readline(), 16)
    assert await reader.readexactly(size) == b"".join(EVENTS[:4])
    writer.close()


async def test_a_stream_keeps_both_connections(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "LINGER", 60.0)  # a busy machine is late with the end
    upstream.scripts = [stream(PLAIN), stream(PLAIN, Pause(0.02)), stream(PLAIN)]
    proxy = await start_proxy(upstream)
    (target,) = proxy.service.state.router.targets
    backend = target.upstream
    assert backend is not None
    for _ in range(3):
        assert await streamed(proxy) == PLAIN
        await pass_trial(backend.connections)
    assert upstream.opened == 1
    assert len(proxy.service.listener.connections) == 1


async def test_a_connection_whose_end_does_not_come_is_closed(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [stream(PLAIN, Stall())]
    proxy = await start_proxy(upstream)
    assert await streamed(proxy) == PLAIN
    await upstream.requests[0].closed.wait()
    assert upstream.requests[0].by_peer


@pytest.mark.parametrize("explain", ["1", "0"])
async def test_repairs_are_told_on_request(
    upstream: Upstream, start_proxy: StartProxy, explain: str
) -> None:
    broken = part({"role": "assistant", "content": "Hi"}, finish_reason="eos_token")
    upstream.scripts = [stream(event(broken), DONE)]
    proxy = await start_proxy(upstream)
    data = await streamed(proxy, {"x-wellspoken-explain": explain})
    assert list(texts(data)) == ["Hi"]
    comments = [line for line in data.split(b"\n") if line.startswith(b":")]
    if explain == "1":
        assert len(comments) == 1
        assert comments[0].startswith(b": repairs ")
        assert b"finish_reason_eos_token=1" in comments[0]
        assert data.endswith(comments[0] + b"\n\n" + DONE)
    else:
        assert comments == []
    assert data.endswith(DONE)


async def test_the_heartbeat_sends_the_head(upstream: Upstream, start_proxy: StartProxy) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *stream(PLAIN)]]
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 0.05})
    async with await proxy.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        assert await response.content.readuntil(b"\n\n") == b": keepalive\n\n"
        gate.open()
        rest = await response.read()
    assert rest.replace(b": keepalive\n\n", b"") == PLAIN


async def test_the_heartbeat_goes_on_between_events(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [stream(*EVENTS[:2], gate, *EVENTS[2:], DONE)]
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 0.1})
    async with await proxy.chat(stream=True) as response:

        async def read() -> bytes:
            return await response.content.readuntil(b"\n\n")

        data = await read_until(read, b": keepalive\n\n", 2)
        if EVENTS[1] not in data:
            data += await read_until(read, EVENTS[1])
        gate.open()
        data += await response.read()
    assert data.replace(b": keepalive\n\n", b"") == PLAIN


async def test_no_heartbeat_while_events_come(upstream: Upstream, start_proxy: StartProxy) -> None:
    gates = [Gate() for _ in WORDS]
    paced = [step for one, gate in zip(EVENTS[1:4], gates, strict=True) for step in (one, gate)]
    upstream.scripts = [stream(EVENTS[0], *paced, EVENTS[4], DONE)]
    # Shorter than the stream, and much longer than a gap in it, however busy the machine is.
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 100.0})
    async with await proxy.chat(stream=True) as response:
        got = b""
        for word, gate in zip(WORDS, gates, strict=True):
            got += await read_word(response, word)
            skip(60)
            await asyncio.sleep(0.01)
            gate.open()
        got += await response.read()
    assert got == PLAIN


@pytest.mark.parametrize(
    "end",
    [
        [Cut()],
        [Reset()],
        [chunk(EVENTS[2])[:-4], Cut()],
        [b"zz\r\n", Stall()],
        [chunk(b"data: <html>oops</html>\n\n"), LAST_CHUNK],
        [chunk(event({"error": {"message": "boom"}})), LAST_CHUNK],
        [LAST_CHUNK],
        [Stall()],
    ],
    ids=["cut", "reset", "cut chunk", "bad chunk", "no json", "error", "no end", "silence"],
)
async def test_a_failure_mid_stream_is_one_error_event_and_no_done(
    upstream: Upstream, start_proxy: StartProxy, end: list[Step]
) -> None:
    upstream.scripts = [stream(*EVENTS[:2], Pause(0.02), end=False) + end]
    seconds = 0.2 if isinstance(end[0], Stall) else 60.0
    proxy = await start_proxy(upstream, timeouts={"between_chunks": seconds})
    data = await streamed(proxy)
    assert list(texts(data)) == WORDS[:1]
    assert len(errors(data)) == 1


async def test_what_came_before_a_reset_is_still_delivered(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[*stream(*EVENTS[:3], end=False), Reset()]]
    proxy = await start_proxy(upstream)
    data = await streamed(proxy)
    assert list(texts(data)) == WORDS[:2]
    assert len(errors(data)) == 1


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (whole({"error": {"message": "full", "code": 429}}, status=429), 429),
        (whole(b"<html>", 503, "text/html"), 503),
        (whole(b"<html>", 200, "text/html"), 502),
        (whole({"error": {"message": "x", "code": 400}}), 400),
        (stream(event({"error": {"message": "x", "code": 400}})), 400),
        (stream(end=True), 502),
        (stream(DONE), 502),
        ([head(content_type="text/event-stream", chunked=True), Cut()], 502),
        ([head(content_type="text/plain", chunked=True), Cut()], 502),
        ([Cut()], 502),
    ],
)
async def test_a_failure_before_the_first_event_is_a_status(
    upstream: Upstream, start_proxy: StartProxy, script: list[Step], status: int
) -> None:
    upstream.scripts = [script]
    proxy = await start_proxy(upstream)
    error = await proxy.error(status, stream=True)
    assert error["message"]


async def test_backend_down_is_a_status(upstream: Upstream, start_proxy: StartProxy) -> None:
    await upstream.refuse()
    proxy = await start_proxy(upstream)
    assert upstream.url in (await proxy.error(502, stream=True))["message"]


@pytest.mark.parametrize(
    "script",
    [
        whole({"error": {"message": "full"}}, status=500),
        whole({"error": {"message": "full"}}),
        stream(event({"error": {"message": "full"}})),
        [Cut()],
        [head(chunked=True), Cut()],
    ],
    ids=["status", "200", "event", "cut", "cut body"],
)
async def test_a_failure_after_a_heartbeat_is_an_error_event(
    upstream: Upstream, start_proxy: StartProxy, script: list[Step]
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *script]]
    proxy = await start_proxy(upstream, timeouts={"heartbeat": 0.05})
    async with await proxy.chat(stream=True) as response:
        gate.open()  # the head has left
        data = await response.read()
    assert data.startswith(b": keepalive\n\n")
    assert len(errors(data)) == 1


async def test_a_body_for_a_stream_becomes_one(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(BROKEN)]
    proxy = await start_proxy(upstream)
    data = await streamed(proxy, {"x-wellspoken-explain": "1"})
    assert list(texts(data)) == ["Hi"]
    assert b"body_for_stream=1" in data
    assert data.endswith(DONE)


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream", None])
async def test_a_stream_of_another_type_is_recognised(
    upstream: Upstream, start_proxy: StartProxy, kind: str | None
) -> None:
    upstream.scripts = [stream(*EVENTS, DONE, content_type=kind)]
    proxy = await start_proxy(upstream)
    assert await streamed(proxy) == PLAIN


async def test_usage_comes_when_asked(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [stream(*EVENTS, DONE)]
    proxy = await start_proxy(upstream)
    data = await streamed(proxy, stream_options={"include_usage": True})
    last = json.loads(data.split(b"\n\n")[-3][6:])
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] > 0
    scraped = await proxy.metrics()
    assert [name for name in scraped if name.startswith("wellspoken_usage_source_total")]


@pytest.mark.parametrize("phase", ["waiting", "head", "streaming"])
@pytest.mark.parametrize("wants_stream", [True, False])
async def test_the_upstream_is_closed_when_the_client_leaves(
    upstream: Upstream, start_proxy: StartProxy, phase: str, wants_stream: bool
) -> None:
    beginning = {
        "waiting": [],
        "head": stream(end=False),
        "streaming": stream(*EVENTS[:2], end=False),
    }[phase]
    upstream.scripts = [[*beginning, Stall()]]
    proxy = await start_proxy(upstream)
    task = asyncio.create_task(proxy.chat(stream=wants_stream))
    seen = await upstream.request()
    async with steady_clock() as clock:
        if phase == "streaming" and wants_stream:
            response = await task
            await read_word(response, WORDS[0])
            left = clock()
            response.close()
        else:
            await asyncio.sleep(0.05)
            left = clock()
            task.cancel()
        await seen.closed.wait()
        assert clock() - left < 0.25
    assert seen.by_peer
    await until(lambda: not proxy.service.state.inflight)
    named = "streaming" if phase == "streaming" and wants_stream else "waiting"
    scraped = await proxy.metrics()
    assert scraped[f'wellspoken_client_disconnects_total{{phase="{named}"}}'] == 1


async def test_a_client_that_does_not_read_stops_the_backend(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    big = sse([part({"content": "x" * 50_000})], done=False)
    upstream.scripts = [stream(EVENTS[0], *[big] * 600, EVENTS[4], DONE)]
    timeouts = {"between_chunks": 100.0, "heartbeat": 10.0, "client_write": 0.0}
    proxy = await start_proxy(upstream, timeouts=timeouts)
    async with await proxy.chat(stream=True) as response:
        for _ in range(20):  # longer than between_chunks, which measures the backend alone
            await asyncio.sleep(0.02)
            skip(10.0)
        connection = next(iter(upstream.connections))
        transport = connection.transport
        assert transport is not None
        await until(lambda: transport.get_write_buffer_size() > 1_000_000)
        data = await response.read()
    # Whether a sign of life goes out between is a matter of the machine's speed.
    assert data.replace(b": keepalive\n\n", b"") == EVENTS[0] + big * 600 + EVENTS[4] + DONE


async def test_oai_compat_false_passes_a_stream_untouched(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    strange = [b"event: ping\ndata: 1\n\n", b"retry: 5\n", b'data: {"x": NaN}\n\n']
    upstream.scripts = [stream(*strange, status=201, content_type="text/event-stream; x=y")]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=True, oai_compat=False) as response:
        assert response.status == 201
        assert response.headers["Content-Type"] == "text/event-stream; x=y"
        assert await response.read() == b"".join(strange)
    assert "oai_compat" not in upstream.requests[0].json()


async def test_an_untouched_stream_that_is_cut_stays_cut(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[*stream(EVENTS[0], Pause(0.05), end=False), Cut()]]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(stream=True, oai_compat=False) as response:
        with pytest.raises(ClientPayloadError):
            await response.read()


async def test_an_untouched_stream_that_fails_at_once_is_a_status(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [[*stream(end=False), Cut()]]
    proxy = await start_proxy(upstream)
    await proxy.error(502, stream=True, oai_compat=False)


async def test_an_untouched_stream_ends_with_its_client(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [stream(EVENTS[0], Stall())]
    proxy = await start_proxy(upstream)
    response = await proxy.chat(stream=True, oai_compat=False)
    await response.content.readany()
    response.close()
    await upstream.requests[0].closed.wait()
    assert upstream.requests[0].by_peer


async def test_an_http_1_0_client_gets_a_stream_that_ends_with_the_connection(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [stream(*EVENTS, DONE)]
    proxy = await start_proxy(upstream)
    data = json.dumps({"model": MODEL, "messages": MESSAGES, "stream": True}).encode()
    answer = await raw(
        proxy.port,
        b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(data), data),
    )
    top, _, rest = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in top
    assert rest == PLAIN
