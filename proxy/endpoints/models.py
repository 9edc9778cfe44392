"""The small GET endpoints: models, health and metrics."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from wellspoken.adapters.requests.shapes import Model, ModelList
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.metrics.service import CONTENT_TYPE
from wellspoken.proxy.upstream.failures import UpstreamError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wellspoken.proxy.relay.call import Call
    from wellspoken.proxy.server import Service
    from wellspoken.proxy.upstream.target import Target

PROBE_PATH = "/health"  # vLLM, llama.cpp, TGI, SGLang; elsewhere a 404, which is a sign of life too
PROBE_SECONDS = 2.0  # how long a probe's result holds
_MODELS_LIMIT = 4 * 1024 * 1024

_encode = msgspec.json.Encoder().encode


async def livez(call: Call) -> Reply:
    """Say that the process runs, whatever its backends do."""
    return call.reply(200, b'{"status":"ok"}')


async def readyz(call: Call) -> Reply:
    """Say whether requests would be answered, and if not, why."""
    reason = await call.service.readiness.reason()
    if reason:
        return call.reply(503, _encode({"status": "unavailable", "reason": reason}))
    return call.reply(200, b'{"status":"ok"}')


async def metrics(call: Call) -> Reply:
    """Return the metrics in Prometheus' text format."""
    return call.reply(200, await call.service.exposed(), content_type=CONTENT_TYPE)


async def openapi(call: Call) -> Reply:
    """Return the OpenAPI document of this proxy, as it is shipped."""
    return call.reply(200, _document())


@cache
def _document() -> bytes:
    return Path(__file__).with_name("openapi.json").read_bytes()


async def models(call: Call) -> Reply:
    """List the models: what the configuration names, and what a sole backend says it has."""
    return call.reply(200, _encode(ModelList(data=list((await listed(call.service)).values()))))


async def model(call: Call) -> Reply:
    """Return one model. Raises RequestError 404 model_not_found."""
    name = unquote(call.path.partition("/models/")[2])
    found = (await listed(call.service)).get(name)
    if found is None:
        raise call.service.router.unknown(name)
    return call.reply(200, _encode(found))


async def listed(service: Service) -> dict[str, Model]:
    """Return the models by name. A backend that does not answer still has its configured names.

    An engine that is not there has those that it had. Where a sole backend has neither, raises
    UpstreamError, and RequestError 503 for an engine.
    """
    targets = service.router.targets
    answers = await asyncio.gather(
        *(_backend_models(target, len(targets) == 1) for target in targets)
    )
    found: dict[str, Model] = {}
    for target, known in zip(targets, answers, strict=True):
        for name in target.names:
            original = known.get(target.model_for(name) or name)
            created = original.created if original is not None else 0
            owner = original.owned_by if original is not None else target.name
            found.setdefault(name, Model(id=name, created=created, owned_by=owner))
        if len(targets) == 1:
            for name, entry in known.items():
                found.setdefault(name, entry)
    return found


async def _backend_models(target: Target, only: bool) -> Mapping[str, Model]:
    known = _last_listed(target)
    nameless = only and not target.names and not known
    if target.upstream is None and not nameless:
        return known
    try:
        status, body = await target.connection().get(target.backend.models_path, _MODELS_LIMIT)
    except UpstreamError:
        if nameless:
            raise
        return known
    found = read_models(body) if status == 200 else {}
    if target.engine is not None and found:
        target.listed = found
    return found or known


def _last_listed(target: Target) -> Mapping[str, Model]:
    """Return what an engine has, as far as is known without it: it is not woken for a list."""
    if target.engine is None or target.listed:
        return target.listed
    models = target.engine.facts.models
    return {name: Model(id=name, created=0, owned_by=target.name) for name in models}


def read_models(body: bytes) -> dict[str, Model]:
    """Return the models in a backend's list, by id, as OpenAI's four keys; {} if there are none.

    Servers add keys, leave `created` out or send it as null or text, and llama.cpp lists its models
    a second time in Ollama's form.
    """
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    items = decoded.get("data") if isinstance(decoded, dict) else decoded
    found: dict[str, Model] = {}
    for item in items if isinstance(items, list) else ():
        name = item.get("id") if isinstance(item, dict) else None
        if isinstance(name, str) and name:
            owner = item.get("owned_by")
            found[name] = Model(
                id=name,
                created=_epoch(item.get("created")),
                owned_by=owner if isinstance(owner, str) and owner else "backend",
            )
    return found


def _epoch(value: Any) -> int:
    """Return epoch seconds; 0 for what is no time, such as LiteLLM's null or Ollama's text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e11:
        return int(value)
    return 0


class Readiness:
    """Whether the proxy should get requests: not while it drains, not without a backend, and not
    while it cannot store what it was asked to.

    One reachable backend of several is enough, since to take the proxy out of service for one
    would take the others with it. An engine that was unloaded counts as reachable, since the next
    request loads it. An engine's state is looked at each time; a probe's result holds for
    `PROBE_SECONDS`, and however many ask at once share one probe.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._probed_at = -PROBE_SECONDS
        self._found = ""
        self._task: asyncio.Task[str] | None = None

    def forget(self) -> None:
        """Probe again at the next question."""
        self._probed_at = -PROBE_SECONDS

    async def reason(self) -> str:
        """Return why requests should not come, or ""."""
        if self._service.draining:
            return "the proxy is shutting down"
        store = self._service.store
        if store is not None and store.trouble:
            return f"The store of completions fails: {store.trouble}"
        away = [_away(target) for target in self._service.router.targets]
        if "" in away:
            return ""
        if None not in away:
            return " ".join(filter(None, away))
        if self._service.loop.time() - self._probed_at < PROBE_SECONDS:
            return self._found
        if self._task is None:
            self._task = asyncio.create_task(self._probe_all())
        return await asyncio.shield(self._task)

    async def _probe_all(self) -> str:
        try:
            targets = self._service.router.targets
            reasons = await asyncio.gather(*(_probe(target) for target in targets))
            self._found = "" if "" in reasons else " ".join(reasons)
            self._probed_at = self._service.loop.time()
            return self._found
        finally:
            self._task = None


def unloaded(target: Target) -> bool:
    """Say whether a target's engine is away only because nobody had asked it for long."""
    return target.engine is not None and target.engine.unloaded


def _away(target: Target) -> str | None:
    """Return why an engine does not answer, "" if a request brings it back; None: probe it."""
    engine = target.engine
    if unloaded(target):
        return ""
    if target.upstream is not None and (engine is None or engine.state == "ready"):
        return None
    return f"The engine is not ready: {target.state().rstrip('.')}."


async def _probe(target: Target) -> str:
    """Return why this target cannot answer, or ""."""
    away = _away(target)
    if away is not None or target.upstream is None:
        return away or ""
    try:
        status = await target.upstream.probe(PROBE_PATH)
    except UpstreamError as error:
        return str(error)
    if status >= 500:
        return f"The {target.upstream.peer.name} answers {status} to GET {PROBE_PATH}."
    return ""
