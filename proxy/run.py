"""Running the service in a process: loop, signals, engine, banner, and the way to a clean end."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from wellspoken.engine.failure import EngineError
from wellspoken.proxy import auth, pages
from wellspoken.proxy.build import build, version
from wellspoken.proxy.config_values import ConfigError
from wellspoken.proxy.detect import start_all, stop_all
from wellspoken.proxy.engines import Hosted
from wellspoken.proxy.progress import Handler, Progress

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor
    from wellspoken.proxy.config import Config
    from wellspoken.proxy.detect import Detector
    from wellspoken.proxy.routing import Target
    from wellspoken.proxy.server import Service

Say = Callable[[str], None]


def run(config: Config) -> int:
    """Serve until a signal comes; return the exit code, 0 after an orderly end."""
    if sys.stderr is None:  # closed by who started it
        sys.stderr = open(os.devnull, "w")
    progress = Progress(sys.stderr)
    logging.basicConfig(
        handlers=[Handler(progress)], level=logging.INFO, format="wellspoken: %(message)s"
    )

    def say(text: str) -> None:
        progress.clear()
        print(text, flush=True)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(config, say, progress))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the standard loop does it, slower
        return None
    return uvloop.new_event_loop


async def serve(config: Config, say: Say, progress: Progress | None = None) -> int:
    """Start everything, wait for SIGTERM or SIGINT, drain, stop; a second signal skips the drain.

    `say` gets the banner, when the engine is ready where there is nothing else to ask; `progress`
    what an engine prints. Returns the exit code: 0 after a signal, 1 when the port cannot be had,
    or nothing but an engine that can never start, 2 for a configuration that cannot be used. Why is
    logged.
    """
    log = logging.getLogger("wellspoken")
    progress = progress if progress is not None else Progress(sys.stderr)
    try:
        service = build(config)
        hosted = _hosted(config, service, progress)
    except ConfigError as error:
        log.error("%s", error)
        return 2
    signals = _Signals()
    keys = auth.Watcher(service.keys, log)
    keys.watch()
    work: list[asyncio.Task[Any]] = []
    detectors: list[Detector] = []
    try:
        try:
            host, port = await service.start()
        except OSError as error:
            log.error("%s", _cannot_listen(config, error))
            return 1
        if service.store is not None:
            service.store.start()  # beside the rest: a database that hangs delays nothing
        detectors = start_all(service.router.targets)
        if hosted is not None:
            work.append(asyncio.create_task(progress.follow(hosted.supervisor, log)))
            starting = asyncio.create_task(_came_up(hosted, service))
            work.append(starting)
            if len(service.router.targets) == 1:
                await _either(starting, signals.first)
                if starting.done() and not starting.result():
                    return 1
                if signals.count and hosted.supervisor.first:
                    return 0  # nothing was ever answered, so there is nothing to drain
        if not signals.count:
            say(await banner(service, host, port))
            gc.collect()
            gc.freeze()  # what lives as long as the process need not be looked at again
        await signals.first.wait()
        if hosted is not None and hosted.supervisor.first:  # a start that nobody waits for
            work.append(asyncio.create_task(hosted.stop(signals.second)))
        log.info("draining: %d open requests; a second signal stops at once", service.inflight)
        await _until(service.drain(), signals.second)
        return 0
    finally:
        await stop_all(detectors)
        await _stopped(service, hosted, signals.second)
        signals.remove()
        keys.stop()
        await _cancelled(work)


def _hosted(config: Config, service: Service, progress: Progress) -> Hosted | None:
    """Return the configured engine, which is not started yet. Raises ConfigError."""
    if config.engine is UNSET:
        return None
    target = next(t for t in service.router.targets if t.name == config.engine.name)
    return Hosted(config, target, service.metrics, service.log, progress.line)


async def _came_up(hosted: Hosted, service: Service) -> bool:
    """Start the engine; say whether to go on, as one does unless it is all there is to ask.

    What is wrong with it is logged where its state changes.
    """
    try:
        await hosted.start()
    except EngineError as error:
        return not error.lasting or len(service.router.targets) > 1
    return True


async def _stopped(service: Service, hosted: Hosted | None, now: asyncio.Event) -> None:
    """End what clients have open, then the engine, and the store beside it; `now`: at once."""
    await service.stop()
    ends = [hosted.stop(now)] if hosted is not None else []
    if service.store is not None:
        ends.append(service.store.close(now))
    await asyncio.gather(*ends)


async def _cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait for them; one that failed before fails now."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _either(task: asyncio.Task[Any], event: asyncio.Event) -> None:
    """Wait until the task is done or the event has come, and leave the task alone."""
    await _until(asyncio.wait({task}), event)


async def _until(work: Coroutine[Any, Any, object], event: asyncio.Event) -> None:
    """Do the work, or as much of it as is done when the event comes."""
    task = asyncio.create_task(work)
    waiter = asyncio.create_task(event.wait())
    await asyncio.wait({task, waiter}, return_when=asyncio.FIRST_COMPLETED)
    for each in (task, waiter):
        if not each.done():
            each.cancel()
            with suppress(asyncio.CancelledError):
                await each
    if not task.cancelled():
        task.result()


class _Signals:
    """SIGTERM, SIGINT and SIGHUP as two events: the first one and the second one.

    SIGHUP, until `auth.Watcher` takes it, is a terminal that closes: what is in memory is still to
    be written then. Where it is ignored, as nohup has it, it stays so.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            self._loop.add_signal_handler(number, self._came)

    def _came(self) -> None:
        self.count += 1
        (self.first if self.count == 1 else self.second).set()

    def remove(self) -> None:
        for number in self._numbers:
            self._loop.remove_signal_handler(number)


