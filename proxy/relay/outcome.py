"""How a request ended: in a word that the log and the spans have in common, and in the metrics."""

from __future__ import annotations

import re
from time import perf_counter
from typing import Final

from wellspoken.proxy.metrics.series import Count, Times
from wellspoken.proxy.metrics.service import ERROR_EVENT, Metrics
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.upstream.failures import OUR_FAULT

QUIET: Final = frozenset({"livez", "readyz", "metrics", "backend_metrics"})
"""Routes that machines ask every few seconds: no span, and a line at level debug."""

_UPSTREAM: Final = re.compile(r"upstream_([a-z_]{1,40})")


def outcome_of(call: Call, code: int) -> str:
    """Return in a word how a request ended; after a colon, why.

    ok; refused: by the proxy; upstream_refused: by the backend, with a 4xx; upstream_error:WHY: the
    backend was not reached, broke off, or gave a 5xx or what is none of its answers (`answer`);
    error_in_stream:WHY: the same once a stream had begun; disconnected:PHASE: the client left;
    stopped:PHASE: the proxy ended before the answer did; proxy_error: a bug of the proxy's.
    """
    results = call.results
    told = results.fault
    if code == 499:
        return f"{'stopped' if call.state.stopping else 'disconnected'}:{call.phase}"
    if told is None and code < 400:
        return "ok"
    if told is OUR_FAULT:
        return "proxy_error"
    why = results.failure
    if not why and told is not None and (known := _UPSTREAM.fullmatch(told.code or "")):
        why = known[1]
    if code < 400:
        return f"error_in_stream:{why}" if why else "error_in_stream"
    if results.refusal or not call.routing.backend:
        return "refused"
    if why or code >= 500:
        return f"upstream_error:{why or 'answer'}"
    return "upstream_refused"


def level_of(outcome: str) -> str:
    """Return the level of a request's line: what somebody may have to see to is no info."""
    if outcome == "proxy_error":
        return "error"
    return "warning" if outcome.startswith(("upstream_error", "error_in_stream")) else "info"


class RequestCounter:
    """Counts the requests that are over, each series looked up once: an observer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._asking, self._answering = map(metrics.overhead.labels, ("request", "response"))
        self._series: dict[tuple[str, str, str, int, str], tuple[Count, Times | None]] = {}

    def __call__(self, call: Call, code: int) -> None:
        """Count one, however it ended; its duration only if a backend was to answer it."""
        now = perf_counter()
        routing, timing, results, metrics = call.routing, call.timing, call.results, self._metrics
        streams = "true" if routing.streams else "false"
        key = (routing.route, routing.backend, routing.label, code, streams)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = (
                metrics.requests.labels(*key),
                metrics.duration.labels(routing.backend, routing.label, streams)
                if routing.backend
                else None,
            )
        series[0].value += 1
        if series[1] is not None:
            series[1].observe(now - call.began)
        if timing.sent:
            self._asking.observe(max(timing.sent - call.began - timing.waited, 0.0))
        if code < 400 and results.fault is not None and routing.backend and not results.failure:
            metrics.upstream_errors.labels(routing.backend, ERROR_EVENT).inc()
        if timing.worked:
            self._answering.observe(timing.worked)
