"""One request on its way through the proxy: what is known of it, and the ways to answer it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from aiohttp.web_request import BaseRequest
from msgspec import Struct

from wellspoken.adapters.events import Fault, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.errors import RequestError, error_json
from wellspoken.proxy.http.connection import Connection
from wellspoken.proxy.http.requests import (
    BodyPace,
    fresh_id,
    is_notable,
    read_body,
    request_id,
    take_body,
)
from wellspoken.proxy.http.responses import (
    EVENTS,
    JSON,
    EventStream,
    Reply,
    TappedStream,
    identifying,
)
from wellspoken.proxy.limits.budget import ANSWER, BODY, full, too_large
from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.relay.headers import NO_RETRY, fault_in, retry_headers
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.relay.records import BackendSpan, Results, Routing, Tap, Timing
from wellspoken.proxy.state import State
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.ejection import Visit
from wellspoken.proxy.upstream.failures import HARMLESS, UpstreamError
from wellspoken.proxy.upstream.target import Target

LARGE: Final = 131_072
"""Bytes of a body whose translation takes more than a millisecond or two."""

_ODD: Final = re.compile(r"[^ -~]")  # a backend's name may hold what a header cannot

Result = TypeVar("Result")


async def in_thread(large: bool, act: Callable[..., Result], *arguments: Any) -> Result:
    """Return what `act` makes, in a thread where that is `large`, so that the loop stays free."""
    return await asyncio.to_thread(act, *arguments) if large else act(*arguments)


class Tracing(Protocol):
    """What makes the spans of a service's requests."""

    def begin_request(
        self, call: Call, target: Target, url: str, request: BackendRequest, *, resent: bool = False
    ) -> BackendSpan:
        """Begin the span of a request to the backend at `url`."""


Observer = Callable[["Call", int], None]
"""Is told of each request when it is over, with its status: 499 where the client had left."""


@dataclass(slots=True, eq=False)
class Hooks:
    """Who looks on while a service answers: set up before the first request, none of it needed.

    `tap` is given a request and its id.
    """

    observers: list[Observer] = field(default_factory=list)
    tracing: Tracing | None = None
    tap: Callable[[State, BaseRequest, str], Tap | None] | None = None


