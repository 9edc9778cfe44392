"""Counting in this process: plain numbers without a lock, since the loop's thread alone counts.

With several workers it is their parent that counts so (workers/).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from wellspoken.proxy.limits.quota import MINUTE, SLACK, Decision, Quota


class Account:
    """What one client has taken: when its two buckets are full again, and how many are open."""

    __slots__ = ("open", "requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0.0
        self.tokens = 0.0
        self.open = 0

    def take(self, quota: Quota, tokens: int, now: float) -> Decision:
        """Count a request in, all of it or nothing."""
        one = MINUTE / quota.requests if quota.requests else 0.0
        all = tokens * MINUTE / quota.tokens if quota.tokens else 0.0
        requests, held = max(self.requests - now, 0.0), max(self.tokens - now, 0.0)
        if quota.concurrent and self.open >= quota.concurrent:
            return Decision("concurrent", 1.0, requests, held)
        if one and requests + one > MINUTE + SLACK:
            return Decision("requests", requests + one - MINUTE, requests, held)
        if all and held + all > MINUTE + SLACK:
            return Decision("tokens", held + all - MINUTE, requests, held)
        self.open += 1
        self.requests = now + requests + one
        self.tokens = now + held + all
        return Decision(None, 0.0, requests + one, held + all)

    def settle(self, quota: Quota, requests: int, tokens: int, now: float) -> None:
        """Count a request out, and give back so much; below 0: take more."""
        self.open -= 1
        if quota.requests:
            self.requests = max(self.requests, now) - requests * MINUTE / quota.requests
        if quota.tokens:
            self.tokens = max(self.tokens, now) - tokens * MINUTE / quota.tokens


class Accounts:
    """Counts the clients of one process: a `Counters`."""

    trouble = ""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    @property
    def clients(self) -> list[str]:
        """The clients of which something was counted."""
        return list(self._accounts)

    def __getitem__(self, client: str) -> Account:
        """Return a client's account, a new one where it had none."""
        found = self._accounts.get(client)
        if found is None:
            found = self._accounts[client] = Account()
        return found

    def take(self, client: str, quota: Quota, tokens: int) -> Decision:
        """Count a request in; see `Account`."""
        return self[client].take(quota, tokens, self._clock())

    async def reserve(self, client: str, quota: Quota, id: str, tokens: int) -> Decision | None:
        """Count a request that begins, at once."""
        return self.take(client, quota, tokens)

    def settle(self, client: str, quota: Quota, id: str, requests: int, tokens: int) -> None:
        """Count the end of a request, and give back so much."""
        self[client].settle(quota, requests, tokens, self._clock())

    async def close(self) -> None:
        """Do nothing: nobody else has to know."""
