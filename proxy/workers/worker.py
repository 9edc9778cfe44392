"""One of several processes that answer: the service of run.py, tied to a parent (workers/)."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Final

from msgspec import DecodeError

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy import logs
from wellspoken.proxy.config import Config
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.progress import EngineProgress, log_on_stderr
from wellspoken.proxy.lifecycle.reload import Change, Reloader
from wellspoken.proxy.lifecycle.run import loop_factory, serve
from wellspoken.proxy.lifecycle.signals import Signals
from wellspoken.proxy.limits.accounts import Accounts
from wellspoken.proxy.relay.call import Call
from wellspoken.proxy.server import Service
from wellspoken.proxy.workers import channel as messages
from wellspoken.proxy.workers.channel import (
    Channel,
    Questions,
    ToWorker,
    decode_to_worker,
    first_message,
    run_beside,
)
from wellspoken.proxy.workers.quotas import ParentCounters
from wellspoken.proxy.workers.totals import Family, collect_families, text_of

EVERY: Final = 1.0
"""Seconds between two reports to the parent: what a killed worker has counted since is lost."""
SUM_SECONDS: Final = 5.0
"""How long the parent may take for a sum; it waits for slow workers for less."""
SETTLE_SECONDS: Final = 5.0
"""Likewise until the other workers have written what they have to store."""
_SHARE: Final = 50.0  # reports take at most a fiftieth of the time, however much there is to tell


class ParentLink:
    """A worker's side of the channel: reports, the sum of all for a scrape, and the end.

    The end of the channel is the parent's, and then the worker ends in order too.
    """

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self._channel = channel
        self._log = logging.getLogger("wellspoken")
        self._scrapes = Questions[list[Family]]()
        self._settles = Questions[None]()
        self._quotas = ParentCounters(channel)
        self._changed = True
        self._stops = 0  # how often the parent has said Stop
        self._told = 0  # how often it was told what is counted here
        self._gone = False
        self._change: Change | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def say(self, text: str) -> None:
        """Tell the parent what to show to the user."""
        self._channel.send(messages.Started(text))

    def attach(self, service: Service, signals: Signals, reloader: Reloader) -> None:
        """Begin: what the parent says reaches these, and a scrape gets the sum of all workers."""
        self._service, self._signals, self._reloader = service, signals, reloader
        service.hooks.observers.append(self._note_request)
        service.state.expose = self._expose
        if isinstance(service.state.counters, Accounts):  # no store that all workers ask
            service.state.counters = self._quotas
        if service.state.store is not None:
            service.state.store.others = self._settle
        self._tasks |= {asyncio.create_task(self._listen()), asyncio.create_task(self._report())}

    def listens(self) -> None:
        """Tell the parent that clients can connect."""
        self._channel.send(messages.Listens())

    async def close(self) -> None:
        """Hand the last counts over, and end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            self._channel.send(messages.Counts(0, self._collect()))
        await self._channel.close()

    def _note_request(self, call: Call, code: int) -> None:
        self._changed = True

    def _collect(self) -> list[Family]:
        self._told += 1
        return list(collect_families(self._service.state.metrics.registry))

    async def _expose(self) -> bytes:
        """Return what all workers count. Raises RequestError 503 where that cannot be had.

        What is counted here alone would look like counters that went back.
        """
        families = await self._scrapes.ask(
            lambda number: self._channel.send(messages.Scrape(number, self._collect())), SUM_SECONDS
        )
        if families is None:
            raise RequestError(
                "The process that sums the workers' metrics does not answer. Try again; if that "
                "does not help, restart the proxy.",
                status=503,
                type="server_error",
                code="metrics_unavailable",
            )
        return text_of(families)

    async def _settle(self) -> None:
        """Return when the other workers have written what they had to store, or cannot now.

        Where that takes too long, what can be read is answered; the parent waits for less.
        """
        await self._settles.ask(lambda n: self._channel.send(messages.Settle(n)), SETTLE_SECONDS)

    async def _settle_here(self, number: int) -> None:
        """Write what is to be stored here, and say so."""
        if self._service.state.store is not None:
            await self._service.state.store.settle()
        self._channel.send(messages.Settled(number))

    async def _report(self) -> None:
        """Tell the parent every second what is counted here, or that this process lives.

        In pieces, so that no request waits for all of it.
        """
        while not self._gone:
            spent = 0.0
            if not self._channel.unsent:  # else the parent does not read
                if not self._changed and not self._service.state.inflight:
                    self._channel.send(messages.Alive())
                else:
                    self._changed = False
                    told, families = self._told, []
                    began = perf_counter()
                    for family in collect_families(self._service.state.metrics.registry):
                        families.append(family)
                        spent += perf_counter() - began
                        await asyncio.sleep(0)
                        began = perf_counter()
                    if told == self._told:  # else something newer was told meanwhile
                        self._channel.send(messages.Counts(0, families))
            await asyncio.sleep(max(EVERY, spent * _SHARE))

    async def _listen(self) -> None:
        """Do what the parent says until it is gone."""
        try:
            while (message := await self._channel.receive()) is not None:
                self._do(message)
        except Exception:
            self._log.exception("a worker failed in the proxy itself, and ends")
        self._gone = True
        self._scrapes.close()
        self._settles.close()
        await self._quotas.close()
        if not self._signals.count:
            self._log.error("the parent process is gone, so this worker ends too")
            self._signals.raise_to(1)

    def _do(self, message: ToWorker) -> None:
        match message:
            case messages.AskCounts(number):
                self._channel.send(messages.Counts(number, self._collect()))
            case messages.Sum(number, families):
                self._scrapes.answer(number, families)
            case messages.StopWorker():
                self._stops += 1
                self._signals.raise_to(self._stops)
            case messages.Settle(number):
                run_beside(self._settle_here(number), self._tasks)
            case messages.Decided(number, decision):
                self._quotas.answer(number, decision)
            case messages.Settled(number):
                self._settles.answer(number, None)
            case messages.Prepare(number, config):
                run_beside(self._prepare(number, config), self._tasks)
            case messages.Take(number):
                self._channel.send(self._take(number))
            case _:
                raise AssertionError(f"no message for a worker that runs: {message}")

    async def _prepare(self, number: int, config: Config) -> None:
        """Read what a configuration needs, and tell the parent whether it can be taken over."""
        error = ""
        try:
            self._change = await self._reloader.prepare(config)
        except ConfigError as caught:
            error = str(caught)
        self._channel.send(messages.Prepared(number, error))

    def _take(self, number: int) -> messages.Taken:
        """Go over to what was prepared last."""
        change, self._change = self._change, None
        assert change is not None, "the parent says Take after a Prepare that went well"
        try:
            warnings = self._reloader.take(change)
        except ConfigError as error:
            return messages.Taken(number, self._service.state.config, [], "", str(error))
        return messages.Taken(
            number, self._service.state.config, warnings, self._reloader.described, ""
        )


def main() -> int:
    """Serve what the parent at the other end of the first descriptor says; return the exit code.

    The others are sockets that listen already.
    """
    sock, *sockets = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    for each in (sock, *sockets):
        each.set_inheritable(False)
    try:
        message = first_message(sock)
    except DecodeError as error:
        print(
            f"wellspoken: a worker does not understand its parent ({error}). Was wellspoken "
            "replaced while it ran? Restart it.",
            file=sys.stderr,
        )
        return 2
    if not isinstance(message, messages.Begin):  # the end came first
        return 0
    with log_on_stderr(message.config.log) as (progress, log):
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_serve(message.config, progress, log, sock, sockets))


async def _serve(
    config: Config,
    progress: EngineProgress,
    log: logs.Logs,
    sock: socket.socket,
    sockets: Sequence[socket.socket],
) -> int:
    link = ParentLink(await Channel.over(sock, decode_to_worker))
    return await serve(config, link.say, progress, link, output=log, sockets=sockets)


if __name__ == "__main__":
    raise SystemExit(main())
