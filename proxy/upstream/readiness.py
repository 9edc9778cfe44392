"""Whether some backend would answer a request that came now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wellspoken.proxy.limits.pace import Pace
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

PROBE_SECONDS = 2.0  # how long a probe's result holds
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings")
"""One of these is what a server that lists no models is there for."""
ABSENT = frozenset({404, 405, 501})  # what web servers answer to a POST
LIST_BYTES = 4 * 1024 * 1024  # of an answer


class Readiness:
    """Whether one of these backends is there.

    One reachable backend of several is enough, since to take the proxy out of service for one
    would take the others with it. An engine that was unloaded counts as reachable, since the next
    request loads it. An engine's state is looked at each time; a probe's result holds for
    `PROBE_SECONDS`, and however many ask at once share one probe.
    """

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._loop = asyncio.get_running_loop()
        self._probed_at = -PROBE_SECONDS
        self._found = ""
        self._task: asyncio.Task[str] | None = None

    def forget(self) -> None:
        """Probe again at the next question."""
        self._probed_at = -PROBE_SECONDS

    async def reason(self) -> str:
        """Return why no backend would answer, or ""."""
        away = [_away(target) for target in self._targets]
        if "" in away:
            return ""
        if None not in away:
            return " ".join(filter(None, away))
        if self._loop.time() - self._probed_at < PROBE_SECONDS:
            return self._found
        if self._task is None:
            self._task = asyncio.create_task(self._probe_all())
        # Shielded: who asked first may leave, and the others still wait for the same probe.
        return await asyncio.shield(self._task)

    async def _probe_all(self) -> str:
        try:
            reasons = await asyncio.gather(*(_probe(target) for target in self._targets))
            self._found = "" if "" in reasons else " ".join(reasons)
            self._probed_at = self._loop.time()
            return self._found
        finally:
            self._task = None


def _away(target: Target) -> str | None:
    """Return why an engine does not answer, "" if a request brings it back; None: probe it."""
    engine = target.engine
    if target.unloaded:
        return ""
    if target.upstream is not None and (engine is None or engine.state == "ready"):
        return None
    return f"The engine is not ready: {target.why_away.rstrip('.')}."


async def _probe(target: Target) -> str:
    """Return why this target cannot answer, or ""."""
    away = _away(target)
    if away is not None or target.upstream is None:
        return away or ""
    path = target.settings.health_path
    try:
        status = await target.upstream.probe(path)
    except UpstreamError as error:
        return str(error)
    if status >= 500:
        return f"The {target.upstream.peer.name} answers {status} to GET {path}."
    return await _why_strange(target, target.upstream)


async def _why_strange(target: Target, upstream: Upstream) -> str:
    """Return why what answers is no LLM server, or "". Who is known to be one is not asked again,
    nor is one whose kind was recognised or configured.
    """
    if target.detector is not None:
        await target.detector.wait_known()
    found = target.detected
    if found is None or found.server or target.acquainted == target.server:
        return ""
    asked = target.server
    why = await _describe_stranger(upstream, target.backend.models_path)
    if not why:
        target.acquainted = asked
    return why


async def _describe_stranger(upstream: Upstream, models_path: str) -> str:
    """Return what was found at the address instead of an LLM server; "" for one, or no answer.

    A server without a list of models is asked for nothing (`{}`) at the endpoints themselves, so
    that nothing is generated: an LLM server refuses that, with anything but a 404. One that wants a
    key or fails is taken for an LLM server, since it cannot be told.
    """
    found = []
    try:
        status, json, server = await _ask(upstream, "GET", models_path)
        if json or status in (401, 403, 429) or (status >= 500 and status != 501):
            return ""
        found.append(f"GET {models_path} with {status}")
        for path in ENDPOINTS:
            status, json, _ = await _ask(upstream, "POST", path)
            if json or not (status < 400 or status in ABSENT):
                return ""
            found.append(f"POST {path} with {status}")
    except UpstreamError:
        return ""
    who = f"a server that calls itself {server!r}" if server else "what is there"
    return (
        f"The {upstream.peer.name} is no LLM server: {who} answers {', '.join(found)}. Check host "
        "and port, and whether the server's endpoints begin with a path before /v1."
    )


async def _ask(upstream: Upstream, method: str, path: str) -> tuple[int, bool, str]:
    """Return the status, whether it is a 2xx with JSON, and how the server calls itself."""
    limit = upstream.timeouts.probe
    body = b"{}" if method == "POST" else b""
    now = upstream.loop.time()
    pace = Pace(0.0, 0.0, limit, now + limit, now)  # of the whole: it may come byte by byte
    answer = await upstream.open(method, path, body, pace=pace)
    data = await answer.read(LIST_BYTES)
    json = 200 <= answer.status < 300 and data.lstrip()[:1] in (b"{", b"[")
    return answer.status, json, answer.headers.get("Server", "")[:40]
