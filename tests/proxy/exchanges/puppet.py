"""Both ends of the proxy on strings: a backend whose every act a test chooses, and raw clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from tests.conforming import MODEL, body, chunk, finish, role
from tests.fakes.upstream import DONE, event
from tests.proxy.conftest import CHAT

RESET = struct.pack("ii", 1, 0)
NUMBER = re.compile(rb"number (\d+)\.")


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()


@dataclass
class Ask:
    """One request of a client: its number, which its answer has to hold, and whether it streams.

    `told`: the text that the backend has sent of its answer. `fault`: how the backend broke it,
    "" where it did not. `whole`: the answer has come to its end.
    """

    number: int
    streams: bool
    told: str = ""
    fault: str = ""
    whole: bool = False

    @property
    def data(self) -> bytes:
        """The request as it is sent."""
        messages = [{"role": "user", "content": f"number {self.number}."}]
        asked: dict[str, Any] = {"model": MODEL, "messages": messages}
        if self.streams:
            asked["stream"] = True
        sent = json.dumps(asked).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent


@dataclass
class Turn:
    """One request as it came to the backend, and the connection on which it is answered."""

    number: int
    writer: asyncio.StreamWriter
    over: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    begun: bool = False

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)

    def head(self, kind: str, size: int | None = None) -> None:
        """Send the head of an answer: with a length, or chunked."""
        framing = "Transfer-Encoding: chunked" if size is None else f"Content-Length: {size}"
        self.begun = True
        self.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode())

    def chunk(self, data: bytes) -> None:
        """Send a piece of a chunked answer."""
        self.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, *, close: bool = False) -> None:
        """Let the connection have its next request, or end it behind what was sent."""
        if close:
            self.writer.close()
        self.over.set()


class Puppet:
    """The backend. `turns`: the requests that came, in order."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.open: set[asyncio.StreamWriter] = set()
        self.server: asyncio.Server

    async def start(self) -> str:
        """Listen; return the base URL."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Close the listening socket and wait for the last connection's end."""
        self.server.close()
        await self.server.wait_closed()

    def turn_of(self, ask: Ask) -> Turn | None:
        """Return where a request has come to, None before; fails if it came twice."""
        found = [turn for turn in self.turns if turn.number == ask.number]
        assert len(found) < 2, "a POST came to the backend twice"
        return found[0] if found else None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        turn = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"(?i)content-length: (\d+)", head)
                assert size is not None and head.startswith(b"POST "), head
                found = NUMBER.search(await reader.readexactly(int(size[1])))
                assert found is not None
                turn = Turn(int(found[1]), writer)
                self.turns.append(turn)
                ended = asyncio.create_task(self._watch(reader, turn))
                await turn.over.wait()
                ended.cancel()
                await asyncio.gather(ended, return_exceptions=True)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            if turn is not None:
                turn.closed.set()
            self.open.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _watch(self, reader: asyncio.StreamReader, turn: Turn) -> None:
        """Notice that the proxy ends a connection that awaits an answer; it sends nothing."""
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                # `read` would take the next request's first byte, which comes after `over` alone.
                await reader.read(1)
        turn.closed.set()
        turn.over.set()


@dataclass
class Reply:
    """One answer as a client got it; `whole`: its framing has come to its end."""

    status: int
    body: bytes
    whole: bool

    @property
    def events(self) -> list[str]:
        """What the events of a stream hold that have come."""
        lines = self.body.decode().split("\n\n")
        return [x.removeprefix("data: ") for x in lines if x and not x.startswith(":")]

    @property
    def text(self) -> str:
        """What the events say together."""
        chunks = [json.loads(x) for x in self.events if x != "[DONE]"]
        choices = [choice for x in chunks for choice in x.get("choices", ())]
        return "".join(x["delta"].get("content") or "" for x in choices)


class Client:
    """One connection of a client; what comes is kept, unless the client has stopped reading."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.asks: list[Ask] = []
        self.unsent = b""  # of the last request
        self.data = b""
        self.ended = False  # by the proxy
        self.gone = False  # by itself
        self.reading = asyncio.Event()
        self.reading.set()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await self.reader.read(65_536):
                await self.reading.wait()
                self.data += data
        self.ended = True

    async def leave(self) -> None:
        """Stop reading for good and close; what was not read makes the system send RST."""
        self.gone = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    @property
    def replies(self) -> list[Reply]:
        """The answers so far; the last of them may be a part."""
        found, rest = [], self.data
        while rest:
            head, there, rest = rest.partition(b"\r\n\r\n")
            if not there:
                break
            assert head.startswith(b"HTTP/1.1 "), head
            size = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
            if size is not None:
                body, rest = rest[: int(size[1])], rest[int(size[1]) :]
                found.append(Reply(int(head[9:12]), body, len(body) == int(size[1])))
            else:
                assert b"transfer-encoding: chunked" in head.lower(), head
                body, rest, whole = unchunk(rest)
                found.append(Reply(int(head[9:12]), body, whole))
        return found

    @property
    def answered(self) -> int:
        """How many answers have come to their end."""
        return sum(reply.whole for reply in self.replies)


def unchunk(data: bytes) -> tuple[bytes, bytes, bool]:
    """Return a chunked body, what is behind it, and whether its end has come."""
    parts: list[bytes] = []
    while True:
        line, there, rest = data.partition(b"\r\n")
        if not there or len(rest) < (size := int(line, 16)) + 2:
            return b"".join(parts), b"", False
        assert rest[size : size + 2] == b"\r\n"
        if not size:
            return b"".join(parts), rest[2:], True
        parts.append(rest[:size])
        data = rest[size + 2 :]


def text_event(text: str) -> bytes:
    """Return an event with a piece of text."""
    return event(chunk({"content": text}))


FIRST = event(role())
LAST = event(finish()) + DONE


def whole_body(text: str) -> bytes:
    """Return a whole answer that says this text."""
    answer = body()
    answer["choices"][0]["message"]["content"] = text
    return json.dumps(answer).encode()
