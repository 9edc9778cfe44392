"""The Grafana dashboard: sound as a document, and a real Prometheus has data for each query.

There is no Grafana where this runs, so what it needs of a dashboard is checked by hand: the fields
of its classic schema (10.4 to 13 read number 39), unique ids, a grid without overlaps.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conforming import MODEL
from tests.deploy.prometheus import BOARD, Prometheus, Promtool, prometheus, promtool
from tests.deploy.promql import problems, samples_of
from tests.deploy.traffic import (
    LOST,
    SPREAD,
    Installation,
    installation,
    pass_uncounted,
    scrape,
    workers,
)
from tests.fakes.upstream import Upstream
from tests.proxy.conftest import StartProxy, start_proxy, upstream

__all__ = ["promtool", "start_proxy", "upstream"]  # fixtures

Json = dict[str, Any]

VARIABLES = ("datasource", "job", "backend", "model")
ROWS = (
    "Overview", "Traffic", "Errors", "Latency", "Overhead", "Repairs", "Disconnects", "Tokens",
    "Servers", "Engine", "Stored completions", "Proxy",
)  # fmt: skip
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"reqps", "ops", "percentunit", "s", "short", "bytes"}
INTERVALS = {"$__rate_interval": "5m", "$__range": "5m"}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_LABEL = re.compile(r"\{\{(\w+)\}\}")


def board() -> Json:
    found: Json = json.loads(BOARD.read_text())
    return found


def panels(board: Json) -> list[Json]:
    """Return the panels that show something."""
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board: Json) -> Iterator[tuple[Json, Json]]:
    """Yield each query with its panel."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield panel, target


def filled(expression: str, values: dict[str, str] | None = None) -> str:
    """Return an expression with Grafana's variables filled in: All, unless `values` say else."""
    for name, value in INTERVALS.items():
        expression = expression.replace(name, value)
    given = {"job": ".+", "backend": ".+", "model": ".+", **(values or {})}
    return _VARIABLE.sub(lambda found: given[found[1] or found[2]], expression)


def variables(board: Json) -> dict[str, tuple[str, str]]:
    """Return, by their names, the selector and the label that variables ask for."""
    found = {}
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            parts = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert parts is not None
            found[variable["name"]] = (parts[1], parts[2])
    return found


def queries(board: Json) -> list[str]:
    """Return all expressions, those of variables and annotations too, as Prometheus gets them."""
    found = [target["expr"] for _, target in targets(board)]
    found += [one["expr"] for one in board["annotations"]["list"] if "expr" in one]
    found += [f"count by ({label}) ({metric})" for metric, label in variables(board).values()]
    return [filled(one) for one in found]


def faults(board: Json) -> list[str]:
    """Return what is wrong with a dashboard as a document."""
    found = [f"{key} is not for a file" for key in ("id", "__inputs", "__requires") if key in board]
    if not re.fullmatch(r"[a-z0-9-]{8,40}", board["uid"]):
        found.append("uid")
    if board["schemaVersion"] != 39:
        found.append("schemaVersion")
    if tuple(one["name"] for one in board["templating"]["list"]) != VARIABLES:
        found.append("variables")
    ids = [panel["id"] for panel in board["panels"]]
    if len(set(ids)) != len(ids):
        found.append("an id twice")
    used = set(_VARIABLE.findall(json.dumps(board)))
    unknown = {a or b for a, b in used} - {*VARIABLES, "__all", *(one[1:] for one in INTERVALS)}
    found += [f"no variable {name}" for name in sorted(unknown)]
    found += overlaps(board["panels"])
    for panel in panels(board):
        found += [f"{panel['title']}: {what}" for what in faults_of(panel)]
    return found


def overlaps(placed: list[Json]) -> list[str]:
    """Return the panels that lie on another one, or out of the grid."""
    taken: dict[tuple[int, int], str] = {}
    found = []
    for panel in placed:
        at = panel["gridPos"]
        cells = itertools.product(
            range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
        )
        if at["x"] + at["w"] > 24 or at["h"] < 1 or at["w"] < 1:
            found.append(f"{panel['title']} is out of the grid")
        for cell in cells:
            if taken.setdefault(cell, panel["title"]) != panel["title"]:
                found.append(f"{panel['title']} lies on {taken[cell]}")
                break
    return found


def faults_of(panel: Json) -> list[str]:
    """Return what is wrong with a panel."""
    found = []
    if panel["type"] not in ("timeseries", "stat", "table", "heatmap"):
        found.append("type")
    if not panel["title"] or not panel["description"].endswith("."):
        found.append("description")
    unit = panel["fieldConfig"]["defaults"].get("unit") or panel["options"]["yAxis"]["unit"]
    if unit not in UNITS:
        found.append("unit")
    if not panel["fieldConfig"]["defaults"].get("noValue"):
        found.append("what it shows of an engine or a store that is not there")
    if any(one["datasource"] != SOURCE for one in (panel, *panel["targets"])):
        found.append("datasource")
    refs = [target["refId"] for target in panel["targets"]]
    if not refs or len(set(refs)) != len(refs):
        found.append("refId")
    for target in panel["targets"]:
        seconds = "_seconds" in target["expr"] and "_seconds_count" not in target["expr"]
        if seconds != (unit == "s"):
            found.append("unit of seconds")
        if "_total" in target["expr"] and not re.search(r"\b(rate|increase)\(", target["expr"]):
            found.append("a counter without rate")
    return found


def test_it_is_sound() -> None:
    found = board()
    assert faults(found) == []
    assert tuple(p["title"] for p in found["panels"] if p["type"] == "row") == ROWS
    assert BOARD.read_text() == json.dumps(found, indent=2, ensure_ascii=False) + "\n"


