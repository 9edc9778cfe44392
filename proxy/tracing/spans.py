"""The spans of one request of a client: its own, and one for each request to a backend.

Both are made when the first backend is asked, since a span's name and its sampling need the route
and the model, and its id is the backend's parent; they get the times that they had. What they tell
is set when the request is over, behind the last byte that a client waits for.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Final, cast

from multidict import CIMultiDictProxy
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import (
    SpanKind,
    Status,
    StatusCode,
    format_span_id,
    format_trace_id,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from wellspoken.proxy.http.requests import TRACE_STATE, client_lines
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.outcome import QUIET
from wellspoken.proxy.relay.planning.plan import BackendRequest
from wellspoken.proxy.tracing import attributes as tracing_attributes
from wellspoken.proxy.tracing import exporter as tracing_export
from wellspoken.proxy.upstream.client import UpstreamResponse
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, SpanContext, TraceState

MOST: Final = 256
"""Spans of requests to backends below one of a client: twice OpenAI's most choices. A prompt's
logprobs may take thousands of requests; those that are more are counted, and have no span."""


RANDOM: Final = 2  # a flag of W3C Trace Context, level 2


class _Headers(Getter["CIMultiDictProxy[str]"]):
    """Reads a client's headers: several lines of a state are one, several parents are none."""

    def get(self, carrier: CIMultiDictProxy[str], key: str) -> list[str] | None:
        found = carrier.getall(key, [])
        return found if len(found) == 1 or (found and key == TRACE_STATE) else None

    def keys(self, carrier: CIMultiDictProxy[str]) -> list[str]:
        return list(carrier)


_HEADERS: Final = _Headers()
_PROPAGATOR: Final = TraceContextTextMapPropagator()


@dataclass(slots=True, eq=False)
class RequestTrace:
    """The spans of one request of a client, begun and not ended."""

    span: Span
    context: Context  # of the spans below it
    parent: SpanContext
    state: bytes  # the header lines of the client's tracestate
    base: int  # nanoseconds to add to perf_counter's
    asked: list[Asked] = field(default_factory=list)
    count: int = 0

    @property
    def id(self) -> str:
        """The trace's id, by which a line of the log can be found from it."""
        return format_trace_id(self.span.get_span_context().trace_id)

    def at(self, seconds: float) -> int:
        """Return perf_counter's time as a span has it: nanoseconds since the epoch."""
        return self.base + int(seconds * 1e9)

    def lines(self, span: Span) -> bytes:
        """Return the header lines that make a span the parent of what a backend traces.

        The client's tracestate goes on as it came, unless a sampler has changed it.
        """
        own = span.get_span_context()
        ids = f"{format_trace_id(own.trace_id)}-{format_span_id(own.span_id)}"
        # That an id is random holds for the whole trace; OpenTelemetry 1.30 forgets it.
        flags = own.trace_flags | self.parent.trace_flags & RANDOM
        parent = f"traceparent: 00-{ids}-{flags:02x}\r\n".encode()
        if _same(own.trace_state, self.parent.trace_state):
            return parent + self.state
        given = own.trace_state.to_header()
        return parent + f"{TRACE_STATE}: {given}\r\n".encode() if given else parent


def _same(one: TraceState, other: TraceState) -> bool:
    return one is other or list(one.items()) == list(other.items())


@dataclass(slots=True, eq=False)
class Asked:
    """One request to a backend; the answer's `Watch`."""

    span: Span
    lines: bytes  # of the request's head
    ask: BackendRequest
    operation: str = ""
    began: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    error: str = ""
    status: int = 0

    def note_answer(self, answer: UpstreamResponse) -> None:
        """Note an answer whose head has come, and watch the rest."""
        self.status = answer.status
        answer.watch(self)

    def begin_body(self) -> None:
        """Note the first piece of the body."""
        self.first = perf_counter()

    def end(self) -> None:
        """Note the end, the first time."""
        self.ended = self.ended or perf_counter()

    def note_failure(self, error: UpstreamError) -> None:
        """Note why the request failed."""
        self.error = error.reason


