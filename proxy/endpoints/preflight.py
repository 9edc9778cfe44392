"""OPTIONS before a request of a web page of another origin: what that page may send."""

from __future__ import annotations

from wellspoken.proxy.http.cors import Origins
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.relay.call import Call

_NOBODY = Origins(())


async def preflight(call: Call) -> Reply:
    """Say what the page may send. Raises RequestError 403 for one that is not in server.cors."""
    lines = (call.state.origins or _NOBODY).allow(call.request.headers)
    return call.reply(204, b"", lines, content_type=b"")
