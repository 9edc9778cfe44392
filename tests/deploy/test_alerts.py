"""The alert rules: they parse, fire when they should and not otherwise, and name what there is."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.prometheus import RULES, Promtool, prometheus, promtool
from tests.deploy.promql import problems, samples_of
from tests.deploy.traffic import installation, pass_uncounted, scrape, workers
from wellspoken.proxy.endpoints.backend_metrics import SECONDS
from wellspoken.proxy.metrics.service import PHASES
from wellspoken.proxy.relay.call import Call

__all__ = ["promtool"]  # a fixture

TESTS = ("alerts_test.yml", "alerts_servers_test.yml", "alerts_day_test.yml")
SEVERITIES = {"critical", "warning", "info"}
ALERTS = re.findall(r"- alert: (\w+)", RULES.read_text())
MUTANTS = (
    ("WellspokenDown", "for: 5m # one that drains", "for: 2m # one that drains"),
    (
        "WellspokenNewRepair",
        "last_over_time(wellspoken_repairs_total[1d:10m] offset 1d)",
        "wellspoken_repairs_total offset 1d",
    ),
    ("WellspokenErrors", "> 0.05", "> 0.5"),
    ("WellspokenOverloaded", 'code="429"', 'code="200"'),
    ("WellspokenQuotasUncounted", '="uncounted"', '="tokens"'),
    ("WellspokenClientsLeave", 'phase="waiting"', 'phase="streaming"'),
    ("WellspokenSlowFirstToken", "> 10\n", "> 30\n"),
    ("WellspokenConfigRefused", "success == 0\n        for: 5m", "success == 0"),
    ("WellspokenServerOut", 'state{state="in"}) == 0', 'state{state="out"}) > 0'),
    ("WellspokenAllServersOut", "(.+)/[0-9]+", "(.+)"),
    ("WellspokenServerFlaps", "> 5\n", "> 1\n"),
    (
        "WellspokenFailovers",
        "group_left ()\n            (sum by (job) (",
        "group_left ()\n            (100 * sum by (job) (",
    ),
    ("WellspokenFallback", 'to="fallback"', 'to="server"'),
    ("WellspokenEngineRestarts", "> 1.5", "> 0"),
    ("WellspokenEngineStarting", "for: 20m", "for: 2m"),
    ("WellspokenStoreLosesAnswers", "dropped_total[10m]", "dropped_total[1h]"),
    ("WellspokenStoreSpooling", 'place="spool"', 'place="queue"'),
    ("WellspokenStoreBehind", "32 * 1024", "16 * 1024"),
)


def cases() -> dict[str, list[str]]:
    """Return the alerts of the tests, with "fires" and "is quiet" as each has them."""
    found: dict[str, list[str]] = {}
    for file in TESTS:
        text = RULES.with_name(file).read_text()
        for alert, what in re.findall(r'- name: "(\w+) (fires|is quiet): [^"]+"', text):
            found.setdefault(alert, []).append(what)
    return found


def test_the_files_are_sound(promtool: Promtool) -> None:
    folder = RULES.parent
    assert promtool.run("check", "rules", "--lint=all", "--lint-fatal", RULES)[0] == 0
    code, said = promtool.run("check", "config", "--lint=all", folder / "prometheus.yml")
    assert code == 0, said
    assert f"{len(ALERTS)} rules found" in said  # those that the configuration names


def test_the_scrape_of_an_engine_is_another_job(promtool: Promtool, tmp_path: Path) -> None:
    """Prometheus takes the scrape that is only shown there, and WellspokenDown does not mean it."""
    text = RULES.with_name("prometheus.yml").read_text()
    start = text.index("  # - job_name: engine")
    shown = text[:start] + text[start:].replace("  # ", "  ")
    shutil.copy(RULES, tmp_path)
    (tmp_path / "prometheus.yml").write_text(shown)
    assert promtool.run("check", "config", tmp_path / "prometheus.yml")[0] == 0
    (alerted,) = set(re.findall(r'up\{job=~"([^"]+)"\}', RULES.read_text()))
    jobs = re.findall(r"(?m)^  - job_name: (\w+)", shown)
    assert [bool(re.fullmatch(alerted, job)) for job in jobs] == [True, False]
    assert float(re.findall(r"scrape_timeout: (\d+)s", shown)[0]) > SECONDS


def test_each_fires_and_stays_quiet(promtool: Promtool) -> None:
    code, said = promtool.run("test", "rules", *(RULES.with_name(file) for file in TESTS))
    assert code == 0, said
    found = cases()
    assert set(found) == set(ALERTS)
    assert all({"fires", "is quiet"} == set(one) for one in found.values())


def test_the_tests_notice_wrong_rules(promtool: Promtool, tmp_path: Path) -> None:
    text = RULES.read_text()
    for _, good, bad in MUTANTS:
        assert good in text
        text = text.replace(good, bad)
    (tmp_path / RULES.name).write_text(text)
    for file in TESTS:
        shutil.copy(RULES.with_name(file), tmp_path)
    code, said = promtool.run("test", "rules", *(tmp_path / file for file in TESTS))
    assert code == 1
    assert [alert for alert, _, _ in MUTANTS if f'alertname="{alert}"' not in said] == []


async def test_what_they_name_is_there(
    environment_as_given: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Prometheus tells the rules as it reads them; a healthy proxy has none that fires."""
    async with installation(monkeypatch, tmp_path) as running, workers(tmp_path) as second:
        await running.traffic()
        await pass_uncounted(running.proxy.session, second)
        text = await running.text() + await scrape(running.proxy.session, second)
        targets = [running.address, second]
        async with prometheus(environment_as_given, targets, rules=RULES) as server:
            await server.scraped()
            rules = rules_of(await server.get("rules"))
    samples = samples_of(text)
    assert [rule["name"] for rule in rules] == ALERTS
    for rule in rules:
        assert problems(rule["query"], samples) == []
        assert rule["state"] in ("inactive", "pending")
        assert complaints(rule) == []


