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
    """Say whether requests would be answered, and if not, why."""
    reason = await call.state.why_unready()
    if reason:
        return call.reply(503, _encode({"status": "unavailable", "reason": reason}))
    return call.reply(200, b'{"status":"ok"}')


async def metrics(call: Call) -> Reply:
    """Return the metrics in Prometheus' text format."""
    return call.reply(200, await call.state.expose(), content_type=CONTENT_TYPE)


async def openapi(call: Call) -> Reply:
    """Return the OpenAPI document of this proxy, as it is shipped."""
    return call.reply(200, _document())


@cache
def _document() -> bytes:
    return Path(__file__).with_name("openapi.json").read_bytes()
