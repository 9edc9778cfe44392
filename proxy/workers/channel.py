"""What a parent and its workers say to each other: messages of msgpack over a pair of sockets."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct, msgpack

from wellspoken.proxy.config.tables import Config
from wellspoken.proxy.limits.quota import Decision, Quota
from wellspoken.proxy.workers.totals import Family

LENGTH: Final = 4
"""Bytes before each message, which are its length, big-endian."""
_CLOSING: Final = 2.0  # seconds for what was sent last to leave


def run_beside(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Do in a task of its own, one of `tasks`, what takes time.

    Each side reads in one task and answers from it, so what a message asks for must not wait there;
    the answer goes by the number of the question. Who owns `tasks` cancels them at the end.
    """
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


class _Message(Struct, frozen=True, tag=True, array_like=True):
    """What is sent: an array, which begins with the name of its class."""


class _Numbered(_Message, frozen=True):
    """A question, or the answer to the one of this number."""

    number: int


class Begin(_Message, frozen=True):
    """To a worker: serve this. References to keys stay references, which it reads itself."""

    config: Config


class StopWorker(_Message, frozen=True):
    """To a worker: one more signal to end has come."""


class AskCounts(_Numbered, frozen=True):
    """To a worker: what do you count?"""


class Sum(_Numbered, frozen=True):
    """To a worker: what all count, for the scrape of this number."""

    families: list[Family]


class Prepare(_Numbered, frozen=True):
    """To a worker: read all that this configuration needs, and change nothing yet."""

    config: Config


class Take(_Numbered, frozen=True):
    """To a worker: go over to what was prepared."""


class Settle(_Numbered, frozen=True):
    """To a worker: write what you have to store. To the parent: all others shall, for a reader."""


class Settled(_Numbered, frozen=True):
    """Both ways: it is written, as far as that is possible now."""


class Listens(_Message, frozen=True):
    """To the parent: clients can connect."""


class Started(_Message, frozen=True):
    """To the parent: what to tell the user, now that the backends were looked at."""

    text: str


class Counts(_Numbered, frozen=True):
    """To the parent: what is counted here, asked for by a number, or unasked with 0."""

    families: list[Family]


class Alive(_Message, frozen=True):
    """To the parent: nothing has changed here."""


class Scrape(_Numbered, frozen=True):
    """To the parent: what do all count? With what is counted here."""

    families: list[Family]


class Prepared(_Numbered, frozen=True):
    """To the parent: it can be taken over, or why not."""

    error: str


class Taken(_Numbered, frozen=True):
    """To the parent: the configuration that holds now, and what there is to say of it."""

    config: Config
    warnings: list[str]
    described: str
    error: str


class ReserveQuota(_Numbered, frozen=True):
    """To the parent: may a client's request begin that may need so many tokens?"""

    id: str
    client: str
    quota: Quota
    tokens: int


class Decided(_Numbered, frozen=True):
    """To a worker: whether that request may begin."""

    decision: Decision


class SettleQuota(_Message, frozen=True):
    """To the parent: that request has ended, and gives so much back."""

    id: str
    requests: int
    tokens: int


ToWorker = Begin | StopWorker | AskCounts | Sum | Prepare | Take | Settle | Settled | Decided
ToParent = (
    Listens | Started | Counts | Alive | Scrape | Prepared | Taken | Settle | Settled
    | ReserveQuota | SettleQuota
)  # fmt: skip
Message = ToWorker | ToParent

T = TypeVar("T")

_encode = msgpack.Encoder().encode
decode_to_worker: Final[msgpack.Decoder[Any]] = msgpack.Decoder(ToWorker)
decode_to_parent: Final[msgpack.Decoder[Any]] = msgpack.Decoder(ToParent)


@dataclass(slots=True, eq=False)
class Channel(Generic[T]):
    """One side of the pair of sockets, within a running loop; T is what the other side says."""

    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    _decoder: msgpack.Decoder[Any]

    @classmethod
    async def over(cls, sock: socket.socket, decoder: msgpack.Decoder[Any]) -> Channel[T]:
        """Return the channel over a connected socket, which it owns from now on."""
        reader, writer = await asyncio.open_connection(sock=sock)
        return cls(reader, writer, decoder)

    @property
    def unsent(self) -> int:
        """How many bytes the other side has not taken yet, beyond what the system holds for it."""
        return self._writer.transport.get_write_buffer_size()

    def send(self, message: Message) -> None:
        """Send a message, without waiting; to one who has gone it is lost."""
        if not self._writer.is_closing():
            data = _encode(message)
            self._writer.write(len(data).to_bytes(LENGTH, "big") + data)

    async def receive(self) -> T | None:
        """Return the next message; None: the other side has gone. Raises msgspec.DecodeError."""
        try:
            head = await self._reader.readexactly(LENGTH)
            data = await self._reader.readexactly(int.from_bytes(head, "big"))
        except (asyncio.IncompleteReadError, OSError):
            return None
        message: T = self._decoder.decode(data)
        return message

    def drop(self) -> None:
        """Close without waiting: the other side has gone."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Let what was sent leave, as far as somebody takes it, and close."""
        self._writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSING):
                await self._writer.wait_closed()


class Questions(Generic[T]):
    """Questions to the other side, whose answers come by their numbers and in any order."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[T | None]] = {}
        self._gone = False

    async def ask(self, send: Callable[[int], None], seconds: float) -> T | None:
        """Send a question with a number; return its answer, None where none comes in time."""
        if self._gone:
            return None
        number = next(self._numbers)
        future: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
        self._open[number] = future
        send(number)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._open[number]

    def answer(self, number: int, said: T | None) -> None:
        """Give an answer to whoever waits for it still."""
        future = self._open.get(number)
        if future is not None and not future.done():
            future.set_result(said)

    def close(self) -> None:
        """Let nobody wait any longer: the other side has gone."""
        self._gone = True
        for number in self._open:
            self.answer(number, None)


def first_message(sock: socket.socket) -> Message | None:
    """Wait for a worker's first message; None: the parent has gone. Raises msgspec.DecodeError."""
    head = _exactly(sock, LENGTH)
    data = _exactly(sock, int.from_bytes(head, "big")) if head else b""
    return decode_to_worker.decode(data) if data else None


def _exactly(sock: socket.socket, size: int) -> bytes:
    """Read so many bytes; b"" if fewer come."""
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            return b""
        data += piece
    return data