def rules_of(answer: Any) -> list[Any]:
    """Return the alerts of an answer of Prometheus."""
    return [rule for group in answer["groups"] for rule in group["rules"]]


def complaints(rule: Any) -> list[str]:
    """Return what is missing in what a rule tells its reader."""
    found = []
    summary, description = (
        rule["annotations"].get(name, "") for name in ("summary", "description")
    )
    if rule["labels"].get("severity") not in SEVERITIES:
        found.append("severity")
    if not 10 < len(summary) < 90 or summary.endswith("."):
        found.append("summary")
    if len(description) < 100 or not description.endswith("."):
        found.append("description")
    labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    aggregated = re.findall(r"\bby \(([^)]*)\)", rule["query"])
    if aggregated:
        kept = {name.strip() for names in aggregated for name in names.split(",")}
        found += sorted(labels - kept)
    return found


def test_a_bare_rule_is_complained_about() -> None:
    rule = {"query": "sum by (job) (up)", "labels": {}, "annotations": {"summary": "short"}}
    assert complaints(rule) == ["severity", "summary", "description"]
    rule["annotations"] = {"summary": "{{ $labels.backend }} is down", "description": "x" * 200}
    rule["labels"] = {"severity": "info"}
    assert complaints(rule) == ["description", "backend"]


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("wellspoken_request_total > 0", ["no metric wellspoken_request_total"]),
        ('a_total{kind="x", job="j"}', []),
        ('a_total{kind="y"}', ["no series"]),
        ('a_total{kind!="x"}', ["no series"]),
        ('a_total{kind=~"x|y"} offset 1d and on (kind) b', []),
        ('rate(a_total{kind=~"[wx1]"}[5m])', []),
        ('a_total{sort="x"}', ["a_total has no label sort"]),
        ('sum by (sort) (label_replace(a_total{kind=~"x"}, "sort", "$1", "kind", "(.)"))', []),
        ('sum by (sort) (label_replace(a_total, "kind", "$1", "sort", "(.)"))', ["no label sort"]),
        ("sum by (sort) (rate(a_total[5m])) / on (job) group_left () b", ["no label sort"]),
        ('absent(up{job="x"}) or histogram_quantile(0.5, b_bucket{le="{}[5m]"})', ["no series"]),
    ],
)
def test_what_is_not_there_is_found(expression: str, found: list[str]) -> None:
    samples = samples_of('a_total{kind="x"} 1\nb 2\nb_bucket{le="1"} 3\n')
    said = problems(expression, samples)
    assert len(said) == len(found)
    assert all(one.startswith(start) for one, start in zip(said, found, strict=True))


def test_the_phases_are_all_of_them() -> None:
    """Each is counted from 0, so that an increase shows the first client that left."""
    said = re.findall(r'"(\w+)"', inspect.getsource(Call.phase.fget))  # type: ignore[attr-defined]
    assert set(said) == set(PHASES)
