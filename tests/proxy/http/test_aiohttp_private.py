"""What is private in aiohttp's server and used all the same: each name has to be what it was.

A release that renames one, or has it mean something else, fails here and not in front of clients.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web_protocol
from aiohttp.http_writer import StreamWriter
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from aiohttp.web_server import Server

PROXY = Path(__file__).parents[3] / "proxy"
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n"
Check = Callable[[Any], Awaitable[None]]


def connected(protocol: type[RequestHandler], answered: Any = None) -> Any:
    """Return a connection whose transport takes everything."""
    handler = protocol(Server(answered or Mock()), loop=asyncio.get_running_loop())
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    handler.connection_made(transport)
    return handler


async def ended(handler: Any) -> None:
    if handler._task_handler is not None:
        handler._task_handler.cancel()  # before it begins, without what the connection had
    handler.connection_lost(None)
    await asyncio.sleep(0)


async def counts_requests(protocol: Any) -> None:
    """`_request_count` is the number of heads that were parsed; a part of one is none."""
    handler = connected(protocol)
    handler.data_received(HEAD[:10])
    assert handler._request_count == 0
    handler.data_received(HEAD[10:] + b"abc" + HEAD)
    assert handler._request_count == 2
    await ended(handler)


async def holds_messages(protocol: Any) -> None:
    """`_messages` has what waits for the handler, the newest last, each with its body."""
    handler = connected(protocol)
    handler.data_received(HEAD + b"ab")
    message, body = handler._messages[-1]
    assert message.method == "POST" and not body.is_eof()
    handler.data_received(b"c")
    assert body.is_eof()
    await ended(handler)


async def has_its_task(protocol: Any) -> None:
    """`_task_handler` is the task of a connection, from the moment in which that is made."""
    handler = connected(protocol)
    assert isinstance(handler._task_handler, asyncio.Task)
    await ended(handler)


async def has_its_loop(protocol: Any) -> None:
    """`_loop` is the loop."""
    handler = connected(protocol)
    assert handler._loop is asyncio.get_running_loop()
    await ended(handler)


async def lingers(protocol: Any) -> None:
    """`_lingering_time`, set to nothing while a request is answered, ends the connection with it.

    Otherwise the rest of the request's body is waited for, ten seconds long.
    """

    async def refuse(request: BaseRequest) -> Any:
        if request.path == "/now":
            request.protocol._lingering_time = 0.0
        response = Mock(keep_alive=False, status=408)
        response.prepare = response.write_eof = lambda *_: asyncio.sleep(0)
        return response

    for path, soon in ((b"/now", True), (b"/", False)):
        handler = connected(protocol, refuse)
        handler.data_received(HEAD.replace(b"/ ", path + b" "))
        for _ in range(20):
            await asyncio.sleep(0)
        assert handler._task_handler is None or handler._task_handler.done() or not soon
        assert bool(handler.transport is None or handler.transport.close.called) == soon
        await ended(handler)


async def makes_a_request_of_what_is_none(protocol: Any) -> None:
    """`ERROR` is a message without a header, of which a request can be made."""
    handler = connected(protocol)
    loop = asyncio.get_running_loop()
    writer = StreamWriter(handler, loop)
    request = BaseRequest(
        web_protocol.ERROR, EMPTY_PAYLOAD, handler, writer, handler._task_handler, loop
    )
    assert not request.headers and request.method == "UNKNOWN" and request.version == (1, 0)
    await ended(handler)


async def pauses_the_transport(protocol: Any) -> None:
    """The two are asked whenever the transport is to be read no more, and again."""
    handler = connected(protocol)
    transport = handler.transport
    handler.data_received(HEAD)  # the parser pauses a body
    handler.pause_reading()
    transport.pause_reading.assert_called_once()
    handler._resume_transport_reading()
    transport.resume_reading.assert_called_once()
    handler._pause_transport_reading()
    await ended(handler)


async def tells_since_when_it_is_idle(protocol: Any) -> None:
    """`_next_keepalive_close_time`: when it ends if nothing (more) is asked, 0.0 at first."""
    loop, answered = asyncio.get_running_loop(), asyncio.Event()

    async def answer(request: BaseRequest) -> Any:
        answered.set()
        response = Mock(keep_alive=True, status=200)
        response.prepare = response.write_eof = lambda *_: asyncio.sleep(0)
        request.protocol.keep_alive(True)
        return response

    assert protocol(Server(Mock()), loop=loop)._next_keepalive_close_time == 0.0
    before = loop.time()
    handler = connected(protocol, answer)
    made = handler._next_keepalive_close_time
    assert before <= made - handler.keepalive_timeout <= loop.time()
    handler.data_received(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await answered.wait()
    for _ in range(20):
        await asyncio.sleep(0)
    since = handler._next_keepalive_close_time - handler.keepalive_timeout
    assert made < handler._next_keepalive_close_time and since <= loop.time()
    await ended(handler)


CHECKS: dict[str, Check] = {
    "_next_keepalive_close_time": tells_since_when_it_is_idle,
    "_pause_transport_reading": pauses_the_transport,
    "_resume_transport_reading": pauses_the_transport,
    "_request_count": counts_requests,
    "_messages": holds_messages,
    "_task_handler": has_its_task,
    "_lingering_time": lingers,
    "_loop": has_its_loop,
    "ERROR": makes_a_request_of_what_is_none,
}


@pytest.mark.parametrize("name", CHECKS)
async def test_a_private_name_is_what_it_was(name: str) -> None:
    await CHECKS[name](RequestHandler)


@pytest.mark.parametrize("name", CHECKS)
async def test_its_check_fails_where_it_has_gone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker: a release without the name, and one in which it is only an ornament."""

    class Ornament:
        """Takes what is set, and never tells it."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return None

        def __set__(self, instance: Any, value: Any) -> None:
            pass

    monkeypatch.delattr(web_protocol, "ERROR") if name == "ERROR" else None
    for changed in (property(), Ornament()):
        mutant = type("Mutant", (RequestHandler,), {name: changed})
        with pytest.raises((AssertionError, AttributeError, TypeError, ValueError)):
            await CHECKS[name](mutant)


def test_the_range_that_was_tested_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((PROXY.parent / "pyproject.toml").read_text())["project"]
    wanted = next(one for one in project["dependencies"] if one.startswith("aiohttp"))
    major, minor, _ = version("aiohttp").split(".")
    assert wanted == f"aiohttp>={version('aiohttp')},<{major}.{int(minor) + 1}"


SIDES = {
    "http/connection.py": {
        *("_request_count", "_messages", "_task_handler", "_lingering_time"),
        "_next_keepalive_close_time",
        *("_pause_transport_reading", "_resume_transport_reading"),
    },
}
"""The one module that knows private names of aiohttp, and those."""


def test_nobody_else_uses_them() -> None:
    for path in PROXY.rglob("*.py"):
        text, name = path.read_text(), path.relative_to(PROXY).as_posix()
        known = SIDES.get(name, set())
        used = {one for one in set.union(*SIDES.values()) if f".{one}" in text}
        assert used == known, f"{name}: {used ^ known}"
