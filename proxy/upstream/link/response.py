"""A backend's answer, as it comes in on a connection: its head, and its body in pieces or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import NoReturn, Protocol

from msgspec import Struct
from multidict import CIMultiDict, CIMultiDictProxy

from wellspoken.proxy.limits.pace import NEVER, Pace
from wellspoken.proxy.upstream.failures import (
    NotHttp,
    Peer,
    UpstreamError,
    encoded,
    not_read,
    too_large,
    too_late,
)
from wellspoken.proxy.upstream.link.connections import Connections
from wellspoken.proxy.upstream.link.wire import AnswerKind, Fields, Wire

MOST = 65_536  # bytes of an answer that wait for a reader until no more are read
LEAST = 1024  # bytes by which a body that is read whole has to grow, to be said to come
LINGER = 0.25  # seconds for the last bytes of an answer that is no longer needed

Sink = Callable[[bytes], bool]
"""Takes a piece of a body in the step in which it comes; says whether the pump is to stop."""
MayLeave = Callable[[], bool]
"""Says whether a request may be given up as long as nothing of its answer has come."""


class Watch(Protocol):
    """Who is told how a backend's answer comes in; see `UpstreamResponse.watch`."""

    def begin_body(self) -> None:
        """Note that the first piece of the body has come."""

    def end(self) -> None:
        """Note that the last byte has come or the connection was closed; more than once maybe."""

    def note_failure(self, error: UpstreamError) -> None:
        """Note that the answer broke off."""


class AnswerSource(Protocol):
    """Whose answer it is: the backend, as far as an answer needs it.

    `heard`: the loop's time when something of a model's answer was last read.
    """

    peer: Peer
    heard: float
    connections: Connections

    def note_failure(self, error: UpstreamError) -> UpstreamError:
        """Tell who listens that the backend failed, and return the error, to be raised."""


@lru_cache(maxsize=64)
def _read_type(value: bytes) -> tuple[str, str]:
    """Return a Content-Type as it came, and lower-case without parameters."""
    text = _decode(value)
    return text, text.partition(";")[0].strip().lower()


def _decode(value: bytes) -> str:
    return value.strip(b" \t").decode("utf-8", "surrogateescape")