def spoiled(change: Callable[[Json], object]) -> Json:
    found = copy.deepcopy(board())
    change(found)
    return found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda b: b.update(id=7), "id is not for a file"),
        (lambda b: b.update(uid="x"), "uid"),
        (lambda b: b["templating"]["list"].pop(), "variables"),
        (lambda b: b["panels"][3].update(id=1), "an id twice"),
        (lambda b: b["panels"][3]["gridPos"].update(x=23), "out of the grid"),
        (lambda b: b["panels"][2]["gridPos"].update(x=0), "lies on"),
        (lambda b: b["panels"][1].update(description=""), "description"),
        (lambda b: b["panels"][1]["fieldConfig"]["defaults"].pop("noValue"), "is not there"),
        (lambda b: b["panels"][1].update(datasource="Prometheus"), "datasource"),
        (lambda b: b["panels"][1]["fieldConfig"]["defaults"].update(unit="s"), "unit of seconds"),
        (lambda b: b["panels"][1]["targets"][0].update(expr="a_total"), "a counter without rate"),
        (lambda b: b["panels"][1]["targets"][0].update(expr="up{p='$pod'}"), "no variable pod"),
    ],
)
def test_what_is_unsound_is_found(change: Callable[[Json], object], said: str) -> None:
    assert any(said in one for one in faults(spoiled(change)))


def test_promtool_parses_every_query(promtool: Promtool, tmp_path: Path) -> None:
    expressions = queries(board())
    assert promtool.expressions(expressions, tmp_path) == ""
    assert "parse" in promtool.expressions([*expressions, "sum(rate(up[5m])"], tmp_path)


async def answered(server: Prometheus, board: Json) -> list[str]:
    """Return the queries without data, and the labels that a legend or a table lacks."""
    found = []
    for panel, target in targets(board):
        where = f"{panel['title']} {target['refId']}"
        series = await server.query(filled(target["expr"]))
        if not series or all(math.isnan(value) for _, value in series):
            found.append(f"{where}: no data")
        wanted = set(_LABEL.findall(target["legendFormat"]))
        for step in panel.get("transformations", ()):
            wanted |= set(step["options"]["renameByName"]) - {"Value"}
        if panel["type"] == "heatmap":
            wanted.add("le")
        found += [f"{where}: no label {one}" for one in sorted(wanted) if not _has(series, one)]
        shown = set().union(*(labels for labels, _ in series)) - wanted
        if len(series) > 1 and target["legendFormat"] and shown:
            found.append(f"{where}: series that look alike")
    return found


def _has(series: list[tuple[dict[str, str], float]], label: str) -> bool:
    return all(label in labels for labels, _ in series)


async def busy(running: Installation, second: str, server: Prometheus) -> None:
    """Let things happen before a scrape and after it, so that there are increases."""
    await running.traffic()
    await pass_uncounted(running.proxy.session, second)
    await server.scraped()
    await running.traffic()
    await pass_uncounted(running.proxy.session, second)
    await running.restart()
    await server.scraped()


async def test_every_query_has_data(
    environment_as_given: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with installation(monkeypatch, tmp_path) as running, workers(tmp_path) as second:
        targets = [running.address, second]
        async with prometheus(environment_as_given, targets) as server:
            await busy(running, second, server)
            text = await running.text() + await scrape(running.proxy.session, second)
            assert await answered(server, board()) == []
            await choices(server)
            wrong = spoiled(lambda b: _rename(b, "wellspoken_repairs_total", "wellspoken_repairs"))
            assert "Repairs by rule A: no data" in await answered(server, wrong)
            wrong = spoiled(lambda b: _rename(b, "{{rule}}", "{{repair}}"))
            assert "Repairs by rule A: no label repair" in await answered(server, wrong)
    samples = samples_of(text)
    named = [problem for query in queries(board()) for problem in problems(query, samples)]
    assert named == []
    wrong = spoiled(lambda b: _rename(b, "inter_token_seconds", "intertoken_seconds"))
    assert any(problems(query, samples) for query in queries(wrong))


def _rename(board: Json, old: str, new: str) -> None:
    panels = json.dumps(board["panels"])
    assert old in panels
    board["panels"] = json.loads(panels.replace(old, new))


async def test_a_bare_proxy_has_no_worker_that_restarts(
    environment_as_given: dict[str, str], upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Without workers there is no such metric, and the panel shows 0. Others say `noValue`."""
    shown = {panel["title"]: target["expr"] for panel, target in targets(board())}
    proxy = await start_proxy(upstream)
    async with prometheus(environment_as_given, [f"127.0.0.1:{proxy.port}"]) as server:
        await server.scraped()
        assert await server.query("wellspoken_worker_restarts_total") == []
        found = await server.query(filled(shown["Restarts of workers"]))
    assert [value for _, value in found] == [0.0]


async def choices(server: Prometheus) -> None:
    """Look at what the variables offer, and that a choice narrows what is shown."""
    offered = {}
    for name, (metric, label) in variables(board()).items():
        match = {"match[]": filled(metric)}
        offered[name] = set(await server.get(f"label/{label}/values", **match))
    assert offered == {
        "job": {"wellspoken"},
        "backend": {"plain", "pool/1", "engine"},
        "model": {MODEL, SPREAD, LOST, "m"},
    }
    shown = {panel["title"]: target["expr"] for panel, target in targets(board())}
    traffic = shown["Requests by backend"]
    narrow = await server.query(filled(traffic, {"backend": "engine|x"}))
    assert [one["backend"] for one, _ in narrow] == ["engine"]
