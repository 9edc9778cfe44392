"""A server's own web page through the proxy: its files and its safe read paths (`ui = true`).

Only GET, and only paths that the server's adapter names: the page's files, and what it reads to
show itself. Nothing of the client's request goes along but whether it takes gzip; what the page
then asks of the model goes through the ordinary endpoints and is translated.
"""

from __future__ import annotations

import re

from wellspoken.proxy.balance.router import Router
from wellspoken.proxy.http.responses import Reply
from wellspoken.proxy.relay.call import Call, UnknownUrl
from wellspoken.proxy.relay.send import begin_pace, enter_engine, reach
from wellspoken.proxy.upstream.target import Target

KEPT = (
    "cache-control",
    "content-encoding",
    "cross-origin-embedder-policy",
    "cross-origin-opener-policy",
    "etag",
)
"""Headers of the page's files that it needs to work."""
_LIMIT = 32 * 1024 * 1024
_FILE = re.compile(r"/(_app/.+|[^/]+\.\w+)?", re.ASCII)


def target_of(router: Router) -> Target | None:
    """Return the target whose page is shown, None if no route shows one."""
    return next((target for target in router.targets if target.settings.ui), None)


def is_file(path: str) -> bool:
    """Say whether a path is a file of a page, which needs no key, and not what the page reads."""
    return _FILE.fullmatch(path) is not None


async def page(call: Call) -> Reply:
    """Return a file of the page as the server has it. Raises UnknownUrl, UpstreamError."""
    target = target_of(call.state.router)
    if target is None:
        raise UnknownUrl
    await target.ready()
    pattern = target.backend.ui
    if pattern is None or not pattern.fullmatch(call.path):
        raise UnknownUrl
    call.route(target)
    gzip = "gzip" in call.request.headers.get("Accept-Encoding", "")
    timeouts = call.state.config.timeouts
    await enter_engine(call, target)
    answer = await reach(
        call,
        target,
        lambda upstream, _: upstream.open(
            "GET",
            call.path,
            extra=b"Accept-Encoding: gzip\r\n" if gzip else b"Accept-Encoding: identity\r\n",
            first=timeouts.first_token_body,
            between=timeouts.between_chunks,
            pace=begin_pace(call, False),
            coded=True,
        ),
    )
    data = await answer.read(_LIMIT)
    lines = b"X-Content-Type-Options: nosniff\r\n"
    for name in KEPT:
        value = answer.headers.get(name, "")
        if value and value.isascii() and value.isprintable():
            lines += f"{name}: {value}\r\n".encode("ascii")
    kind = answer.content_type_header.encode("ascii", "replace")
    return call.reply(answer.status, data, lines, content_type=kind)
