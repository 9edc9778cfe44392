"""Questions to an engine on a unix socket that answers, or does not."""

from __future__ import annotations

import asyncio
import gc
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.clock import own_time
from tests.engine.scripted import SocketServer
from tests.waiting import SECONDS, until
from wellspoken.engine.unix_http import Client, Silent


async def test_get_post_and_json(short: Path) -> None:
    async with SocketServer(short / "s") as server:
        client = Client(server.path)
        assert await client.request("/health", 60) == (200, b'{"asked": "/health"}')
        assert await client.request("/v1/completions", 60, b"{}") == (
            200,
            b'{"asked": "/v1/completions"}',
        )
        assert await client.json("/version", 60) == {"asked": "/version"}
        server.answers["/version"] = (200, b"[1]")
        assert await client.json("/version", 60) == {}
        server.answers["/version"] = (404, b"{}")
        assert await client.json("/version", 60) == {}


async def test_an_answer_that_comes_before_the_body_is_read(short: Path) -> None:
    async with SocketServer(short / "s") as server:
        server.answers["/v1/completions"] = (413, b"{}")
        body = b"x" * 10_000_000  # more than the socket holds
        assert await Client(server.path).request("/v1/completions", 60, body) == (413, b"{}")


async def test_nobody_there(short: Path) -> None:
    client = Client(short / "s")
    with pytest.raises(Silent, match="GET /health") as silent:
        await client.request("/health", 60)
    assert isinstance(silent.value.__cause__, FileNotFoundError)
    async with SocketServer(short / "s"):
        pass
    with pytest.raises(Silent) as silent:
        await client.request("/health", 60)
    assert isinstance(silent.value.__cause__, (ConnectionRefusedError, FileNotFoundError))
    assert await client.json("/health", 60) == {}


async def test_no_answer_in_time_leaves_no_thread(short: Path) -> None:
    async with SocketServer(short / "s") as server:
        server.answers["/health"] = None
        client = Client(server.path)
        began = own_time()
        with pytest.raises(Silent):
            await client.request("/health", 0.05)
        asked = len(server.asked)
        asking = asyncio.create_task(client.request("/health", 60))
        await until(lambda: len(server.asked) > asked)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert own_time() - began < 10
        waiting = [thread for thread in threading.enumerate() if "asyncio" in thread.name]
        await asyncio.wait_for(asyncio.to_thread(lambda: None), 60)  # a thread is free again
        assert waiting


async def test_a_failure_that_nobody_waits_for_is_not_logged(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a process that ends cancels all its tasks again."""
    begun, go_on = threading.Event(), threading.Event()
    logged: list[dict[str, Any]] = []

    def fail(*_: object) -> None:
        begun.set()
        go_on.wait(SECONDS)
        raise ConnectionResetError

    monkeypatch.setattr("wellspoken.engine.unix_http._send_request", fail)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    before = asyncio.all_tasks()
    asking = asyncio.create_task(Client(short / "s").request("/health", SECONDS))
    await until(begun.is_set)
    (thread,) = asyncio.all_tasks() - before - {asking}
    asking.cancel()
    await asyncio.sleep(0)  # it waits for its thread from here on
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go_on.set()
    await asyncio.wait({thread})
    del asking, thread
    gc.collect()
    assert logged == []


async def test_what_is_no_http(short: Path) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello, who is there?\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(shout, short / "s")
    with pytest.raises(Silent):
        await Client(short / "s").request("/health", 60)
    server.close()
    await server.wait_closed()
