"""Which models the backends have: what each lists, under the names that clients use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from wellspoken.adapters.requests.shapes import Model
from wellspoken.adapters.servers.model_list import NOTHING_LISTED, Listed, read_models
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Router, Target

LIMIT: Final = 4 * 1024 * 1024  # bytes of a list


async def list_models(
    router: Router, tells: Callable[[Target], bool] = lambda target: False
) -> dict[str, Model]:
    """Return the models by name. A backend that does not answer still has its configured names.

    `tells`: whether a backend's models are to have their context lengths, which not every list has.
    An engine that is not there has those that it had. Where a sole backend has neither, raises
    UpstreamError, and RequestError 503 for an engine.
    """
    targets = router.targets
    sole = len(targets) == 1
    told = [tells(target) for target in targets]
    answers = await asyncio.gather(
        *(_ask_models(target, sole, tell) for target, tell in zip(targets, told, strict=True))
    )
    found: dict[str, Model] = {}
    for target, listed, tell in zip(targets, answers, told, strict=True):
        for name in (*target.names, *(listed.models if sole else ())):
            if name not in found:
                found[name] = _find(target, name, listed, tell)
    return found


def _find(target: Target, name: str, listed: Listed, tell: bool) -> Model:
    """Return the model that clients call `name`, with its context length if that is to be told."""
    theirs = target.model_for(name) if name in target.names else None
    original = listed.models.get(theirs or name, Model(id=name, owned_by=target.name))
    model = replace(original, id=name)
    length = listed.length(theirs or name) if tell else None
    return model if length is None else model.with_length(length)


async def _ask_models(target: Target, sole: bool, tell: bool) -> Listed:
    known = _last_listed(target)
    nameless = sole and not target.names and not known.models
    if target.upstream is None and not nameless:
        return known
    upstream = target.connection()
    try:
        status, body = await upstream.get(target.backend.models_path, LIMIT)
    except UpstreamError:
        if nameless:
            raise
        return known
    found = (read_models(body) if status == 200 else NOTHING_LISTED).add(_length_of_engine(target))
    if tell and not found.complete:
        if target.detector is not None:
            await target.detector.wait_known()  # until then it is asked what an unknown one is
        if path := target.backend.lengths:
            found = found.add(await target.lengths.find(target.server, upstream, path))
    if target.engine is not None and found.models:
        target.listed = found
    return found if found.models or not known.models else known


def _last_listed(target: Target) -> Listed:
    """Return what an engine has, as far as is known without it: it is not woken for a list."""
    if target.engine is None or target.listed.models:
        return target.listed
    models = target.engine.facts.models
    listed = {name: Model(id=name, created=0, owned_by=target.name) for name in models}
    return Listed(listed, _length_of_engine(target))


def _length_of_engine(target: Target) -> dict[str, int]:
    """Return the context length that an engine told when it started, by the name of any model."""
    context = target.engine.facts.context if target.engine is not None else None
    return {} if context is None else {"": context}
