"""Replays the answers of old vLLM servers (tests/fixtures/demo), one model name a version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web

ANSWERS = Path(__file__).parents[1] / "fixtures" / "demo"
OLDEST, NEWER = "vllm-0.3.3", "vllm-0.4.2"


async def chat(request: web.Request) -> web.Response:
    wanted = await request.json()
    if wanted["model"] not in (OLDEST, NEWER):
        return web.json_response({"message": f"no model {wanted['model']}"}, status=404)
    streamed = bool(wanted.get("stream"))
    file = ANSWERS / f"{wanted['model']}.{'sse' if streamed else 'json'}"
    kind = "text/event-stream" if streamed else "application/json"
    return web.Response(body=file.read_bytes(), content_type=kind)


async def models(request: web.Request) -> web.Response:
    data = [{"id": name, "object": "model", "owned_by": "vllm"} for name in (OLDEST, NEWER)]
    return web.json_response({"object": "list", "data": data})


@asynccontextmanager
async def old_vllm() -> AsyncIterator[str]:
    """Serve on a port of its own; gives the base URL."""
    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat), web.get("/v1/models", models)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
