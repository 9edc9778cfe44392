"""What /metrics answers, line by line: names, types, histograms that add up, and how much it is."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.metrics.exposed import exposed
from tests.proxy.metrics.test_engine_metrics import Engine
from wellspoken.engine.supervisor import Supervisor
from wellspoken.proxy.metrics.engine_families import EngineMetrics
from wellspoken.proxy.metrics.series import Count, SeriesFamily, TextFormat, Times
from wellspoken.proxy.metrics.service import PHASES, Metrics
from wellspoken.proxy.metrics.store_families import STORE_FAILURES, StoreMetrics

_LINE = re.compile(r'(?P<name>[a-z_]+)(\{(?P<labels>([a-z]+="[^"\\\n]*",?)*)\})? (?P<value>\S+)')
_LABEL = re.compile(r'([a-z]+)="([^"]*)"')


def faults(text: str) -> list[str]:
    """Return what is wrong with a scrape in Prometheus' text format 0.0.4."""
    found: list[str] = []
    helped: set[str] = set()
    types: dict[str, str] = {}
    seen: dict[str, dict[tuple[tuple[str, str], ...], float]] = defaultdict(dict)
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, said = line[7:].partition(" ")
            helped.add(name)
            if not said.endswith(".") or name in types:
                found.append(f"HELP of {name}")
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            types[name] = kind
            if name not in helped or (kind == "counter") != name.endswith("_total"):
                found.append(f"TYPE of {name}")
        else:
            parts = _LINE.fullmatch(line)
            if parts is None:
                found.append(f"line {line}")
                continue
            labels = tuple(sorted(_LABEL.findall(parts["labels"] or "")))
            if labels in seen[parts["name"]]:
                found.append(f"twice {line}")
            seen[parts["name"]][labels] = float(parts["value"])
    known = {suffixed for name, kind in types.items() for suffixed in names_of(name, kind)}
    found += [f"no TYPE of {name}" for name in seen if name not in known]
    for name, kind in types.items():
        if kind == "histogram":
            found += [f"{name}: {what}" for what in histogram_faults(name, seen)]
    values = (value for one in seen.values() for value in one.values())
    return found + (["not a number"] if any(math.isnan(value) for value in values) else [])


def names_of(name: str, kind: str) -> list[str]:
    """Return the names of a family's samples."""
    return (
        [f"{name}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [name]
    )


def histogram_faults(name: str, seen: dict[str, Any]) -> Iterator[str]:
    """Yield what does not add up in a histogram."""
    rows: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for labels, value in seen[f"{name}_bucket"].items():
        rest = tuple(pair for pair in labels if pair[0] != "le")
        rows[rest].append((float(dict(labels)["le"]), value))
    if set(rows) != set(seen[f"{name}_count"]) or set(rows) != set(seen[f"{name}_sum"]):
        yield "series without buckets, count or sum"
        return
    for labels, row in rows.items():
        bounds, counts = [one for one, _ in row], [one for _, one in row]
        if bounds != sorted(bounds) or bounds[-1] != math.inf:
            yield "bounds"
        if counts != sorted(counts):
            yield "buckets are not cumulative"
        count, total = seen[f"{name}_count"][labels], seen[f"{name}_sum"][labels]
        if counts[-1] != count:
            yield "count is not the last bucket"
        least = sum(
            (high - low) * bound
            for bound, low, high in zip([0.0, *bounds[:-1]], [0.0, *counts], counts, strict=False)
        )
        if total < least:
            yield "sum is less than the buckets hold"


def full() -> Metrics:
    """Return metrics with a store, an engine and something in every histogram."""
    metrics = Metrics("1")
    store = StoreMetrics(metrics.registry)
    EngineMetrics(metrics.registry).watch("engine", cast(Supervisor, Engine()))
    for at in range(200):
        metrics.gaps.labels("b", "m").observe(0.0005 * 1.07**at)
        metrics.duration.labels("b", "m", "true").observe(0.001 * at**2)
        metrics.first_token.labels("b", "m").observe(0.001 * at)
        metrics.overhead.labels("request").observe(0.0001 * at)
        store.wrote(at, 0.001 * at)
    metrics.requests.labels("models", "", "_other", 200, "false").inc()
    return metrics


TEXT = exposed(full()).decode()
GAPS = "wellspoken_inter_token_seconds"
B = 'backend="b",model="m"'


def test_it_is_well_formed() -> None:
    assert faults(TEXT) == []
    assert faults(exposed(Metrics("1")).decode()) == []
    assert f'{GAPS}_count{{backend="b",model="m"}} 200.0\n' in TEXT
    families = {family.name for family in text_string_to_metric_families(TEXT)}
    assert len(families) == TEXT.count("# TYPE ")


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        (f"# TYPE {GAPS} histogram\n", "", f"no TYPE of {GAPS}_bucket"),
        (f"# HELP {GAPS} ", f"# HELP {GAPS}s ", f"TYPE of {GAPS}"),
        ("requests_total counter", "requests_total gauge", "TYPE of wellspoken_requests_total"),
        (f'{GAPS}_bucket{{backend="b",le="+Inf",model="m"}} 200.0\n', "", f"{GAPS}: bounds"),
        (
            f'{GAPS}_count{{backend="b",model="m"}} 200.0',
            f'{GAPS}_count{{backend="b",model="m"}} 199.0',
            "last bucket",
        ),
        (
            f'{GAPS}_bucket{{backend="b",le="0.005",model="m"}} 3',
            f'{GAPS}_bucket{{backend="b",le="0.005",model="m"}} 9',
            "cumulative",
        ),
        (
            f'{GAPS}_sum{{backend="b",model="m"}} ',
            f'{GAPS}_sum{{backend="b",model="m"}} -',
            "sum is less",
        ),
        ('backend="b",model="m"} 200.0', 'backend="c",model="m"} 200.0', "series without"),
        ('place="spool"} 0.0', 'place="queue"} 0.0', "twice"),
        ('place="spool"} 0.0', 'place="spool"} NaN', "not a number"),
        ('place="spool"', 'place="sp\\"ool"', "line"),
    ],
)
def test_what_is_malformed_is_found(good: str, bad: str, said: str) -> None:
    assert good in TEXT
    assert any(said in one for one in faults(TEXT.replace(good, bad)))


