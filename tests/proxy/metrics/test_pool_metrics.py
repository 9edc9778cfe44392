"""The metrics of several servers: read at the scrape, of those that there are then."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import CollectorRegistry

from tests.conforming import MODEL, body, chunk, finish, role
from tests.fakes.upstream import DONE, Gate, Upstream, event, stream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.metrics.exposed import exposed, samples
from tests.proxy.metrics.servers import Ejection, Server
from tests.proxy.workers.test_workers import workers
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.reload import Reloader
from wellspoken.proxy.metrics.pool_families import EJECTION_STATES, PoolMetrics
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.upstream.ejection import State
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


def test_the_states_are_those_of_an_ejection() -> None:
    assert get_args(State) == EJECTION_STATES


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


def names(found: dict[str, float], part: str) -> set[str]:
    """Return the series of one of the families."""
    return {name for name in found if name.startswith(PREFIX + part)}


async def test_a_request_is_its_servers_until_its_answer_has_ended(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    begun = event(role()) + event(chunk({"content": "Hi"}))
    upstream.scripts = [stream(begun, gate, event(finish()) + DONE)]
    proxy = await start_proxy({"url": [upstream.url, f"{upstream.url}/b"], "models": [MODEL]})
    async with await proxy.chat(stream=True) as response:
        assert await response.content.readuntil(b"\n\n")
        during = await proxy.metrics()
        gate.open()
        assert (await response.read()).endswith(DONE)
    after = await proxy.metrics()
    one, two = (f'{PREFIX}outstanding{{backend="default/{number}"}}' for number in (1, 2))
    assert sorted((during[one], during[two])) == [0, 1]
    assert (after[one], after[two]) == (0, 0)
    assert after[f'{PREFIX}state{{backend="default/2",state="in"}}'] == 1
    assert after[f'{PREFIX}ejections_total{{backend="default/2"}}'] == 0


async def test_a_server_that_a_reload_takes_away_is_gone(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(body())]
    table = {"adapter": "openai", "models": [MODEL]}
    proxy = await start_proxy({**table, "url": [upstream.url, f"{upstream.url}/b"]})
    assert len(names(await proxy.metrics(), "state")) == 2 * len(EJECTION_STATES)
    alone = {"server": {"listen": "127.0.0.1:0"}, "backend": [{**table, "url": upstream.url}]}
    await Reloader(proxy.service).apply(load(None, alone, {}))
    found = await proxy.metrics()
    assert names(found, "outstanding") == {f'{PREFIX}outstanding{{backend="default"}}'}
    assert names(found, "state") == names(found, "ejections") == set()


async def test_a_scrape_of_workers_says_how_many_have_a_server_in(
    upstream: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "wellspoken.toml"
    urls = f'["{upstream.url}", "{upstream.url}/b"]'
    file.write_text(f'[[backend]]\nname = "vllm"\nadapter = "openai"\nurl = {urls}\n')
    async with workers(upstream, config=file) as running:
        await running.all(2)
        found = await running.metrics()
    assert found[f'{PREFIX}state{{backend="vllm/1",state="in"}}'] == 2
    assert found[f'{PREFIX}outstanding{{backend="vllm/2"}}'] == 0
