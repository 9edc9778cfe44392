"""The rules for what is deployed (shared/operations.md), over the manifests of one overlay.

A rule is a function that yields what it has against them. `RULES` has them all by name, and
test_kubernetes_policy.py a mutant for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from msgspec import UNSET

from tests.deploy.manifests import (
    LISTEN,
    PROXY,
    SECRETS,
    Manifests,
    before_stop,
    matches,
    option,
    seconds,
)
from tests.deploy.tools import DEPLOY, Document, version
from wellspoken.proxy.endpoints.backend_metrics import SECONDS

USER: Final = 65532
PORT: Final = int(LISTEN.rpartition(":")[2])
ALERTS: Final = DEPLOY / "prometheus" / "alerts.yml"
LOADING: Final = 1800
"""Seconds that a start which loads a model gets at least."""
RESTRICTED_VOLUMES: Final = {"configMap", "secret", "emptyDir", "persistentVolumeClaim"}
"""Those of the pod security standard "restricted" that are used here."""


def restricted(given: Manifests) -> Iterator[str]:
    """The pod security standard "restricted", a number for the user, and a read-only root."""
    pod = given.pod
    context = pod.get("securityContext", {})
    if not context.get("runAsNonRoot") or context.get("runAsUser") != USER:
        yield f"the pod does not run as {USER}"
    if context.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(key):
            yield key
    for volume in given.volumes.values():
        if not (volume.keys() - {"name"}) <= RESTRICTED_VOLUMES:
            yield f"volume {volume['name']} is of a kind that is not allowed"
    for each in given.containers:
        name, own = each["name"], each.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may gain privileges"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{name} keeps capabilities"
        if own.get("readOnlyRootFilesystem") is not True:
            yield f"{name} may write to its image"
        if own.keys() & {"privileged", "runAsUser", "runAsNonRoot", "seccompProfile", "procMount"}:
            yield f"{name} overrides the pod's security"
        if any("hostPort" in port for port in each.get("ports", [])):
            yield f"{name} takes a port of the node"


def no_token(given: Manifests) -> Iterator[str]:
    """No service-account token: nothing here asks the Kubernetes API."""
    if given.pod.get("automountServiceAccountToken") is not False:
        yield "the pod gets a token"
    account = given.named("ServiceAccount", given.pod.get("serviceAccountName", ""))
    if account is None or account.get("automountServiceAccountToken") is not False:
        yield "the account is the default one, or hands out tokens"


def no_service_links(given: Manifests) -> Iterator[str]:
    """A service's variables (WELLSPOKEN_PORT, VLLM_PORT) would be taken for settings."""
    if given.pod.get("enableServiceLinks") is not False:
        yield "services set variables"


def grace(given: Manifests) -> Iterator[str]:
    """The kubelet's patience is above all that may happen between SIGTERM and the end."""
    config = given.config()
    needed = config.server.drain_delay + config.server.drain_timeout
    if config.engine is not UNSET:
        needed += config.engine.grace
    for each in given.beside:
        needed += before_stop(each) + seconds(each, "--shutdown-timeout")
    given_seconds = given.pod.get("terminationGracePeriodSeconds", 30)
    if given_seconds <= needed + before_stop(given.proxy):
        yield f"the end may take {needed:g} s, and the pod has {given_seconds} s"


def leaves_first(given: Manifests) -> Iterator[str]:
    """Services forget the pod before it refuses: drain_delay, or preStop of what ends first."""
    first = given.beside[0] if given.beside else None
    if first is None:
        waits = given.config().server.drain_delay
    else:
        waits = before_stop(first)
        if not seconds(first, "--shutdown-timeout") and waits < 60:
            yield f"{first['name']} cuts open answers off after {waits} s"
    if waits < 5:
        yield f"{waits:g} s are too few for services to forget a pod"
    if before_stop(given.proxy):
        yield "the proxy's own drain_delay needs no preStop, and its image may have no shell"


def images(given: Manifests) -> Iterator[str]:
    """Every image has a version, and the proxy's is the project's."""
    for each in given.containers:
        name, _, tag = each["image"].rpartition(":")
        if not name or "/" in tag or not re.search(r"\d", tag) or "latest" in tag:
            yield f"{each['image']} has no version"
        if each["name"] == PROXY and tag != version():
            yield f"{each['image']} is not of version {version()}"
        if each.get("imagePullPolicy") == "Always":
            yield f"{each['image']} is pulled again and again"