class UpstreamResponse(Struct, eq=False):
    """A backend's answer whose head has come; read it to its end, or close it.

    `content_type` is lower-case and without parameters. After the last byte the connection goes
    back to the idle ones by itself.

    One task reads: by `chunk` or `read`, for which what comes is kept, or by `pump`, whose sink
    gets it in the step of the loop in which it comes, without a wake-up of the task. Beside it the
    connection (`Wire`) tells what comes and when a wait is too long. Whoever cancels the reader has
    the connection closed, since bytes that nobody takes would be the next answer's; `close` and
    `finish` await nothing, so they are safe in a `finally`.
    """

    _source: AnswerSource
    _wire: Wire
    _loop: asyncio.AbstractEventLoop
    _limit: float  # seconds for the first piece of the body, then `_between`; 0.0: no limit
    _between: float
    _coded: bool
    _whole: bool  # the reader has no use for the head before the body
    _works: bool  # it shows that the model computes
    _pace: Pace | None = None
    _may_leave: MayLeave | None = None
    _first: bool = True  # no byte of the body has come
    _complete: bool = False  # its last byte has come, and the connection is no longer ours
    _over: bool = False  # nothing more will be kept
    _lingers: bool = False  # what comes is dropped
    _pieces: list[bytes] = []  # of the body, which nobody has taken
    _size: int = 0  # bytes of those
    _seen: int = 0  # of those, when they were last looked at
    _paused: bool = False
    _failure: Exception | None = None
    _waiter: asyncio.Future[None] | None = None
    _wanted: int = 1  # bytes for which the reader waits
    _sink: Sink | None = None
    _stops: bool = False  # the sink has had enough
    _watch: Watch | None = None
    _since: float = 0.0  # when the present wait began; 0: nobody waits
    _bug: Exception | None = None  # of the sink
    _streamed: bool = False
    _coding: str = ""
    status: int = 0
    content_type: str = ""
    content_type_header: str = ""
    _fields: Fields = []
    _headers: CIMultiDictProxy[str] | None = None

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """The fields of the head."""
        if self._headers is None:
            made = ((_decode(name), _decode(value)) for name, value in self._fields)
            self._headers = CIMultiDictProxy(CIMultiDict(made))
        return self._headers

    async def head(self, again: bool = False) -> bool:
        """Wait for the response's head. Raises UpstreamError.

        `again`: what the server did not read may be sent once more; then False is returned.
        """
        now = self._loop.time()
        due = now + self._limit if self._limit else NEVER
        if self._pace is not None and self._pace.look < due:
            due = self._pace.look
        if due < NEVER:
            self._wire.wake_at(due)
        await self._wait(MOST + 1)
        if self._failure is not None and not self.status:
            if again and self._wire.unread:
                return False
            self._raise()
        if self.status == 101:
            self._failure = NotHttp("an upgrade")
            self._raise()
        if self._coding not in ("identity", "") and not self._coded:
            self.close()
            raise encoded(self._source.peer, self._coding)
        return True

    async def chunk(self) -> bytes:
        """Return what has come, at least one byte; b"" at the end. Raises UpstreamError."""
        if not self._pieces and not self._over:
            await self._wait(1)
        if not self._pieces and self._failure is not None:
            self._raise()
        return self._take()

    async def read(self, limit: int, grow: Callable[[int], Awaitable[None]] | None = None) -> bytes:
        """Return the whole body. Raises UpstreamError, also for more than `limit` bytes.

        `grow` finds room for each `MOST` bytes more of it; what that raises is raised here.
        """
        self.measure(self._grows)
        counted = 0
        step = limit if grow is None else min(MOST, limit)
        while not self._over and self._size <= limit:
            await self._wait(min(counted + step, limit) + 1)
            if grow is not None and self._size > counted + step:
                more, counted = self._size - counted, self._size
                try:
                    await grow(more)
                except BaseException:
                    self.close()
                    raise
        if self._size > limit:
            self.close()
            raise self._note_failure(too_large(self._source.peer, limit))
        if self._failure is not None:
            self._raise()
        return self._take()

    async def pump(self, sink: Sink) -> bool:
        """Give each piece to `sink` as it comes, until it says True; return False at the end.

        What the sink raises is raised here, and the answer is as after its True: there may be more
        to come. Raises UpstreamError.
        """
        self._stops = False
        while True:
            if self._pieces and sink(self._take()):
                return True
            if not self._pieces and self._over:
                break
            await self._wait(1, sink)
            if self._bug is not None:
                bug, self._bug = self._bug, None
                raise bug
            if self._stops:
                return True
        if self._failure is not None:
            self._raise()
        return False

    def watch(self, watch: Watch) -> None:
        """Tell `watch` of the body's first piece, of its end, and of what fails."""
        self._watch = watch
        if not self._first:
            watch.begin_body()
        if self._complete:
            watch.end()

    def measure(self, moves: Callable[[], bool]) -> None:
        """Go by what `moves` says of the answer's progress; see `Pace.moves`."""
        if self._pace is not None:
            self._pace.moves = moves

    def close(self) -> None:
        """Close the connection at once, whatever is still to come; after the end, do nothing."""
        self._over = True
        self._failure = None
        self._pieces.clear()
        self._size = 0
        if not self._complete:
            self._complete = True
            self._wire.abort()
        if self._watch is not None:
            self._watch.end()

    def finish(self) -> None:
        """Say that what matters has been read: the rest, if it comes at once, is dropped.

        A server's last chunk often is a packet of its own behind [DONE]; to wait a moment for it
        keeps the connection, and costs nobody anything.
        """
        if not self._complete and not self._over:
            self._lingers = True
            self._limit = LINGER
            self._since = self._loop.time()
            self._wire.wake_at(self._since + LINGER)
            self._resume()

    # What the connection tells; see `wire.Waiting`.

    def begin(self, status: int, fields: Fields) -> None:
        """Take the head."""
        self.status = status
        self._fields = fields
        length = None
        for name, value in fields:
            name = name.lower()
            if name == b"content-type" and not self.content_type_header:
                self.content_type_header, self.content_type = _read_type(value)
            elif name == b"content-length":
                length = int(value)
            elif name == b"content-encoding":
                self._coding = self._coding or _decode(value).lower()
        self._streamed = self.content_type == "text/event-stream" or length is None
        if self._streamed or not self._whole or (length or 0) > MOST:
            self._wake()

    def receive(self, data: bytes, complete: bool) -> None:
        """Take a piece of the body."""
        self._complete = complete
        if data and not self._lingers:
            now = self._loop.time()
            if self._first:
                self._begin_body(now)
            if self._waiter is not None and not self._waiter.done():
                self._since = now  # the next wait
                if self._works:
                    self._source.heard = now
            if self._sink is None:
                self._keep(data)
            else:
                try:
                    self._stops = self._sink(data)
                except Exception as error:
                    self._bug = error
                if self._stops or self._bug is not None:
                    self._sink = None
                    self._wake()
        if complete:
            self._over = True
            self._wake()
            self._give_back()

    def fail(self, error: Exception) -> None:
        """Take that nothing more will come."""
        self._failure = error
        self._over = True
        self._wake()

    def may_leave(self) -> bool:
        """Say whether the request may be given up, of whose answer's body nothing has come."""
        return self._first and self._may_leave is not None and self._may_leave()

    def deadline(self, now: float) -> float:
        """Return when the present wait is too long, or the answer too slow, or when to look."""
        due = (self._since or now) + self._limit if self._limit else NEVER
        if self._pace is None:
            return due
        return min(due, self._pace.deadline(now, waits=bool(self._since)))

    def _grows(self) -> bool:
        """Say whether a body that is read whole came on; blanks before it are no beginning."""
        if not self._seen:
            grown = any(piece.strip() for piece in self._pieces)
        else:
            grown = self._size - self._seen >= LEAST
        if grown:
            self._seen = self._size
        return grown

    def _begin_body(self, now: float) -> None:
        self._first = False
        self._limit = self._between
        if self._limit:
            self._wire.wake_at(now + self._limit)
        if self._watch is not None:
            self._watch.begin_body()

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size >= self._wanted:
            self._wake()
        if self._size > MOST and (self._waiter is None or self._waiter.done()):
            self._paused = True
            self._wire.pause()

    def _take(self) -> bytes:
        """Return what was kept."""
        pieces = self._pieces
        if self._works and pieces:
            self._source.heard = self._loop.time()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        return data

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._wire.resume()

    async def _wait(self, wanted: int, sink: Sink | None = None) -> None:
        """Wait for `wanted` bytes, or the end; before the head for the head."""
        self._resume()
        self._wanted = wanted
        self._sink = sink
        self._since = self._loop.time()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        except BaseException:  # who waits is cancelled
            self.close()
            raise
        finally:
            self._waiter = self._sink = None
            self._since = 0.0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _give_back(self) -> None:
        """Give the connection back, now that its answer's last byte has come."""
        self._resume()
        if self._watch is not None:
            self._watch.end()
        kind = AnswerKind(self._works, self._streamed, self.status >= 400)
        self._source.connections.give(self._wire, kind)

    def _note_failure(self, error: UpstreamError) -> UpstreamError:
        if self._watch is not None:
            self._watch.note_failure(error)
        return error

    def _raise(self) -> NoReturn:
        """Raise the backend's failure by its name."""
        failure = self._failure
        assert failure is not None
        self.close()
        over = None
        if self._pace is not None and isinstance(failure, TimeoutError):
            over = self._pace.judge(self._loop.time())
        if over is not None and not (self._first and over.reason == "first_token_timeout"):
            meaning = too_late(self._source.peer, over)
        else:
            meaning = not_read(self._source.peer, failure, self._first, self._limit)
        meaning.unanswered = self._first
        raise self._note_failure(self._source.note_failure(meaning)) from failure
