"""The overlay `fleet`: the proxy finds each vLLM by its name, and nobody else gets to them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import Manifests, about, built, matches, seconds
from tests.deploy.policy import ALERTS, RULES
from tests.deploy.prometheus import Promtool, promtool
from tests.deploy.tools import DEPLOY, Document, documents
from wellspoken.proxy.metrics.service import Metrics

__all__ = ["promtool"]  # a fixture

VLLM = "vllm"
BARE = ("restricted", "no_token", "no_service_links", "images", "gpus")
"""The rules for any pod, also one without a proxy."""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    folder = tmp_path_factory.mktemp("fleet").resolve()
    return documents(built("fleet", folder))


@pytest.fixture
def given(read: list[Document]) -> list[Document]:
    return deepcopy(read)


def one(given: list[Document], kind: str) -> Document:
    """Return vLLM's only document of a kind."""
    (found,) = (each for each in about(given, VLLM) if each["kind"] == kind)
    return found


def engines(given: list[Document]) -> Manifests:
    """Return vLLM's pods as the rules read those of a Deployment."""
    accounts = [each for each in given if each["kind"] == "ServiceAccount"]
    return Manifests([{**one(given, "StatefulSet"), "kind": "Deployment"}, *accounts])


def found(given: list[Document]) -> list[str]:
    return [name for name in BARE if list(RULES[name](engines(given)))]


def test_the_engines_keep_to_the_rules_for_any_pod(given: list[Document]) -> None:
    assert found(given) == []
    (container,) = engines(given).containers
    assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
    limits = container["resources"]["limits"]
    assert "memory" in limits and "cpu" not in limits
    patience = engines(given).pod["terminationGracePeriodSeconds"]
    assert 0 < seconds(container, "--shutdown-timeout") < patience


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("restricted", lambda pod: pod["securityContext"].update(runAsUser=0)),
        ("no_token", lambda pod: pod.pop("automountServiceAccountToken")),
        ("no_service_links", lambda pod: pod.pop("enableServiceLinks")),
        ("images", lambda pod: pod["containers"][0].update(image="vllm:latest")),
        ("gpus", lambda pod: pod.pop("tolerations")),
    ],
)
def test_a_mutant_is_found(
    given: list[Document], rule: str, change: Callable[[Document], Any]
) -> None:
    change(engines(given).pod)
    assert found(given) == [rule]


def names(given: list[Document]) -> list[str]:
    """Return the addresses that the replicas have for as long as they are."""
    stateful, service = one(given, "StatefulSet")["spec"], one(given, "Service")
    labels = stateful["template"]["metadata"]["labels"]
    (container,) = stateful["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["metadata"]["name"] == stateful["serviceName"]
    assert matches(service["spec"]["selector"], labels) and matches(stateful["selector"], labels)
    assert [each["port"] for each in service["spec"]["ports"]] == [port["containerPort"]]
    assert seconds(container, "--port") == port["containerPort"]
    most = one(given, "ScaledObject")["spec"]["maxReplicaCount"]
    name, where = one(given, "StatefulSet")["metadata"]["name"], service["metadata"]["name"]
    return [f"http://{name}-{at}.{where}:{port['containerPort']}" for at in range(most)]


def test_the_proxy_has_all_names_that_there_may_be(given: list[Document]) -> None:
    (backend,) = Manifests(about(given)).config().backend
    assert list(backend.urls) == names(given)
    assert len(backend.urls) > 1
    (shown,) = re.findall(r"```toml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    assert tuple(tomllib.loads(shown)["url"]) == backend.urls


def test_without_a_scaler_as_many_run_as_the_proxy_knows(tmp_path: Path) -> None:
    given = documents(built("fleet", tmp_path.resolve(), components=()))
    (backend,) = Manifests(about(given)).config().backend
    assert one(given, "StatefulSet")["spec"]["replicas"] == len(backend.urls)


def test_the_proxy_alone_gets_to_the_engines(given: list[Document]) -> None:
    mine = Manifests(about(given))
    labels = one(given, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    policy = one(given, "NetworkPolicy")["spec"]
    assert matches(policy["podSelector"], labels) and policy["policyTypes"] == ["Ingress"]
    (rule,) = policy["ingress"]
    assert [port["port"] for port in rule["ports"]] == [8000]
    pods = [each["podSelector"] for each in rule["from"] if "podSelector" in each]
    assert len(pods) == 1 and matches(pods[0], mine.labels)
    assert not matches(pods[0], {})
    out = [
        to["podSelector"]
        for each in mine.kind("NetworkPolicy")
        for way in each["spec"].get("egress", [])
        for to in way["to"]
        if "podSelector" in to
    ]
    assert len(out) == 1 and matches(out[0], labels)


def test_the_scaler_scales_the_engines(given: list[Document]) -> None:
    scaler, stateful = one(given, "ScaledObject")["spec"], one(given, "StatefulSet")
    target = scaler["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("StatefulSet", stateful["metadata"]["name"])
    assert "replicas" not in stateful["spec"]  # which would fight it
    queries = [trigger["metadata"]["query"] for trigger in scaler["triggers"]]
    assert all('namespace="' in query for query in queries)
    ours = [name for query in queries for name in re.findall(r"wellspoken_\w+", query)]
    known = {family.name for family in Metrics("1").servers.describe()}
    assert len(ours) == 1 and set(ours) < known
    assert len(queries) == 2 and any("vllm:num_requests_waiting{" in query for query in queries)


def test_prometheus_parses_the_scalers_queries(
    read: list[Document], promtool: Promtool, tmp_path: Path
) -> None:
    replicas = documents(built("vllm-replicas", tmp_path.resolve()))
    queries = [
        trigger["metadata"]["query"]
        for each in (*read, *replicas)
        if each["kind"] == "ScaledObject"
        for trigger in each["spec"]["triggers"]
    ]
    assert len(queries) == 3
    assert promtool.expressions(queries, tmp_path) == ""
    assert "parse" in promtool.expressions([queries[0].replace("}", "")], tmp_path)


def test_the_engines_are_scraped_as_another_job(given: list[Document]) -> None:
    (alerted,) = set(re.findall(r'up\{job=~"([^"]+)"\}', ALERTS.read_text()))
    spec = one(given, "PodMonitor")["spec"]
    labels = one(given, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert matches(spec["selector"], labels)
    (endpoint,) = spec["podMetricsEndpoints"]
    (container,) = engines(given).containers
    assert endpoint["port"] in [port["name"] for port in container["ports"]]
    jobs = [step["replacement"] for step in endpoint["relabelings"] if step["targetLabel"] == "job"]
    assert len(jobs) == 1 and not re.fullmatch(alerted, jobs[0])
