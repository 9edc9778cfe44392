"""Running the service in a process: loop, signals, engine, banner, and the way to a clean end."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from wellspoken.engine.llamacpp import EngineError
from wellspoken.proxy import auth, pages
from wellspoken.proxy.build import build, version
from wellspoken.proxy.config_values import ConfigError
from wellspoken.proxy.detect import start_all, stop_all
from wellspoken.proxy.engines import Keeper

if TYPE_CHECKING:
    from wellspoken.proxy.config import Config
    from wellspoken.proxy.detect import Detector
    from wellspoken.proxy.routing import Target
    from wellspoken.proxy.server import Service

Say = Callable[[str], None]


def run(config: Config) -> int:
    """Serve until a signal comes; return the exit code, 0 after an orderly end."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="wellspoken: %(message)s")
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(config, lambda text: print(text, flush=True)))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: the standard loop does it, slower
        return None
    return uvloop.new_event_loop


async def serve(config: Config, say: Say) -> int:
    """Start everything, wait for SIGTERM or SIGINT, drain, stop; a second signal skips the drain.

    Returns the exit code: 0 after a signal, 1 when the port or the engine cannot be had, 2 for a
    configuration that cannot be used. Why is logged.
    """
    log = logging.getLogger("wellspoken")
    try:
        service = build(config)
    except ConfigError as error:
        log.error("%s", error)
        return 2
    signals = _Signals()
    keys = auth.Watcher(service.keys, log)
    keys.watch()
    keeper = _keeper(config, service)
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
        if keeper is not None and not await _engine_started(keeper, signals, log):
            return 0 if signals.count else 1
        say(await banner(service, host, port))
        gc.collect()
        gc.freeze()  # what lives as long as the process need not be looked at again
        await signals.first.wait()
        log.info("draining: %d open requests; a second signal stops at once", service.inflight)
        await _until(service.drain(), signals.second)
        return 0
    finally:
        await stop_all(detectors)
        await service.stop()
        if service.store is not None:
            await service.store.close(signals.second)
        signals.remove()
        keys.stop()
        if keeper is not None:
            await keeper.stop()


def _keeper(config: Config, service: Service) -> Keeper | None:
    if config.engine is UNSET:
        return None
    target = next(t for t in service.router.targets if t.name == config.engine.name)
    return Keeper(config.engine, target, config.timeouts, service.log)


async def _engine_started(keeper: Keeper, signals: _Signals, log: logging.Logger) -> bool:
    """Start the engine while a signal may still end it all; say whether it runs."""
    start = asyncio.create_task(keeper.start())
    await _until(asyncio.wait({start}), signals.first)
    if not start.done():
        start.cancel()
    try:
        await start
    except asyncio.CancelledError:
        return False
    except EngineError as error:
        log.error("%s", error)
        return False
    return True


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
        lines.append(f"  not ready yet: {reason}")
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
    where = target.upstream.url if target.upstream is not None else "not ready"
    if target.detector is not None:
        return f"  backend {target.name}: {where} ({target.detector.described})"
    return f"  backend {target.name}: {where} (adapter {target.backend.name})"
