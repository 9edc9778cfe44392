"""The proxy in this process, in front of a real llama.cpp in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.server import Service


@pytest.fixture(params=["spm", "bpe"])
def llamacpp(request: pytest.FixtureRequest) -> str:
    """The base URL of llama.cpp on the model with this tokenizer."""
    name = "llama_server" if request.param == "spm" else "llama_server_bpe"
    return str(request.getfixturevalue(name))


def in_front_of(url: str, adapter: str) -> Service:
    """Return a proxy that waits for the counts of a server that other work keeps from answering."""
    tables = {
        "server": {"listen": "127.0.0.1:0"},
        "timeouts": {"probe": 300},
        "backend": [{"url": url, "adapter": adapter}],
    }
    return build(load(None, tables, {}))


@pytest.fixture(params=["llamacpp"])
async def proxy(llamacpp: str, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """The base URL of a proxy in front of it; parametrize indirectly for another adapter."""
    service = in_front_of(llamacpp, request.param)
    host, port = await service.start()
    yield f"http://{host}:{port}"
    await service.stop()


@pytest.fixture
async def storing(llama_server: str, tmp_path: Path) -> AsyncIterator[str]:
    """The base URL of a proxy in front of llama.cpp, which stores what it is asked to."""
    tables = {
        "server": {"listen": "127.0.0.1:0"},
        "backend": [{"url": llama_server, "adapter": "llamacpp"}],
        "store": {"path": str(tmp_path / "store.db")},
    }
    service = build(load(None, tables, {}))
    assert service.state.store is not None
    service.state.store.start()
    host, port = await service.start()
    yield f"http://{host}:{port}"
    await service.stop()
    await service.state.store.close()
