"""Each rule of policy.py finds what it is for: the overlays, each changed in one place."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from tests.deploy.manifests import OVERLAYS, Manifests, about, built
from tests.deploy.policy import RULES, problems
from tests.deploy.tools import Document, documents
from wellspoken.proxy.config.values import ConfigError

Change = Callable[[Manifests], Any]


@pytest.fixture(scope="module")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    folder = tmp_path_factory.mktemp("overlays").resolve()
    return {each: about(documents(built(each, folder))) for each in OVERLAYS}


def first(given: Manifests, kind: str) -> Document:
    return given.kind(kind)[0]


def edited(old: str, new: str) -> Change:
    """Return a change of the configuration's text."""

    def change(given: Manifests) -> None:
        held = first(given, "ConfigMap")["data"]
        assert old in held["wellspoken.toml"]
        held["wellspoken.toml"] = held["wellspoken.toml"].replace(old, new)

    return change


def without(*kinds: str) -> Change:
    """Return a change that takes all documents of these kinds away."""

    def change(given: Manifests) -> None:
        given.documents[:] = [each for each in given.documents if each["kind"] not in kinds]

    return change


def dismissed(given: Manifests) -> None:
    """Make the sidecar a container as any other."""
    container = given.pod["initContainers"].pop()
    del container["restartPolicy"]
    given.pod["containers"].append(container)


def opened(given: Manifests) -> None:
    """Let everybody use the proxy."""
    edited('[auth]\nkeys = ["file:/run/secrets/wellspoken/keys"]', "")(given)
    edited("[server]", 'auth = "none"\n[server]')(given)


def argument(old: str, new: str) -> Change:
    """Return a change of an argument of the server beside the proxy."""

    def change(given: Manifests) -> None:
        words = given.beside[0]["args"]
        words[words.index(old)] = new

    return change


def probe(name: str, **values: Any) -> Change:
    """Return a change of one of the proxy's probes."""
    return lambda given: given.proxy[name].update(values)


def relabelled(number: int, steps: list[Document]) -> Change:
    """Return a change of how the PodMonitor names one of its scrapes."""
    return lambda given: first(given, "PodMonitor")["spec"]["podMetricsEndpoints"][number].update(
        relabelings=steps
    )


