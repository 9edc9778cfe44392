"""Which models the backends have: what each lists, under the names that clients use.

And what to call the model of a request that names none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from msgspec.structs import replace

from wellspoken.adapters.requests.shapes import Model
from wellspoken.adapters.servers.model_list import NOTHING_LISTED, Listed, holds_list, read_models
from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.context_lengths import LARGE
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.target import Target

LIMIT: Final = 4 * 1024 * 1024  # bytes of a list
MOST: Final = 32  # loaded models that are asked about by name
MANY: Final = 1000  # models, which take as long as LARGE bytes


async def list_models(
    targets: Sequence[Target], tells: Callable[[Target], bool] = lambda target: False
) -> dict[str, Model]:
    """Return the models by name. A backend that does not answer still has its configured names.

    `tells`: whether a backend's models are to have their context lengths, which not every list has.
    An engine that is not there has those that it had. Where a sole backend has neither, raises
    UpstreamError, also for an answer that is no list, and RequestError 503 for an engine.
    """
    sole = len({target.backend_name for target in targets}) == 1
    told = [tells(target) for target in targets]
    asked = [_ask_models(target, sole, tell) for target, tell in zip(targets, told, strict=True)]
    answers = await _gather_lists(asked)
    if sum(len(listed.models) for listed in answers) < MANY:
        return _merge_models(targets, answers, told, sole)
    return await asyncio.to_thread(_merge_models, targets, answers, told, sole)


async def _gather_lists(asked: Sequence[Awaitable[Listed]]) -> list[Listed]:
    """Return what servers list; of several that are asked one that tells is enough."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if len(failures) == len(answers) or not all(isinstance(x, Exception) for x in failures):
        raise failures[0]
    return [NOTHING_LISTED if isinstance(x, BaseException) else x for x in answers]


async def read_list(body: bytes) -> Listed:
    """Return the models in a backend's list as `read_models` does; a long one blocks nobody."""
    return read_models(body) if len(body) < LARGE else await asyncio.to_thread(read_models, body)


def _merge_models(
    targets: Sequence[Target], answers: Sequence[Listed], told: Sequence[bool], sole: bool
) -> dict[str, Model]:
    """Return what each target lists, by the names that clients use; the first of a name counts."""
    found: dict[str, Model] = {}
    for target, listed, tell in zip(targets, answers, told, strict=True):
        for name in target.names:
            if name not in found:
                found[name] = _find(listed, name, target.model_for(name) or name, target, tell)
        for name in listed.models if sole else ():
            if name not in found:
                found[name] = _find(listed, name, name, target, tell)
    return found


def _find(listed: Listed, name: str, theirs: str, target: Target, tell: bool) -> Model:
    """Return the model that clients call `name`, with its context length if that is to be told.

    `theirs`: what the backend calls it.
    """
    original = listed.models.get(theirs)
    if original is None:
        original = Model(id=name, owned_by=target.name)
    elif theirs != name:
        original = replace(original, id=name)
    length = listed.length(theirs) if tell else None
    return original if length is None else original.with_length(length)


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
    found = await read_list(body) if status == 200 else NOTHING_LISTED
    target.learn_labels(found.models)
    if nameless and not found.models and (status != 200 or not holds_list(body)):
        passes = target.settings.auth_pass
        raise _no_list(upstream, target.backend.models_path, status, passes=passes)
    found = found.add(_length_of_engine(target))
    if tell and not found.complete:
        if target.detector is not None:
            await target.detector.wait_known()  # until then it is asked what an unknown one is
        found = found.add(await _find_lengths(target, upstream, found))
    if target.engine is not None and found.models:
        target.listed = found
    return found if found.models or not known.models else known


async def list_server(target: Target) -> Listed:
    """Return what a backend's server lists now, with the context lengths that it tells.

    Raises UpstreamError, also for an answer that is no list.
    """
    upstream, path = target.connection(), target.backend.models_path
    status, body = await upstream.get(path, LIMIT)
    found = await read_list(body) if status == 200 else NOTHING_LISTED
    if not found.models and (status != 200 or not holds_list(body)):
        raise _no_list(upstream, path, status, passes=target.settings.auth_pass)
    return found if found.complete else found.add(await _find_lengths(target, upstream, found))


def _no_list(upstream: Upstream, path: str, status: int, *, passes: bool) -> UpstreamError:
    """Return the error for a backend of which no model is known, and that tells none.

    `passes`: it gets the clients' own keys.
    """
    advice = "Its log says more."
    if status in (401, 403) and passes:
        advice = (
            "It is asked without a client's key: name its models in the configuration: "
            "models = [...]."
        )
    elif status in (401, 403):
        advice = 'Give the proxy a key that it takes: key = "env:NAME" (--upstream-key env:NAME).'
    elif status < 500:
        advice = "Check the URL, or name its models in the configuration: models = [...]."
    what = "a body that is no list of models" if status == 200 else f"status {status}"
    error = UpstreamError(
        "protocol", f"The {upstream.peer.name} answered GET {path} with {what}. {advice}"
    )
    if status in (429, 503):  # it may be there in a moment, which a client should see
        error.fault.status = status
    return error


async def _find_lengths(target: Target, upstream: Upstream, found: Listed) -> Mapping[str, int]:
    """Return the context lengths that a backend tells beside its list."""

    def server() -> tuple[object, ...]:
        return target.server

    backend, memory = target.backend, target.lengths
    lengths = await memory.find(server, upstream, backend.lengths)
    more = found.add(lengths)
    unknown = [model for name, model in found.models.items() if more.length(name) is None]
    if backend.shows:
        lengths = {**lengths, **await memory.show(server, upstream, backend.shows, unknown)}
    if backend.routes:
        loaded = [model.id for model in unknown if model.id in found.loaded][:MOST]
        paths = {name: backend.routes + quote(name, safe="") for name in loaded}
        lengths = {**lengths, **await memory.find_each(server, upstream, paths)}
    return lengths


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


async def name_model(target: Target) -> str:
    """Return its name as configured, or as listed. A backend that tells none gives its own name.

    What is listed is remembered, since such requests come one after another: until the server has
    another address, is recognised as another, or was not reached, and for a minute at most.
    """
    configured = (*target.names, target.settings.upstream_model)
    if name := next(filter(None, configured), ""):
        return name
    upstream = target.upstream
    if upstream is None:
        return target.name
    name = await target.served.recall(
        lambda: target.server, lambda: _first_listed(target, upstream)
    )
    return name or target.name


async def _first_listed(target: Target, upstream: Upstream) -> str | None:
    try:
        status, body = await upstream.get(target.backend.models_path, LIMIT)
    except UpstreamError:
        return None
    models = (await read_list(body)).models if status == 200 else {}
    target.learn_labels(models)
    return next(iter(models), None)


async def learn_labels(target: Target) -> None:
    """Have metrics tell the models of a target apart that its server lists now, if it does."""
    if target.upstream is not None:
        await _first_listed(target, target.upstream)
