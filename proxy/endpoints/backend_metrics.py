"""GET /backend/metrics: a backend's own metrics, for whoever watches or scales by them.

The inference gateway and KEDA read vLLM's own names, so status, content type and bytes stay as they
are. Like /metrics it needs no key. It asks a backend for GET /metrics and nothing else, wakes no
engine, and is no request that keeps one loaded.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import parse_qsl

from wellspoken.adapters.backend_answer import error_of
from wellspoken.adapters.requests.errors import RequestError, missing, short
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.relay.admission import error_exchange
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.relay.headers import explain_headers
from wellspoken.proxy.upstream.client import Upstream, UpstreamResponse
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target, not_ready

PATH: Final = "/metrics"
SECONDS = 10.0  # or timeouts.probe: a vLLM under load is late; Prometheus waits 10 s by itself
HARMLESS: Final = (
    b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; sandbox\r\n"
)
"""What a backend may send here is any type, so a browser is told to run none of it."""

_ACCEPT: Final = re.compile(r"[ -~]{1,1000}")
_LISTED: Final = 20  # backends that an error message names at most


async def backend_metrics(call: Call) -> Reply:
    """Return what a backend answers to GET /metrics; its errors in OpenAI's envelope.

    HEAD asks the same, since not every server answers it. Raises RequestError: 400 and 404 where
    `backend` does not say which one, 503 while an engine is not there, 404 where there are none.
    """
    target = _choose_target(call)
    upstream = target.upstream
    if upstream is None:
        raise _away(target)
    # A scrape is no request whose time belongs to the backend's latency.
    call.route(target, counts=False)
    try:
        answer, data = await _read(call, upstream)
    except UpstreamError as error:
        call.state.metrics.upstream_errors.labels(target.name, error.reason).inc()
        return call.fail(error.fault)
    if 200 <= answer.status < 300:
        kind = answer.content_type_header.encode("utf-8", "replace")
        return call.reply(answer.status, data, HARMLESS, content_type=kind)
    if answer.status == 404:
        raise RequestError(
            f"The backend {target.name} ({target.backend.title}) has no metrics: it answers 404 to "
            f"GET {PATH}. Some servers need a flag for them (SGLang: --enable-metrics).",
            status=404,
            code="unknown_url",
        )
    return _explain_failure(call, target, answer, data)


def _choose_target(call: Call) -> Target:
    """Return the backend that `?backend=` names, else the engine, else the only one there is."""
    targets = call.state.router.targets
    query = call.request.raw_path.partition("?")[2]
    name = dict(parse_qsl(query, keep_blank_values=True)).get("backend")
    names = ", ".join(target.name for target in targets[:_LISTED])
    listed = f"Known backends: {names}{', ...' if len(targets) > _LISTED else ''}."
    if name is not None:
        for target in targets:
            if target.name == name:
                return target
        raise RequestError(
            f"The backend '{short(name)}' does not exist. {listed}",
            status=404,
            param="backend",
            code="backend_not_found",
        )
    engines = [target for target in targets if target.engine is not None]
    for found in (engines, targets):
        if len(found) == 1:
            return found[0]
    raise missing("backend", f"It says whose metrics are asked for: ?backend=NAME. {listed}")


def _away(target: Target) -> RequestError:
    """Return the error for an engine that is not there."""
    if target.unloaded:
        return RequestError(
            f"The engine has no metrics now: {target.why_away.rstrip('.')}. A request to its model "
            "loads it; to ask for its metrics does not.",
            status=503,
            type="server_error",
            code="engine_not_ready",
            headers={"x-should-retry": "false"},
        )
    failed = target.engine is not None and target.engine.state == "failed"
    return not_ready(target.why_away, None if failed else 2)


async def _read(call: Call, upstream: Upstream) -> tuple[UpstreamResponse, bytes]:
    """Return the backend's answer and its body. Raises UpstreamError."""
    config = call.state.config
    seconds = max(SECONDS, config.timeouts.probe)
    accept = ", ".join(call.request.headers.getall("Accept", ()))
    extra = f"Accept: {accept}\r\n".encode("ascii") if _ACCEPT.fullmatch(accept) else b""
    try:
        async with asyncio.timeout(seconds):
            answer = await upstream.open("GET", PATH, extra=extra)
            return answer, await answer.read(config.limits.response)
    except TimeoutError as error:
        raise UpstreamError(
            "first_byte_timeout",
            f"The {upstream.peer.name} did not send its metrics within {seconds:g} s. Its log may "
            "say why; to wait longer, raise timeouts.probe.",
        ) from error


def _explain_failure(call: Call, target: Target, answer: UpstreamResponse, data: bytes) -> Reply:
    """Return a backend's error; llama.cpp's 501 says which flag it needs."""
    exchange = error_exchange(call, target.name, "")
    fault = error_of(exchange, answer.status, data)
    call.state.metrics.count_answer(target.name, OTHER, exchange)
    return call.fail(fault, explain_headers(exchange, fault.retry, answer))
