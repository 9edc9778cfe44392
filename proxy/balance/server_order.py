"""Where a request goes on that a server did not take.

    what became of it                                   it goes to another server
    no connection: refused, unresolved, TLS, too late   yes, as often as there are servers
    its engine is not there                             yes, as often as there are servers
    its kind of server cannot do what is asked for      yes, to other kinds in its pool
    closed before a byte of the answer                  yes, once: it may be what ended the server
    429 or 503 before any token                         with retry = "unstarted", within its share
    "abort" in place of any token: the server ends      with retry = "unstarted", within its share
    no byte yet, no look answered, and another is well  with retry = "unstarted", within its share
    anything else, or an answer that has begun          no

When the servers of its pool have been tried, the pools that `fallback` names are, one after the
other. Servers that are out are left for the end, since one of them may take a request and then not
answer it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from wellspoken.adapters.events import Fault
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.balance.server_pool import Pool, is_well
from wellspoken.proxy.upstream.failures import Reason, UpstreamError
from wellspoken.proxy.upstream.target import NOT_READY, Target

UNSENT: Final[frozenset[Reason]] = frozenset(
    {"dns", "refused", "unreachable", "tls", "connect_timeout"}
)
"""Failures before a byte of the request was sent."""
BUSY: Final = (429, 503)
"""What a server answers that has begun nothing."""
ABORTED: Final = frozenset({"upstream_abort", "upstream_aborted"})
"""Codes of an answer that its server has ended; before any token it is one that it did not begin.

vLLM (since 0.18, v1/engine/core.py) ends so what comes to it after SIGTERM, with status 200.
"""

INCAPABLE: Final = frozenset({"unsupported_parameter", "unsupported_endpoint", "unknown_url"})
"""Codes of the proxy's own refusals for what another kind of server may be able to do."""

Failure = UpstreamError | RequestError | Fault
FindPool = Callable[[str], tuple[Pool, str] | None]
"""Finds the pool of a fallback's name, and what its servers are asked for."""


class _Stage(NamedTuple):
    pool: Pool
    model: str
    fallback: str


class ServerOrder:
    """The way of one request from server to server.

    `model` is what the present server is asked for; `fallback` the name in the configuration that
    led to it, "" for the request's own pool.
    """

    __slots__ = ("_cut", "_key", "_left", "_let_go", "_pool", "_stages", "fallback", "model")

    def __init__(self, pool: Pool, model: str, key: bytes | None, find: FindPool) -> None:
        stages = [_Stage(pool, model, "")]
        for name in pool.fallback:
            found = find(name)
            if found is not None:
                stages.append(_Stage(*found, name))
        self.model = model
        self.fallback = ""
        self._pool = pool
        self._stages = stages
        self._key = key
        self._left: list[Target] = []
        self._cut = False
        self._let_go = False  # its further sending is counted already

    def start(self) -> Target:
        """Return the first server."""
        self._pool.note_request()
        found = self._choose(self._stages)
        assert found is not None  # a pool has a server
        return self._go(*found)

    def move(self, target: Target, failure: Failure) -> Target | None:
        """Return the server after `target`, which failed so, before it answered anything.

        None where the request has to end with that.
        """
        self._left.append(target)
        stages = self._stages
        if isinstance(failure, RequestError) and failure.code in INCAPABLE:
            self._left += self._find_kin(target)
            stages = stages[:1]  # a fallback is for servers that are away
        if not self._may_move(failure):
            return None
        found = self._choose(stages)
        if found is None or not (_is_free(failure) or self._take_share()):
            return None
        return self._go(*found)

    def may_leave(self, target: Target) -> bool:
        """Say whether it may be taken from `target`, which is silent; then it has to be moved.

        Only where another server is well: else the silent one may still be the first to answer.
        """
        if self._pool.retry != "unstarted":
            return False
        servers = (server for stage in self._stages for server in stage.pool.servers)
        others = (each for each in servers if each is not target and each not in self._left)
        if not self._let_go and any(map(is_well, others)):
            self._let_go = self._pool.may_repeat()
        return self._let_go

    def _find_kin(self, target: Target) -> list[Target]:
        """Return the servers of the same kind, which cannot do more than that one."""
        servers = (server for stage in self._stages for server in stage.pool.servers)
        return [server for server in servers if server.backend.name == target.backend.name]

    def _take_share(self) -> bool:
        let_go, self._let_go = self._let_go, False
        return let_go or self._pool.may_repeat()

    def _choose(self, stages: Sequence[_Stage]) -> tuple[Target, _Stage] | None:
        for well in (True, False) if len(stages) > 1 else (False,):
            for stage in stages:
                found = stage.pool.choose(self._key, self._left, well=well)
                if found is not None:
                    return found, stage
        return None

    def _go(self, target: Target, stage: _Stage) -> Target:
        self.model, self.fallback = stage.model, stage.fallback
        return target

    def _may_move(self, failure: Failure) -> bool:
        if _is_free(failure):
            once = isinstance(failure, UpstreamError) and failure.reason == "cut"
            first = not (once and self._cut)
            self._cut = self._cut or once
            return first
        if isinstance(failure, UpstreamError):
            busy = failure.reason == "stuck" and failure.unanswered
        elif isinstance(failure, Fault):
            busy = failure.status in BUSY or failure.code in ABORTED
        else:  # a refusal of the proxy's own has another reason than the server
            busy = False
        return busy and self._pool.retry == "unstarted"


def _is_free(failure: Failure) -> bool:
    """Say whether no server has a request that failed so, so that nothing would be repeated."""
    if isinstance(failure, UpstreamError):
        return failure.reason in UNSENT or (failure.reason == "cut" and failure.unanswered)
    return isinstance(failure, RequestError) and (
        failure.code == NOT_READY or failure.code in INCAPABLE
    )