def _cannot_listen(config: Config, error: OSError) -> str:
    where = config.server.listen
    if error.errno == errno.EADDRINUSE:
        host, _, port = where.rpartition(":")
        other = f"{host}:{int(port) % 65535 + 1}"
        return (
            f"{where} is taken by another program. Stop it, or listen elsewhere: --listen {other}"
        )
    if error.errno == errno.EACCES:
        return f"{where}: ports below 1024 need rights. Choose one above: --listen 127.0.0.1:8010"
    return f"cannot listen on {where}: {error.strerror or error}. Choose another with --listen."


async def banner(service: Service, host: str, port: int) -> str:
    """Return what is said at the start, at most 12 lines, with a request to copy."""
    shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
    base = f"http://{shown}:{port}"
    lines = [f"wellspoken {version()} listens on {base}"]
    known = [target.detector.known() for target in service.router.targets if target.detector]
    reason, *_ = await asyncio.gather(service.readiness.reason(), *known)
    lines += [_line(target) for target in service.router.targets[:4]]
    if len(service.router.targets) > 4:
        lines.append(f"  and {len(service.router.targets) - 4} more backends")
    if reason:
        lines.append(f"  not ready yet: {' '.join(reason.split())}")
    names = list(await pages.listed(service)) if not reason else []
    names += [name for target in service.router.targets for name in target.names]
    body = json.dumps(
        {
            "model": names[0] if names else "MODEL",
            "messages": [{"role": "user", "content": "Hello!"}],
            "logprobs": True,
            "top_logprobs": 2,
        }
    ).replace("'", "'\\''")
    key = ['    -H "Authorization: Bearer $OPENAI_API_KEY" \\'] if len(service.keys) else []
    lines += [
        f"  health {base}/readyz, metrics {base}/metrics; OPENAI_BASE_URL={base}/v1",
        "Try:",
        f"  curl {base}/v1/chat/completions -H 'Content-Type: application/json' \\",
        *key,
        f"    -d '{body}'",
    ]
    return "\n".join(lines)


def _line(target: Target) -> str:
    if target.engine is not None:
        return f"  engine {target.name}: {_told(target.engine)}"
    where = target.upstream.url if target.upstream is not None else "not ready"
    if target.detector is not None:
        return f"  backend {target.name}: {where} ({target.detector.described})"
    return f"  backend {target.name}: {where} (adapter {target.backend.name})"


def _told(engine: Supervisor) -> str:
    """Return what an engine is, on one line, as far as it has said so."""
    facts = engine.facts
    if engine.first:
        return f"{engine.kind.title}, {'failed' if engine.state == 'failed' else 'starting'}"
    known = [f"{engine.kind.title} {facts.version}".rstrip()]
    if facts.models:
        more = [f"and {len(facts.models) - 2} more"] if len(facts.models) > 2 else []
        known.append(", ".join([*facts.models[:2], *more]))
    if facts.context is not None:
        known.append(f"context {facts.context}")
    if facts.tool_parser:
        known.append(f"tools {facts.tool_parser}")
    if facts.reasoning_parser:
        known.append(f"reasoning {facts.reasoning_parser}")
    return ", ".join(known)
