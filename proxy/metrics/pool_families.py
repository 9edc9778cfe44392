"""What is told of the servers that requests are spread over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

EJECTION_STATES: Final = ("in", "out", "trial")
"""Whether a server gets requests: yes, none, or one that decides."""
_FAMILIES: Final = (
    (
        "wellspoken_backend_outstanding",
        "gauge",
        "Requests that this backend has now and has not answered to the end.",
    ),
    (
        "wellspoken_backend_state",
        "gauge",
        "1 for the backend's present state, 0 for the others: in, out (it failed and gets no "
        "requests), trial (one request decides).",
    ),
    (
        "wellspoken_backend_ejections",
        "counter",
        "Times that the backend was taken out since it failed.",
    ),
)


class WatchedEjection(Protocol):
    """Whether a server is in, and how often it was taken out: what upstream/ keeps of it."""

    @property
    def state(self) -> str:
        """One of EJECTION_STATES."""

    @property
    def ejections(self) -> int:
        """How often it was taken out."""


class WatchedServer(Protocol):
    """A target as a scrape sees it; `ejection` is None where nothing takes it out."""

    @property
    def name(self) -> str:
        """The label `backend`."""

    @property
    def outstanding(self) -> int:
        """How many requests it has now."""

    @property
    def ejection(self) -> WatchedEjection | None:
        """What takes it out."""


class PoolMetrics(Collector):
    """The servers that there are now, read at the scrape: no request and no change costs anything.

    One that a reload takes away is gone from the next scrape.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._servers: Callable[[], Iterable[WatchedServer]] = tuple
        registry.register(self)

    def watch(self, servers: Callable[[], Iterable[WatchedServer]]) -> None:
        """Let a scrape ask for the present servers; no two have the same name."""
        self._servers = servers

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples: the registry looks for names that are taken."""
        return tuple(Metric(name, text, kind) for name, kind, text in _FAMILIES)

    def collect(self) -> Iterable[Metric]:
        """Return the families that have a sample now."""
        outstanding, state, ejections = families = tuple(self.describe())
        for server in self._servers():
            labels = {"backend": server.name}
            outstanding.add_sample(outstanding.name, labels, server.outstanding)
            ejection = server.ejection
            if ejection is None:
                continue
            for one in EJECTION_STATES:
                present = float(ejection.state == one)
                state.add_sample(state.name, {**labels, "state": one}, present)
            ejections.add_sample(f"{ejections.name}_total", labels, ejection.ejections)
        return tuple(family for family in families if family.samples)
