"""What an overlay of deploy/kubernetes says, read as the rules in policy.py want it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.tools import DEPLOY, Document, kustomized
from wellspoken.proxy.config import Config, load

KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = (
    "fleet",
    "llamacpp-sidecar",
    "standalone",
    "vllm-engine",
    "vllm-replicas",
    "vllm-sidecar",
)
COMPONENTS = {
    "fleet": ("fleet-metrics", "fleet-keda"),
    "llamacpp-sidecar": ("podmonitor",),
    "standalone": ("podmonitor",),
    "vllm-engine": ("podmonitor", "keda"),
    "vllm-replicas": ("podmonitor", "keda"),
    "vllm-sidecar": ("podmonitor", "keda"),
}
PROXY = "wellspoken"
"""The name of the proxy's container, and of nearly everything else."""
SECRETS = "/run/secrets/wellspoken"
LISTEN = "0.0.0.0:8010"
"""Where the image says that the proxy listens (WELLSPOKEN_LISTEN in deploy/Containerfile)."""


@dataclass
class Manifests:
    """The documents of one overlay, of which exactly one is a Deployment."""

    documents: list[Document]

    def kind(self, kind: str) -> list[Document]:
        return [each for each in self.documents if each["kind"] == kind]

    def named(self, kind: str, name: str) -> Document | None:
        return next((d for d in self.kind(kind) if d["metadata"]["name"] == name), None)

    @property
    def deployment(self) -> Document:
        (only,) = self.kind("Deployment")
        return only

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.deployment["spec"]["template"]["metadata"]["labels"]
        return found

    @property
    def pod(self) -> Document:
        found: Document = self.deployment["spec"]["template"]["spec"]
        return found

    @property
    def containers(self) -> list[Document]:
        """All containers, those that begin first at the front."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def proxy(self) -> Document:
        return next(each for each in self.containers if each["name"] == PROXY)

    @property
    def beside(self) -> list[Document]:
        """The containers that are not the proxy's: a server beside it."""
        return [each for each in self.containers if each["name"] != PROXY]

    @property
    def volumes(self) -> dict[str, Document]:
        return {each["name"]: each for each in self.pod.get("volumes", [])}

    def mounted(self, container: Document, path: str) -> tuple[Document, Document] | None:
        """Return the mount and the volume that a path lies in, None for the image's own files."""
        for mount in container.get("volumeMounts", []):
            if f"{path}/".startswith(f"{mount['mountPath'].rstrip('/')}/"):
                return mount, self.volumes.get(mount["name"], {})
        return None

    def config_file(self) -> str:
        """Return the proxy's configuration. Raises KeyError where it is not mounted."""
        found = self.mounted(self.proxy, "/etc/wellspoken")
        if found is None:
            raise KeyError("/etc/wellspoken")
        held = self.named("ConfigMap", found[1]["configMap"]["name"])
        if held is None:
            raise KeyError(found[1]["configMap"]["name"])
        return str(held["data"]["wellspoken.toml"])

    def config(self) -> Config:
        """Return the configuration as the proxy would have it. Raises ConfigError, KeyError.

        Its secrets are files that exist, as they do in a pod.
        """
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "keys").write_text("sk-canary\n")
            Path(folder, "postgres-url").write_text("postgresql://wellspoken@postgres/wellspoken")
            file = Path(folder, "wellspoken.toml")
            file.write_text(self.config_file().replace(f"file:{SECRETS}/", f"file:{folder}/"))
            return load(file, {}, {"WELLSPOKEN_LISTEN": LISTEN})

    def references(self) -> Iterator[str]:
        """Yield the files that hold secrets for the configuration."""
        for part in self.config_file().split('"'):
            if part.startswith("file:"):
                yield part.removeprefix("file:")


def about(given: list[Document], name: str = PROXY) -> list[Document]:
    """Return the documents of one part, by their label; what has none is the proxy's."""
    return [each for each in given if part_of(each) == name]


def part_of(document: Document) -> str:
    """Return the name of the part that a document is of."""
    labels = document["metadata"].get("labels", {})
    return str(labels.get("app.kubernetes.io/name", PROXY))


def built(overlay: str, folder: Path, components: Sequence[str] | None = None) -> str:
    """Return an overlay's manifests, with every component that is for it, or with those given."""
    top = folder / overlay
    top.mkdir()
    up = "../" * len(top.parts[1:]) + "/".join(KUBERNETES.parts[1:])
    lines = ["resources:", f"  - {up}/overlays/{overlay}", "components:"]
    chosen = COMPONENTS[overlay] if components is None else components
    lines += [f"  - {up}/components/{each}" for each in chosen]
    (top / "kustomization.yaml").write_text("\n".join(lines))
    return kustomized(top)


def matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Say whether a selector of labels, bare or under matchLabels, takes these ones."""
    wanted = selector.get("matchLabels", selector)
    return bool(wanted) and all(labels.get(key) == value for key, value in wanted.items())


def option(words: Sequence[str], flag: str) -> str:
    """Return the value of `--flag VALUE` or `--flag=VALUE`, "" where it is not there."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == flag:
            return value if equals else following
    return ""


def seconds(container: Document, flag: str) -> int:
    """Return the number that a server's flag has, 0 where it is not there."""
    return int(option(container.get("args", []), flag) or 0)


def before_stop(container: Document) -> int:
    """Return how many seconds a container's preStop takes at most: a `sleep`, or a `timeout`."""
    hook = container.get("lifecycle", {}).get("preStop", {})
    if not hook:
        return 0
    command = hook["exec"]["command"]
    if command[:1] not in (["sleep"], ["timeout"]):
        raise ValueError(f"preStop of {container['name']} may take for ever")
    return int(command[1])
