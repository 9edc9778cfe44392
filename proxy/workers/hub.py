"""The workers as their parent sees them: what each says, what all count, what all are told."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec import DecodeError

from wellspoken.proxy.config import Config
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.limits.accounts import Accounts
from wellspoken.proxy.workers import channel as messages
from wellspoken.proxy.workers.channel import (
    Channel,
    Message,
    Questions,
    ToParent,
    decode_to_parent,
    run_beside,
)
from wellspoken.proxy.workers.quotas import WorkerQuotas
from wellspoken.proxy.workers.totals import Family, Totals, parents

ASK_SECONDS: Final = 1.0
"""How long a scrape waits for a worker; after that it counts with what it said last."""
SETTLE_SECONDS: Final = 2.0
"""How long a reader of the store waits for the rows of the other workers."""
RELOAD_SECONDS: Final = 20.0
"""How long a worker may take to read what a configuration needs."""
LAST_SECONDS: Final = 2.0
"""How long what an ended worker has said last may take to be read."""
WORKER: Final = ("-m", "wellspoken.proxy.workers.worker")
"""What Python is to run as a worker."""


class Worker:
    """One process that answers.

    The task of its place (`Parent`) awaits `wait`, within which one other task reads what it says.
    Reading must never wait for an answer of a worker's: what does so runs beside (`run_beside`).
    """

    def __init__(self, index: int, process: Process, channel: Channel[ToParent], hub: Hub) -> None:
        self.index, self.process = index, process
        self.families: list[Family] = []  # what it counts, as of its last word
        self.begun = False
        self.listens = asyncio.Event()
        self.said: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.silent = 0  # how often it was looked at since it said something
        self.send = channel.send  # tells it something
        self._channel, self._hub = channel, hub
        self._behind = False  # it let a question pass, and has said nothing since
        self._questions = Questions[ToParent]()
        self.quotas = WorkerQuotas(hub.accounts)

    @property
    def name(self) -> str:
        """What it is called in the log."""
        return f"worker {self.index + 1} (process {self.process.pid})"

    def begin(self, config: Config) -> None:
        """Have it serve."""
        self.begun = True
        self.send(messages.Begin(config))

    async def ask(self, question: Callable[[int], Message], seconds: float) -> ToParent | None:
        """Return its answer; None: it has ended, or does not answer in time or at all now."""
        if self._behind:
            return None
        answer = await self._questions.ask(lambda number: self.send(question(number)), seconds)
        self._behind = answer is None
        return answer

    async def wait(self) -> int:
        """Hear what it says until it ends; return its exit code, below 0 for a signal."""
        hearing = asyncio.create_task(self._hear())
        try:
            code = await self.process.wait()
            await asyncio.wait({hearing}, timeout=LAST_SECONDS)
            return code
        finally:
            # Without waiting, since a second cancellation would leave the rest undone.
            hearing.cancel()
            self._channel.drop()
            self._questions.close()
            if self.process.returncode is not None:
                self._hub.remove(self)

    def kill(self) -> None:
        """End its process at once, unless it has ended by itself."""
        _kill(self.process)

    async def _hear(self) -> None:
        try:
            while (message := await self._channel.receive()) is not None:
                self.silent, self._behind = 0, False
                self._take_in(message)
        except DecodeError as error:
            logging.getLogger("wellspoken").error(
                "%s says what this process does not understand (%s), so it is ended. Was "
                "wellspoken replaced while it ran? Restart it.",
                self.name,
                error,
            )
            self.kill()

    def _take_in(self, message: ToParent) -> None:
        match message:
            case messages.Alive():
                pass
            case messages.Started(text):
                if not self.said.done():
                    self.said.set_result(text)
            case messages.Listens():
                self.listens.set()
            case messages.Scrape(number, families):
                self.families = families
                run_beside(self._hub.sum(self, number), self._hub.work)
            case messages.Settle(number):
                run_beside(self._hub.settle(self, number), self._hub.work)
            case messages.ReserveQuota():
                self.send(self.quotas.reserve(message))
            case messages.SettleQuota():
                self.quotas.settle(message)
            case messages.Counts(number, families):
                self.families = families
                self._questions.answer(number, message)
            case messages.Prepared(number) | messages.Taken(number) | messages.Settled(number):
                self._questions.answer(number, message)


class Hub:
    """All workers that run: their configuration, their counts with those of ended ones, quotas."""

    def __init__(self, config: Config, sockets: Sequence[socket.socket] = ()) -> None:
        self.config = config
        self.sockets = sockets  # that all workers accept from
        self.workers: set[Worker] = set()
        self.restarts = 0
        self.described = ""  # what the last reload has changed
        # Held while the configuration changes, and for the moment in which a worker is given its
        # first one: so no worker misses a change that comes while it starts.
        self.steady = asyncio.Lock()
        self._good = True  # whether the configuration was good when it was last read
        self._past = Totals()
        self.accounts = Accounts()  # of the clients with quotas
        self.work: set[asyncio.Task[None]] = set()

    def remove(self, worker: Worker) -> None:
        """Keep the counts of a worker that has ended."""
        if worker in self.workers:
            self.workers.remove(worker)
            worker.quotas.close()
            self._past.add(worker.families, ended=True)

    def note_reload(self, good: bool) -> None:
        """Note whether the configuration was good when it was last read."""
        self._good = good

    def stop(self) -> None:
        """Tell all to end; a second time: at once."""
        for worker in self.workers:
            worker.send(messages.StopWorker())

    async def kill_all(self) -> None:
        """End all processes that still run, and what is done for them."""
        for task in self.work:
            task.cancel()
        for worker in tuple(self.workers):
            worker.kill()
            await worker.process.wait()

    async def sum(self, asker: Worker, number: int) -> None:
        """Answer a worker's scrape with what all count now; its own counts came with it."""
        # Workers may come and go meanwhile: the set is looked at again, and one that has ended
        # since counts among the past ones, never twice.
        others = self._others(asker)
        await asyncio.gather(*(worker.ask(messages.AskCounts, ASK_SECONDS) for worker in others))
        totals = Totals()
        for worker in sorted(self.workers, key=lambda one: one.index):
            totals.add(worker.families)
        totals.add(self._past.families())
        totals.add(parents(self.restarts, self._good))
        asker.send(messages.Sum(number, totals.families()))

    async def settle(self, asker: Worker, number: int) -> None:
        """Have all other workers write what they have to store, then tell the one that asks."""
        others = self._others(asker)
        await asyncio.gather(*(worker.ask(messages.Settle, SETTLE_SECONDS) for worker in others))
        asker.send(messages.Settled(number))

    def _others(self, asker: Worker) -> list[Worker]:
        return [worker for worker in self.workers if worker is not asker and worker.begun]

    async def reload(self, config: Config) -> list[str]:
        """Have all workers take over a configuration; return warnings, as Reloader.apply does.

        All read what it needs first, so that one that cannot do so has the others stay as they are.
        One that fails after that is killed, and started again with the new configuration. Raises
        ConfigError, and then nothing has changed.
        """
        async with self.steady:
            workers = [worker for worker in self.workers if worker.begun]
            if not workers:
                raise ConfigError("no worker runs now that could take it over. Reload again.")
            prepared = await asyncio.gather(
                *(
                    worker.ask(lambda n: messages.Prepare(n, config), RELOAD_SECONDS)
                    for worker in workers
                )
            )
            for worker, answer in zip(workers, prepared, strict=True):
                if isinstance(answer, messages.Prepared) and answer.error:
                    raise ConfigError(answer.error)
                if answer is None and worker in self.workers:
                    raise ConfigError(f"{worker.name} does not answer. Reload again.")
            return await self._take_over([worker for worker in workers if worker in self.workers])

    async def _take_over(self, workers: list[Worker]) -> list[str]:
        """Have workers go over to what they have prepared."""
        answers = await asyncio.gather(
            *(worker.ask(messages.Take, RELOAD_SECONDS) for worker in workers)
        )
        good = [
            answer for answer in answers if isinstance(answer, messages.Taken) and not answer.error
        ]
        if not good:
            raise ConfigError("no worker has taken it over. Reload again.")
        self.config, self.described = good[0].config, good[0].described
        for worker, answer in zip(workers, answers, strict=True):
            if answer not in good and worker in self.workers:
                logging.getLogger("wellspoken").error(
                    "%s did not take over the configuration, so it is ended", worker.name
                )
                worker.kill()
        return good[0].warnings


def _kill(process: Process) -> None:
    # Not Process.kill: it polls, and so takes the exit code from under asyncio's own watcher, which
    # then reports 255 (Python 3.11); and of a process that has ended it fails.
    if process.returncode is None:
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.kill(process.pid, signal.SIGKILL)


async def spawn_worker(index: int, hub: Hub) -> Worker:
    """Start a worker's process, which waits for `Worker.begin`. Raises OSError.

    In a session of its own, so that Ctrl-C at a terminal reaches the parent alone. -P keeps a file
    in the current directory from standing in for a module.
    """
    ours, theirs = socket.socketpair()
    process: Process | None = None
    try:
        with theirs:
            passed = [each.fileno() for each in (theirs, *hub.sockets)]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", *WORKER, *map(str, passed)),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
        channel: Channel[ToParent] = await Channel.over(ours, decode_to_parent)
    except BaseException:
        ours.close()
        if process is not None:  # of which nobody else knows
            _kill(process)
            await process.wait()
        raise
    worker = Worker(index, process, channel, hub)
    hub.workers.add(worker)
    return worker