def _path(container: Document, probe: str) -> str:
    got: Document = container.get(probe, {}).get("httpGet", {})
    return str(got.get("path", "")) if got.get("port") in (PORT, "http") else ""


def liveness(given: Manifests) -> Iterator[str]:
    """The proxy's liveness depends on nothing but itself; a server beside it has one too."""
    if _path(given.proxy, "livenessProbe") != "/livez":
        yield "the proxy is not asked /livez"
    for each in given.beside:
        if "livenessProbe" not in each:
            yield f"nobody asks whether {each['name']} lives"


def readiness(given: Manifests) -> Iterator[str]:
    """Readiness covers backend and drain, and waits for as long as the proxy asks its backend."""
    if _path(given.proxy, "readinessProbe") != "/readyz":
        yield "the proxy is not asked /readyz"
    if (
        given.proxy.get("readinessProbe", {}).get("timeoutSeconds", 1)
        <= given.config().timeouts.probe
    ):
        yield "the kubelet is less patient than timeouts.probe"


def startup(given: Manifests) -> Iterator[str]:
    """What loads a model gets long; a sidecar's start waits for nothing: all wait for it."""
    engine = given.config().engine
    wanted = "/livez" if engine is UNSET else "/readyz"
    if _path(given.proxy, "startupProbe") != wanted:
        yield f"the proxy's startup probe does not ask {wanted}"
    loading = [*given.beside, *([given.proxy] if engine is not UNSET else [])]
    least = LOADING if engine is UNSET else max(LOADING, engine.start_timeout + 60)
    for each in loading:
        probe = each.get("startupProbe", {})
        if probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3) < least:
            yield f"{each['name']} has less than {least:g} s to load a model"


def sidecar(given: Manifests) -> Iterator[str]:
    """Beside a server the proxy is a native sidecar: there before it, and ends after it."""
    first = given.pod.get("initContainers", [])
    if given.beside and given.proxy not in first:
        yield "the proxy ends together with the server beside it"
    if any(each.get("restartPolicy") != "Always" for each in first):
        yield "an init container does not keep running"


def behind(given: Manifests) -> Iterator[str]:
    """The server beside the proxy is where the configuration says, for this pod alone."""
    urls = [urlsplit(url) for each in given.config().backend for url in each.urls]
    local = {url.port for url in urls if url.hostname in ("127.0.0.1", "localhost")}
    ports = {seconds(each, "--port") for each in given.beside}
    if local != ports:
        yield f"backends at {sorted(map(str, local))}, servers at {sorted(ports)}"
    for each in given.beside:
        if option(each.get("args", []), "--host") != "127.0.0.1" or each.get("ports"):
            yield f"{each['name']} can be reached past the proxy, which checks the keys"


def arguments(given: Manifests) -> Iterator[str]:
    """llama.cpp takes `--port 8080` and not `--port=8080` (common/arg.cpp looks whole words up)."""
    for each in given.beside:
        for word in each.get("args", []):
            if "llama.cpp" in each["image"] and re.match("-.*=", word):
                yield f"llama.cpp does not take {word}"


