"""The metrics of one proxy, in a registry of its own, with labels that no client can multiply.

A model's name is a label only where the configuration names it or a sole backend lists it; every
other is `_other`.
"""

from __future__ import annotations

import asyncio
import platform
from functools import partial
from typing import Final

from msgspec import DecodeError, Raw, Struct, json
from prometheus_client import CollectorRegistry, Gauge, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from wellspoken.adapters.events import Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.proxy.metrics.pool_families import PoolMetrics
from wellspoken.proxy.metrics.series import Count, SeriesFamily, TextFormat, Times

MOST: Final = 2**53
"""A count of tokens is less: what a backend sends in fun would make a float overflow."""
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4.encode()
OTHER = "_other"

# vLLM's buckets, so that all three can be laid over its own; tokens also leave faster here, where
# they come from a cache or a small model.
_DURATION = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip

_BETWEEN_TOKENS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_OVERHEAD = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
)  # fmt: skip


PHASES: Final = ("request", "waiting", "streaming", "stalled")
"""What a client did that left: it sent its request, waited for an answer, read a stream."""
ERROR_EVENT: Final = "error_event"


class Metrics:
    """Counters, gauges and histograms, and the children of one series looked up once."""

    def __init__(self, version: str) -> None:
        # A _created series beside every counter and histogram doubles a scrape for nothing; the
        # library knows only a switch for the whole process.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._text = TextFormat()
        self.requests = self._counter(
            "requests{route,backend,model,code,stream}",
            "Requests answered, by route, backend, model, HTTP status and kind.",
        )
        self.duration = self._histogram(
            "request_duration_seconds{backend,model,stream}",
            "Time from a request's head to the last byte of its answer.",
            _DURATION,
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds{backend,model}",
            "Time from a request's head to the first byte of its streamed answer.",
            _FIRST_TOKEN,
        )
        self.gaps = self._histogram(
            "inter_token_seconds{backend,model}",
            "Time between two pieces of a streamed answer, as they leave.",
            _BETWEEN_TOKENS,
        )
        self.overhead = self._histogram(
            "overhead_seconds{phase}",
            "The proxy's own time: from a request's head until a backend is asked, without waiting "
            "for the client or an engine; and for the work on its answer.",
            _OVERHEAD,
        )
        self.tokens = self._counter(
            "tokens{backend,model,kind}",
            "Tokens of answered requests, as their usage has them; cached and reasoning are parts.",
        )
        self.reloaded = self._gauge(
            "config_last_reload_success",
            "1 if the configuration was good when it was last read, 0 if an older one is in use.",
        )
        self.reloaded.set(1)
        self.repairs = self._counter(
            "repairs{backend,rule}", "Answers that needed this repair at least once."
        )
        self.fields = self._counter(
            "fields_dropped{backend}",
            "Fields outside OpenAI's contract that backends sent and clients did not get.",
        )
        self.usage = self._counter(
            "usage_source{backend,source}", "Answers by where their token counts came from."
        )
        self.inflight = self._gauge("inflight_requests", "Requests being answered now.")
        self.held = self._gauge(
            "held_bytes", "Bytes of memory that requests hold of limits.memory."
        )
        self.refused_memory = self._counter(
            "memory_refusals", "Requests refused or broken off since limits.memory had no room."
        ).labels()
        self.disconnects = self._counter(
            "client_disconnects{phase}",
            "Clients that left before their answer was complete, by what they waited for.",
        )
        for phase in PHASES:  # 0 until then, so that no query misses the first
            self.disconnects.labels(phase)
        self.vendor_parameters = self._counter(
            "vendor_parameters{backend,outcome}",
            "Vendors' parameters by what became of them, and requests over a cap.",
        )
        self.upstream_errors = self._counter(
            "upstream_errors{backend,reason}",
            "Backends that could not be asked or broke off, by reason; error_event: streams with "
            "status 200 that ended in another error.",
        )
        self.servers = PoolMetrics(self.registry)
        self.failovers = self._counter(
            "failovers{backend,reason,to}",
            "Requests that left this backend for another server or a fallback, by the reason of "
            "its failure (429, 503: its status; stuck: it answered nothing at all).",
        )
        self.quota = self._counter(
            "quota_events{client,event}",
            "Requests of clients with a name that were refused, by the limit that they were over "
            "(requests, tokens, concurrent), or passed since nothing could count them (uncounted).",
        )
        build = self._gauge("build_info{version,python}", "1, with the proxy's version.")
        build.labels(version, platform.python_version()).set(1)

    def _counter(self, series: str, text: str) -> SeriesFamily[Count]:
        return SeriesFamily(self.registry, *_parse(series), text, "counter", Count)

    def _gauge(self, series: str, text: str) -> Gauge:
        name, labels = _parse(series)
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, series: str, text: str, buckets: tuple[float, ...]) -> SeriesFamily[Times]:
        make = partial(Times, bounds=buckets)
        return SeriesFamily(self.registry, *_parse(series), text, "histogram", make)

    def count_answer(self, backend: str, model: str, exchange: Exchange) -> None:
        """Count what one answer needed: each repair once, each dropped field; and its tokens."""
        notes = exchange.notes
        for rule in notes.counts:
            self.repairs.series[backend, rule].value += 1
        if notes.fields:
            self.fields.series[backend,].value += sum(notes.fields.values())
        if exchange.result.usage_source:
            self.usage.series[backend, exchange.result.usage_source].value += 1
        for kind, count in tokens_of(exchange.result.usage):
            self.tokens.series[backend, model, kind].value += count

    def count_passing_answer(self, backend: str, model: str, usage: Usage | None) -> None:
        """Count what an answer that passed through told of its tokens."""
        if usage is not None:
            self.usage.series[backend, "backend"].inc()
        for kind, count in tokens_of(usage):
            self.tokens.series[backend, model, kind].inc(count)

    async def expose(self) -> bytes:
        """Return everything in Prometheus' text format, as /metrics answers it.

        Between two families others go on: many series take milliseconds.
        """
        parts = []
        for family in self.registry.collect():
            parts.append(self._text.of((family,)))
            await asyncio.sleep(0)
        return b"".join(parts)


def _parse(series: str) -> tuple[str, list[str]]:
    """Return the whole name and the labels of what is written as name{label,label}."""
    name, _, labels = series.removesuffix("}").partition("{")
    return f"wellspoken_{name}", labels.split(",") if labels else []


class _Details(Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


_details_of = json.Decoder(_Details).decode
_NO_DETAILS: Final = (Raw(), Raw(b"null"))


def tokens_of(usage: Usage | None) -> list[tuple[str, int]]:
    """Return the counts that an answer's usage has: prompt, completion, and parts of these."""
    if usage is None:
        return []
    counts = [("prompt", usage.prompt), ("completion", usage.completion)]
    for kind, raw in (("cached", usage.prompt_details), ("reasoning", usage.completion_details)):
        if raw not in _NO_DETAILS:
            try:
                counts.append((kind, getattr(_details_of(raw), f"{kind}_tokens")))
            except (DecodeError, UnicodeDecodeError):  # a backend's own idea of the object
                continue
    return [(kind, count) for kind, count in counts if count and 0 < count < MOST]
