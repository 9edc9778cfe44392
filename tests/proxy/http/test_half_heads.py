"""The rest of a head that does not come, behind requests in the same packet, on raw sockets."""

from __future__ import annotations

import asyncio

import pytest

from tests.clock import hurry
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.http.test_requests import post
from tests.waiting import read_until

HALF = b"GET /livez HTT"
REST = b"P/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BEHIND: dict[str, bytes] = {
    "no body": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
    "a body": post().replace(b"Connection: close\r\n", b""),
    "two requests": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
    "an empty line": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n\r\n",
}


@pytest.mark.parametrize("split", [0, 30, -3])
@pytest.mark.parametrize("first", BEHIND.values(), ids=BEHIND)
async def test_half_a_head_behind_a_request_has_the_heads_deadline(
    upstream: Upstream, start_proxy: StartProxy, first: bytes, split: int
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, timeouts={"client_keep_alive": 600})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    if split:
        writer.write(first[:split])
        await writer.drain()
        await asyncio.sleep(0)
    writer.write(first[split or 0 :] + HALF)
    good = max(first.count(b"HTTP/1.1"), 1)
    answers = await read_until(lambda: reader.read(65_536), b"HTTP/1.1 200", good)
    answers += await hurry(reader.read())
    assert answers.count(b"HTTP/1.1 200") == good
    assert b"HTTP/1.1 408" in answers
    writer.close()


@pytest.mark.parametrize("first", BEHIND.values(), ids=BEHIND)
async def test_its_rest_makes_it_a_request(
    upstream: Upstream, start_proxy: StartProxy, first: bytes
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream)
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    writer.write(first + HALF)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(REST)
    async with asyncio.timeout(60):
        answers = await reader.read()
    assert answers.count(b"HTTP/1.1 200") == first.count(b"HTTP/1.1")
    writer.close()


async def test_an_idle_connection_behind_a_request_is_no_half_head(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(PLAIN), whole(PLAIN)]
    proxy = await start_proxy(upstream, timeouts={"client_header": 0.05})
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    kept = post().replace(b"Connection: close\r\n", b"")
    for _ in range(2):
        writer.write(kept)
        assert (await reader.readuntil(PLAIN)).count(b"HTTP/1.1 200") == 1
        await asyncio.sleep(0.15)  # longer than a head may take
    writer.close()
