"""Context lengths that a backend tells beside its list of models, at paths of its own.

Asked only where somebody lists the models and the list itself does not tell all of them, never on a
chat's way. What is loaded changes in Ollama and in LM Studio, so it is asked anew for each list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import json

from wellspoken.adapters.requests.shapes import Model
from wellspoken.adapters.servers.context_length import read_lengths, read_shown_length
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.memory import Server

LIMIT: Final = 1024 * 1024  # bytes of an answer; llama.cpp's /props holds a whole chat template
LARGE: Final = 131_072  # bytes whose reading takes more than a few milliseconds
SECONDS: Final = 2.0  # for which a list of models waits at most
AGAIN: Final = 60.0  # seconds until a path that is not there is asked for again
SOON: Final = 5.0  # seconds until one that did not answer is
TOGETHER: Final = 8  # models that are asked about at a time
MOST: Final = 2000  # models of which it is remembered what was shown


@dataclass(slots=True, eq=False)
class ContextLengths:
    """What one target's server last told, forgotten once it is another server.

    `told` and `again`, the loop's time from which it is asked again, are by path; `shown` is by a
    model's name and the time when it was made.
    """

    _server: tuple[object, ...] = ()
    _told: dict[str, Mapping[str, int]] = field(default_factory=dict)
    _again: dict[str, float] = field(default_factory=dict)
    _shown: dict[tuple[str, int], int | None] = field(default_factory=dict)

    async def find(
        self, server: Server, upstream: Upstream, paths: Sequence[str]
    ) -> Mapping[str, int]:
        """Return the lengths that GET of each path tells, as `read_lengths` does, or last told."""
        self._meet(server())
        asked = self._server
        answers = await asyncio.gather(*(self._ask(server, asked, upstream, x) for x in paths))
        return {name: length for told in reversed(answers) for name, length in told.items()}

    async def find_each(
        self, server: Server, upstream: Upstream, paths: Mapping[str, str]
    ) -> Mapping[str, int]:
        """Return by name what GET of a model's own path tells of whichever model that is."""
        self._meet(server())
        asked = self._server
        asking = (self._ask(server, asked, upstream, path) for path in paths.values())
        answers = await asyncio.gather(*asking)
        return {name: told[""] for name, told in zip(paths, answers, strict=True) if "" in told}

    async def show(
        self, server: Server, upstream: Upstream, path: str, models: Iterable[Model]
    ) -> Mapping[str, int]:
        """Return the lengths that POST `path` tells of models, each asked about once.

        Those that are not known in time are asked about for the next list.
        """
        self._meet(server())
        listed = [(model.id, model.created) for model in models][:MOST]
        unknown = [key for key in listed if key not in self._shown]
        if unknown and asyncio.get_running_loop().time() >= self._again.get(path, 0.0):
            if len(self._shown) + len(unknown) > MOST:
                self._shown.clear()
                unknown = listed
            await self._ask_each(server, upstream, path, unknown)
        shown = ((name, self._shown.get((name, made))) for name, made in listed)
        return {name: length for name, length in shown if length is not None}

    def _meet(self, server: tuple[object, ...]) -> None:
        """Forget what another server told."""
        if self._server != server:
            self._server = server
            self._told, self._again, self._shown = {}, {}, {}

    async def _ask(
        self, server: Server, asked: tuple[object, ...], upstream: Upstream, path: str
    ) -> Mapping[str, int]:
        """Return what one path tells; `asked` is the very object that `_server` was."""
        told = self._told.get(path, {})
        if asyncio.get_running_loop().time() < self._again.get(path, 0.0):
            return told
        status, body = 0, b""
        try:
            async with asyncio.timeout(SECONDS):
                status, body = await upstream.get(path, LIMIT)
        except (UpstreamError, TimeoutError):
            pass  # what it told before is truer than nothing
        lengths: Mapping[str, int] = {}
        if status == 200:
            large = len(body) >= LARGE
            lengths = await asyncio.to_thread(read_lengths, body) if large else read_lengths(body)
        same = self._server is asked
        if not status or (same and status != 200):
            self._fail(server, path, status)
        elif same:
            told = self._told[path] = lengths
        return told if same else {}

    def _fail(self, server: Server, path: str, status: int) -> None:
        """Leave a path alone for a while, also if another server may stand there because of it."""
        if (now := server()) != self._server:
            self._server, self._told, self._shown = now, {}, {}
        wait = AGAIN if 400 <= status < 500 else SOON
        self._again[path] = asyncio.get_running_loop().time() + wait

    async def _ask_each(
        self, server: Server, upstream: Upstream, path: str, models: Sequence[tuple[str, int]]
    ) -> None:
        """Ask about models, several at a time, until one gets no answer or the time is over."""
        asked, left = self._server, iter(models)

        async def ask() -> None:
            for key in left:
                body = json.encode({"model": key[0]})
                status, data = await upstream.post(path, body, LIMIT)
                if self._server is not asked:
                    return
                self._shown[key] = read_shown_length(data) if status == 200 else None

        try:
            async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
                for _ in range(TOGETHER):
                    group.create_task(ask())
        except* (UpstreamError, TimeoutError):
            self._fail(server, path, 0)
