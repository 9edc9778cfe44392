"""The yardstick: a bare aiohttp + uvloop proxy that translates nothing.

    python -m tests.bench.passthrough http://127.0.0.1:8000

It is what one writes in an hour: web.Application, one ClientSession, a body read whole, a stream
passed on piece by piece, no access log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

SESSION = web.AppKey("session", ClientSession)
UPSTREAM = web.AppKey("upstream", str)


async def forward(request: web.Request) -> web.StreamResponse:
    """Pass one request on, and its answer back."""
    body = await request.read()
    headers = {"Content-Type": request.content_type}
    url = request.app[UPSTREAM] + request.path_qs
    async with request.app[SESSION].post(url, data=body, headers=headers) as answer:
        if answer.content_length is not None:
            data = await answer.read()
            return web.Response(body=data, status=answer.status, content_type=answer.content_type)
        response = web.StreamResponse(status=answer.status)
        response.content_type = answer.content_type
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response


async def session(app: web.Application) -> AsyncIterator[None]:
    """Keep one ClientSession while the application runs."""
    async with ClientSession(
        connector=TCPConnector(limit=0), timeout=ClientTimeout(total=None)
    ) as made:
        app[SESSION] = made
        yield


async def serve(upstream: str) -> None:
    """Listen on a free port, say so, and serve until killed."""
    app = web.Application()
    app[UPSTREAM] = upstream
    app.cleanup_ctx.append(session)
    app.router.add_post("/{path:.*}", forward)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"listens on http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(serve(sys.argv[1]))
