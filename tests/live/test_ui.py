"""llama.cpp's own web page through the proxy (`ui = true`)."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.fold import fold
from tests.models.tiny import TEXT
from wellspoken.proxy.config import load
from wellspoken.proxy.config.values import ConfigError
from wellspoken.proxy.lifecycle.build import build


@pytest.fixture
def paged(tiny_model: Path) -> Iterator[str]:
    """The base URL of a llama.cpp that serves its page."""
    import xllamacpp

    params: Any = xllamacpp.CommonParams()
    params.model.path = str(tiny_model)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 512
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.ui = True
    params.verbosity = -1
    server = xllamacpp.Server(params)
    yield str(server.listening_address).rstrip("/")
    del server


async def _proxy(url: str, adapter: str, ui: bool) -> Any:
    backend = {"url": url, "adapter": adapter, "ui": ui}
    service = build(load(None, {"server": {"listen": "127.0.0.1:0"}, "backend": [backend]}, {}))
    host, port = await service.start()
    return service, f"http://{host}:{port}"


@pytest.fixture(params=["llamacpp", "auto"])
async def proxy(paged: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    service, url = await _proxy(paged, request.param, True)
    yield url
    await service.stop()


async def _get(session: ClientSession, url: str) -> tuple[int, Any, bytes]:
    async with session.get(url, headers={"Accept-Encoding": "gzip"}) as response:
        return response.status, response.headers, await response.read()


async def test_the_page_and_what_it_loads(proxy: str, paged: str) -> None:
    async with ClientSession(auto_decompress=False) as session:
        status, headers, data = await _get(session, f"{proxy}/")
        assert (status, headers["Content-Encoding"]) == (200, "gzip")
        assert data == (await _get(session, f"{paged}/"))[2]
        page = gzip.decompress(data).decode()
        assert headers["Content-Type"].startswith("text/html")
        files = re.findall(r'(?:src|href)="\.?/?([\w./-]+)"', page)
        assert any(name.endswith(".js") for name in files)
        for name in files:
            assert await _same(session, proxy, paged, f"/{name}"), name
        assert (await _get(session, f"{proxy}/props"))[0] == 200


async def _same(session: ClientSession, proxy: str, paged: str, path: str) -> bool:
    ours, theirs = await _get(session, proxy + path), await _get(session, paged + path)
    return ours[0] == theirs[0] == 200 and ours[2] == theirs[2]


async def test_what_the_page_asks(proxy: str) -> None:
    """The request of b11549's page: no model, no limit, keys of its own; checked in its source."""
    asked = {
        "messages": [{"content": "hi", "role": "user"}],
        "return_progress": True,
        "sse_ping_interval": 1,
        "stream": True,
        "reasoning_format": "auto",
        "reasoning_control": True,
        "max_tokens": -1,
        "temperature": 0,
        "timings_per_token": True,
    }
    async with ClientSession() as session:
        async with session.post(f"{proxy}/v1/chat/completions", json=asked) as response:
            data = await response.read()
    assert response.status == 200 and data.endswith(b"data: [DONE]\n\n")
    folded = fold(data)["choices"][0]
    assert (folded["message"]["content"], folded["finish_reason"]) == (TEXT, "stop")
    assert b'"timings":{' in data


@pytest.mark.parametrize(
    "path", ["/slots", "/metrics.json", "/lora-adapters", "/tools", "/_app", "/a/b.js", "/props/"]
)
async def test_other_paths_stay_closed(proxy: str, path: str) -> None:
    async with ClientSession() as session:
        async with session.get(proxy + path) as response:
            assert response.status == 404
            assert (await response.json())["error"]["code"] == "unknown_url"


async def test_only_get(proxy: str) -> None:
    async with ClientSession() as session:
        async with session.post(f"{proxy}/props", json={}) as response:
            assert response.status == 404


async def test_no_page_unless_asked_for(paged: str) -> None:
    service, url = await _proxy(paged, "llamacpp", False)
    async with ClientSession() as session:
        async with session.get(url + "/props") as response:
            assert response.status == 404
        async with session.get(url + "/") as response:
            assert (await response.json())["name"] == "wellspoken"
    await service.stop()


def test_one_page_at_most() -> None:
    backends = [{"name": n, "url": "x:1", "models": [n], "ui": True} for n in "ab"]
    with pytest.raises(ConfigError, match="two have ui = true"):
        load(None, {"backend": backends}, {})
