"""Context lengths that a backend tells beside its list of models, at a path of its own.

Asked only where somebody lists the models and the list itself does not tell all of them, never on a
chat's way. What is loaded changes in Ollama and in LM Studio, so it is asked anew for each list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from wellspoken.adapters.servers.context_length import read_lengths
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError

LIMIT: Final = 1024 * 1024  # bytes of an answer; llama.cpp's /props holds a whole chat template
SECONDS: Final = 2.0  # for which a list of models waits at most
AGAIN: Final = 60.0  # seconds until a path that is not there is asked for again
SOON: Final = 5.0  # seconds until one that did not answer is


@dataclass(slots=True, eq=False)
class ContextLengths:
    """What one target's server last told, forgotten once it is another server."""

    _told: Mapping[str, int] = field(default_factory=dict)
    _server: tuple[object, ...] = ()
    _again: float = 0.0  # the loop's time from which it is asked again

    async def find(
        self, server: tuple[object, ...], upstream: Upstream, path: str
    ) -> Mapping[str, int]:
        """Return the lengths that GET `path` tells, as `read_lengths` does, or last told.

        `server` is `Target.server`.
        """
        loop = asyncio.get_running_loop()
        if self._server != server:
            self._server, self._told, self._again = server, {}, 0.0
        server = self._server  # this very object, to see below whether another took its place
        if loop.time() < self._again:
            return self._told
        status, body = 0, b""
        try:
            async with asyncio.timeout(SECONDS):
                status, body = await upstream.get(path, LIMIT)
        except (UpstreamError, TimeoutError):
            pass  # what it told before is truer than nothing
        if self._server is not server:
            return {}
        if status == 200:
            self._told = read_lengths(body)
        else:
            self._again = loop.time() + (AGAIN if 400 <= status < 500 else SOON)
        return self._told
