"""The servers of one model: which of them gets the next request."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import blake2b
from math import log
from typing import Final

from wellspoken.proxy.config.tables import Retry
from wellspoken.proxy.upstream.target import Target

MORE: Final = 1.25
SPARE: Final = 1.0
"""By affinity, a server that has more than so many times its share of the requests under way, and
so many more, gets no further one, so that one hot conversation or prompt cannot overload it. With
one less a third of what caches give is lost with 8 clients and 3 servers, by chance alone."""
SAVED: Final = 10.0
"""Requests that may be sent again at once after a quiet time, whatever the share of all."""


class Pool:
    """The servers that have one model, and how requests are spread over them.

    The least busy gets the next one: the fewest requests under way for its weight; of several by
    turns, as their weights say, where none of them has more for its weight than another would have
    with this request. With an affinity, requests of one key go to one server while it is there and
    not overloaded, and a server that comes or goes moves only its own keys (rendezvous hashing,
    weighted).

    `alone`: its only server; `sole`: the same where there is no fallback either.

    Only the loop's thread may use it.
    """

    __slots__ = (
        "_saved",
        "_turns",
        "affinity",
        "alone",
        "fallback",
        "retry",
        "servers",
        "share",
        "sole",
    )

    def __init__(self, servers: Sequence[Target], share: float = 0.2) -> None:
        first = servers[0].settings
        self.servers = tuple(servers)
        self.alone = servers[0] if len(servers) == 1 else None
        self.sole = None if first.fallback else self.alone
        self.affinity = first.affinity
        self.retry: Retry = first.retry
        self.fallback = first.fallback
        self.share = share  # of the requests that may be sent again
        self._saved = SAVED
        self._turns = dict.fromkeys(self.servers, 0.0)

    def choose(
        self, key: bytes | None = None, left: Collection[Target] = (), *, well: bool = False
    ) -> Target | None:
        """Return the server that gets a request, None where all were `left`.

        `key`: what requests have in common that are to have the same server. `well`: only one that
        is not out.
        """
        there = [server for server in self.servers if server not in left]
        fit = [server for server in there if is_well(server)]
        if not there or (well and not fit):
            return None
        # Where none is well, all are asked as if they were: to refuse at once would be no better.
        among = fit or [server for server in there if server.upstream is not None] or there
        among = [server for server in among if server.weight] or among
        for server in among:
            if fit and server.ejection is not None and server.ejection.until:
                return server  # the next request is its trial, whoever's it is
        if key is not None:
            return _choose_by_key(among, key)
        # Within one request no load is less than another: beside a server of 20, one of 1 would
        # otherwise get every second of two requests at a time, as the less busy one.
        least = min(_load(server, 1) for server in among)
        return self._take_turns([server for server in among if _load(server) < least])

    def note_request(self) -> None:
        """Count a request, a share of which may be sent again."""
        self._saved = min(self._saved + self.share, SAVED)

    def may_repeat(self) -> bool:
        """Say whether one may be sent again now, and count that."""
        if self.share == 0.0 or self._saved < 1.0:
            return False
        self._saved -= 1.0
        return True

    def _take_turns(self, among: Sequence[Target]) -> Target:
        """Return the next of servers that are equally busy: smooth weighted round robin."""
        if len(among) == 1:
            return among[0]
        turns, total = self._turns, 0.0
        for server in among:
            weight = server.weight or 1.0
            turns[server] += weight
            total += weight
        chosen = max(among, key=turns.__getitem__)
        turns[chosen] -= total
        return chosen


def is_well(server: Target) -> bool:
    """Say whether a server is there and may be given a request now."""
    ready = server.upstream is not None and not server.away
    return ready and (server.ejection is None or server.ejection.is_open)


def _load(server: Target, more: int = 0) -> float:
    return (server.outstanding + more) / (server.weight or 1.0)


def _choose_by_key(among: Sequence[Target], key: bytes) -> Target:
    """Return the key's own server, or the first in its order that is less busy than most."""
    weights = sum(server.weight or 1.0 for server in among)
    requests = 1 + sum(server.outstanding for server in among)
    own, *others = sorted(among, key=lambda server: _distance(server, key))
    share = requests / weights
    if own.outstanding <= MORE * share * (own.weight or 1.0) + SPARE:
        return own
    for server in others:  # below their shares, or the first of them would be as busy as that soon
        if server.outstanding < share * (server.weight or 1.0):
            return server
    return own  # never: not all can have their shares


def _distance(server: Target, key: bytes) -> float:
    """Return how far a key lies from a server: the nearest has it, in proportion to the weights."""
    digest = blake2b(key + server.name.encode(), digest_size=7).digest()
    return -log((int.from_bytes(digest) + 1) / (1 << 56)) / (server.weight or 1.0)
