"""Whether some backend would answer a request that came now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

PROBE_PATH = "/health"  # vLLM, llama.cpp, TGI, SGLang; elsewhere a 404, which is a sign of life too
PROBE_SECONDS = 2.0  # how long a probe's result holds


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
    try:
        status = await target.upstream.probe(PROBE_PATH)
    except UpstreamError as error:
        return str(error)
    if status >= 500:
        return f"The {target.upstream.peer.name} answers {status} to GET {PROBE_PATH}."
    return ""
