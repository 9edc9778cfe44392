"""Model name -> the servers that have it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Final

from msgspec import Struct

from wellspoken.adapters.requests.errors import RequestError, short
from wellspoken.adapters.requests.shapes import Bounds
from wellspoken.proxy.balance.server_pool import Pool
from wellspoken.proxy.config.tables import Health, Limits
from wellspoken.proxy.limits.clients import KnownClient
from wellspoken.proxy.metrics.service import OTHER
from wellspoken.proxy.upstream.ejection import Ejection, State
from wellspoken.proxy.upstream.target import Target

_LISTED: Final = 20  # model names that an error message lists at most
_RULES: Final = Health()
_SHARE: Final = Limits().retries
_LOG: Final = logging.getLogger("wellspoken")


class ServerState(Struct, frozen=True, omit_defaults=True):
    """How a server is: `outstanding` requests it has now, and for which `reason` it gets none.

    An engine that is away is out, too.
    """

    name: str
    state: State
    outstanding: int
    reason: str = ""


class Router:
    """Model name -> pool. With one backend (`only`) every name passes, else only known ones.

    `rules`: when a server that is not the only one for its models gets no requests; `share`: how
    many of a pool's requests may be sent again.
    """

    __slots__ = (
        "_by_backend",
        "_by_name",
        "_share",
        "bounds",
        "only",
        "passes_responses",
        "rules",
        "targets",
    )

    def __init__(
        self, targets: Sequence[Target], rules: Health = _RULES, share: float = _SHARE
    ) -> None:
        self.targets = tuple(targets)
        self.rules = rules
        self._share = share
        backends: dict[str, list[Target]] = {}
        self.bounds: Bounds = "openai"  # what every request meets before its backend is known
        for target in self.targets:
            backends.setdefault(target.backend_name or target.name, []).append(target)
            target.renamed = self._index
            if target.settings.bounds != "openai":
                self.bounds = "backend"
        # Whether a model's servers may answer /v1/responses at endpoints of their own.
        self.passes_responses = any(target.settings.responses == "pass" for target in self.targets)
        self._by_backend = {name: Pool(servers, share) for name, servers in backends.items()}
        self.only = next(iter(self._by_backend.values())) if len(backends) == 1 else None
        self._by_name: dict[str, Pool] = {}
        self._index()

    def _index(self) -> None:
        by_name: dict[str, list[Target]] = {}
        listed: dict[str, list[Target]] = {}
        for target in self.targets:
            configured = {*target.settings.models, *target.settings.aliases}
            for name in dict.fromkeys(target.names):
                (by_name if name in configured else listed).setdefault(name, []).append(target)
        by_name = listed | by_name  # what an engine only lists takes no configured name away
        pools = {tuple(pool.servers): pool for pool in self._by_backend.values()}
        for servers in by_name.values():  # models that the same servers have share a pool
            if tuple(servers) not in pools:
                pools[tuple(servers)] = Pool(servers, self._share)
        self._by_name = {name: pools[tuple(servers)] for name, servers in by_name.items()}
        self._watch_health()

    def _watch_health(self) -> None:
        """Have the health noted of those servers beside which there is another."""
        replaceable = {server for pool in self.pools if not pool.alone for server in pool.servers}
        for pool in self.pools:
            if pool.fallback:
                replaceable.update(pool.servers)
        for target in self.targets:
            if target not in replaceable:
                target.ejection = None
            elif target.ejection is None:
                told = partial(_LOG.warning, "backend %s %s", target.name)
                target.ejection = Ejection(self.rules, monotonic, told=told)
            else:
                target.ejection.rules = self.rules

    @property
    def pools(self) -> list[Pool]:
        """The pools that requests may come to."""
        return [self.only] if self.only is not None else list(set(self._by_name.values()))

    def tell_states(self) -> list[ServerState]:
        """Return how each server is, where there are several."""
        return [_tell_state(target) for target in self.targets] if len(self.targets) > 1 else []

    def look_up(self, model: str) -> Pool | None:
        """Return the pool of `model`, None where it is not known."""
        return self.only if self.only is not None else self._by_name.get(model)

    def find(self, model: str, client: KnownClient | None = None) -> Pool:
        """Return the pool of `model`.

        Raises RequestError 404 model_not_found, which lists what the `client` may use.
        """
        pool = self.look_up(model)
        if pool is None:
            raise self.unknown(model, client)
        return pool

    def find_fallback(self, name: str, model: str) -> tuple[Pool, str] | None:
        """Return the pool of a model or a backend, and what a request for `model` asks it for."""
        pool = self._by_name.get(name)
        if pool is not None:
            return pool, name
        pool = self._by_backend.get(name)
        if pool is None:
            return None
        names = pool.servers[0].names
        return pool, model if model in names or not names else names[0]

    def unknown(self, model: str, client: KnownClient | None = None) -> RequestError:
        """Return the error for a model that is not there, listing those that are for `client`."""
        known = sorted(name for name in self._by_name if client is None or client.may_use(name))
        listed = ", ".join(known[:_LISTED]) + (", ..." if len(known) > _LISTED else "")
        hint = f" Known models: {listed}." if listed else " GET /v1/models lists the known ones."
        return RequestError(
            f"The model '{short(model)}' does not exist.{hint}",
            status=404,
            param="model",
            code="model_not_found",
        )

    def label(self, model: str) -> str:
        """Return the model as a metric label: itself if configured or listed, else `_other`."""
        if model in self._by_name:
            return model
        for server in self.only.servers if self.only is not None else ():
            if model in server.labels:
                return model
        return OTHER


def _tell_state(target: Target) -> ServerState:
    ejection = target.ejection
    if target.engine is not None and (target.upstream is None or target.away):
        return ServerState(target.name, "out", target.outstanding, target.why_away)
    if ejection is None:
        return ServerState(target.name, "in", target.outstanding)
    return ServerState(target.name, ejection.state, target.outstanding, ejection.reason)
