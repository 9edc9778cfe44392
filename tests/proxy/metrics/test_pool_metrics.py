"""The metrics of several servers: read at the scrape, of those that there are then."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from tests.proxy.metrics.exposed import exposed, samples
from tests.proxy.metrics.servers import Ejection, Server
from wellspoken.proxy.metrics.pool_families import EJECTION_STATES, PoolMetrics
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.workers.totals import Totals, collect_families, text_of

PREFIX = "wellspoken_backend_"


def watching(*servers: Server) -> Metrics:
    """Return metrics that watch these servers."""
    metrics = Metrics("1")
    metrics.servers.watch(lambda: servers)
    return metrics


def read(metrics: Metrics) -> dict[str, float]:
    """Return what a scrape has of servers, by `name{labels}` without the prefix."""
    found = samples(exposed(metrics)).items()
    return {name.removeprefix(PREFIX): value for name, value in found if name.startswith(PREFIX)}


@pytest.mark.parametrize("state", EJECTION_STATES)
def test_each_state(state: str) -> None:
    states = {f'state{{backend="vllm/1",state="{one}"}}': 0.0 for one in EJECTION_STATES}
    assert read(watching(Server("vllm/1", 3, Ejection(state, 2)))) == {
        'outstanding{backend="vllm/1"}': 3.0,
        **states,
        f'state{{backend="vllm/1",state="{state}"}}': 1.0,
        'ejections_total{backend="vllm/1"}': 2.0,
    }


def test_a_server_that_nothing_takes_out_has_its_requests_alone() -> None:
    metrics = watching(Server("vllm", 1))
    assert read(metrics) == {'outstanding{backend="vllm"}': 1.0}
    assert b"# TYPE wellspoken_backend_state" not in exposed(metrics)


def test_what_a_scrape_reads_is_what_is_now() -> None:
    servers = [Server("vllm/1", 1, Ejection()), Server("vllm/2", 0, Ejection())]
    metrics = Metrics("1")
    assert not read(metrics)
    metrics.servers.watch(lambda: servers)
    assert read(metrics)['state{backend="vllm/1",state="in"}'] == 1
    servers[0].outstanding, servers[0].ejection = 5, Ejection("out", 1)
    after = read(metrics)
    assert after['outstanding{backend="vllm/1"}'] == 5
    assert after['state{backend="vllm/1",state="in"}'] == 0
    assert after['ejections_total{backend="vllm/1"}'] == 1
    servers.pop()
    assert not [name for name in read(metrics) if "vllm/2" in name]


def test_a_name_is_taken_once() -> None:
    registry = CollectorRegistry()
    PoolMetrics(registry)
    with pytest.raises(ValueError, match="wellspoken_backend_outstanding"):
        PoolMetrics(registry)


def test_workers_count_as_those_that_see_a_server_so() -> None:
    """Each takes a server out by itself, so the sum of the states says how many have it out."""
    some = (
        watching(Server("vllm/1", 2, Ejection("in", 1)), Server("vllm/2", 1, Ejection())),
        watching(Server("vllm/1", 0, Ejection("out", 3)), Server("vllm/2", 4, Ejection())),
        watching(Server("vllm/1", 1, Ejection("out", 1)), Server("vllm/2", 2, Ejection())),
    )
    totals = Totals()
    for metrics in some:
        totals.add(collect_families(metrics.registry))
    gone = watching(Server("vllm/1", 9, Ejection("trial", 4)))
    totals.add(collect_families(gone.registry), ended=True)
    found = samples(text_of(totals.families()))
    states = [found[f'{PREFIX}state{{backend="vllm/1",state="{one}"}}'] for one in EJECTION_STATES]
    assert states == [1, 2, 0]
    assert found[f'{PREFIX}outstanding{{backend="vllm/2"}}'] == 7
    assert found[f'{PREFIX}outstanding{{backend="vllm/1"}}'] == 3
    assert found[f'{PREFIX}ejections_total{{backend="vllm/1"}}'] == 9


def test_failovers_are_counted_by_what_was_left() -> None:
    metrics = Metrics("1")
    metrics.failovers.labels("vllm/1", "refused", "server").inc()
    metrics.failovers.labels("vllm/1", 503, "fallback").inc()
    found = samples(exposed(metrics))
    name = 'wellspoken_failovers_total{{backend="vllm/1",reason="{}",to="{}"}}'
    assert found[name.format("refused", "server")] == 1
    assert found[name.format("503", "fallback")] == 1
