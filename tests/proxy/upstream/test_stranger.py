"""A URL where something answers, but no LLM server: not ready, and what was found is said."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.upstream import Step, Upstream, whole
from tests.ports import free_port
from tests.proxy.conftest import CHAT, Proxy, StartProxy
from tests.proxy.upstream.test_detector import PATHS, everywhere
from tests.waiting import until

NOT_FOUND = whole(b"<html>404</html>", 404, "text/html", [("Server", "nginx/1.22.1")])
REFUSED = whole({"error": {"message": "messages is required"}}, 400)
PAGE = whole(b"<!doctype html>", 200, "text/html")
MOVED = whole(b"", 301, None, [("Location", "https://other/")])
ELSEWHERE = ["/v1/completions", "/v1/embeddings"]
ASKED = ["/v1/models", CHAT, *ELSEWHERE]


async def start(upstream: Upstream, start_proxy: StartProxy, **scripts: list[Step]) -> Proxy:
    """Start a proxy whose backend is asked what it is, and answers nothing it is known by."""
    everywhere(upstream, NOT_FOUND, [*PATHS, *ELSEWHERE])
    upstream.script(CHAT, NOT_FOUND)
    upstream.script("/health", whole({}))
    for name, script in scripts.items():
        upstream.script({"models": "/v1/models", "chat": CHAT}.get(name, f"/v1/{name}"), script)
    return await start_proxy({"url": upstream.url, "adapter": "auto"})


@pytest.mark.parametrize("script", [NOT_FOUND, PAGE, MOVED, whole({}, 405), whole({}, 501)])
async def test_what_is_no_llm_server_is_not_ready(
    upstream: Upstream, start_proxy: StartProxy, script: list[Step]
) -> None:
    proxy = await start(upstream, start_proxy, models=script, chat=script)
    status, answer = await proxy.get("/readyz")
    assert status == 503
    assert f"The backend at {upstream.url} is no LLM server" in answer["reason"]
    code = script[0].split()[1].decode() if isinstance(script[0], bytes) else ""
    assert f"GET /v1/models with {code}, POST {CHAT} with {code}, POST" in answer["reason"]


async def test_it_says_how_the_server_calls_itself(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start(upstream, start_proxy)
    assert "calls itself 'nginx/1.22.1'" in (await proxy.get("/readyz"))[1]["reason"]


@pytest.mark.parametrize(
    "scripts",
    [
        {"models": whole({"object": "list", "data": [{"id": "m"}]})},
        {"models": whole({"error": "no key"}, 401)},
        {"models": whole({"error": "later"}, 500)},
        {"chat": REFUSED},
        {"chat": whole({"detail": "no key"}, 401)},
        {"completions": REFUSED},
        {"embeddings": whole({"detail": []}, 422)},
    ],
    ids=lambda scripts: "-".join(scripts),
)
async def test_a_server_that_nothing_tells_is_ready(
    upstream: Upstream, start_proxy: StartProxy, scripts: dict[str, list[Step]]
) -> None:
    """One that has its list, an endpoint or a door. It is asked once: the mutant that does not
    remember asks again.
    """
    proxy = await start(upstream, start_proxy, **scripts)
    assert await proxy.get("/readyz") == (200, {"status": "ok"})
    asked = [request.target for request in upstream.requests if request.target in ASKED]
    proxy.service.state.readiness.forget()
    assert await proxy.get("/readyz") == (200, {"status": "ok"})
    assert [request.target for request in upstream.requests if request.target in ASKED] == asked


async def test_an_llm_server_in_its_place_is_seen_at_the_next_question(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start(upstream, start_proxy)
    assert (await proxy.get("/readyz"))[0] == 503
    upstream.script(CHAT, REFUSED)
    proxy.service.state.readiness.forget()
    assert (await proxy.get("/readyz"))[0] == 200


async def test_a_recognised_server_is_not_asked(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """TGI 1.x has no list of models, and is what its /info says."""
    everywhere(upstream, NOT_FOUND, PATHS)
    upstream.script("/info", whole({"router": "text-generation-router", "version": "1.4.5"}))
    upstream.script("/health", whole({}))
    proxy = await start_proxy({"url": upstream.url, "adapter": "auto"})
    assert (await proxy.get("/readyz"))[0] == 200
    assert CHAT not in [request.target for request in upstream.requests]


@contextlib.asynccontextmanager
async def web_server(folder: Path) -> AsyncIterator[str]:
    """A real server of files that is no LLM server: Python's own."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"),
        cwd=folder,
        stderr=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
    )

    async def listens() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return False
        writer.close()
        await writer.wait_closed()
        return True

    try:
        await until(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def test_a_real_web_server(start_proxy: StartProxy, tmp_path: Path) -> None:
    async with web_server(tmp_path) as url:
        proxy = await start_proxy({"url": url, "adapter": "auto"})
        status, answer = await proxy.get("/readyz")
        assert status == 503
        assert (
            f"The backend at {url} is no LLM server: a server that calls itself 'Simple"
            in (answer["reason"])
        )
        assert f"POST {CHAT} with 501" in answer["reason"]
        assert (await proxy.get("/v1/models"))[0] == 502
