"""The judge at its smallest, so that it cannot rot; nothing looks at how long anything took."""

from __future__ import annotations

import json
import math
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.bench import __main__ as bench
from tests.bench.data import Source
from tests.bench.judge import (
    growth,
    latency,
    limits,
    readme,
    report,
    rounds,
    servers,
    targets,
    workers,
)
from tests.bench.judge.loads import Effort
from tests.bench.judge.picture import picture
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
    monkeypatch.setattr(servers, "find_nginx", lambda: None)
    found = rounds.compare(source, TINY, peers=True, only=["small"])
    assert found.missing.keys() == {"nginx", "LiteLLM", "vllm-router"}
    assert [each.servers for each in found.loads] == [["ours", "bare"]]
    said = report.loads(found)
    assert "nginx: not installed" in said
    assert "LiteLLM: " in said and "No such file" in said


def test_the_limits_are_measured(source: Source) -> None:
    found = limits.measure(source, TINY)
    for direct, mark in ((0.2, "met"), (1.2, "?")):
        run = Run({}, replace(found, direct=direct, added=0.5))
        (verdict,) = (each for each in targets.judge(run) if "at p99" in each.title)
        assert verdict.mark == mark
    assert found.start > 0 and found.scaling.plain > 0
    for value in (found.idle, found.held, found.held_many, found.waited, found.peak):
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
        (False, math.nan, "?"),
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


SIZES = growth.Sizes((10, 20), (0, 5), (1, 3), (1, 3), seconds=0.02, rounds=1, events=2)


def test_growth_is_measured_over_each_size(source: Source) -> None:
    found = growth.measure(source, SIZES)
    assert [(point.axis, point.size) for point in found] == [
        ("tokens", 10),
        ("tokens", 20),
        ("alternatives", 0),
        ("alternatives", 5),
        ("streams", 1),
        ("streams", 3),
        ("connections", 1),
        ("connections", 3),
    ]
    assert all(math.isnan(point.cpu) or point.cpu > 0 for point in found)
    assert len(report.growth(found).splitlines()) == 4 + len(found)


def test_a_picture_has_each_point_twice_and_is_svg() -> None:
    points = [growth.Point("tokens", n, "token", n / 10, n) for n in (10, 1000)]
    points += [growth.Point("streams", n, "event", 3.0, 50.0) for n in (1, 2, 3)]
    root = ElementTree.fromstring(picture(points))
    assert len(root.findall(".//{*}circle")) == 2 * len(points)
    said = [each.text for each in root.findall(".//{*}text")]
    assert {"100.0", "1,000", "1000", "CPU of an event, over the first"} <= set(said)


def test_the_readme_shows_what_a_run_printed() -> None:
    figures = json.loads(readme.FIGURES.read_text())
    made = readme.section(figures)
    assert made in readme.README.read_text()
    assert readme.PICTURE.read_text() == readme.growth(figures)
    speeds = readme.README.read_text().partition("## How fast")[2]
    around = speeds.replace(made, "").strip()
    assert around == "`make bench` prints this of your machine.\n\nApache-2.0."


def test_figures_are_those_of_full_runs() -> None:
    run = {"date": "2026-01-01", "machine": "m", "versions": {"nginx": "1"}, "proxy": [1]}
    grown = {"date": "2026-02-02", "machine": "n", "versions": {}, "growth": [2]}
    found = readme.keep([run, grown | {"quick": False}])
    assert found == run | {"growth": [2]} == readme.keep([grown, run])
    with pytest.raises(ValueError, match="quick"):
        readme.keep([run, grown | {"quick": True}])
    with pytest.raises(ValueError, match="growth"):
        readme.keep([run])


def test_the_readme_is_written_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = tmp_path / "run.json"
    given.write_text(readme.FIGURES.read_text())
    for name in ("README", "PICTURE", "FIGURES"):
        monkeypatch.setattr(readme, name, tmp_path / name)
    readme.README.write_text(f"before\n{readme.MARKS[0]}\nold\n{readme.MARKS[1]}\nafter\n")
    monkeypatch.setattr(sys, "argv", ["bench", "--readme", str(given)])
    assert bench.main() == 0
    figures = json.loads(given.read_text())
    assert readme.README.read_text() == f"before\n{readme.section(figures)}\nafter\n"
    assert json.loads(readme.FIGURES.read_text()) == figures
    given.write_text("{}")
    assert bench.main() == 1
    assert "no run has 'proxy'" in capsys.readouterr().err


def test_a_second_worker_is_worth_what_it_would_do_on_a_core_of_its_own() -> None:
    one = {"rate": 100.0, "answers": 100.0, "busy": 1.0, "used": 0.2}
    two = {"rate": 150.0, "answers": 95.0, "busy": 2.0, "used": 0.4}
    found = workers._compare(one, two)
    assert found == {"worth": pytest.approx(1.9), "plain": 1.5, "used": 0.4}


@pytest.mark.parametrize(
    ("value", "shown"), [(0.456, "0.46"), (0.996, "1.0"), (1.04, "1.0"), (9.96, "10"), (63.9, "64")]
)
def test_a_ratio_has_two_digits(value: float, shown: str) -> None:
    numbers = {"ours.cpu": value, "bare.cpu": 1.0}
    each = Measured("small", "", "request", False, 1, ["ours", "bare"], [numbers])
    assert readme._ratio(each, "ours") == shown
    assert readme._ratio(each, "LiteLLM") == "-"
