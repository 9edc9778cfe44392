"""Which models the backends have: what each lists, under the names that clients use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from wellspoken.adapters.requests.shapes import Model
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Router, Target

LIMIT = 4 * 1024 * 1024  # bytes of a list


async def list_models(router: Router) -> dict[str, Model]:
    """Return the models by name. A backend that does not answer still has its configured names.

    An engine that is not there has those that it had. Where a sole backend has neither, raises
    UpstreamError, and RequestError 503 for an engine.
    """
    targets = router.targets
    answers = await asyncio.gather(*(_ask_models(target, len(targets) == 1) for target in targets))
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


async def _ask_models(target: Target, only: bool) -> Mapping[str, Model]:
    known = _last_listed(target)
    nameless = only and not target.names and not known
    if target.upstream is None and not nameless:
        return known
    try:
        status, body = await target.connection().get(target.backend.models_path, LIMIT)
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
