"""What several workers count, as one: which values are added, and what the text of them is."""

from __future__ import annotations

import random

import msgspec
import pytest

from tests.proxy.metrics.exposed import exposed, samples
from wellspoken.proxy.metrics.service import Metrics
from wellspoken.proxy.metrics.store_families import StoreMetrics
from wellspoken.proxy.workers.totals import Family, Totals, collect_families, parents, text_of


def counting(seed: int) -> Metrics:
    """Return metrics in which something was counted, another thing for each seed."""
    chance = random.Random(seed)
    metrics = Metrics("1.2.3")
    for code in chance.sample([200, 400, 404, 429, 500, 502], 3):
        labels = ("chat_completions", "b", "m", code, "true")
        metrics.requests.labels(*labels).inc(chance.randint(1, 9))
    metrics.requests.labels("metrics", "", 'a "quoted"\nname', 200, "false").inc()
    for backend in chance.sample(["b", "c", "d"], 2):
        for _ in range(20):
            metrics.duration.labels(backend, "m", "true").observe(chance.expovariate(1))
            metrics.gaps.labels(backend, "m").observe(chance.expovariate(30))
    metrics.inflight.set_function(lambda: float(seed))
    store = StoreMetrics(metrics.registry)
    store.watch_queue(lambda: 10.0 * seed, lambda: 100.0 * seed)
    store.note_spool(7 * seed, 70 * seed)
    return metrics


def sum_of(*all: list[Family]) -> list[Family]:
    """Return what living workers count together."""
    totals = Totals()
    for families in all:
        totals.add(families)
    return totals.families()


def sent(metrics: Metrics) -> list[Family]:
    """Return what is counted as the parent gets it."""
    data = msgspec.msgpack.encode(list(collect_families(metrics.registry)))
    return msgspec.msgpack.decode(data, type=list[Family])


def test_the_sum_of_one_is_written_as_it_is_without_workers() -> None:
    metrics = counting(1)
    assert text_of(sum_of(sent(metrics))) == exposed(metrics)


def test_counters_and_histograms_are_added_bucket_by_bucket() -> None:
    some = [counting(seed) for seed in (1, 2, 3)]
    found = samples(text_of(sum_of(*map(sent, some))))
    each = [samples(exposed(metrics)) for metrics in some]
    names = {name for one in each for name in one}
    assert set(found) == names
    for name in names:
        if not name.startswith(("wellspoken_build", "wellspoken_config", "wellspoken_store")):
            assert found[name] == pytest.approx(sum(one.get(name, 0) for one in each)), name
    assert found["wellspoken_inflight_requests"] == 6


def test_the_series_of_a_family_stand_together() -> None:
    """A label set that only a later worker has must not tear a histogram's buckets apart."""
    text = text_of(sum_of(*(sent(counting(seed)) for seed in range(1, 6)))).decode()
    bounds: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, _, _ = line.rpartition(" ")
        if "_bucket{" in name:
            head, _, rest = name.partition('le="')
            bound, _, tail = rest.partition('"')
            bounds.setdefault(head + tail, []).append(float(bound))
    assert len(bounds) > 6
    assert all(found == sorted(found) for found in bounds.values())
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))


def test_gauges_that_no_sum_stands_for() -> None:
    one, two = counting(1), counting(2)
    two.reloaded.set(0)
    found = samples(text_of(sum_of(sent(one), sent(two))))
    assert found["wellspoken_config_last_reload_success"] == 0
    assert [value for name, value in found.items() if name.startswith("wellspoken_build")] == [1]
    assert found['wellspoken_store_rows{place="queue"}'] == 30
    assert found['wellspoken_store_bytes{place="queue"}'] == 300
    assert found['wellspoken_store_rows{place="spool"}'] == 14  # one file, which two look at
    assert found['wellspoken_store_bytes{place="spool"}'] == 140


def test_of_an_ended_worker_only_its_counts_stay() -> None:
    gone, lives = counting(1), counting(2)
    totals = Totals()
    totals.add(sent(lives))
    totals.add(sent(gone), ended=True)
    found = samples(text_of(totals.families()))
    both = samples(exposed(gone)), samples(exposed(lives))
    name = 'wellspoken_requests_total{backend="",code="200",model="a \\"quoted\\"\\nname",'
    name += 'route="metrics",stream="false"}'
    assert found[name] == sum(one[name] for one in both) == 2
    assert found["wellspoken_inflight_requests"] == both[1]["wellspoken_inflight_requests"] == 2
    assert found['wellspoken_store_rows{place="queue"}'] == 20


@pytest.mark.parametrize("good", [True, False])
def test_what_the_parent_counts_itself(good: bool) -> None:
    found = samples(text_of(sum_of(sent(counting(1)), sent(counting(2)), parents(3, good))))
    assert found["wellspoken_worker_restarts_total"] == 3
    assert found["wellspoken_config_last_reload_success"] == float(good)


def test_a_sum_changes_nothing_of_what_was_added() -> None:
    """The counts of ended workers are added at each scrape."""
    past = Totals()
    past.add(sent(counting(1)), ended=True)
    first = text_of(past.families())
    for _ in range(2):
        whole = Totals()
        whole.add(past.families())
        whole.add(sent(counting(2)))
    assert text_of(past.families()) == first
