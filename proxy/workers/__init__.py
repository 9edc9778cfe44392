"""Several processes that answer, and the small one that starts them, ends them and sums them up.

The parent answers no request. It holds the port, on which each worker listens for itself so that
the system deals the connections out; it owns the signals and the configuration's file; it starts a
worker again that has ended unasked, and adds up what all count (workers/totals.py says why). When
it is gone, the workers end by themselves.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final

from msgspec import structs

from wellspoken.proxy.config import Config, ConfigSource
from wellspoken.proxy.config.values import is_unix, parse_listen
from wellspoken.proxy.http.sockets import listening
from wellspoken.proxy.lifecycle.progress import log_on_stderr, print_out
from wellspoken.proxy.lifecycle.signals import Signals
from wellspoken.proxy.lifecycle.watch import Watcher
from wellspoken.proxy.limits.descriptors import raise_limit
from wellspoken.proxy.workers.hub import Hub, Worker, spawn_worker
from wellspoken.proxy.workers.port import Port

PAUSES: Final = (0.1, 30.0)
"""Seconds until a worker that ended unasked is started again, at first and at most."""
STEADY: Final = 60.0
"""Seconds after which a worker has proved itself, so that its end is a first one again."""
TICK: Final = 1.0
"""Seconds between two looks at the workers, which tell as often that they live."""
SILENCE: Final = 30
"""So many looks without a sign of life, and a worker is killed: it answers nobody."""
SLOW: Final = 120
"""The same for one that starts, perhaps from a slow disk."""
FLUSH: Final = 45.0
"""Seconds beyond the drain that a worker may take to end, in which the store is written."""
HURRY: Final = 15.0
"""Seconds that it may take after a second signal."""


def run(config: Config, source: ConfigSource | None = None) -> int:
    """Serve with `server.workers` processes until a signal comes; return the exit code.

    0 after an orderly end, 1 when the port cannot be had or a worker had to be killed at the end,
    2 for a configuration that cannot be used.
    """
    raise_limit()  # the workers inherit it
    with log_on_stderr(config.log), asyncio.Runner() as runner:
        say = print_out if config.log.banner else lambda text: None
        return runner.run(serve(config, say, source))


async def serve(
    config: Config, say: Callable[[str], None], source: ConfigSource | None = None
) -> int:
    """Start the workers, and keep them until SIGTERM or SIGINT; see `run`."""
    with ExitStack() as ports:
        held: dict[str, str] = {}
        sockets: list[socket.socket] = []
        for option, where in _addresses(config).items():
            host, number = parse_listen(where)
            try:
                if is_unix(where):  # which no two can listen at, so that they share one
                    sockets += listening(where, mode=int(config.server.socket_mode, 8))
                    ports.callback(sockets[0].close)
                    continue
                port = await Port.reserve(host, number)
            except OSError as error:
                from wellspoken.proxy.lifecycle.run import (
                    cannot_listen,  # which needs all that a worker does
                )

                name = "--listen" if option == "listen" else f"server.{option}"
                logging.getLogger("wellspoken").error("%s", cannot_listen(where, error, name))
                return 1
            ports.callback(port.release)
            literal = f"[{host}]" if ":" in host else host
            held[option] = f"{literal}:{port.number}"
        server = structs.replace(config.server, **held)
        given = _addresses(config)
        config = structs.replace(config, server=server)
        return await Parent(config, say, source, given, sockets).run()


def _addresses(config: Config) -> dict[str, str]:
    """Return where the workers are to listen, by the key in [server]."""
    server = config.server
    return {"listen": server.listen} | ({} if server.admin is None else {"admin": server.admin})


class Parent:
    """Keeps the workers: one task for each place, in which one is started after the other."""

    def __init__(
        self,
        config: Config,
        say: Callable[[str], None],
        source: ConfigSource | None,
        addresses: Mapping[str, str],
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        self._say, self._source = say, source
        self._addresses = addresses  # as the source has them: they may be shorter, or have port 0
        self._log = logging.getLogger("wellspoken")
        self._hub = Hub(config, sockets)
        self._signals = Signals()
        self._go = asyncio.Event()  # the first worker listens, or the end has come
        self._told = False  # whether the user was told where
        self._code = 0

    async def run(self) -> int:
        """Keep the workers until the end; return the exit code."""
        count = self._hub.config.server.workers
        places = [asyncio.create_task(self._keep(index)) for index in range(count)]
        others = [asyncio.create_task(work) for work in (self._look(), self._end(), self._watch())]
        # A place ends by itself once a signal has come and its worker has gone. The others run for
        # as long as there are places, and only this task cancels any of them.
        try:
            await asyncio.gather(*places)
            return self._code
        finally:
            for task in (*places, *others):
                task.cancel()
            await asyncio.gather(*places, *others, return_exceptions=True)
            await self._hub.kill_all()
            self._signals.remove()

    async def _keep(self, index: int) -> None:
        """Have one worker after the other run in this place until the end."""
        loop = asyncio.get_running_loop()
        pause, longest = PAUSES
        while not self._signals.count:
            began = loop.time()
            code, told = await self._one(index)
            if self._signals.count:
                return
            if index == 0 and not self._go.is_set():
                self._give_up(code, told)
                return
            if loop.time() - began > STEADY:
                pause = PAUSES[0]
            self._log.error("%s; another one starts in %g s", told, pause)
            self._hub.restarts += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._signals.first.wait()
            pause = min(2 * pause, longest)

    async def _one(self, index: int) -> tuple[int, str]:
        """Run one worker from its start to its end; return its exit code, and what to say of it."""
        try:
            worker = await spawn_worker(index, self._hub)
        except OSError as error:
            return 126, f"worker {index + 1} cannot be started: {error.strerror or error}"
        begin = asyncio.create_task(self._begin(worker))
        try:
            code = await worker.wait()
        finally:
            begin.cancel()
            await asyncio.gather(begin, return_exceptions=True)
        how = f"was ended by signal {-code}" if code < 0 else f"has ended with exit code {code}"
        told = f"{worker.name} {how}"
        if code and self._signals.count and worker.begun:
            self._log.error("%s", told)
            self._code = 1
        return code, told

    async def _begin(self, worker: Worker) -> None:
        """Have a worker serve, the others when the first does: what is wrong is then said once."""
        if worker.index:
            await self._go.wait()
        async with self._hub.steady:
            if self._signals.count:
                worker.kill()  # it has nothing to finish
                return
            worker.begin(self._hub.config)
        await worker.listens.wait()
        self._go.set()
        text = await worker.said
        if not self._told:
            self._told = True
            first, *rest = text.split("\n")
            count = self._hub.config.server.workers
            self._say("\n".join([f"{first} with {count} workers", *rest]))

    def _give_up(self, code: int, told: str) -> None:
        """End all: the first worker never listened. One that ends with 1 or 2 has said why."""
        if code not in (1, 2):
            self._log.error("%s, so that nothing is served", told)
            code = 1
        elif code == 2 and self._source is not None and self._source.advice:
            self._log.error("%s", self._source.advice)
        self._code = code
        self._signals.raise_to(1)

    async def _end(self) -> None:
        """Pass the signals on to the workers, and kill what does not end in time."""
        await self._signals.first.wait()
        self._go.set()
        self._hub.stop()
        server = self._hub.config.server
        with suppress(TimeoutError):
            async with asyncio.timeout(server.drain_delay + server.drain_timeout + FLUSH):
                await self._signals.second.wait()
            self._hub.stop()
            await asyncio.sleep(HURRY)
        for worker in self._hub.workers:
            self._log.error("%s does not end, so it is killed", worker.name)
            worker.kill()

    async def _look(self) -> None:
        """Kill workers that say nothing any more."""
        while True:
            await asyncio.sleep(TICK)
            for worker in self._hub.workers:
                if not worker.begun:
                    continue
                # Counted, not measured: this process may have been stopped for a while itself.
                worker.silent += 1
                most = SILENCE if worker.listens.is_set() else SLOW
                if worker.silent == most:
                    seconds = most * TICK
                    self._log.error(
                        "%s has said nothing for %g s, so it is killed", worker.name, seconds
                    )
                    worker.kill()

    def _load(self) -> Config:
        """Return the configuration as it is now; where to listen is the same in other words."""
        assert self._source is not None
        config = self._source.load()
        if _addresses(config) != self._addresses:
            return config
        held = _addresses(self._hub.config)
        return structs.replace(config, server=structs.replace(config.server, **held))

    async def _watch(self) -> None:
        """Have the configuration read again on SIGHUP and when it changes, until the end."""
        await self._go.wait()
        source, config = self._source, self._hub.config
        watcher = Watcher(
            config,
            self._load if source is not None else lambda: config,
            self._hub.reload,
            self._signals.reload,
            file=source.file if source is not None else None,
            told=self._hub.note_reload,
            describe=lambda: self._hub.described,
        )
        watcher.start()
        try:
            await self._signals.first.wait()
        finally:
            await watcher.stop()