class RequestTracing:
    """Makes the spans of a service's requests."""

    def __init__(
        self, provider: TracerProvider, export: tracing_export.Export | None = None
    ) -> None:
        self._export = export
        self._tracer = provider.get_tracer(
            "wellspoken", tracing_export.version(), schema_url=tracing_attributes.SCHEMA
        )

    def begin_request(
        self, call: Call, target: Target, url: str, request: BackendRequest, *, resent: bool = False
    ) -> Asked:
        """Begin the span of a request to the backend at `url`, to which `lines` are to go."""
        began = perf_counter()
        trace = cast("RequestTrace | None", call.results.trace)  # nobody else sets it
        if trace is None:
            headers = call.request.headers
            trace = self._begin(call, client_lines(headers, (TRACE_STATE,)))
        trace.count += 1
        if trace.count > MOST:
            return Asked(trace.span, trace.lines(trace.span), request)
        name, attributes = tracing_attributes.client(call, target, url, request, resent)
        span = self._tracer.start_span(
            name,
            context=trace.context,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=trace.at(began),
        )
        operation = str(attributes.get("gen_ai.operation.name", ""))
        asked = Asked(span, trace.lines(span), request, operation, began)
        trace.asked.append(asked)
        return asked

    def _begin(self, call: Call, state: bytes = b"") -> RequestTrace:
        """Begin the span of a client's request, below the one that the client names.

        `state`: the header lines of the client's tracestate, where a backend is to get them.
        """
        headers = call.request.headers
        context = Context()
        if headers:  # without a single one aiohttp has refused the head, and it is no multidict
            context = _PROPAGATOR.extract(headers, context, getter=_HEADERS)
        parent = get_current_span(context).get_span_context()
        base = time.time_ns() - time.perf_counter_ns()
        name, attributes = tracing_attributes.server(call)
        span = self._tracer.start_span(
            name,
            context=context,
            kind=SpanKind.SERVER,
            attributes=attributes,
            start_time=base + int(call.began * 1e9),
        )
        # A state without its parent, or with one that cannot be read, belongs to no trace.
        state = state if parent.is_valid else b""
        below = set_span_in_context(span, Context())
        made = call.results.trace = RequestTrace(span, below, parent, state, base)
        return made

    def end(self, call: Call, code: int) -> None:
        """End the spans of a request that was answered with a status, 499: whose client has left.

        One of `Hooks.observers`.
        """
        trace = cast("RequestTrace | None", call.results.trace)  # nobody else sets it
        if trace is None:
            if call.routing.route in QUIET:
                return
            trace = self._begin(call)
        now = perf_counter()
        told = tracing_attributes.of_answer(call.results.exchange)
        answers = [asked for asked in trace.asked if asked.operation and 0 < asked.status < 300]
        # Counts that no single request has are told once all the same, so that a sum over all spans
        # is right: by the span of the whole.
        whole = answers[0] if len(answers) == 1 else None
        error, of_asked = tracing_attributes.errors_of(call, code)
        if whole is not None:
            whole.error = whole.error or of_asked
        for asked in trace.asked:
            self._end_of_asked(trace, asked, told if asked is whole else {}, now)
        span = trace.span
        if span.is_recording():
            span.set_attributes(tracing_attributes.of_end(call, code))
            if whole is None:
                span.set_attributes(told)
            if trace.count:
                span.set_attribute("wellspoken.upstream_requests", trace.count)
            if call.timing.first:
                span.add_event("wellspoken.first_token", timestamp=trace.at(call.timing.first))
            if error:
                span.set_attribute("error.type", error)
                span.set_status(Status(StatusCode.ERROR))
        span.end(trace.at(now))

    def _end_of_asked(
        self, trace: RequestTrace, asked: Asked, told: tracing_attributes.Attributes, now: float
    ) -> None:
        span = asked.span
        if span.is_recording():
            if asked.operation:
                span.set_attributes(tracing_attributes.parameters(asked.ask))
            span.set_attributes(told)
            if asked.status:
                span.set_attribute("http.response.status_code", asked.status)
            if asked.first and asked.operation and asked.ask.stream:
                waited = asked.first - asked.began
                span.set_attribute("gen_ai.response.time_to_first_chunk", waited)
            error = asked.error or (str(asked.status) if asked.status >= 400 else "")
            if error:
                span.set_attribute("error.type", error)
                span.set_status(Status(StatusCode.ERROR))
        span.end(trace.at(asked.ended or now))

    async def close(self, now: asyncio.Event | None = None) -> None:
        """Send the last spans, in a bounded time, or until `now` is set."""
        if self._export is not None:
            await self._export.close(now)
