"""What machines look at: whether the process lives, whether it is ready, metrics, OpenAPI."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.metrics.service import CONTENT_TYPE
from wellspoken.proxy.relay.call import Call

_encode = msgspec.json.Encoder().encode


async def livez(call: Call) -> Reply:
    """Say that the process runs, whatever its backends do."""
    return call.reply(200, b'{"status":"ok"}')


async def readyz(call: Call) -> Reply:
    """Say whether requests would be answered; if not, why, to who may know about the proxy.

    Where the store is, other machines are told only behind a key of `auth.admin`.
    """
    state = call.state
    in_full = state.is_private or len(state.admin) > 0
    return await _tell_readiness(call, state.config.server.admin is None, in_full)


async def readyz_in_full(call: Call) -> Reply:
    """Say the same at `server.admin`, and why."""
    return await _tell_readiness(call, True, True)


async def _tell_readiness(call: Call, tells: bool, in_full: bool) -> Reply:
    """Say it; `tells`: why not, what else is in trouble, and how each of several servers is, unless
    that needs a key.
    """
    state = call.state
    reason, warning = await state.why_unready(in_full=in_full), state.counters.trouble
    store = state.store_trouble(in_full=in_full)
    found: dict[str, object] = {"status": "unavailable" if reason else "ok"}
    if tells and state.admin.admits(call.request.headers):
        found |= {"reason": reason} if reason else {}
        found |= {"warning": f"{warning}: requests pass uncounted"} if warning else {}
        found |= {"store": store} if store not in ("", reason) else {}
        found |= {"backends": states} if (states := state.router.tell_states()) else {}
    return call.reply(503 if reason else 200, _encode(found))


async def metrics(call: Call) -> Reply:
    """Return the metrics in Prometheus' text format."""
    return call.reply(200, await call.state.expose(), content_type=CONTENT_TYPE)


async def openapi(call: Call) -> Reply:
    """Return the OpenAPI document of this proxy, as it is shipped."""
    return call.reply(200, _document())


@cache
def _document() -> bytes:
    return Path(__file__).with_name("openapi.json").read_bytes()
