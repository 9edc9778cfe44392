"""What is told of the engines that the proxy runs itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

ENGINE_STATES: Final = ("stopped", "starting", "ready", "draining", "failed")


class Watched(Protocol):
    """What a scrape reads of an engine: wellspoken.engine's Supervisor has it."""

    @property
    def state(self) -> str:
        """One of ENGINE_STATES."""

    @property
    def restarts(self) -> int:
        """How often it was started because it had ended unasked."""

    @property
    def start_seconds(self) -> float | None:
        """What the last start that succeeded took; None before."""


class EngineMetrics(Collector):
    """The engines that the proxy runs, read at the scrape: no request and no change costs anything.

    A series that is to come is 0 until then, as Prometheus advises, so that no query misses it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._watched: dict[str, Watched] = {}
        registry.register(self)

    def watch(self, name: str, engine: Watched) -> None:
        """Let a scrape ask `engine`, under the label backend=`name`."""
        self._watched[name] = engine

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples: the registry looks for names that are taken."""
        one, each = ["backend"], ["backend", "state"]
        return (
            GaugeMetricFamily(
                "wellspoken_engine_up",
                "1 while the engine answers requests, 0 otherwise.",
                labels=one,
            ),
            GaugeMetricFamily(
                "wellspoken_engine_state",
                "1 for the engine's present state, 0 for the others.",
                labels=each,
            ),
            CounterMetricFamily(
                "wellspoken_engine_restarts",
                "Starts of the engine that were needed because it ended unasked.",
                labels=one,
            ),
            GaugeMetricFamily(
                "wellspoken_engine_start_seconds",
                "Time that the engine's last start took until it answered; 0 before the first.",
                labels=one,
            ),
        )

    def collect(self) -> Iterable[Metric]:
        """Return the families with what the engines are now; none where there is no engine."""
        if not self._watched:
            return ()
        up, state, restarts, seconds = families = tuple(self.describe())
        for name, engine in self._watched.items():
            up.add_sample(up.name, {"backend": name}, float(engine.state == "ready"))
            for one in ENGINE_STATES:
                labels = {"backend": name, "state": one}
                state.add_sample(state.name, labels, float(engine.state == one))
            restarts.add_sample(f"{restarts.name}_total", {"backend": name}, engine.restarts)
            seconds.add_sample(seconds.name, {"backend": name}, engine.start_seconds or 0.0)
        return families
