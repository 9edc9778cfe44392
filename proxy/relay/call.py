"""One request on its way through the proxy: what is known of it, and the ways to answer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiohttp.web_request import BaseRequest

from wellspoken.adapters.events import Fault, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.errors import RequestError, error_json
from wellspoken.proxy.http.connection import Connection
from wellspoken.proxy.http.requests import read_body, request_id
from wellspoken.proxy.http.responses import (
    EVENTS,
    JSON,
    EventStream,
    Reply,
    TappedStream,
    identifying,
)
from wellspoken.proxy.metrics.passing import PassingUsage
from wellspoken.proxy.metrics.series import Times
from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.relay.headers import NO_RETRY, fault_in, retry_headers
from wellspoken.proxy.relay.plan import BackendRequest
from wellspoken.proxy.state import State
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor

_EXISTING = (
    "POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /v1/models/{id}, "
    "GET /v1/chat/completions, GET, POST and DELETE /v1/chat/completions/{id}, "
    "GET /v1/chat/completions/{id}/messages, "
    "GET /livez, GET /readyz, GET /health, GET /metrics, GET /backend/metrics, "
    "GET /openapi.json, GET /v1/capabilities"
)


class Tap(Protocol):
    """Who is told the bodies of one request: the client's, and the answer or its pieces."""

    def request(self, body: bytes) -> None:
        """Note the client's body."""

    def answer(self, data: bytes) -> None:
        """Note the answer's body, or a piece of it."""

    def end(self) -> None:
        """Note the end of the answer."""


class Trace(Protocol):
    """The spans of one request of a client."""

    @property
    def id(self) -> str:
        """The trace's id, in hex."""


class BackendSpan(Protocol):
    """The span of one request to a backend; `lines` are the header lines that name it there."""

    lines: bytes

    def note_answer(self, answer: UpstreamResponse) -> None:
        """Note an answer whose head has come, and watch the rest."""

    def over(self) -> None:
        """Note the end, the first time."""

    def note_failure(self, error: UpstreamError) -> None:
        """Note why the request failed."""


class Tracing(Protocol):
    """What makes the spans of a service's requests."""

    def asks(
        self, call: Call, target: Target, url: str, ask: BackendRequest, *, resent: bool = False
    ) -> BackendSpan:
        """Begin the span of a request to the backend at `url`."""


Observer = Callable[["Call", int], None]
"""Is told of each request when it is over, with its status: 499 where the client had left."""


