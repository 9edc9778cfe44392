"""What to call the model of a request that names none."""

from __future__ import annotations

from wellspoken.proxy.upstream.client import Upstream
from wellspoken.proxy.upstream.failures import UpstreamError
from wellspoken.proxy.upstream.listing import LIMIT, read_list
from wellspoken.proxy.upstream.target import Target


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
    path = target.backend.models_path
    name = await target.served.recall(target.server, lambda: _first_listed(upstream, path))
    return name or target.name


async def _first_listed(upstream: Upstream, path: str) -> str | None:
    try:
        status, body = await upstream.get(path, LIMIT)
    except UpstreamError:
        return None
    return next(iter((await read_list(body)).models), None) if status == 200 else None
