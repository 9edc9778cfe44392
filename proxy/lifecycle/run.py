"""Running the service in a process: loop, signals, engine, banner, and the way to a clean end."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET

from wellspoken.engine.failure import EngineError
from wellspoken.engine.first_of import first_of
from wellspoken.proxy import logs, tracing
from wellspoken.proxy.config import Config, ConfigSource
from wellspoken.proxy.config.values import ConfigError, is_unix
from wellspoken.proxy.lifecycle.banner import banner
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.lifecycle.labels import LabelLearner
from wellspoken.proxy.lifecycle.progress import EngineProgress, log_on_stderr, print_out
from wellspoken.proxy.lifecycle.reload import Reloader
from wellspoken.proxy.lifecycle.signals import Signals
from wellspoken.proxy.lifecycle.watch import Watcher
from wellspoken.proxy.limits.descriptors import raise_limit
from wellspoken.proxy.logs import Logs
from wellspoken.proxy.server import Service
from wellspoken.proxy.tls.certificates import expiries
from wellspoken.proxy.upstream.target import start_detectors

if TYPE_CHECKING:
    from wellspoken.proxy.lifecycle.hosted import Hosted

Say = Callable[[str], None]


class WorkerLink(Protocol):
    """What ties one of several worker processes to their parent; see workers/."""

    def attach(self, service: Service, signals: Signals, reloader: Reloader) -> None:
        """Begin: /metrics becomes the sum of all workers, the parent's end is a signal.

        What the parent has read again goes to the reloader.
        """

    def listens(self) -> None:
        """Tell the parent that clients can connect, so that the other workers begin too."""

    async def close(self) -> None:
        """Hand the last counts over, and end."""


def run(
    config: Config, source: ConfigSource | None = None, sockets: Sequence[socket.socket] = ()
) -> int:
    """Serve until a signal comes; return the exit code, 0 after an orderly end.

    `source`: where the configuration came from, to be read again from there. `sockets` listen
    already; they are closed at the end.
    """
    raise_limit()
    with ExitStack() as ends:
        progress, log = ends.enter_context(log_on_stderr(config.log))
        for each in sockets:
            ends.callback(each.close)

        def say(text: str) -> None:
            if config.log.banner:
                progress.clear()
                print_out(text)

        runner = ends.enter_context(asyncio.Runner(loop_factory=loop_factory()))
        return runner.run(serve(config, say, progress, source=source, output=log, sockets=sockets))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest event loop that is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the standard loop does it, slower
        return None
    return uvloop.new_event_loop


async def serve(
    config: Config,
    say: Say,
    progress: EngineProgress | None = None,
    link: WorkerLink | None = None,
    source: ConfigSource | None = None,
    output: Logs | None = None,
    sockets: Sequence[socket.socket] = (),
) -> int:
    """Start everything, wait for SIGTERM or SIGINT, drain, stop; a second signal skips the drain.

    `say` gets the banner, when the engine is ready where there is nothing else to ask; `progress`
    what an engine prints; `link` is a worker's, whose parent reads `source` again; `output` gets
    a line for each request; `sockets` listen already. Returns the exit code: 0 after a signal; 1
    when the port cannot be had, and for nothing but an engine that can never start, or one that is
    to take the process with it (`engine.on_failure`); 2 for a configuration that cannot be used.
    Why is logged.
    """
    progress = progress if progress is not None else EngineProgress(sys.stderr)
    try:
        service = build(config)
        for problem in expiries(config):
            service.state.log.warning("%s", problem.text)
        hosted = _engine_of(config, service, progress)
        traces = tracing.begin(config.traces, service.hooks)
    except ConfigError as error:
        _log_unusable(config, source, error)
        return 2
    if output is not None:
        logs.observe(service.hooks, output)
    signals = Signals()
    reloader = Reloader(service, hosted)
    watcher = Watcher(
        config,
        source.load if source is not None else lambda: config,  # without one the keys alone
        reloader.apply,
        signals.reload,
        file=source.file if source is not None else None,
        told=service.state.metrics.reloaded.set,
        describe=lambda: reloader.described,
        hurry=hosted.supervisor.try_now if hosted is not None else lambda: None,
    )
    life = _Life(service, hosted, signals, reloader, watcher, link)
    try:
        return await life.live(say, progress, sockets)
    finally:
        try:
            await life.end()
            if traces is not None:
                await traces.close(signals.second)
        finally:
            signals.remove()


@dataclass(slots=True)
class _Life:
    """One service from its first connection to its end.

    This task alone starts and ends things. Beside it run the tasks of `work`, an engine's start and
    what is told of it, which only `end` cancels; the watcher, whose reload takes effect in one step
    of the loop; and the store and the detectors with tasks of their own. A signal sets an event and
    nothing else, so that whatever waits here also waits for that event.
    """

    service: Service
    hosted: Hosted | None
    signals: Signals
    reloader: Reloader
    watcher: Watcher
    link: WorkerLink | None
    labels: LabelLearner = field(default_factory=LabelLearner)
    work: list[asyncio.Task[Any]] = field(default_factory=list)

    async def live(
        self, say: Say, progress: EngineProgress, sockets: Sequence[socket.socket]
    ) -> int:
        """Serve until a signal has come and the drain is over; return the exit code."""
        state, signals = self.service.state, self.signals
        self.service.hooks.observers.append(self.labels)
        try:
            if self.link is not None:
                self.link.attach(self.service, signals, self.reloader)
            shared = self.link is not None
            host, port = await self.service.start(shared=shared, sockets=sockets)
            if self.link is not None:
                self.link.listens()
        except OSError as error:
            state.log.error("%s", cannot_listen(state.config.server.listen, error))
            return 1
        try:
            await self.service.start_admin(shared=shared)
        except OSError as error:
            admin = state.config.server.admin or ""
            state.log.error("%s", cannot_listen(admin, error, "server.admin"))
            return 1
        if state.store is not None:
            state.store.start()  # beside the rest: a database that hangs delays nothing
        start_detectors(state.router.targets)
        self.service.looks.watch(state.router.targets)
        if self.link is None:
            self.watcher.start()
        if self.hosted is not None:
            code = await self._start_engine(self.hosted, progress)
            if code is not None:
                return code
        if not signals.count:
            say(await banner(self.service, host, port))
            gc.collect()
            # Requests leave few circles behind, and each look for them goes through what is alive.
            gc.set_threshold(10_000, 20, 20)
            gc.freeze()  # what lives as long as the process need not be looked at again
        ended = await first_of(signals.first.wait(), self._wait_for_engine()) == 1
        await self._drain()
        return int(ended)

    async def _start_engine(self, hosted: Hosted, progress: EngineProgress) -> int | None:
        """Start the engine; return the exit code where that is the end of it all.

        Where there is nothing else to ask, the user is told where to only once it answers.
        """
        router, signals = self.service.state.router, self.signals
        follow = progress.follow(hosted.supervisor, self.service.state.log)
        starting = asyncio.create_task(_came_up(hosted, self.service))
        self.work += (asyncio.create_task(follow), starting)
        if len(router.targets) == 1:
            # The start itself goes on whatever comes first.
            await first_of(asyncio.wait({starting}), signals.first.wait())
            if starting.done() and not starting.result():
                return 1
            if signals.count and hosted.supervisor.first:
                return 0  # nothing was ever answered, so there is nothing to drain
        return None

    async def _wait_for_engine(self) -> None:
        """Return where the process is to end with its engine, once that is down for good."""
        if self.hosted is not None and self.hosted.supervisor.settings.exits:
            await self.hosted.supervisor.wait_failed()
        else:
            await asyncio.Event().wait()

    async def _drain(self) -> None:
        """Let open requests end, until the second signal."""
        await self.watcher.stop()
        hosted, second = self.hosted, self.signals.second
        if hosted is not None and hosted.supervisor.first:  # a start that nobody waits for
            self.work.append(asyncio.create_task(hosted.supervisor.stop(second)))
        state = self.service.state
        state.log.info("draining: %d open requests; a second signal stops at once", state.inflight)
        await first_of(self.service.drain(), second.wait())

    async def end(self) -> None:
        """End all, clients first, so that nothing is asked of what has gone."""
        await self.watcher.stop()
        await self.reloader.close()
        await self.labels.close()
        await self.service.stop()
        now, store = self.signals.second, self.service.state.store
        ends = [self.service.state.counters.close()]
        if self.hosted is not None:
            ends.append(self.hosted.supervisor.stop(now))
        if store is not None:
            ends.append(store.close(now))
        await asyncio.gather(*ends)
        if self.link is not None:
            await self.link.close()
        for task in self.work:
            task.cancel()
        for result in await asyncio.gather(*self.work, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


def _log_unusable(config: Config, source: ConfigSource | None, error: ConfigError) -> None:
    """Log all that keeps a configuration from being used; what looks for it is loaded only now."""
    from wellspoken.proxy.lifecycle.findings import why_unusable

    for line in why_unusable(config, source, error):
        logging.getLogger("wellspoken").error("%s", line)


def _engine_of(config: Config, service: Service, progress: EngineProgress) -> Hosted | None:
    """Return the configured engine, loaded only now and not started. Raises ConfigError."""
    if config.engine is UNSET:
        return None
    from wellspoken.proxy.lifecycle.hosted import Hosted

    target = next(t for t in service.state.router.targets if t.name == config.engine.name)
    return Hosted(config, target, service.state.metrics, service.state.log, progress.line)


async def _came_up(hosted: Hosted, service: Service) -> bool:
    """Start the engine; say whether to go on, as one does unless it is all there is to ask.

    What is wrong with it is logged where its state changes.
    """
    try:
        await hosted.supervisor.start()
    except EngineError as error:
        over = error.lasting or hosted.supervisor.settings.exits
        return not over or len(service.state.router.targets) > 1
    return True


def cannot_listen(where: str, error: OSError, option: str = "--listen") -> str:
    """Return what to say to a user who cannot have the address that `option` sets."""
    if is_unix(where):
        advice = f"Choose another with {option}."
        if error.errno == errno.EADDRINUSE:
            advice = f"Stop that program, or listen elsewhere with {option}."
        return f"cannot listen on {where}: {error.strerror or error}. {advice}"
    if error.errno == errno.EADDRINUSE:
        host, _, port = where.rpartition(":")
        other = f"{option} {host}:{int(port) % 65535 + 1}"
        return f"{where} is taken by another program. Stop it, or listen elsewhere: {other}"
    if error.errno == errno.EACCES:
        return f"{where}: ports below 1024 need rights. Choose one above: {option} 127.0.0.1:8010"
    return f"cannot listen on {where}: {error.strerror or error}. Choose another with {option}."