async def test_it_is_as_prometheus_client_writes_it() -> None:
    """Its own, slower text of the same registry; and its own metrics, of the same numbers."""
    metrics = full()
    for value in (0.1 + 0.2, 1e5, 123456.75, 1e22, 3e-7, 0.0, 99999.99):
        for label in ("plain", 'a "quoted"\nname\\', "é\u2028{}"):
            metrics.tokens.labels(label, label, "prompt").inc(value)
            metrics.duration.labels(label, label, "true").observe(value)
    assert exposed(metrics) == generate_latest(metrics.registry) == await metrics.expose()
    registry, own = CollectorRegistry(), CollectorRegistry()
    counter = prometheus_client.Counter("a", "A.", ["b"], registry=registry)
    times = prometheus_client.Histogram(
        "c", "C.", ["d"], buckets=(0.1, 1.0, 5.0), registry=registry
    )
    one, two = (
        SeriesFamily(own, "a", ["b"], "A.", "counter", Count),
        SeriesFamily(own, "c", ["d"], "C.", "histogram", partial(Times, bounds=(0.1, 1.0, 5.0))),
    )
    for at in range(50):
        for counted in (counter, one):
            counted.labels(at % 3).inc(at / 7)
        for timed in (times, two):
            timed.labels(at % 3).observe(at / 10)
    assert TextFormat().of(own.collect()) == generate_latest(registry)


def test_a_bound_is_in_its_bucket() -> None:
    """le means less or equal; so do the histograms of prometheus_client."""
    metrics = Metrics("1")
    for seconds in (0.0, 0.001, 0.0010001, 80.0, 80.1):
        metrics.gaps.labels("b", "m").observe(seconds)
    buckets = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(exposed(metrics).decode())
        for sample in family.samples
        if sample.name == f"{GAPS}_bucket"
    }
    assert (buckets["0.001"], buckets["0.0025"]) == (2, 3)
    assert (buckets["40.0"], buckets["80.0"], buckets["+Inf"]) == (3, 4, 5)


def test_what_may_be_missed_is_0_before_it_happens() -> None:
    metrics = Metrics("1")
    StoreMetrics(metrics.registry)
    text = exposed(metrics).decode()
    for phase in PHASES:
        assert f'wellspoken_client_disconnects_total{{phase="{phase}"}} 0.0\n' in text
    for reason in STORE_FAILURES:
        assert f'wellspoken_store_failures_total{{reason="{reason}"}} 0.0\n' in text
    assert "wellspoken_store_dropped_total 0.0\n" in text


async def test_metrics_count_and_are_bounded(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script("/v1/chat/completions", whole(PLAIN))
    proxy = await start_proxy(upstream, models=["known"])
    for model in ("known", *(f"hostile-{number}" for number in range(50))):
        async with await proxy.chat(model=model):
            pass
    await proxy.error(400, n=0)
    for number in range(50):
        async with proxy.session.get(proxy.url(f"/x{number}")):
            pass
    first = await proxy.metrics()
    labels = 'backend="default",code="200",model="{}",route="chat_completions",stream="false"'
    name = "wellspoken_requests_total{{" + labels + "}}"
    assert first[name.format("known").replace("{{", "{").replace("}}", "}")] == 1
    assert first[name.format("_other").replace("{{", "{").replace("}}", "}")] == 50
    assert first["wellspoken_inflight_requests"] == 1
    assert len([one for one in first if one.startswith("wellspoken_requests_total")]) == 4
    assert not [one for one in first if "_created" in one]
    families = {one.partition("{")[0] for one in first}
    assert "wellspoken_build_info" in families
    assert "wellspoken_request_duration_seconds_bucket" in families


async def test_metrics_are_in_prometheus_form(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream)
    async with proxy.session.get(proxy.url("/metrics")) as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = await response.text()
    for family in (
        "wellspoken_requests_total",
        "wellspoken_request_duration_seconds",
        "wellspoken_time_to_first_token_seconds",
        "wellspoken_repairs_total",
        "wellspoken_fields_dropped_total",
        "wellspoken_usage_source_total",
        "wellspoken_inflight_requests",
        "wellspoken_client_disconnects_total",
        "wellspoken_upstream_errors_total",
        "wellspoken_build_info",
    ):
        assert f"# TYPE {family} " in text
