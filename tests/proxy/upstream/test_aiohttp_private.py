"""What is private in aiohttp's client and used all the same: each name has to be what it was."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.streams import StreamReader

from wellspoken.proxy.upstream.wire import take_ready

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"


async def has_the_body(protocol: Any, body: Any) -> None:
    """`_payload` of a connection is the body that is being read, None before it and after."""
    wire: Any = protocol(asyncio.get_running_loop())
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    wire.connection_made(transport)
    wire.set_response_params(read_until_eof=True, auto_decompress=False)
    assert not wire._payload
    wire.data_received(HEAD + b"ab")
    payload: Any = (await wire.read())[1]
    assert wire._payload is payload and not payload.is_eof()
    wire.data_received(b"cd")
    assert payload.is_eof()
    wire.connection_lost(None)
    assert wire._payload is None


async def buffers(protocol: Any, body: Any) -> None:
    """`_buffer` of a body is true while something of it has come that was not read."""
    made = body(Mock(), 65_536, loop=asyncio.get_running_loop())
    assert not made._buffer
    made.feed_data(b"ab")
    assert made._buffer
    assert await made.readany() == b"ab"
    assert not made._buffer


async def reads_now(protocol: Any, body: Any) -> None:
    """`_read_nowait` gives all that came before a failure, where the public one raises."""
    made = body(Mock(), 65_536, loop=asyncio.get_running_loop())
    made.feed_data(b"ab")
    made.feed_data(b"c")
    made.set_exception(OSError("cut"))
    with pytest.raises(OSError):
        made.read_nowait(-1)
    assert made._read_nowait(-1) == b"abc"


Check = Callable[[Any, Any], Awaitable[None]]
CHECKS: dict[str, Check] = {
    "_payload": has_the_body,
    "_buffer": buffers,
    "_read_nowait": reads_now,
}


@pytest.mark.parametrize("name", CHECKS)
async def test_a_private_name_is_what_it_was(name: str) -> None:
    await CHECKS[name](ResponseHandler, StreamReader)


@pytest.mark.parametrize("name", CHECKS)
async def test_its_check_fails_where_it_has_gone(name: str) -> None:
    """The checker: a release without the name, and one in which it is only an ornament."""

    class Ornament:
        """Takes what is set, and never tells it."""

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            return None

        def __set__(self, instance: Any, value: Any) -> None:
            pass

    for changed in (property(), Ornament()):
        mutants = [
            type("Mutant", (original,), {name: changed})
            for original in (ResponseHandler, StreamReader)
        ]
        with pytest.raises((AssertionError, AttributeError, TypeError)):
            await CHECKS[name](*mutants)


async def test_what_has_come_is_taken_once_and_a_failure_behind_it_takes_nothing_away() -> None:
    body = StreamReader(Mock(), 65_536, loop=asyncio.get_running_loop())
    assert take_ready(body) == b""
    body.feed_data(b"ab")
    body.set_exception(OSError("cut"))
    assert (take_ready(body), take_ready(body)) == (b"ab", b"")
