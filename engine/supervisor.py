"""The life of one engine: started, watched, restarted, unloaded when idle, and ended in order.

One task owns the state (see states.py): it does the work of the present one, which ends with an
event, and `TABLE` says what comes next. Nobody else changes the state, and no request is counted in
or out between a decision and its effect, so an unload cannot race with a request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from wellspoken.engine.attempt import Running, attempt
from wellspoken.engine.failure import EngineError, NotReady, ending
from wellspoken.engine.first_of import first_of
from wellspoken.engine.kind import Facts, Host, Kind, Settings
from wellspoken.engine.log_relay import Log
from wellspoken.engine.run_folder import sweep
from wellspoken.engine.states import TABLE, Event, State
from wellspoken.engine.watchdog import Watchdog

BACKOFF: Final = (1.0, 30.0)
"""Seconds before a restart: the first, doubled each time up to the last."""
WINDOW: Final = 600.0
"""Seconds in which ends count together."""
AGAIN: Final = (60.0, 600.0)
"""Seconds before another try once it ended too often: the first, doubled up to the last."""
HEALTHY: Final = 60.0
"""Seconds of service after which the next restart comes as quickly as the first."""
STOPPED: Final = "the proxy is shutting down"
RETRY: Final = (1, 5, 30)
"""Seconds for Retry-After: the least, what is said before any start was timed, the most."""


class Supervisor:
    """One engine and its state.

    `phase` says what a start does now, "" where none goes on. `facts` are those of the last start
    that succeeded, `start_seconds` what it took, `restarts` counts the starts that an unasked end
    caused, `open` the requests under way.
    """

    def __init__(self, kind: Kind, settings: Settings, host: Host, log: Log) -> None:
        self.kind = kind
        self.settings = settings
        self.state: State = "stopped"
        self.first = True  # it was never ready
        self.phase = ""
        self.facts = Facts()
        self.restarts = 0
        self.start_seconds: float | None = None
        self.open = 0
        self._host = host
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._wanted, self._stop = asyncio.Event(), asyncio.Event()
        self._now: asyncio.Event | None = None
        self._turn = asyncio.Event()  # set, and replaced, at each change of the state
        self._running: Running | None = None
        self._watchdog: Watchdog | None = None
        self._ends: deque[float] = deque()
        self._pause, self._backoff = 0.0, BACKOFF[0]
        self._again = 0.0  # the last pause after too many ends; 0.0 since it served well
        self._asked = asyncio.Event()  # to start now, whatever the pause
        self._began = self._left = self._loop.time()
        self._why = "it has not been started"
        self._error: EngineError | None = None
        self._waiting = 0
        self._demanded = False  # it is away for lack of requests: one of them lets it be started
        self._closing = False  # it ends by itself
        self._served = 0.0  # seconds for which it was ready before it ended

    @property
    def reason(self) -> str:
        """Why it does not answer, for people; "" while it does."""
        if self.state == "ready":
            return ""
        if self.phase:
            return f"{self.kind.title} is starting: {self.phase}, {self.elapsed:.0f} s"
        return self._why

    @property
    def elapsed(self) -> float:
        """Seconds since the present start, or the pause before it, began."""
        return self._loop.time() - self._began

    @property
    def unloaded(self) -> bool:
        """Whether it is away, or being loaded again, only because nobody had asked for long."""
        return self._demanded and self.state != "ready"

    @property
    def pid(self) -> int | None:
        """The process that leads the engine's process group, None while there is none."""
        return self._running.child.pid if self._running is not None else None

    async def start(self) -> None:
        """Start it and own it from then on; return once it is ready.

        Raises EngineError when it has failed, `lasting` where no other start was tried.
        """
        if self._task is None:
            self._wanted.set()
            self._task = self._loop.create_task(self._own())
        while self.state not in ("ready", "failed"):
            if self._stop.is_set():
                raise EngineError(STOPPED)
            await self._turn.wait()
        if self.state == "failed":
            raise self._error or EngineError(self._why)

    async def stop(self, now: asyncio.Event | None = None) -> None:
        """End it and all its processes: SIGTERM, after `grace` SIGKILL, which `now` brings on."""
        self._now = now
        self._stop.set()
        self._announce()
        if self._task is not None:
            await self._task

    def try_now(self) -> None:
        """Start it at once if it is down, however often it has failed; else nothing changes."""
        if self.state == "failed" or (self.state == "starting" and self._pause):
            self._asked.set()

    async def wait_failed(self) -> None:
        """Return once it is down and is not started again by itself."""
        while self.state != "failed" or self._pause:
            await self._turn.wait()

    async def enter(self) -> None:
        """Count a request in, once the engine answers. Raises NotReady.

        While it is loaded on demand a request waits as long as that takes, else `wait` seconds.
        """
        if self.state != "ready":
            if self._waiting >= self.settings.queue:
                raise NotReady(f"{self._waiting} requests wait for it already", self._retry_after())
            self._waiting += 1
            try:
                await self._until_ready()
            finally:
                self._waiting -= 1
        # No await since the look at the state: `_be_ready` decides on an unload by `open` in one
        # step of the loop too, so that a request is either counted before that or waits for the
        # next start.
        self.open += 1

    def leave(self) -> None:
        """Count a request out."""
        self.open -= 1
        self._left = self._loop.time()
        if not self.open and self._watchdog is not None:
            self._watchdog.idle()

    async def suspect(self) -> None:
        """Look now whether it still listens, since a connection to it failed."""
        if self.state == "ready" and self._watchdog is not None:
            await first_of(self._turn.wait(), self._watchdog.look())

    async def _until_ready(self) -> None:
        since: float | None = None
        while self.state != "ready":
            if self._stop.is_set():
                raise NotReady(self.reason, RETRY[0])
            if self.state == "failed":
                raise NotReady(self.reason, self._retry_after() if self._pause else None)
            if self.first:
                raise NotReady(self.reason, self._retry_after())
            if self.state in ("stopped", "draining"):
                self._wanted.set()
            left = None
            if not self._demanded:
                since = since if since is not None else self._loop.time()
                left = since + self.settings.wait - self._loop.time()
                if left <= 0:
                    raise NotReady(self.reason, self._retry_after())
            try:
                await asyncio.wait_for(self._turn.wait(), left)
            except TimeoutError:
                continue  # and be refused

    def _retry_after(self) -> int:
        least, usual, most = RETRY
        if self.start_seconds is None and self.state != "failed":
            return usual
        left = self._began + self._pause + (self.start_seconds or 0.0) - self._loop.time()
        return min(max(least, round(left)), most)

    async def _own(self) -> None:
        # The one task that changes the state. Nobody cancels it: stop() sets an event that each
        # state waits for beside its own work, and the loop is left once all that runs has ended.
        work = {
            "stopped": self._be_stopped,
            "starting": self._be_starting,
            "ready": self._be_ready,
            "draining": self._be_draining,
            "failed": self._be_failed,
        }
        await asyncio.to_thread(sweep, self._log)
        event: Event = "gone"
        while event != "stop" or self.state == "draining":
            event = await work[self.state]()
            self._go(event)

    def _go(self, event: Event) -> None:
        self.state = TABLE[self.state, event]
        self._announce()

    def _announce(self) -> None:
        # Whoever waited for this turn wakes later and looks at the state again, which may have
        # gone on; who comes from now on waits for the next one.
        self._turn.set()
        self._turn = asyncio.Event()
        self._host.note_change()

    async def _be_stopped(self) -> Event:
        return "stop" if await first_of(self._stop.wait(), self._wanted.wait()) == 0 else "wanted"

    async def _be_starting(self) -> Event:
        self._wanted.clear()
        self._began = self._loop.time()
        await self._clear_up()
        if self._pause and await self._wait_for_pause() == 0:
            self._why = STOPPED
            return "stop"
        self._pause = 0.0
        self._began = self._loop.time()
        starting = self._loop.create_task(
            attempt(self.kind, self.settings, self._host, self._log, self._note_phase)
        )
        await first_of(self._stop.wait(), asyncio.wait({starting}))
        if not starting.done():
            starting.cancel()  # it is awaited below: an attempt ends what it has begun, then goes
        try:
            self._running = await starting
        except asyncio.CancelledError:
            self._why = STOPPED
            return "stop"
        except EngineError as error:
            return self._count_end(error)
        except (OSError, RuntimeError) as error:  # no more descriptors or threads: it may pass
            return self._count_end(EngineError(f"{self.kind.title} could not be started: {error}"))
        finally:
            self.phase = ""
        self.facts = self._running.facts
        self.start_seconds = self._loop.time() - self._began
        self.first = self._demanded = False
        self._left = self._loop.time()
        return "answers"

    async def _be_ready(self) -> Event:
        running, since = self._running, self._loop.time()
        assert running is not None
        self._watchdog = watchdog = Watchdog(
            self.kind,
            self.settings,
            running.client,
            running.facts,
            self._host.last_heard,
            lambda: self.open,
        )
        came = IDLE
        # Those that lose are cancelled, which hurts none: the process is waited for by others too,
        # and a watchdog has only asked. When several are done at once the order of the list
        # decides.
        while came == IDLE and not self._is_unused():
            came = await first_of(
                self._stop.wait(), running.child.wait(), watchdog.verdict(), self._idle()
            )
        self._watchdog = None
        self._served = self._loop.time() - since
        self._closing = came == VERDICT and watchdog.closed
        if came == STOP:
            self._why = STOPPED
            return "stop"
        if came == IDLE:
            self._why = f"it was unloaded after {_lasting(self.settings.idle_unload)} without use"
            self._demanded = True
            return "idle"
        if self._closing:
            self._why = f"{self.kind.title} takes no requests any more and is ending"
            return "closed"
        if came == VERDICT:
            return self._count_end(
                EngineError(f"{self.kind.title} {watchdog.problem}, and was ended")
            )
        return self._count_end(self._explain_end(running.child.code))

    async def _be_draining(self) -> Event:
        running = self._running
        if running is None:  # stopped in the middle of a start
            return "gone"
        if self._closing and not self._stop.is_set():
            return await self._end_itself(running)
        # First the connections, so that no request is sent to a process that ends.
        await self._host.down()
        stopping = self._loop.create_task(running.child.stop(self.settings.grace))
        if await first_of(self._wait_for_hurry(), asyncio.wait({stopping})) == 0:
            await running.child.kill()
        await stopping
        await self._over(running)
        return "gone"

    async def _wait_for_hurry(self) -> None:
        """Return when it must end at once, which may be told in the middle of an unload."""
        await self._stop.wait()
        await (self._now or asyncio.Event()).wait()

    async def _end_itself(self, running: Running) -> Event:
        """Let an engine end that somebody else told to, as long as it may have open requests."""
        seconds = self.settings.shutdown_timeout if self.open else self.settings.grace
        await first_of(self._stop.wait(), running.child.wait(), asyncio.sleep(seconds))
        await self._host.down()
        event = self._count_end(self._explain_end(await self._over(running)))
        if event == "given_up":
            return event
        self._wanted.set()
        return "gone"

    async def _be_failed(self) -> Event:
        self._began = self._loop.time()
        await self._clear_up()
        if await self._wait_for_pause() == 0:
            return "stop"
        self._pause = 0.0
        self.restarts += 1
        self._why = f"{self.kind.title} is tried again"
        return "wanted"

    async def _wait_for_pause(self) -> int:
        """Return once the pause is over or cut short; 0: since it is to stop."""
        pause = asyncio.sleep(self._pause) if self._pause else asyncio.Event().wait()
        came = await first_of(self._stop.wait(), self._asked.wait(), pause)
        self._asked.clear()
        return came

    async def _clear_up(self) -> None:
        """Clear up after a process that has ended, or has to: no request comes any more."""
        if self._running is not None:
            await self._host.down()
            await self._over(self._running)

    def _explain_end(self, code: int | None) -> EngineError:
        return EngineError(f"{ending(self.kind.title, code or 0)}, and nobody asked it to")

    async def _over(self, running: Running) -> int:
        """Make sure that nothing of a process is left; return its exit code."""
        self._running = None
        return await running.end()

    def _count_end(self, error: EngineError) -> Event:
        """Count an end that nobody asked for, and decide what comes after it."""
        now = self._loop.time()
        self._demanded = False
        self._error, self._why = error, str(error)
        if self.first and error.lasting:
            return "given_up"
        if self._served > HEALTHY:
            self._backoff, self._again = BACKOFF[0], 0.0
        self._served = 0.0
        self._ends.append(now)
        while self._ends[0] < now - WINDOW:
            self._ends.popleft()
        if self._again or len(self._ends) >= self.settings.restarts:
            return self._give_up(error)
        self._pause, self._backoff = self._backoff, min(2 * self._backoff, BACKOFF[1])
        self.restarts += 1
        self._why = f"{str(error).rstrip('.')}; it starts again in {self._pause:g} s"
        return "ended"

    def _give_up(self, error: EngineError) -> Event:
        """Leave it down for some minutes, longer each time; for good where its host ends then."""
        if self._again:
            often = "it failed once more"
        else:
            often = f"it ended {len(self._ends)} times within {WINDOW / 60:g} minutes"
        if self.settings.exits:
            then = "is not started again"
        else:
            self._pause = self._again = min(2 * self._again, AGAIN[1]) or AGAIN[0]
            then = f"is tried again {_lasting(self._pause)} later, or at once on SIGHUP"
        self._why = f"{often}, and {then}; the last time: {error}"
        self._error = EngineError(self._why)
        return "given_up"

    def _note_phase(self, phase: str) -> None:
        """Note what a start is doing."""
        if phase != self.phase:
            self.phase = phase
            self._host.note_change()

    def _is_unused(self) -> bool:
        """Say whether nobody has asked for anything for so long that it is unloaded."""
        seconds = self.settings.idle_unload
        return seconds > 0 and not self.open and self._loop.time() - self._left >= seconds

    async def _idle(self) -> None:
        """Return when it may be unused for long enough."""
        seconds = self.settings.idle_unload
        while not self._is_unused():
            left = self._left + seconds - self._loop.time()
            await asyncio.sleep(max(left, 0.001) if seconds and not self.open else seconds or 3600)


STOP, _ENDED, VERDICT, IDLE = range(4)
"""What a ready engine waits for, in the order of importance."""


def _lasting(seconds: float) -> str:
    """Return a time for people: "15 minutes", "90 s"."""
    minutes, rest = divmod(seconds, 60)
    if rest or not minutes:
        return f"{seconds:g} s"
    return f"{minutes:g} minutes" if minutes > 1 else "1 minute"
