"""The judge at its smallest, so that it cannot rot; nothing looks at how long anything took."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.bench.data import Source
from tests.bench.judge import latency, limits, report, rounds, servers, targets
from tests.bench.judge.loads import Effort
from tests.bench.judge.rounds import Compared, Measured
from tests.bench.judge.targets import Run, Target

TINY = Effort(rounds=1, seconds=0.02, burst=20, paced=12, large=30, starts=1)
LOADS = ["small", "b", "c", "burst", "paced64", "paced16", "wide16", "same", "same16"]


@pytest.fixture(scope="module")
def source() -> Source:
    return Source()


@pytest.fixture(scope="module")
def compared(source: Source) -> Compared:
    return rounds.compare(source, TINY)


def test_every_load_is_put_on_every_server(compared: Compared) -> None:
    assert [each.name for each in compared.loads] == LOADS
    nginx = ["nginx"] if shutil.which("nginx", path="/usr/sbin:/usr/bin") else []
    for each in compared.loads:
        untouched = ["untouched"] if each.name == "same" else []
        assert each.servers == ["ours", "bare", *untouched, *nginx]
        for name in each.servers:
            assert each.median(name, "rate") > 0 and each.median(name, "rest") > 0
            assert math.isnan(each.median(name, "cpu")) or each.over(name) > 0
        assert not (each.paced and each.is_bound("ours"))
    lines = report.loads(compared).splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 2 + sum(
        len(each.servers) for each in compared.loads
    )


def test_a_server_that_does_not_start_is_told(
    source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(servers, "PEERS", tmp_path)
    monkeypatch.setattr(servers, "_nginx_binary", lambda: None)
    found = rounds.compare(source, TINY, peers=True, only=["small"])
    assert found.missing.keys() == {"nginx", "LiteLLM", "vllm-router"}
    assert [each.servers for each in found.loads] == [["ours", "bare"]]
    said = report.loads(found)
    assert "nginx: not installed" in said
    assert "LiteLLM: " in said and "No such file" in said


def test_the_limits_are_measured(source: Source) -> None:
    found = limits.measure(source, TINY)
    assert found.start > 0 and found.scaling.plain > 0
    for value in (found.idle, found.held, found.held_idle, found.held_many, found.peak):
        assert math.isnan(value) or value > 0
    assert found.ours > 0 and found.direct > 0
    assert "start to the first answer" in report.limits(found)


def test_targets_are_judged_by_what_was_measured(compared: Compared) -> None:
    run = Run({each.name: each for each in compared.loads})
    found = targets.judge(run)
    assert [each.title for each in found if "CPU over bare" in each.title]
    assert not [each.title for each in found if "start" in each.title]
    again = [
        Measured(**each) for each in json.loads(json.dumps(list(map(asdict, run.loads.values()))))
    ]
    assert targets.judge(Run({each.name: each for each in again})) == found
    assert len(report.verdicts(found).splitlines()) == 2 + len(found)


@pytest.mark.parametrize(
    ("least", "value", "mark"),
    [
        (False, 0.5, "goal"),
        (False, 0.9, "met"),
        (False, 1.1, "missed"),
        (False, math.nan, ""),
        (True, 0.9, "missed"),
        (True, 1.0, "met"),
    ],
)
def test_a_number_meets_its_goal_its_bound_or_none(least: bool, value: float, mark: str) -> None:
    goal = 2.0 if least else 0.5
    target = Target("t", lambda _: value, 1.0, goal, least)
    assert targets._verdict(target, value).mark == mark
    assert targets._verdict(replace(target, must=None), value).mark == ""


def test_an_event_is_noted_when_it_begins() -> None:
    watch = latency.Watch()
    for data in (b"HTTP/1.1 200 OK\r\n\r\ndata: 1\n\nda", b"ta: 2\n\n", b"data: 3\n\ndata: 4\n\n"):
        watch.data_received(data)
    assert len(watch.times) == 4
    assert watch.times == sorted(watch.times)
    assert latency.percentile(sorted(range(100)), 0.99) == 99
    assert latency.percentile([1.0], 0.99) == 1.0
