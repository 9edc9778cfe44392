"""deploy/compose/compose.yaml: valid by the Compose specification's schema, wired, and it runs.

The schema is the one that the npm package dclint brings. No container engine is here, so what the
file has the proxy do is run in a sandbox, in front of a real llama.cpp.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.container import arguments as defaults
from tests.deploy.manifests import option
from tests.deploy.sandbox import Ran, asked, running, sandboxed, status
from tests.deploy.tools import DEPLOY, Document, against_schema, documents, module, version
from tests.ports import free_port
from wellspoken.proxy.config import load

FILE = DEPLOY / "compose" / "compose.yaml"
BUILT = "wellspoken"


@pytest.fixture(scope="module")
def given() -> Document:
    (only,) = documents(FILE.read_text())
    return only


@pytest.fixture(scope="module")
def schema() -> Document:
    found: Document = json.loads(module("dclint/schemas/compose.schema.json").read_text())
    return found


def seconds(text: str) -> int:
    """Return a Compose duration, of which there is one unit here."""
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def test_compose_takes_it(given: Document, schema: Document) -> None:
    assert against_schema(schema, given) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("services.wellspoken.read_onyl", True),
        ("services.wellspoken.ports", "8010"),
        ("services.grafana.depends_on", {"prometheus": {"condition": "service_up"}}),
        ("volums", {}),
    ],
)
def test_compose_does_not_take_mistakes(
    given: Document, schema: Document, path: str, value: Any
) -> None:
    changed = deepcopy(given)
    *way, last = path.split(".")
    place = changed
    for key in way:
        place = place[key]
    place[last] = value
    assert against_schema(schema, changed) != []


def faults(given: Document) -> list[str]:
    """Return what is wrong with a compose file, as the rules of this project have it."""
    return [*hardening(given), *wiring(given)]


def hardening(given: Document) -> list[str]:
    found = []
    for name, service in given["services"].items():
        if service.get("read_only") is not True or service.get("cap_drop") != ["ALL"]:
            found.append(f"{name} may do more than it has to")
        if service.get("security_opt") != ["no-new-privileges:true"]:
            found.append(f"{name} may gain privileges")
        if service.keys() & {"privileged", "network_mode", "pid", "ipc", "user", "cap_add"}:
            found.append(f"{name} shares the machine's, or is somebody else")
        if not re.search(r":(v|server-b)?\d[\w.]*$", service["image"]):
            found.append(f"{service['image']} has no version")
        for port in service.get("ports", []):
            if not re.fullmatch(r"127\.0\.0\.1:(\d+):\1", port):
                found.append(f"{name}: other machines reach {port}")
    if given["services"][BUILT]["image"].rpartition(":")[2] != version():
        found.append(f"the proxy is not of version {version()}")
    return found


def wiring(given: Document) -> list[str]:
    services, found = given["services"], []
    for name, service in services.items():
        for volume in service.get("volumes", []):
            source, target, *mode = volume.split(":")
            if source.startswith("."):
                if not (FILE.parent / source).exists() or mode != ["ro"]:
                    found.append(f"{name}: {source} is not there, or may be written to")
            elif source not in given["volumes"]:
                found.append(f"{name}: there is no volume {source}")
            if target == "/":
                found.append(f"{name}: a volume on the root")
    url = services[BUILT]["command"][0]
    backend = services["llamacpp"]["command"]
    if url != "http://llamacpp:8080" or option(backend, "--port") != "8080":
        found.append("the proxy asks another server")
    if option(backend, "--host") != "0.0.0.0" or services["llamacpp"].get("ports"):
        found.append("the proxy does not reach llama.cpp, or others do")
    found += [f"llama.cpp does not take {word}" for word in backend if re.match("-.*=", word)]
    scraped = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    if f'"{BUILT}:8010"' not in scraped or services[BUILT]["ports"] != ["127.0.0.1:8010:8010"]:
        found.append("Prometheus scrapes something else")
    sources = (DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text()
    if "url: http://prometheus:9090" not in sources or "prometheus" not in services:
        found.append("Grafana asks something else")
    folder = (DEPLOY / "grafana/provisioning/dashboards/wellspoken.yaml").read_text()
    (path,) = re.findall(r"(?m)^\s+path: (\S+)$", folder)
    if (
        f"../grafana/wellspoken.json:{path}/wellspoken.json:ro"
        not in services["grafana"]["volumes"]
    ):
        found.append("Grafana does not see the dashboard")
    server = load(None, {"auth": "none", "backend": [{"url": url}]}, environment(given)).server
    if seconds(services[BUILT]["stop_grace_period"]) <= server.drain_delay + server.drain_timeout:
        found.append("open streams may be cut off")
    build = services[BUILT]["build"]
    if not (FILE.parent / build["context"] / build["dockerfile"]).exists():
        found.append("there is no Containerfile")
    return found


def environment(given: Document) -> dict[str, str]:
    """Return the variables that the proxy's container has."""
    own: dict[str, str] = given["services"][BUILT]["environment"]
    return {"WELLSPOKEN_LISTEN": "0.0.0.0:8010", **own}


