"""One start of an engine: from the checks before it to the moment in which requests may come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wellspoken.engine.child import Child
from wellspoken.engine.failure import EngineError
from wellspoken.engine.log_relay import Log
from wellspoken.engine.run_folder import RunFolder
from wellspoken.engine.unix_http import Client, Silent

if TYPE_CHECKING:
    from wellspoken.engine.kind import Command, Facts, Host, Kind, Settings

POLL_SECONDS = (0.02, 0.5)
"""Between two looks at whether it answers: at first, and at most."""
HEALTH_SECONDS = 5.0
ALIVE_SECONDS = 120.0
"""A download that says something this often is not counted against the start's time."""
WARM_UP_SECONDS = 3600.0
"""For the first request; `start_timeout` ends it sooner."""
LAST_SECONDS = 5.0
"""In which a process has ended whose connection broke off."""
LOOK_SECONDS = 1.0
DOWNLOADING = "downloading"


@dataclass(slots=True)
class Running:
    """An engine that answers: its process, its folder, and what it says it is."""

    child: Child
    place: RunFolder
    client: Client
    facts: Facts
    log: Log

    async def end(self) -> int:
        """Make sure that nothing is left of it; return its exit code (negative: signal)."""
        return await _end_all(self.child, self.place, self.log)


async def attempt(kind: Kind, settings: Settings, host: Host, log: Log, said: Log) -> Running:
    """Start the engine once and return it when it answers; `said` is told each phase.

    Raises EngineError; nothing of the engine is left then, nor after a cancellation.
    """
    said("checking what it needs")
    for warning in await asyncio.to_thread(kind.check):
        log(f"{kind.name}: {warning}")
    place = await _make_folder(kind.name)
    start = _Start(kind, place, said)
    child: Child | None = None
    try:
        command = kind.command(place.socket, place.folder, settings.shutdown_timeout)
        start.say("starting the process")  # before its log can say more
        child = await Child.spawn(kind.name, command, log, folder=place.folder, on_line=start.read)
        seconds = settings.start_timeout or kind.start_timeout
        facts = await start.within(seconds, child, start.until_ready(child, command, log))
        await host.up(place.socket, facts)
        return Running(child, place, start.client, facts, log)
    except BaseException:
        # Also a caller that gave the start up: the process must not outlive it.
        await asyncio.shield(_end_all(child, place, log))
        raise


async def _make_folder(name: str) -> RunFolder:
    """Return a place; one that is made while nobody wants it any more is removed."""
    making = asyncio.create_task(asyncio.to_thread(RunFolder.make, name))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        await asyncio.wait({making})
        if making.exception() is None:
            making.result().clear()
        raise


class _Start:
    """What is known of one start while it goes on."""

    def __init__(self, kind: Kind, place: RunFolder, said: Log) -> None:
        self.client = Client(place.socket)
        self._kind = kind
        self._said = said
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()
        self._phase = ""
        self._pulse: str | None = None
        self._looking: asyncio.Task[str | None] | None = None
        self._starting = True
        self._report_due = False

    def read(self, line: str) -> None:
        """Take a line of the engine's log."""
        self._heard = self._loop.time()
        phase = self._kind.phase(line) if self._starting else None
        if phase is not None:
            self.say(phase)

    def say(self, phase: str) -> None:
        """Note what the start does from now on."""
        self._phase = phase
        self._said(phase)

    async def _look(self) -> None:
        """Find out about a download, of which the log may say nothing."""
        if self._looking is None:
            self._looking = asyncio.create_task(asyncio.to_thread(self._kind.pulse))
        await asyncio.wait({self._looking}, timeout=LOOK_SECONDS)
        if not self._looking.done():
            return  # a file system that hangs must not hold up the end of a start
        pulse, before = self._looking.result(), self._pulse
        self._looking = None
        if pulse is not None and pulse != before:
            self._heard = self._loop.time()
            self.say(pulse)
        elif pulse is None and before is not None and self._phase == before:
            self.say("loading the model")
        self._pulse = pulse

    async def within(self, seconds: float, child: Child, work: Coroutine[Any, Any, Facts]) -> Facts:
        """Do the work unless the process ends or `seconds` are over before it is done.

        Time in which a model is downloaded does not count, while the download says something.
        """
        # Three things go on at once: the work, the wait for the process's end, and a look at the
        # download in a thread, which cannot be cancelled and is not waited for. Only this task ends
        # them; if it is cancelled itself, so are they, and `attempt` ends the process.
        working = asyncio.create_task(work)
        ending = asyncio.create_task(child.wait())
        both: set[asyncio.Task[Any]] = {working, ending}
        deadline = self._loop.time() + seconds
        try:
            while not working.done() and not ending.done():
                began = self._loop.time()
                if began >= deadline:
                    raise self._late(seconds)
                left = min(deadline - began, LOOK_SECONDS)
                await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                await self._look()
                now = self._loop.time()
                if self._phase.startswith(DOWNLOADING) and now - self._heard < ALIVE_SECONDS:
                    deadline += now - began
            if self._report_due:  # which may be read later than its sender's end
                await asyncio.wait({working}, timeout=LAST_SECONDS)
            silent = working.exception() if working.done() else None
            if working.done() and not isinstance(silent, Silent):
                return working.result()
            await asyncio.wait({ending}, timeout=LAST_SECONDS)
            if ending.done():
                raise self._kind.explain_end(ending.result(), tuple(child.tail))
            raise EngineError(f"{self._kind.title} did not answer its first request: {silent}")
        finally:
            self._starting = False
            if self._looking is not None:
                both.add(self._looking)
            for task in both:
                task.cancel()
            await asyncio.wait(both)

    def _late(self, seconds: float) -> EngineError:
        return EngineError(
            f"{self._kind.title} was not ready after {seconds:g} s"
            f"{f' ({self._phase})' if self._phase else ''} and was ended. Large models need "
            "longer: raise start_timeout."
        )

    async def until_ready(self, child: Child, command: Command, log: Log) -> Facts:
        """Wait until it answers, warm it up, and return what it says of itself."""
        if command.reports:
            self._report_due = True
            await self._await_report(child)
            self._report_due = False
        await self._answers()
        facts = await self._kind.facts(self.client, command.argv, tuple(child.tail))
        self.say("warming up")
        path, body = self._kind.warm_up(facts)
        status, answer = await self.client.request(path, WARM_UP_SECONDS, body)
        if status >= 400:
            text = answer[:300].decode("utf-8", "replace")
            log(f"{self._kind.name}: not warmed up, since POST {path} answered {status}: {text}")
        return facts

    async def _await_report(self, child: Child) -> None:
        try:
            said = json.loads(await child.status_line())
        except ValueError:
            said = None  # none came, or it is something else that was written there
        if not isinstance(said, dict):
            raise self._kind.explain_end(await child.kill(), tuple(child.tail))
        if "ready" not in said:
            await child.wait()  # the last lines of its log belong into the message
            raise self._kind.explain_report(said, tuple(child.tail))

    async def _answers(self) -> None:
        pause, longest = POLL_SECONDS
        while True:
            try:
                status, _ = await self.client.request("/health", HEALTH_SECONDS)
                if status == 200:
                    return
            except Silent:
                pass  # it does not listen yet
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest)


async def _end_all(child: Child | None, place: RunFolder, log: Log) -> int:
    try:
        return await child.kill() if child is not None else 0
    finally:
        await asyncio.to_thread(place.clear, log)
