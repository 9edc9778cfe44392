"""Whatever a request's framing is, the backend gets one request that the proxy wrote, or none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.http.framing import (
    CLASSES,
    LENGTH,
    SECOND,
    check_answer,
    check_rebuilt,
    post,
    send,
)
from tests.waiting import until


@pytest.mark.parametrize("attacks", CLASSES, ids=lambda attacks: str(attacks.__name__))
async def test_no_framing_smuggles_a_request(
    upstream: Upstream, start_proxy: StartProxy, attacks: Callable[[], Iterator[bytes]]
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(
        upstream, timeouts={"client_header": 0.05, "client_body": 0.05}, limits={"body": 1_000_000}
    )
    failed = []
    for attack in [sent for one in attacks() for sent in (one, one + SECOND)]:
        upstream.requests.clear()
        upstream.received.clear()
        try:
            answer = await send(proxy.port, attack)
            check_rebuilt(upstream)
            assert (check_answer(answer) == 200) <= (len(upstream.requests) == 1)
        except AssertionError as error:
            failed.append(f"{attack[:300]!r}: {error}")
    assert not failed, "\n\n".join(failed)
    await until(lambda: not proxy.service.state.inflight and not proxy.service.listener.connections)


async def test_an_attack_poisons_no_other_client(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """The proxy's own connections to the backend are kept, and each answer is its request's."""
    upstream.scripts = [whole(PLAIN)]
    proxy = await start_proxy(upstream, timeouts={"client_header": 0.05, "client_body": 0.05})
    for attacks in CLASSES:
        await asyncio.gather(*(send(proxy.port, attack) for attack in list(attacks())[:20]))
        assert check_answer(await send(proxy.port, post(LENGTH))) == 200
        assert upstream.requests[-1].body.count(b"messages") == 1


def test_there_are_as_many_attacks_as_ever() -> None:
    found = [attack for attacks in CLASSES for attack in attacks()]
    assert len(set(found)) >= 314


async def test_the_check_rejects_a_forwarder_of_bytes(upstream: Upstream) -> None:
    """What passes a request on as it came lets a second one through."""
    upstream.scripts = [whole(PLAIN)]

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, there = await asyncio.open_connection("127.0.0.1", upstream.port)
        there.write(await reader.read(100_000))
        await there.drain()
        await upstream.request()
        there.close()
        writer.close()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    async with server:
        attack = post(b"Transfer-Encoding: chunked", LENGTH, body=b"0\r\n\r\n")
        await send(server.sockets[0].getsockname()[1], attack)
        with pytest.raises(AssertionError):
            check_rebuilt(upstream)
