"""Counting for all workers: each asks its parent, which answers from one set of `Accounts`."""

from __future__ import annotations

import logging
from typing import Final

from wellspoken.proxy.limits.accounts import Accounts
from wellspoken.proxy.limits.quota import Decision, Quota
from wellspoken.proxy.workers.channel import (
    Channel,
    Decided,
    Questions,
    ReserveQuota,
    SettleQuota,
    ToWorker,
)

SECONDS: Final = 1.0
"""How long a request waits for the parent, which does nothing that takes time."""


class ParentCounters:
    """A worker's side: a `Counters` that asks the parent."""

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self.trouble = ""
        self._channel = channel
        self._questions = Questions[Decision]()
        self.answer = self._questions.answer

    async def reserve(self, client: str, quota: Quota, id: str, tokens: int) -> Decision | None:
        """Ask the parent; None where it does not answer in time."""
        decision = None
        try:
            decision = await self._questions.ask(
                lambda number: self._channel.send(ReserveQuota(number, id, client, quota, tokens)),
                SECONDS,
            )
        finally:  # also where the client has left meanwhile
            if decision is None:
                self.settle(client, quota, id, 1, tokens)
        self._note("" if decision else "the process that counts for all workers does not answer")
        return decision

    def settle(self, client: str, quota: Quota, id: str, requests: int, tokens: int) -> None:
        """Tell the parent, which reads one message after the other: no end is before its begin."""
        self._channel.send(SettleQuota(id, requests, tokens))

    def _note(self, trouble: str) -> None:
        if trouble and not self.trouble:
            logging.getLogger("wellspoken").warning("%s: requests pass uncounted", trouble)
        self.trouble = trouble

    async def close(self) -> None:
        """Let nobody wait any longer."""
        self._questions.close()


class WorkerQuotas:
    """The parent's side for one worker: what its open requests have reserved."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._open: dict[str, tuple[str, Quota]] = {}

    def reserve(self, asked: ReserveQuota) -> Decided:
        """Count a request that begins."""
        decision = self._accounts.take(asked.client, asked.quota, asked.tokens)
        if decision.refused is None:
            self._open[asked.id] = asked.client, asked.quota
        return Decided(asked.number, decision)

    def settle(self, told: SettleQuota) -> None:
        """Count the end of a request, unless it was refused."""
        found = self._open.pop(told.id, None)
        if found is not None:
            self._accounts.settle(*found, told.id, told.requests, told.tokens)

    def close(self) -> None:
        """Count the end of all that is open: the worker has gone, and what it has used stays so."""
        for id in tuple(self._open):
            self.settle(SettleQuota(id, 0, 0))
