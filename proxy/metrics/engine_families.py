"""What is told of the engines that the proxy runs itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, get_args

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from wellspoken.engine.states import State

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor

_PREFIX: Final = "wellspoken_engine_"
_FAMILIES: Final = (
    ("up", "gauge", "1 while the engine answers requests, 0 otherwise."),
    ("state", "gauge", "1 for the engine's present state, 0 for the others."),
    ("restarts", "counter", "Starts of the engine that were needed because it ended unasked."),
    (
        "start_seconds",
        "gauge",
        "Time that the engine's last start took until it answered; 0 before the first.",
    ),
)


class EngineMetrics(Collector):
    """The engines that the proxy runs, read at the scrape: no request and no change costs anything.

    A series that is to come is 0 until then, as Prometheus advises, so that no query misses it.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._watched: dict[str, Supervisor] = {}
        registry.register(self)

    def watch(self, name: str, engine: Supervisor) -> None:
        """Let a scrape ask `engine`, under the label backend=`name`."""
        self._watched[name] = engine

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples: the registry looks for names that are taken."""
        return tuple(Metric(f"{_PREFIX}{name}", text, kind) for name, kind, text in _FAMILIES)

    def collect(self) -> Iterable[Metric]:
        """Return the families with what the engines are now; none where there is no engine."""
        if not self._watched:
            return ()
        up, state, restarts, seconds = families = tuple(self.describe())
        for name, engine in self._watched.items():
            up.add_sample(up.name, {"backend": name}, float(engine.state == "ready"))
            for one in get_args(State):
                labels = {"backend": name, "state": one}
                state.add_sample(state.name, labels, float(engine.state == one))
            restarts.add_sample(f"{restarts.name}_total", {"backend": name}, engine.restarts)
            seconds.add_sample(seconds.name, {"backend": name}, engine.start_seconds or 0.0)
        return families
