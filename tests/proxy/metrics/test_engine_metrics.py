"""The engine's metrics: read at the scrape, and only there where an engine is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast, get_args

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.upstream import Upstream
from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.metrics.exposed import exposed
from tests.proxy.metrics.servers import Ejection, Server
from wellspoken.engine.kind import Facts
from wellspoken.engine.states import State
from wellspoken.engine.supervisor import Supervisor
from wellspoken.proxy.metrics.engine_families import EngineMetrics
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.metrics.store_families import StoreMetrics

STATES = ("stopped", "starting", "ready", "draining", "failed")  # labels of a series
FAMILIES = 32  # at most, with a store, an engine and several servers: 4 are of these


@dataclass
class Engine:
    """What pages and metrics see of a Supervisor; a page that wakes it or counts in, fails."""

    state: State = "ready"
    reason: str = ""
    restarts: int = 0
    start_seconds: float | None = None
    open: int = 0
    first: bool = False
    facts: Facts = field(default_factory=Facts)

    @property
    def unloaded(self) -> bool:
        return self.state in ("stopped", "draining") and not self.first

    async def enter(self) -> None:
        raise AssertionError("a page woke the engine")

    async def suspect(self) -> None:
        """Look whether it still listens: of a double there is nothing to see."""


async def hosting(proxy: Proxy, engine: Engine, number: int = 0) -> None:
    """Let a target of the proxy be one that `engine` runs; without an address unless it is ready.

    So does proxy/lifecycle/hosted.py with a real one.
    """
    target = proxy.service.state.router.targets[number]
    target.host(cast(Supervisor, engine), lambda: None)
    if engine.state != "ready" and target.upstream is not None:
        upstream, target.upstream = target.upstream, None
        await upstream.close()


def scrape(registry: CollectorRegistry) -> dict[str, float]:
    """Return the samples that begin with wellspoken_engine, as `name label label` -> value."""
    metrics = Metrics("1")
    metrics.registry = registry
    found = {}
    for family in text_string_to_metric_families(exposed(metrics).decode()):
        for sample in family.samples:
            found[" ".join((sample.name, *sample.labels.values()))] = sample.value
    return found


def test_the_states_are_the_supervisors() -> None:
    assert get_args(State) == STATES


@pytest.mark.parametrize("state", STATES)
def test_each_state(state: State) -> None:
    registry = CollectorRegistry()
    engine = Engine(state, restarts=3, start_seconds=41.5)
    EngineMetrics(registry).watch("engine", cast(Supervisor, engine))
    up = float(state == "ready")
    states = {f"wellspoken_engine_state engine {one}": 0.0 for one in STATES}
    assert scrape(registry) == {
        "wellspoken_engine_up engine": up,
        **states,
        f"wellspoken_engine_state engine {state}": 1.0,
        "wellspoken_engine_restarts_total engine": 3.0,
        "wellspoken_engine_start_seconds engine": 41.5,
    }


def test_what_a_scrape_reads_is_what_is_now() -> None:
    registry = CollectorRegistry()
    engine = Engine("starting", first=True)
    EngineMetrics(registry).watch("engine", cast(Supervisor, engine))
    before = scrape(registry)
    assert before["wellspoken_engine_up engine"] == 0
    assert before["wellspoken_engine_start_seconds engine"] == 0
    engine.state, engine.restarts, engine.start_seconds = "ready", 1, 2.5
    after = scrape(registry)
    assert after["wellspoken_engine_up engine"] == 1
    assert after["wellspoken_engine_state engine starting"] == 0
    assert after["wellspoken_engine_restarts_total engine"] == 1
    assert after["wellspoken_engine_start_seconds engine"] == 2.5


def test_two_engines_share_the_families() -> None:
    metrics = Metrics("1")
    engines = EngineMetrics(metrics.registry)
    engines.watch("one", cast(Supervisor, Engine()))
    engines.watch("two", cast(Supervisor, Engine("failed")))
    text = exposed(metrics).decode()
    assert 'wellspoken_engine_up{backend="one"} 1.0\n' in text
    assert 'wellspoken_engine_up{backend="two"} 0.0\n' in text
    assert text.count("# TYPE wellspoken_engine_up gauge\n") == 1


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    EngineMetrics(registry)
    with pytest.raises(ValueError, match="wellspoken_engine"):
        EngineMetrics(registry)


def test_the_families_stay_few() -> None:
    metrics = Metrics("1")
    StoreMetrics(metrics.registry)
    engines = EngineMetrics(metrics.registry)
    metrics.servers.watch(lambda: [Server("one", ejection=Ejection())])
    assert "wellspoken_engine" not in exposed(metrics).decode()  # as none is watched
    without = exposed(metrics).count(b"# TYPE ")
    engines.watch("engine", cast(Supervisor, Engine()))
    assert exposed(metrics).count(b"# TYPE ") == without + 4 <= FAMILIES


async def test_a_proxy_without_an_engine_has_none(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream)
    assert not [name for name in await proxy.metrics() if "engine" in name]
    engines = EngineMetrics(proxy.service.state.metrics.registry)
    engines.watch("engine", cast(Supervisor, Engine()))
    assert (await proxy.metrics())['wellspoken_engine_up{backend="engine"}'] == 1
