"""What deploy/README.md shows is so: its kustomization builds, its tables are of the files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.container import arguments
from tests.deploy.manifests import OVERLAYS, Manifests
from tests.deploy.policy import problems
from tests.deploy.test_kubernetes import compiled
from tests.deploy.tools import DEPLOY, documents, kustomized, said, version

README = (DEPLOY / "README.md").read_text()


def up(folder: Path) -> str:
    """Return the way from a folder to the one that holds deploy/, as kustomize wants it."""
    return "../" * len(folder.parts[1:]) + "/".join(DEPLOY.parent.parts[1:])


def test_the_kustomization_that_is_shown_builds(tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert "PATH/TO/deploy" in shown
    (folder / "kustomization.yaml").write_text(shown.replace("PATH/TO", up(folder)))
    overlay = DEPLOY / "kubernetes" / "overlays" / "vllm-sidecar"
    config = (overlay / "wellspoken.toml").read_text()
    (folder / "wellspoken.toml").write_text(config + 'models = ["mine"]\n')
    given = Manifests(documents(kustomized(folder)))
    assert problems(given) == []
    assert given.proxy["image"] == f"registry.example.com/wellspoken:{version()}"
    assert given.kind("HTTPRoute")
    assert given.config().backend[0].models == ("mine",)
    assert given.kind("PodMonitor") and given.kind("ScaledObject")


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_its_images_are_those_of_every_overlay(overlay: str, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    (shown,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    images = yaml.safe_load(shown)["images"]
    top = {"resources": [f"{up(folder)}/deploy/kubernetes/overlays/{overlay}"], "images": images}
    if overlay.startswith("vllm"):
        top["components"] = [f"{up(folder)}/deploy/kubernetes/components/inferencepool"]
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(top))
    pods = [
        each["spec"]["template"]["spec"]
        for each in documents(kustomized(folder))
        if each["kind"] in ("Deployment", "StatefulSet")
    ]
    assert len(pods) == 1 + ("components" in top or overlay == "fleet")
    every = [c for pod in pods for c in [*pod["containers"], *pod.get("initContainers", [])]]
    assert {each["image"].rpartition("/")[0] for each in every} == {"registry.example.com"}


def test_the_alerts_become_a_rule_of_the_operator(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```sh\n(\{ printf .*?)\| kubectl apply -f -\n```", README, re.DOTALL)
    (rule,) = documents(said("sh", "-c", shown))
    (alerts,) = documents((DEPLOY / "prometheus" / "alerts.yml").read_text())
    assert rule["spec"] == alerts and len(alerts["groups"]) > 1
    assert compiled([rule], tmp_path) == ""
    rule["spec"]["groups"][0]["rules"][0]["fro"] = "5m"
    other = tmp_path / "other"
    other.mkdir()
    assert re.search("fro.* does not exist", compiled([rule], other))


def test_the_overlays_and_files_are_all_there() -> None:
    named = set(re.findall(r"(?m)^\| `([a-z]+(?:-[a-z]+)?)` \| ", README))
    kubernetes = DEPLOY / "kubernetes"
    folders = [*(kubernetes / "overlays").iterdir(), *(kubernetes / "components").iterdir()]
    assert named == {each.name for each in folders}
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    assert linked and [name for name in linked if not (DEPLOY / name).exists()] == []


@pytest.mark.parametrize("name", ["BASE", "EXTRAS"])
def test_the_arguments_have_these_defaults(name: str) -> None:
    (shown,) = re.findall(rf"(?m)^\| `{name}` \| `([^`]+)` \|", README)
    assert arguments((DEPLOY / "Containerfile").read_text())[name] == shown
