"""The components for a gateway: a route to the Service, and a pool whose picker reads the metrics.

There are no types of InferencePool to compile against, so `POOL` says what its v1 takes
(gateway-api-inference-extension, api/v1/inferencepool_types.go; the pools built here were also held
against its CRD of 2026-08, by hand).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.manifests import KUBERNETES, PROXY, Manifests, about, matches
from tests.deploy.policy import problems
from tests.deploy.test_kubernetes import VERSIONS, compiled
from tests.deploy.tools import Document, against_schema, documents, kustomized, run, tool
from wellspoken.proxy.endpoints.backend_metrics import PATH
from wellspoken.proxy.routes import ROUTES

PICKER = "wellspoken-picker"
NAME = {"type": "string", "minLength": 1, "maxLength": 253}
NUMBER = {"type": "integer", "minimum": 1, "maximum": 65535}


def table(required: list[str], **properties: Any) -> Document:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


PORT = table(["number"], number=NUMBER)
POOL = table(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "inference.networking.k8s.io/v1"},
    kind={"const": "InferencePool"},
    metadata={"type": "object"},
    spec=table(
        ["selector", "targetPorts", "endpointPickerRef"],
        selector=table(["matchLabels"], matchLabels={"type": "object", "minProperties": 1}),
        targetPorts={
            "type": "array",
            "minItems": 1,
            "maxItems": 8,
            "uniqueItems": True,
            "items": PORT,
        },
        appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
        # The CRD wants a port where the kind is Service, which it is by default.
        endpointPickerRef=table(
            ["name", "port"],
            group={"type": "string"},
            kind={"type": "string"},
            name=NAME,
            port=PORT,
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
)


def build(folder: Path, overlay: str, component: str) -> list[Document]:
    folder = folder.resolve()
    up = "../" * len(folder.parts[1:]) + "/".join(KUBERNETES.parts[1:])
    top = {
        "resources": [f"{up}/overlays/{overlay}"],
        "components": [f"{up}/components/{component}"],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(top))
    return documents(kustomized(folder))


def one(given: list[Document], kind: str, name: str = PROXY) -> Document:
    (found,) = (x for x in given if x["kind"] == kind and x["metadata"]["name"] == name)
    return found


def named(documents: list[Document], *, picker: bool) -> list[Document]:
    return [x for x in documents if x["metadata"]["name"].startswith(PICKER) == picker]


@pytest.mark.parametrize("overlay", ["standalone", "vllm-sidecar", "fleet"])
def test_the_route_goes_to_the_service(overlay: str, tmp_path: Path) -> None:
    given = build(tmp_path, overlay, "httproute")
    assert problems(Manifests(about(given))) == []
    route, service = one(given, "HTTPRoute"), one(given, "Service")
    (rule,) = route["spec"]["rules"]
    (target,) = rule["backendRefs"]
    assert target["name"] == service["metadata"]["name"]
    assert target["port"] in [port["port"] for port in service["spec"]["ports"]]
    assert rule["timeouts"]["request"] == "0s"  # as long as it takes
    prefixes = [match["path"]["value"] for match in rule["matches"]]
    administrative = [path for path, each in ROUTES.items() if each.admin or path == "/readyz"]
    assert not any(path.startswith(prefix) for path in administrative for prefix in prefixes)


def test_the_types_take_the_routes(tmp_path: Path) -> None:
    for component in ("httproute", "inferencepool"):
        folder = tmp_path / component
        folder.mkdir()
        route = one(build(folder, "vllm-engine", component), "HTTPRoute")
        assert compiled([route], folder) == ""
        route["spec"]["rules"][0]["timeout"] = route["spec"]["rules"][0].pop("timeouts")
        (folder / "wrong").mkdir()
        assert "does not exist" in compiled([route], folder / "wrong")


@pytest.mark.parametrize("overlay", ["vllm-engine", "vllm-sidecar", "vllm-replicas"])
def test_the_picker_reads_the_engines_metrics_through_the_proxy(
    overlay: str, tmp_path: Path
) -> None:
    given = build(tmp_path, overlay, "inferencepool")
    mine = Manifests(about(given))
    assert problems(mine) == []
    pool = one(given, "InferencePool")
    assert against_schema(POOL, pool) == []
    assert matches(pool["spec"]["selector"], mine.labels)
    ports = [port["containerPort"] for port in mine.proxy["ports"]]
    assert [port["number"] for port in pool["spec"]["targetPorts"]] == ports
    (target,) = one(given, "HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert (target["kind"], target["name"]) == ("InferencePool", pool["metadata"]["name"])
    config = next(
        yaml.safe_load(each["data"]["picker.yaml"])
        for each in named(given, picker=True)
        if each["kind"] == "ConfigMap"
    )
    sources = [x for x in config["plugins"] if x["type"] == "metrics-data-source"]
    assert [source["parameters"]["path"] for source in sources] == [f"/backend{PATH}"]
    assert ROUTES[f"/backend{PATH}"].method == "GET"
    used = [each["pluginRef"] for each in config["schedulingProfiles"][0]["plugins"]]
    assert set(used) < {each["type"] for each in config["plugins"]}


def test_the_pool_asks_its_picker(tmp_path: Path) -> None:
    given = build(tmp_path, "vllm-engine", "inferencepool")
    reference = one(given, "InferencePool")["spec"]["endpointPickerRef"]
    service, picker = one(given, "Service", PICKER), one(given, "Deployment", PICKER)
    pod = picker["spec"]["template"]
    assert reference["name"] == PICKER and matches(
        service["spec"]["selector"], pod["metadata"]["labels"]
    )
    assert [port["port"] for port in service["spec"]["ports"]] == [reference["port"]["number"]]
    (container,) = pod["spec"]["containers"]
    assert "--pool-name=wellspoken" in container["args"]
    (volume,) = pod["spec"]["volumes"]
    assert one(given, "ConfigMap", volume["configMap"]["name"])["data"]
    binding = one(given, "RoleBinding", PICKER)
    assert one(given, "Role", binding["roleRef"]["name"])
    assert one(given, "ServiceAccount", binding["subjects"][0]["name"])
    assert pod["spec"]["serviceAccountName"] == binding["subjects"][0]["name"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_the_pickers_own(version: str, tmp_path: Path) -> None:
    given = named(build(tmp_path, "vllm-engine", "inferencepool"), picker=True)
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(given))
    status, said = run(tool("kubernetes-validate"), "-k", version, "--strict", file)
    assert status == 0 and "WARN" not in said, said
    assert said.count(" passed for resource ") == len(given) == 6


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(targetPortNumber=spec.pop("targetPorts")),
        lambda spec: spec["selector"].update(spec["selector"].pop("matchLabels")),
        lambda spec: spec.update(extensionRef=spec.pop("endpointPickerRef")),
        lambda spec: spec["endpointPickerRef"].update(failureMode="Open"),
        lambda spec: spec["endpointPickerRef"].pop("port"),
        lambda spec: spec["targetPorts"].append(spec["targetPorts"][0]),
    ],
)
def test_a_pool_of_another_version_is_found(change: Any, tmp_path: Path) -> None:
    pool = one(build(tmp_path, "vllm-engine", "inferencepool"), "InferencePool")
    change(pool["spec"])
    assert against_schema(POOL, pool)
