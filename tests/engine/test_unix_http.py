"""Questions to an engine on a unix socket that answers, or does not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.clock import own_time
from tests.engine.scripted import SocketServer
from wellspoken.engine.unix_http import Client, Silent


async def test_get_post_and_json(short: Path) -> None:
    async with SocketServer(short / "s") as server:
        client = Client(server.path)
        assert await client.request("/health", 5) == (200, b'{"asked": "/health"}')
        assert await client.request("/v1/completions", 5, b"{}") == (
            200,
            b'{"asked": "/v1/completions"}',
        )
        assert await client.json("/version", 5) == {"asked": "/version"}
        server.answers["/version"] = (200, b"[1]")
        assert await client.json("/version", 5) == {}
        server.answers["/version"] = (404, b"{}")
        assert await client.json("/version", 5) == {}


async def test_nobody_there(short: Path) -> None:
    client = Client(short / "s")
    with pytest.raises(Silent, match="GET /health") as silent:
        await client.request("/health", 5)
    assert isinstance(silent.value.__cause__, FileNotFoundError)
    async with SocketServer(short / "s"):
        pass
    with pytest.raises(Silent) as silent:
        await client.request("/health", 5)
    assert isinstance(silent.value.__cause__, (ConnectionRefusedError, FileNotFoundError))
    assert await client.json("/health", 5) == {}


async def test_no_answer_in_time_leaves_no_thread(short: Path) -> None:
    async with SocketServer(short / "s") as server:
        server.answers["/health"] = None
        client = Client(server.path)
        began = own_time()
        with pytest.raises(Silent):
            await client.request("/health", 0.05)
        asking = asyncio.create_task(client.request("/health", 60))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert own_time() - began < 10
        waiting = [thread for thread in threading.enumerate() if "asyncio" in thread.name]
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 60)  # a thread is free again
        assert waiting


async def test_what_is_no_http(short: Path) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello, who is there?\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(shout, short / "s")
    with pytest.raises(Silent):
        await Client(short / "s").request("/health", 5)
    server.close()
    await server.wait_closed()