def test_it_keeps_to_the_rules(given: Document) -> None:
    assert faults(given) == []


MUTANTS: list[Callable[[Document], Any]] = [
    lambda s: s["wellspoken"].pop("read_only"),
    lambda s: s["llamacpp"].update(cap_drop=[]),
    lambda s: s["grafana"].pop("security_opt"),
    lambda s: s["prometheus"].update(network_mode="host"),
    lambda s: s["prometheus"].update(image="docker.io/prom/prometheus:latest"),
    lambda s: s["wellspoken"].update(image="wellspoken:9.9.9"),
    lambda s: s["wellspoken"].update(ports=["8010:8010"]),
    lambda s: s["grafana"].update(ports=["0.0.0.0:3000:3000"]),
    lambda s: s["prometheus"]["volumes"].append("nothing:/x"),
    lambda s: s["prometheus"].update(volumes=["../promotheus:/etc/prometheus:ro"]),
    lambda s: s["prometheus"].update(volumes=["../prometheus:/etc/prometheus"]),
    lambda s: s["wellspoken"]["command"].__setitem__(0, "http://llamacpp:8081"),
    lambda s: s["llamacpp"]["command"].remove("8080"),
    lambda s: s["llamacpp"]["command"].remove("0.0.0.0"),
    lambda s: s["llamacpp"]["command"].append("--ctx-size=16384"),
    lambda s: s["llamacpp"].update(ports=["127.0.0.1:8080:8080"]),
    lambda s: s["grafana"]["volumes"].pop(1),
    lambda s: s["wellspoken"].update(stop_grace_period="10s"),
    lambda s: s["wellspoken"]["environment"].pop("WELLSPOKEN_DRAIN_TIMEOUT"),
    lambda s: s["wellspoken"]["build"].update(dockerfile="Containerfile"),
]


@pytest.mark.parametrize("change", MUTANTS, ids=map(str, range(len(MUTANTS))))
def test_a_mutant_is_found(given: Document, change: Callable[[Document], Any]) -> None:
    changed = deepcopy(given)
    change(changed["services"])
    assert faults(changed) != []


def test_the_base_image_and_the_file_agree_on_where_the_proxy_listens() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert environment({"services": {BUILT: {"environment": {}}}}) == {
        "WELLSPOKEN_LISTEN": re.findall(r"WELLSPOKEN_LISTEN=(\S+)", text)[0]
    }
    assert defaults(text)["VERSION"] == version()


async def test_what_it_has_the_proxy_do_works(
    given: Document, llama_server: str, tmp_path: Path
) -> None:
    words = given["services"][BUILT]["command"]
    words = [llama_server if word == "http://llamacpp:8080" else word for word in words]
    port, ended = free_port(), list[Ran]()
    environ = {**environment(given), "WELLSPOKEN_LISTEN": f"0.0.0.0:{port}"}
    # Its volume lies under /tmp here, since the root is this machine's.
    (source,) = given["services"][BUILT]["volumes"]
    place = source.partition(":")[2]
    environ = {name: value.replace(place, "/tmp/volume") for name, value in environ.items()}
    inside = sandboxed(Path("/"), environ, "--bind", str(tmp_path), "/tmp/volume")
    command = [sys.executable, "-m", "wellspoken.proxy.cli", *words]
    async with running([*inside, *command], port, ended) as served:
        code, answer = await asked(served.url, "", store=True)
        assert code == 200, answer
        assert await status(f"{served.url}/readyz") == 200
    assert ended[0].status == 0, ended[0].out
    assert (tmp_path / "completions.db").exists()