def scrapes(given: Manifests) -> Iterator[str]:
    """The alerts mean the proxy's own scrape: an engine without metrics is no proxy down.

    It says that the engine does not answer before Prometheus leaves.
    """
    (alerted,) = set(re.findall(r'up\{job=~"([^"]+)"\}', ALERTS.read_text()))
    for monitor in given.kind("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            names = [f"namespace/{monitor['metadata']['name']}"]  # unless it is told another one
            for step in endpoint.get("relabelings", []):
                names += [step["replacement"]] if step.get("targetLabel") == "job" else []
            if bool(re.fullmatch(alerted, names[-1])) != (endpoint["path"] == "/metrics"):
                yield f"{endpoint['path']} is of the job {names[-1]}"
            patience = endpoint.get("scrapeTimeout", "10s")  # Prometheus' own
            if endpoint["path"] == "/backend/metrics" and float(patience[:-1]) <= SECONDS:
                yield "a client that leaves is counted where an engine does not answer"


def resources(given: Manifests) -> Iterator[str]:
    """The proxy asks for little; memory is bounded, CPU is not, which would only add latency."""
    for each in given.containers:
        stated = each.get("resources", {})
        requests, limits = stated.get("requests", {}), stated.get("limits", {})
        if "memory" not in limits or "cpu" in limits or not requests.keys() >= {"cpu", "memory"}:
            yield f"{each['name']}: requests of cpu and memory, a limit of memory alone"
    own = given.proxy.get("resources", {}).get("requests")
    if given.config().engine is UNSET and own != {"cpu": "50m", "memory": "64Mi"}:
        yield "the proxy asks for more than 50m and 64Mi"


def gpus(given: Manifests) -> Iterator[str]:
    """What wants a GPU goes to a node with one, also where those are kept for who asks."""
    limits = [each.get("resources", {}).get("limits", {}) for each in given.containers]
    if any("nvidia.com/gpu" in each for each in limits):
        tolerated = [each.get("key") for each in given.pod.get("tolerations", [])]
        if "nvidia.com/gpu" not in tolerated:
            yield "a node that is kept for GPUs does not take the pod"
        if "nvidia.com/gpu.present" not in given.pod.get("nodeSelector", {}):
            yield "no label says that the node has a GPU"


def scales(given: Manifests) -> Iterator[str]:
    """KEDA's query counts the requests of this namespace's pods alone."""
    for each in given.kind("ScaledObject"):
        for trigger in each["spec"]["triggers"]:
            if 'namespace="' not in trigger["metadata"]["query"]:
                yield "other namespaces' requests scale these pods"


def closed(given: Manifests) -> Iterator[str]:
    """Clients need a key, from a secret that is mounted for reading; nothing is open to all."""
    auth = given.config().auth
    if auth == "none" or not auth.needs_key:
        yield "clients need no key"
    for path in given.references():
        mounted = given.mounted(given.proxy, path)
        if not path.startswith(f"{SECRETS}/") or mounted is None or "secret" not in mounted[1]:
            yield f"{path} is in no secret that is mounted"
        elif not mounted[0].get("readOnly"):
            yield f"{path} can be written to"
    for each in given.containers:
        for variable in each.get("env", []):
            if re.search(r"TOKEN|KEY|PASSWORD|SECRET", variable["name"]) and "value" in variable:
                yield f"{variable['name']} stands in the manifest"


def writable(given: Manifests) -> Iterator[str]:
    """What is written lies on a volume that may be written to, and each is bounded."""
    config = given.config()
    places = [given.config().store.spool] if config.store.url else []
    if config.engine is not UNSET:
        places += ["/tmp", "/dev/shm", "/var/lib/wellspoken"]
    for path in places:
        mounted = given.mounted(given.proxy, str(path))
        if mounted is None or mounted[0].get("readOnly") or mounted[1].keys() & {"configMap"}:
            yield f"{path} cannot be written to"
    for name, volume in given.volumes.items():
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"the volume {name} may fill the node's disk"


def wiring(given: Manifests) -> Iterator[str]:
    """Names that refer to something refer to something that is there."""
    for each in given.containers:
        for mount in each.get("volumeMounts", []):
            if mount["name"] not in given.volumes:
                yield f"{each['name']} mounts {mount['name']}, which is no volume"
    for volume in given.volumes.values():
        wanted = volume.get("configMap", {}).get("name")
        if wanted and given.named("ConfigMap", wanted) is None:
            yield f"there is no ConfigMap {wanted}"
        wanted = volume.get("persistentVolumeClaim", {}).get("claimName")
        if wanted and given.named("PersistentVolumeClaim", wanted) is None:
            yield f"there is no claim {wanted}"
    ports = {port["containerPort"]: port["name"] for port in given.proxy.get("ports", [])}
    if ports != {PORT: "http"}:
        yield f"the proxy's port is not {PORT}, called http"
    (service,) = given.kind("Service")
    if [port["targetPort"] for port in service["spec"]["ports"]] != [PORT]:
        yield f"the service's port is not {PORT}"
    for owner, path in (
        *((each, "spec.selector") for each in given.kind("Service")),
        *((each, "spec.selector") for each in given.kind("PodDisruptionBudget")),
        *((each, "spec.selector") for each in given.kind("PodMonitor")),
        (given.deployment, "spec.selector"),
    ):
        if not matches(owner["spec"]["selector"], given.labels):
            yield f"{path} of the {owner['kind']} does not take the pods"
    name = given.deployment["metadata"]["name"]
    for each in (*given.kind("HorizontalPodAutoscaler"), *given.kind("ScaledObject")):
        if each["spec"]["scaleTargetRef"]["name"] != name:
            yield f"the {each['kind']} scales something else"
    for monitor in given.kind("PodMonitor"):
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            if endpoint.get("port") != "http":
                yield "the PodMonitor's port is none of the pod's"


def network(given: Manifests) -> Iterator[str]:
    """Whoever reaches the pod reaches the proxy's port alone; an egress policy lets backends by."""
    own = [
        each["spec"]
        for each in given.kind("NetworkPolicy")
        if matches(each["spec"]["podSelector"], given.labels)
    ]
    rules = [rule for each in own for rule in each.get("ingress", [])]
    if not rules or any("Ingress" in each["policyTypes"] and not each["ingress"] for each in own):
        yield "no policy says who may come in"
    for rule in rules:
        if [port.get("port") for port in rule.get("ports", [])] != [PORT] or not rule.get("from"):
            yield "a policy lets more in than clients to the proxy's port"
    if any("Egress" in each["policyTypes"] for each in own):
        out = {
            port["port"]
            for each in own
            for rule in each.get("egress", [])
            for port in rule["ports"]
        }
        wanted = {urlsplit(url).port for each in given.config().backend for url in each.urls}
        wanted |= {53} | ({5432} if given.config().store.url else set())
        if out != wanted:
            yield f"a policy lets {sorted(out)} out, and {sorted(map(str, wanted))} are used"


def replicas(given: Manifests) -> Iterator[str]:
    """An autoscaler keeps two pods, a budget lets nodes drain, and one GPU is not wanted twice."""
    spec = given.deployment["spec"]
    scalers = given.kind("HorizontalPodAutoscaler")
    if "replicas" in spec and (scalers or given.kind("ScaledObject")):
        yield "a number in the Deployment fights the autoscaler"
    if any(each["spec"].get("minReplicas", 1) < 2 for each in scalers):
        yield "one pod is no service"
    if scalers and not given.kind("PodDisruptionBudget"):
        yield "a node that drains may take all pods at once"
    for each in given.kind("PodDisruptionBudget"):
        if each["spec"].get("maxUnavailable") not in (1, "50%"):
            yield "a budget that no node can drain under"
    strategy = spec.get("strategy", {})
    alone = any(_is_for_one_pod(given, each) for each in given.volumes.values())
    if alone != (strategy.get("type") == "Recreate"):
        yield "a pod with a claim of its own is replaced, others are rolled"
    limits = [each.get("resources", {}).get("limits", {}) for each in given.containers]
    surge = strategy.get("rollingUpdate", {}).get("maxSurge", 1)
    if any("nvidia.com/gpu" in each for each in limits) and not alone and surge != 0:
        yield "a new pod waits for the GPU of the old one, which waits for the new one"


def _is_for_one_pod(given: Manifests, volume: Document) -> bool:
    """Say whether a volume is a claim that one node's pods alone can have."""
    name = volume.get("persistentVolumeClaim", {}).get("claimName")
    claim = given.named("PersistentVolumeClaim", name) if name else None
    return claim is not None and claim["spec"]["accessModes"] != ["ReadWriteMany"]


Rule = Callable[[Manifests], Iterator[str]]
RULES: Final[dict[str, Rule]] = {
    rule.__name__: rule
    for rule in (
        restricted,
        no_token,
        no_service_links,
        grace,
        leaves_first,
        images,
        liveness,
        readiness,
        startup,
        sidecar,
        behind,
        arguments,
        scrapes,
        resources,
        gpus,
        scales,
        closed,
        writable,
        wiring,
        network,
        replicas,
    )
}


def problems(given: Manifests) -> list[tuple[str, str]]:
    """Return what the rules have against the manifests: each rule's name, and what it says."""
    return [(name, said) for name, rule in RULES.items() for said in rule(given)]
