"""Asks a backend what it is, where the configuration does not say (`adapter = "auto"`).

A backend is asked once, at the start or at its first request, and again after it was unreachable,
since another server may have taken its place. While it does not answer, what was last known holds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.detection import (
    MODELS,
    NOTHING,
    ROUNDS,
    Found,
    Observation,
    Signs,
    recognise,
)
from wellspoken.adapters.servers.model_list import read_models
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UNREACHABLE, UpstreamError

SECONDS = 2.0  # all questions together, so the longest that a request waits for them
AGAIN = 2.0  # seconds from one asking to the next that a request may cause
BACKOFF = (1.0, 30.0)  # seconds between askings in the background: the first, doubled to the last
LIMIT = 1024 * 1024  # bytes of an answer; llama.cpp's /props holds a whole chat template


@dataclass(slots=True, eq=False)
class Detector:
    """Finds out what one backend is, tells `recognise`, and remembers why in `found`.

    `learn_labels` is told the names that it lists.

    `found` is None until the backend has answered once. `settled`: no request need wait. At most
    one asking is under way at any time; `start` also asks in the background until one succeeds.
    """

    _name: str
    _upstream: Upstream
    _recognise: Callable[[Backend], None]
    _learn_labels: Callable[[Iterable[str]], None]
    _log: logging.Logger
    found: Found | None = None
    settled: bool = False
    _again: float = 0.0  # when a request may cause the next asking
    _task: asyncio.Task[None] | None = None
    _watch: asyncio.Task[None] | None = None
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._wanted.set()
        self._upstream.on_failure = self._note_failure

    @property
    def described(self) -> str:
        """One line for people, also before there was an answer."""
        if self.found is None:
            return "not known until it answers; general repairs"
        return self.found.described

    @property
    def _limit(self) -> float:
        return min(self._upstream.timeouts.probe, SECONDS)

    async def wait_known(self) -> None:
        """Wait until it is known what the backend is, or cannot be told now; `SECONDS` at most."""
        if self.settled or (self._task is None and self._upstream.loop.time() < self._again):
            return
        await asyncio.wait({self._join_asking()})

    def start(self) -> None:
        """Ask in the background, now and whenever the backend has been unreachable."""
        if self._watch is None:
            self._watch = self._upstream.loop.create_task(self._keep_asking())

    async def stop(self) -> None:
        """Ask no more."""
        tasks = [task for task in (self._watch, self._task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _note_failure(self, error: UpstreamError) -> None:
        """Take note that the backend was unreachable, for a request or for a question."""
        if error.reason in UNREACHABLE:
            self.settled = False
            self._wanted.set()

    async def _keep_asking(self) -> None:
        while True:
            await self._wanted.wait()
            delay = BACKOFF[0]
            while True:
                await asyncio.wait({self._join_asking()})
                if not self._wanted.is_set():
                    break
                await asyncio.sleep(delay)
                delay = min(delay * 2, BACKOFF[1])

    def _join_asking(self) -> asyncio.Task[None]:
        """Return the asking that is under way, a new one if there is none."""
        if self._task is None:
            self._task = self._upstream.loop.create_task(self._ask())
        return self._task

    async def _ask(self) -> None:
        answers: dict[str, Observation] = {}
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limit):
                    for paths in ROUNDS:
                        async with asyncio.TaskGroup() as group:
                            for path in paths:
                                group.create_task(self._get(path, answers))
                        if not answers or recognise(Signs(answers)) is not NOTHING:
                            break
            self._learn(Signs(answers))
        finally:
            self._task = None
            self._again = self._upstream.loop.time() + AGAIN

    async def _get(self, path: str, answers: dict[str, Observation]) -> None:
        """Ask one question; no answer is no sign. A head whose body fails still is one."""
        limit = self._limit
        with suppress(UpstreamError):
            answer = await self._upstream.open("GET", path, first=limit, between=limit)
            body = b""
            with suppress(UpstreamError):
                body = await answer.read(LIMIT)
            server = answer.headers.get("Server", "")
            answers[path] = Observation(answer.status, body, server)

    def _learn(self, signs: Signs) -> None:
        """Take over what the signs say.

        Neither a server that starts (every answer is a 5xx) nor one that was not recognised and
        left questions open displaces what was known, and both are asked again. The latter works,
        so it holds no request up.
        """
        found = recognise(signs)
        recognised = found is not NOTHING
        complete = all(path in signs.answers for paths in ROUNDS for path in paths)
        sure = signs.up and (recognised or complete)
        if sure or (self.found is None and (signs.up or recognised)):
            if found != self.found:
                self._recognise(found.backend)
                self._log.info("backend %s: %s", self._name, found.described)
            self.found = found
        self._learn_labels(read_models(signs.text(MODELS).encode()).models)
        if signs.up:
            self.settled = True
        if sure:
            self._wanted.clear()
