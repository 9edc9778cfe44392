"""The overlays of deploy/kubernetes: built by kubectl, strictly valid, and keeping to the rules.

kubernetes-validate has the API's schemas, in which `--strict` makes an unknown field an error. The
resources of the Prometheus operator and of KEDA are checked by the TypeScript compiler against
types made of these projects' sources, which refuse unknown fields too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.deploy.manifests import KUBERNETES, OVERLAYS, Manifests, about, built
from tests.deploy.policy import problems
from tests.deploy.tools import (
    MODULES,
    Document,
    documents,
    kustomized,
    module,
    run,
    tool,
)

VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
"""Native sidecars are on by default since 1.29."""
_OPERATOR = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
TYPES = {
    "PodMonitor": f"{_OPERATOR}/PodMonitor",
    "PrometheusRule": f"{_OPERATOR}/PrometheusRule",
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
    "HTTPRoute": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute",
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What kubectl makes of each overlay."""
    folder = tmp_path_factory.mktemp("overlays").resolve()
    return {each: built(each, folder) for each in OVERLAYS}


@pytest.fixture(scope="module")
def read(texts: dict[str, str]) -> dict[str, list[Document]]:
    return {each: documents(text) for each, text in texts.items()}


def test_no_overlay_is_forgotten() -> None:
    assert sorted(each.name for each in (KUBERNETES / "overlays").iterdir()) == list(OVERLAYS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_keeps_to_the_rules(read: dict[str, list[Document]], overlay: str) -> None:
    assert problems(Manifests(about(read[overlay]))) == []


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_is_whole_without_other_projects_resources(overlay: str) -> None:
    """A cluster without the Prometheus operator or KEDA takes it as it is."""
    given = documents(kustomized(KUBERNETES / "overlays" / overlay))
    assert {each["kind"] for each in given} & set(TYPES) == set()
    assert problems(Manifests(about(given))) == []


def native(texts: dict[str, str]) -> str:
    """Return all documents of Kubernetes' own kinds."""
    parts = [part for text in texts.values() for part in text.split("\n---\n")]
    return "\n---\n".join(p for p in parts if not any(f"kind: {kind}\n" in p for kind in TYPES))


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_them(texts: dict[str, str], version: str, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(native(texts))
    status, said = run(tool("kubernetes-validate"), "-k", version, "--strict", file)
    assert status == 0, said
    assert "WARN" not in said  # a kind that it has no schema for would pass
    assert said.count(" passed for resource ") == len(documents(file.read_text()))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("restartPolicy: Always", "restartPolcy: Always"),
        ("failureThreshold: 60", "failureThreshold: many"),
        ("maxUnavailable: 1", "maxUnavailabel: 1"),
    ],
)
def test_a_mistake_is_not_taken(
    texts: dict[str, str], tmp_path: Path, right: str, wrong: str
) -> None:
    text = native(texts)
    assert right in text
    file = tmp_path / "all.yaml"
    file.write_text(text.replace(right, wrong))
    status, said = run(tool("kubernetes-validate"), "-k", VERSIONS[0], "--strict", file)
    assert status != 0, said


def compiled(given: list[Document], folder: Path) -> str:
    """Return what the compiler has against resources of other projects, "" for nothing."""
    compiler = module("typescript/bin/tsc")
    lines = []
    for number, each in enumerate(given):
        kind = each["kind"]
        module(TYPES[kind] + ".d.ts")
        lines.append(f'import type {{ I{kind} as T{number} }} from "{TYPES[kind]}";')
        lines.append(f"export const d{number}: T{number} = {json.dumps(each)};")
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "all.mts").write_text("\n".join(lines))
    options = [
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "nodenext",
        "--pretty",
        "false",
    ]
    status, said = run("node", compiler, *options, "all.mts", folder=folder)
    assert (status == 0) == (said == ""), said
    return said


def others(read: dict[str, list[Document]]) -> list[Document]:
    given = [each for documents in read.values() for each in documents if each["kind"] in TYPES]
    return [json.loads(text) for text in dict.fromkeys(json.dumps(each) for each in given)]


def test_the_operators_take_theirs(read: dict[str, list[Document]], tmp_path: Path) -> None:
    given = others(read)
    assert {each["kind"] for each in given} == {"PodMonitor", "ScaledObject"}
    assert compiled(given, tmp_path) == ""


def test_the_operators_do_not_take_mistakes(
    read: dict[str, list[Document]], tmp_path: Path
) -> None:
    given = {each["kind"]: each for each in others(read)}
    endpoint = given["PodMonitor"]["spec"]["podMetricsEndpoints"][0]
    endpoint["intervall"] = endpoint.pop("interval")
    given["ScaledObject"]["spec"]["maxReplicas"] = given["ScaledObject"]["spec"].pop(
        "maxReplicaCount"
    )
    said = compiled(list(given.values()), tmp_path)
    assert re.search("intervall.* does not exist", said)
    assert re.search("maxReplicas.* does not exist", said)


def test_a_changed_configuration_has_another_name(tmp_path: Path) -> None:
    """So that pods are replaced when it changes, one after the other."""
    overlay = KUBERNETES / "overlays" / "standalone"
    folder = tmp_path.resolve()
    changed = (overlay / "wellspoken.toml").read_text() + "models = ['m']\n"
    (folder / "wellspoken.toml").write_text(changed)
    up = "../" * len(folder.parts[1:]) + "/".join(overlay.parts[1:])
    (folder / "kustomization.yaml").write_text(
        f"resources: [{up}]\n"
        "configMapGenerator:\n"
        "  - {name: wellspoken, behavior: replace, files: [wellspoken.toml]}\n"
    )
    before = Manifests(documents(kustomized(overlay)))
    after = Manifests(documents(kustomized(folder)))
    names = [each.kind("ConfigMap")[0]["metadata"]["name"] for each in (before, after)]
    assert names[0] != names[1]
    assert after.config().backend[0].models == ("m",)  # what the pods mount is the new one