READY = {"path": "/readyz", "port": 8010}
ALIVE = {"path": "/livez", "port": 8010}
HTTPS = {"ports": [{"port": 443}], "to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}

MUTANTS: list[tuple[str, str, Change]] = [
    ("restricted", "standalone", lambda m: m.pod["securityContext"].update(runAsUser=0)),
    ("restricted", "standalone", lambda m: m.pod["securityContext"].pop("runAsNonRoot")),
    ("restricted", "standalone", lambda m: m.pod["securityContext"].pop("seccompProfile")),
    ("restricted", "vllm-engine", lambda m: m.pod.update(hostIPC=True)),
    ("restricted", "vllm-engine", lambda m: m.pod["volumes"][0].update(hostPath={"path": "/"})),
    ("restricted", "vllm-sidecar", lambda m: m.beside[0].pop("securityContext")),
    (
        "restricted",
        "llamacpp-sidecar",
        lambda m: m.proxy["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    (
        "restricted",
        "standalone",
        lambda m: m.proxy["securityContext"]["capabilities"].update(add=["NET_BIND_SERVICE"]),
    ),
    ("restricted", "standalone", lambda m: m.proxy["securityContext"].update(runAsUser=0)),
    ("restricted", "standalone", lambda m: m.proxy["ports"][0].update(hostPort=8010)),
    ("no_token", "standalone", lambda m: m.pod.pop("automountServiceAccountToken")),
    ("no_token", "standalone", lambda m: m.pod.pop("serviceAccountName")),
    ("no_token", "vllm-engine", without("ServiceAccount")),
    ("no_service_links", "vllm-sidecar", lambda m: m.pod.pop("enableServiceLinks")),
    ("grace", "standalone", lambda m: m.pod.update(terminationGracePeriodSeconds=250)),
    ("grace", "standalone", lambda m: m.pod.pop("terminationGracePeriodSeconds")),
    ("grace", "vllm-engine", edited("grace = 15", "grace = 60")),
    ("grace", "vllm-sidecar", argument("--shutdown-timeout=240", "--shutdown-timeout=270")),
    ("grace", "llamacpp-sidecar", edited("drain_timeout = 30", "drain_timeout = 60")),
    ("leaves_first", "standalone", edited("drain_delay = 10", "drain_delay = 0")),
    ("leaves_first", "vllm-sidecar", lambda m: m.beside[0].pop("lifecycle")),
    (
        "leaves_first",
        "llamacpp-sidecar",
        lambda m: m.beside[0]["lifecycle"]["preStop"]["exec"].update(command=["sleep", "10"]),
    ),
    (
        "leaves_first",
        "standalone",
        lambda m: m.proxy.update(lifecycle={"preStop": {"exec": {"command": ["sleep", "9"]}}}),
    ),
    ("images", "standalone", lambda m: m.proxy.update(image="wellspoken:latest")),
    ("images", "standalone", lambda m: m.proxy.update(image="wellspoken")),
    ("images", "standalone", lambda m: m.proxy.update(image="wellspoken:9.9.9")),
    ("images", "vllm-sidecar", lambda m: m.beside[0].update(image="localhost:5000/vllm")),
    ("images", "vllm-sidecar", lambda m: m.proxy.update(imagePullPolicy="Always")),
    ("liveness", "standalone", probe("livenessProbe", httpGet=READY)),
    ("liveness", "vllm-sidecar", lambda m: m.beside[0].pop("livenessProbe")),
    ("readiness", "standalone", probe("readinessProbe", httpGet=ALIVE)),
    ("readiness", "vllm-sidecar", lambda m: m.proxy.pop("readinessProbe")),
    ("readiness", "vllm-engine", probe("readinessProbe", timeoutSeconds=1)),
    ("startup", "vllm-sidecar", probe("startupProbe", httpGet=READY)),
    ("startup", "vllm-engine", probe("startupProbe", failureThreshold=30)),
    ("startup", "vllm-engine", edited('"1h"', '"2h"')),
    ("startup", "llamacpp-sidecar", lambda m: m.beside[0].pop("startupProbe")),
    ("sidecar", "vllm-sidecar", dismissed),
    ("sidecar", "llamacpp-sidecar", lambda m: m.proxy.pop("restartPolicy")),
    ("behind", "vllm-sidecar", edited(":8000", ":8001")),
    ("behind", "vllm-sidecar", argument("--host=127.0.0.1", "--host=0.0.0.0")),
    ("behind", "llamacpp-sidecar", argument("127.0.0.1", "0.0.0.0")),
    ("behind", "llamacpp-sidecar", lambda m: m.beside[0].update(ports=[{"containerPort": 8080}])),
    ("arguments", "llamacpp-sidecar", argument("--metrics", "--metrics=1")),
    ("scrapes", "vllm-sidecar", relabelled(1, [])),
    ("scrapes", "vllm-sidecar", relabelled(1, [{"targetLabel": "pod", "replacement": "engine"}])),
    (
        "scrapes",
        "vllm-sidecar",
        lambda m: first(m, "PodMonitor")["spec"]["podMetricsEndpoints"][1].pop("scrapeTimeout"),
    ),
    ("scrapes", "vllm-sidecar", relabelled(0, [{"targetLabel": "job", "replacement": "engine"}])),
    ("resources", "standalone", lambda m: m.proxy["resources"].pop("limits")),
    ("resources", "standalone", lambda m: m.proxy["resources"]["limits"].update(cpu="1")),
    ("resources", "vllm-sidecar", lambda m: m.proxy["resources"]["requests"].update(cpu="1")),
    ("resources", "vllm-engine", lambda m: m.proxy["resources"].pop("requests")),
    ("closed", "standalone", opened),
    ("closed", "standalone", edited("wellspoken/keys", "elsewhere/keys")),
    ("closed", "vllm-sidecar", lambda m: m.proxy["volumeMounts"][1].pop("readOnly")),
    ("closed", "vllm-engine", lambda m: m.proxy["env"][0].update(value="hf_canary")),
    ("writable", "standalone", edited("/var/lib/wellspoken/", "/spool/")),
    ("writable", "standalone", lambda m: m.volumes["spool"]["emptyDir"].clear()),
    ("writable", "vllm-engine", lambda m: m.proxy["volumeMounts"].pop()),
    ("wiring", "standalone", lambda m: m.pod["volumes"].pop()),
    ("wiring", "vllm-sidecar", without("PersistentVolumeClaim")),
    ("wiring", "standalone", lambda m: m.proxy["ports"][0].update(containerPort=8000)),
    ("wiring", "vllm-sidecar", lambda m: m.proxy["ports"][0].update(name="web")),
    (
        "wiring",
        "standalone",
        lambda m: first(m, "Service")["spec"]["ports"][0].update(targetPort=80),
    ),
    ("wiring", "standalone", lambda m: first(m, "Service")["spec"].update(selector={"a": "b"})),
    (
        "wiring",
        "standalone",
        lambda m: first(m, "PodDisruptionBudget")["spec"]["selector"].clear(),
    ),
    (
        "wiring",
        "standalone",
        lambda m: first(m, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"].update(name="x"),
    ),
    ("network", "vllm-sidecar", without("NetworkPolicy")),
    (
        "network",
        "vllm-sidecar",
        lambda m: first(m, "NetworkPolicy")["spec"]["ingress"][0].pop("ports"),
    ),
    (
        "network",
        "vllm-sidecar",
        lambda m: first(m, "NetworkPolicy")["spec"]["ingress"][0].pop("from"),
    ),
    ("network", "standalone", edited("http://vllm:8000", "http://vllm:9000")),
    (
        "network",
        "standalone",
        lambda m: m.kind("NetworkPolicy")[1]["spec"]["egress"].append(HTTPS),
    ),
    ("gpus", "vllm-engine", lambda m: m.pod.pop("tolerations")),
    ("gpus", "vllm-sidecar", lambda m: m.pod.pop("nodeSelector")),
    (
        "scales",
        "vllm-engine",
        lambda m: first(m, "ScaledObject")["spec"]["triggers"][0]["metadata"].update(
            query='sum(vllm:num_requests_waiting{pod=~"wellspoken-.*"})'
        ),
    ),
    ("replicas", "standalone", without("PodDisruptionBudget")),
    ("replicas", "standalone", lambda m: m.deployment["spec"].update(replicas=3)),
    ("replicas", "vllm-engine", lambda m: m.deployment["spec"].update(replicas=1)),
    (
        "replicas",
        "standalone",
        lambda m: first(m, "HorizontalPodAutoscaler")["spec"].update(minReplicas=1),
    ),
    (
        "replicas",
        "standalone",
        lambda m: first(m, "PodDisruptionBudget")["spec"].update(maxUnavailable=0),
    ),
    ("replicas", "vllm-engine", lambda m: m.deployment["spec"].pop("strategy")),
    (
        "replicas",
        "vllm-replicas",
        lambda m: first(m, "PersistentVolumeClaim")["spec"].update(accessModes=["ReadWriteOnce"]),
    ),
    (
        "replicas",
        "vllm-replicas",
        lambda m: m.deployment["spec"]["strategy"]["rollingUpdate"].pop("maxSurge"),
    ),
]


@pytest.mark.parametrize(
    ("rule", "overlay", "change"),
    MUTANTS,
    ids=[f"{number}-{rule}-{overlay}" for number, (rule, overlay, _) in enumerate(MUTANTS)],
)
def test_a_mutant_is_found(
    overlays: dict[str, list[Document]], rule: str, overlay: str, change: Change
) -> None:
    given = Manifests(deepcopy(overlays[overlay]))
    assert problems(given) == []
    change(given)
    assert list(RULES[rule](given)), "the rule has nothing against it"


def test_a_configuration_that_does_not_load_is_found(
    overlays: dict[str, list[Document]],
) -> None:
    given = Manifests(deepcopy(overlays["standalone"]))
    edited("drain_delay", "drain_dealy")(given)
    with pytest.raises(ConfigError, match="drain_delay"):
        problems(given)


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, _, _ in MUTANTS} == set(RULES)
