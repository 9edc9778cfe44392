"""A real llama.cpp is recognised by what it answers."""

from __future__ import annotations

from aiohttp import ClientSession

from wellspoken.adapters.servers.known.llamacpp import LLAMACPP
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build


async def test_llamacpp_is_recognised(llamacpp: str) -> None:
    flags = {"server": {"listen": "127.0.0.1:0"}, "backend": [{"url": llamacpp}]}
    service = build(load(None, flags, {}))
    target = service.state.router.targets[0]
    host, port = await service.start()
    try:
        asked = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
        async with (
            ClientSession() as session,
            session.post(f"http://{host}:{port}/v1/chat/completions", json=asked) as response,
        ):
            assert response.status == 200, await response.text()
        assert target.backend is LLAMACPP
        assert target.detected is not None
        assert target.detected.described.startswith("llama.cpp")
        assert "Server header" in target.detected.why
    finally:
        await service.stop()


async def test_it_is_recognised_behind_a_prefix_of_the_url(llamacpp: str) -> None:
    """The URL may end in /v1, as in OpenAI's clients; the questions go to the server's root."""
    service = build(load(None, {"backend": [{"url": f"{llamacpp}/v1"}]}, {}))
    target = service.state.router.targets[0]
    await target.ready()
    assert target.backend is LLAMACPP
    await service.stop()