@dataclass(slots=True, eq=False)
class Hooks:
    """Who looks on while a service answers: set up before the first request, none of it needed."""

    observers: list[Observer] = field(default_factory=list)
    tracing: Tracing | None = None
    tap: Callable[[Call], Tap | None] | None = None


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One request on its way: its id, what is known of it so far, and the ways to answer it."""

    state: State
    hooks: Hooks
    request: BaseRequest
    id: str = field(init=False)
    path: str = field(init=False)
    started: float = field(init=False)
    began: float = field(init=False)  # the same moment; the loop's own clock counts milliseconds
    waited: float = 0.0  # seconds for the client's body or an engine, before a backend was asked
    sent: float = 0.0  # when the backend was first asked, 0.0 before
    worked: float = 0.0  # seconds of the proxy's own work on the answer
    first: float = 0.0  # when the first piece of a streamed answer was ready to leave
    last: float = 0.0  # when the latest one was
    gaps: Times | None = None
    route: str = "other"
    backend: str = ""
    hide: Callable[[bytes], bytes] = bytes  # takes the backend's key out of an error
    model: str = ""  # as the client calls it
    label: str = OTHER  # the same in metrics, where clients must not choose names
    streams: bool = False
    streamed: bool = False
    stripped: bytes = b""  # the header line that names the keys taken out of the request
    owner: str = ""  # whose stored completions the client may see (auth.owner_of)
    kept: bytes | None = None  # the request, while its answer is to be stored
    warning: str = ""  # why it was not stored
    phase: str = "request"  # what a client that leaves now did not wait for
    engine: Supervisor | None = None  # what counts this request as open
    exchange: Exchange | None = None  # of the answer, once that is translated
    usage: Usage | None = None  # of an answer that passed through; else the exchange's
    trace: Trace | None = None  # its spans, once one was begun
    failure: str = ""  # why a backend could not be asked or broke off: `UpstreamError.reason`
    told: Fault | None = None  # the failure that the client is told of, also in a stream
    refusal: bool = False  # the proxy itself refused the request
    tap: Tap | None = None  # notes the bodies for the log, where these are wanted

    def __post_init__(self) -> None:
        self.id = request_id(self.request)
        self.path = self.request.raw_path.partition("?")[0]
        self.started = self.state.loop.time()
        self.began = perf_counter()
        if self.hooks.tap is not None:
            self.tap = self.hooks.tap(self)

    def routed(self, target: Target, model: str, streams: bool) -> None:
        """Note where the request goes."""
        self.backend = target.name
        if target.upstream is not None:
            self.hide = target.upstream.hide
        self.model = model
        self.label = self.state.router.label(model)
        self.streams = streams

    async def read_body(self) -> bytes:
        """Return the body of the request; then the call waits for a backend. Raises RequestError.

        As `http.requests.read_body` does.
        """
        config = self.state.config
        self.phase = "request"
        with self.waiting():
            body = await read_body(self.request, config.limits.body, config.timeouts.client_body)
        if self.tap is not None:
            self.tap.request(body)
        self.phase = "waiting"
        return body

    async def ready(self, target: Target) -> None:
        """Wait for what is found out once of a target. Raises RequestError 500 as that does."""
        with self.waiting():
            await target.ready()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Take what happens here for time that others need, before a backend is asked."""
        began = perf_counter()
        try:
            yield
        finally:
            if not self.sent:
                self.waited += perf_counter() - began

    def asks(self) -> None:
        """Note that a backend is asked now, the first time."""
        if not self.sent:
            self.sent = perf_counter()

    def leaves(self, since: float) -> None:
        """Note that a piece of a streamed answer leaves now, on which work began at `since`.

        Called for each piece, so it does no more than it has to; `since` is perf_counter's.
        """
        now = perf_counter()
        self.worked += now - since
        if self.gaps is None:
            self.gaps = self.state.metrics.gaps(self.backend)
            self.first = now
        else:
            self.gaps.add(now - self.last)
        self.last = now

    def first_token(self) -> None:
        """Note that bytes of a streamed answer have left; the first ones count."""
        if not self.streamed:
            self.streamed = True
            self.phase = "streaming"
            waited = (self.first or perf_counter()) - self.began
            self.state.metrics.first_token.labels(self.backend).observe(waited)

    def translated(self, exchange: Exchange) -> None:
        """Count what the answer needed."""
        self.exchange = exchange
        self.state.metrics.count_answer(self.backend, self.label, exchange)

    def passed(self, counts: PassingUsage) -> None:
        """Count the tokens of an answer that passed through."""
        self.usage = counts.usage
        self.state.metrics.count_passing_answer(self.backend, self.label, counts.usage)

    def upstream_failed(self, error: UpstreamError) -> None:
        """Count a backend's failure."""
        self.failure = error.reason
        self.state.metrics.upstream_errors.labels(self.backend, error.reason).inc()

    def refuses(self, error: RequestError) -> None:
        """Note that the proxy itself refuses the request."""
        self.refusal = True
        self.told = Fault(error.status, error.message, error.type, error.param, error.code)

    def lines(self) -> bytes:
        """Return the header lines of an answer that begins now."""
        lines = identifying(self.id, self.state.loop.time() - self.started) + self.stripped
        if self.warning:
            warning = f"x-wellspoken-warning: not stored: {self.warning}\r\n"
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
            self.told = self.told or fault_in(status, body)
        if self.tap is not None:
            self.tap.answer(body)
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

    def fault(self, fault: Fault, extra: bytes = b"") -> Reply:
        """Return a failure as an HTTP answer; `extra` are header lines."""
        self.told = fault
        body = self.hide(error_json(fault.message, fault.type, fault.param, fault.code))
        return self.reply(fault.status, body, extra or (NO_RETRY if fault.retry is False else b""))

    def refused(self, error: RequestError) -> Reply:
        """Return a refusal; one that leaves a body unread ends the connection."""
        self.refuses(error)
        lines = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
        unread = not self.request.content.is_eof()
        if error.status == 408 and isinstance(self.request.protocol, Connection):
            self.request.protocol.end_now()
        return self.reply(error.status, error.body(), lines.encode("ascii"), close=unread)


Response = Reply | EventStream
Handler = Callable[[Call], Awaitable[Response]]


class Route(NamedTuple):
    """What answers one method of a path; `label` is its name in metrics.

    `asks`: a backend or the store is asked, so `limits.inflight` holds. `needs_key`: not for what
    machines look at, nor for a document that everybody may have.
    """

    method: str
    label: str
    handler: Handler
    asks: bool = False
    needs_key: bool = True


def unknown_url(call: Call) -> RequestError:
    """Return the error for a path that is not here."""
    passing = sorted({path for target in call.state.router.targets for path in target.passes})
    also = "".join(f", POST {path}" for path in passing)
    return RequestError(
        f"Unknown request URL: {call.request.method[:16]} {call.path[:200]}. This proxy answers "
        f"{_EXISTING}{also}.",
        status=404,
        code="unknown_url",
    )
