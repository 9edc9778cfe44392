"""How a request ended, in a word that the log and the spans have in common."""

from __future__ import annotations

import re
from typing import Final

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
    told = call.told
    if code == 499:
        return f"{'stopped' if call.state.stopping else 'disconnected'}:{call.phase}"
    if told is None and code < 400:
        return "ok"
    if told is OUR_FAULT:
        return "proxy_error"
    why = call.failure
    if not why and told is not None and (known := _UPSTREAM.fullmatch(told.code or "")):
        why = known[1]
    if code < 400:
        return f"error_in_stream:{why}" if why else "error_in_stream"
    if call.refusal or not call.backend:
        return "refused"
    if why or code >= 500:
        return f"upstream_error:{why or 'answer'}"
    return "upstream_refused"


def level_of(outcome: str) -> str:
    """Return the level of a request's line: what somebody may have to see to is no info."""
    if outcome == "proxy_error":
        return "error"
    return "warning" if outcome.startswith(("upstream_error", "error_in_stream")) else "info"
