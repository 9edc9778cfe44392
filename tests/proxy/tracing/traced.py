"""A traced proxy whose spans stay in memory, and how they hang together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import SpanContext, SpanKind

from tests.fakes.upstream import Request
from tests.proxy.conftest import Proxy
from wellspoken.proxy.tracing.spans import RequestTracing


@dataclass
class Spans:
    """What one request of a client left: its own span, and those below in the order of asking."""

    server: ReadableSpan
    asked: list[ReadableSpan]


class Traced:
    """The spans of a proxy."""

    def __init__(self, proxy: Proxy, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        proxy.service.hooks.tracing = made = RequestTracing(provider)
        proxy.service.hooks.observers.append(made.end)

    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def one(self) -> Spans:
        """Return the spans of the only request there was, whose relations are checked."""
        (server,) = (span for span in self.all() if span.kind is SpanKind.SERVER)
        asked = sorted(
            (span for span in self.all() if span is not server), key=lambda x: x.start_time or 0
        )
        begun, ended = times(server)
        for span in asked:
            assert span.kind is SpanKind.CLIENT
            assert span.parent is not None and span.parent.span_id == context(server).span_id
            assert context(span).trace_id == context(server).trace_id
            assert begun <= times(span)[0] <= times(span)[1] <= ended
        return Spans(server, asked)


StartTraced = Callable[..., Awaitable[tuple[Proxy, Traced]]]


def context(span: ReadableSpan) -> SpanContext:
    found: SpanContext | None = span.get_span_context()
    assert found is not None
    return found


def times(span: ReadableSpan) -> tuple[int, int]:
    """Return when a span began and ended, in nanoseconds."""
    assert span.start_time is not None and span.end_time is not None
    return span.start_time, span.end_time


def told(span: ReadableSpan) -> dict[str, Any]:
    """Return a span's attributes, a sequence as a list."""
    given = span.attributes or {}
    return {key: list(x) if isinstance(x, tuple) else x for key, x in given.items()}


def parent(request: Request) -> tuple[str, str, str]:
    """Return trace, parent and flags of the one traceparent that a backend got."""
    given = request.header("traceparent")
    assert given is not None
    version, trace, span, flags = given.split("-")
    assert (version, len(trace), len(span), len(flags)) == ("00", 32, 16, 2)
    return trace, span, flags


def is_parent(span: ReadableSpan, request: Request) -> bool:
    """Say whether a request to a backend names this span as parent of what the backend traces."""
    own = context(span)
    return parent(request)[:2] == (f"{own.trace_id:032x}", f"{own.span_id:016x}")