class Call(Struct, frozen=True, eq=False):
    """One request on its way: facts, the records of what becomes of it, the ways to answer it.

    `began`: perf_counter's time at the end of the head. `notable`: the request has one of
    http.requests' `NOTABLE` headers. `tap` notes the bodies for the log.
    """

    state: State
    hooks: Hooks
    request: BaseRequest
    id: str
    path: str
    notable: bool
    began: float
    routing: Routing
    timing: Timing
    results: Results
    tap: Tap | None = None

    @property
    def phase(self) -> str:
        """What a client that leaves now did not wait for, or not to the end: one of PHASES.

        One that took nothing of its answer, whose connection was reset for that, is "stalled".
        """
        protocol = self.request.protocol
        if isinstance(protocol, Connection) and protocol.stalled:
            return "stalled"
        if self.results.streamed:
            return "streaming"
        return "waiting" if self.results.received else "request"

    @property
    def is_large(self) -> bool:
        """Whether the client's body is more than the loop should take a look at."""
        return self.results.held >= BODY * LARGE

    def route(
        self, target: Target, model: str = "", streams: bool = False, *, counts: bool = True
    ) -> None:
        """Note where the request goes; `counts`: its time belongs to the backend's latency.

        It is counted at that server from now on, and no more at the one that had it.
        """
        routing = self.routing
        if counts:
            routing.backend = target.name
            if routing.target is not target:
                if routing.target is not None:
                    self.leave_server()
                routing.target = target
                target.outstanding += 1
                ejection = target.ejection
                routing.visit = Visit(ejection) if ejection is not None else None
        if target.upstream is not None:
            routing.hide = target.upstream.hide
        routing.model = model
        routing.streams = streams
        self.label_model(model)

    def leave_server(self) -> None:
        """Count it no more at the server that had it, and at its engine; once for each."""
        routing = self.routing
        if routing.engine is not None:
            routing.engine.leave()
            routing.engine = None
        target = routing.target
        if target is not None:
            target.outstanding -= 1
        if routing.visit is not None:
            routing.visit.leave()

    def name_server(self, target: Target, fallback: str) -> None:
        """Tell the client which of several servers has the request; `fallback`: by which name."""
        lines = f"x-wellspoken-backend: {_ODD.sub('?', target.name)}\r\n"
        if fallback:
            lines += f"x-wellspoken-fallback: {_ODD.sub('?', fallback)}\r\n"
        self.results.server = lines.encode("ascii")

    def count_move(self, left: Target, reason: str, to: str) -> None:
        """Note that the request goes from a server to another one, where its answer is all anew."""
        self.state.metrics.failovers.labels(left.name, reason, to).inc()
        self.results.failure = ""
        self.results.fault = None
        self.results.stripped = b""

    def label_model(self, model: str) -> None:
        """Note what metrics call the request's model; again once a name may have been learned."""
        self.routing.label = self.state.router.label(model)

    async def read_body(self) -> bytes:
        """Return the body of the request; then the call waits for a backend. Raises RequestError.

        As `http.requests.take_body` and `read_body` do.
        """
        config, request = self.state.config, self.request
        body = take_body(request, self.notable, config.limits.body)
        if body is not None:
            if not self.take(BODY * len(body)):
                await self.wait_for_room(BODY * len(body))
        else:
            began = perf_counter()
            try:
                times = config.timeouts
                pace = BodyPace(times.client_body, config.limits.body_rate, times.total)
                body = await self._read_large(config.limits.body, pace)
            finally:
                self.timing.end_wait(began)
        if self.tap is not None:
            self.tap.request(body)
        self.results.received = True
        return body

    async def _read_large(self, limit: int, pace: BodyPace) -> bytes:
        """Read a body, for which room is taken as it comes: to announce bytes costs nothing."""
        announced = int(self.request.headers.get("Content-Length", 0))
        if BODY * announced > self.state.memory.limit:
            self.state.memory.refused()
            raise too_large()
        return await read_body(self.request, limit, pace, self.grow_body)

    async def grow_body(self, size: int) -> None:
        """Take room for more of the body. Raises RequestError as `wait_for_room` does."""
        await self.wait_for_room(BODY * size)

    async def grow_answer(self, size: int) -> None:
        """Take room for more of a whole answer. Raises RequestError as `wait_for_room` does."""
        await self.wait_for_room(ANSWER * size)

    async def read_whole(self, response: UpstreamResponse) -> bytes:
        """Return an answer's body, for which there is room. Raises UpstreamError, RequestError."""
        return await response.read(self.state.config.limits.response, self.grow_answer)

    async def body_of(self, request: BackendRequest) -> bytes:
        """Return what is sent; who awaits it must not give it a name, by which it would be held."""
        if request.make is None:
            return request.payload
        return await in_thread(self.is_large, request.make)

    def take(self, size: int) -> bool:
        """Take room for so many bytes until the call is over; False where there is none now."""
        taken = self.state.memory.take(size)
        if taken:
            self._hold(size)
        return taken

    def hold_kept(self, size: int) -> None:
        """Take room at once for what is kept of a stream. Raises RequestError 503."""
        if not self.take(ANSWER * size):
            self.state.memory.refused()
            raise full()

    async def wait_for_room(self, size: int) -> None:
        """Take room for so many bytes, once there is some. Raises RequestError: 413, 503."""
        memory, results = self.state.memory, self.results
        if self.take(size):
            return
        if results.held + size > memory.limit:  # nobody else's end would help
            memory.refused()
            raise full() if results.received else too_large()
        await memory.wait(size)
        self._hold(size)

    def _hold(self, size: int) -> None:
        self.results.held += size

    async def prepare(self, target: Target) -> None:
        """Wait for what is found out once of a target. Raises RequestError 500 as that does."""
        began = perf_counter()
        try:
            await target.ready()
        finally:
            self.timing.end_wait(began)
        if self.routing.label == OTHER:  # what was just found out may have told the name
            self.label_model(self.routing.model)

    def note_first_piece(self) -> None:
        """Note that bytes of a streamed answer have left; the first ones count."""
        if not self.results.streamed:
            self.results.streamed = True
            waited = (self.timing.first or perf_counter()) - self.began
            routing = self.routing
            if routing.visit is not None:
                routing.visit.note_beginning()
            self.state.metrics.first_token.series[routing.backend, routing.label].observe(waited)

    def note_end(self) -> None:
        """Note that the whole answer of the server has come."""
        if self.routing.visit is not None:
            self.routing.visit.note_end()

    def count_answer(self, exchange: Exchange) -> None:
        """Count what the answer needed."""
        self.results.exchange = exchange
        self.state.metrics.count_answer(self.routing.backend, self.routing.label, exchange)

    def count_passing(self, usage: Usage | None, pieces: int = 0) -> None:
        """Count the tokens of an answer that passed through, in `pieces` if it was a stream."""
        self.results.usage = usage
        self.results.pieces = pieces
        self.state.metrics.count_passing_answer(self.routing.backend, self.routing.label, usage)

    def note_failure(self, error: UpstreamError) -> None:
        """Count a backend's failure."""
        self.results.failure = error.reason
        if self.routing.visit is not None and error.reason not in HARMLESS:
            self.routing.visit.note_failure(error.reason)
        self.state.metrics.upstream_errors.labels(self.routing.backend, error.reason).inc()

    def note_refusal(self, error: RequestError) -> Fault:
        """Note that the proxy itself refuses the request; return what the client is told."""
        self.results.refusal = True
        return Fault(error.status, error.message, error.type, error.param, error.code)

    def note_fault(self, fault: Fault) -> None:
        """Note the failure that the client is told of; the latest counts."""
        self.results.fault = fault

    def lines(self) -> bytes:
        """Return the header lines of an answer that begins now."""
        results = self.results
        lines = identifying(self.id, perf_counter() - self.began) + results.stripped + results.quota
        lines += results.server
        if self.state.origins is not None:
            lines += self.state.origins.lines(self.request.headers)
        if results.warning:
            warning = f"x-wellspoken-warning: not stored: {results.warning}\r\n"
            lines += warning.encode("ascii", "replace")
        return lines

    def reply(
        self,
        status: int,
        body: bytes,
        extra: bytes = b"",
        *,
        content_type: bytes = JSON,
        close: bool = False,
    ) -> Reply:
        """Return a whole answer, with the header lines that every one has."""
        if status >= 400:
            extra = retry_headers(status, body, extra)
            self.note_fault(self.results.fault or fault_in(status, body))
        if self.tap is not None:
            self.tap.answer(body)
        self.note_end()
        return Reply(
            self.request,
            status,
            body,
            content_type=content_type,
            extra=self.lines() + extra,
            close=close or self.state.draining,
        )

    def stream(
        self, status: int = 200, content_type: bytes = EVENTS, heartbeat: float = 0.0
    ) -> EventStream:
        """Return an answer to be written piece by piece, with the same header lines."""
        make = EventStream if self.tap is None else partial(TappedStream, self.tap.answer)
        return make(
            self.request,
            status=status,
            content_type=content_type,
            lines=self.lines,
            heartbeat=heartbeat,
            close=self.state.draining,
        )

    def fail(self, fault: Fault, extra: bytes = b"") -> Reply:
        """Return a failure as an HTTP answer; `extra` are header lines."""
        self.note_fault(fault)
        body = error_json(fault.message, fault.type, fault.param, fault.code)
        extra = extra or (NO_RETRY if fault.retry is False else b"")
        return self.reply(fault.status, self.routing.hide(body), extra)

    def refuse(self, error: RequestError) -> Reply:
        """Return a refusal; one that leaves a body unread ends the connection."""
        self.note_fault(self.note_refusal(error))
        lines = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        # The framing of HTTP/1.0 may be what was refused (RFC 9112 6.1).
        unread = not self.request.content.is_eof() or self.request.version < (1, 1)
        if error.status == 408 and isinstance(self.request.protocol, Connection):
            self.request.protocol.end_soon()
        return self.reply(error.status, error.body(), lines.encode("ascii"), close=unread)


def begin_call(state: State, hooks: Hooks, request: BaseRequest) -> Call:
    """Return the call of a request whose head has come."""
    headers = request.headers
    notable, routing = is_notable(headers), Routing()
    id = request_id(headers) if notable else fresh_id()
    return Call(
        state,
        hooks,
        request,
        id,
        request.raw_path.partition("?")[0],
        notable,
        perf_counter(),
        routing,
        Timing(state.metrics, routing),
        Results(),
        hooks.tap(state, request, id) if hooks.tap is not None else None,
    )


Response = Reply | EventStream
Handler = Callable[[Call], Awaitable[Response]]


class Route(NamedTuple):
    """What answers one method of a path; `label` is its name in metrics.

    `asks`: a backend or the store is asked, so `limits.inflight` holds. `needs_key`: not for what
    machines look at, nor for a document that everybody may have. `admin`: it is about the proxy
    itself, so it may have an address and keys of its own.
    """

    method: str
    label: str
    handler: Handler
    asks: bool = False
    needs_key: bool = True
    admin: bool = False


class UnknownUrl(Exception):
    """The path of a request is not here."""
