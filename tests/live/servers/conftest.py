"""A proxy in this process in front of several real llama.cpp, each a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.faults.servers import Server, serve
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

FULL = 1.0  # of a core
MODEL = "tiny"

Servers = Callable[..., Awaitable[list[Server]]]
InFront = Callable[..., Awaitable["Proxy"]]


class Proxy:
    """A proxy at `url`, and what it tells of itself."""

    def __init__(self, url: str, session: ClientSession) -> None:
        self.url = url
        self.session = session

    async def samples(self, name: str) -> dict[str, float]:
        """Return a metric's samples: what stands in the braces -> value."""
        async with self.session.get(f"{self.url}/metrics") as response:
            lines = (await response.text()).splitlines()
        found = (line.removeprefix(name + "{").rpartition("} ") for line in lines if name in line)
        return {labels: float(value) for labels, mark, value in found if mark}

    async def chat(self, content: str = "Say hello.", **more: Any) -> tuple[int, str, str]:
        """Ask for an answer; return its status, who gave it, and its text with all around it."""
        messages = [{"role": "user", "content": content}]
        asked = {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, **more}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=asked) as response:
            text = await response.text()
            return response.status, response.headers.get("x-wellspoken-backend", ""), text

    async def counts(self, name: str) -> dict[str, float]:
        """Return the sums of a metric by backend."""
        sums: dict[str, float] = {}
        for labels, value in (await self.samples(name)).items():
            backend = labels.partition('backend="')[2].partition('"')[0]
            if backend:
                sums[backend] = sums.get(backend, 0.0) + value
        return sums


@pytest.fixture
async def servers(tiny_model: Path) -> AsyncIterator[Servers]:
    """Start so many real servers, with numbers of llama.cpp's."""
    async with AsyncExitStack() as stack:

        async def start(count: int, **numbers: int) -> list[Server]:
            return await stack.enter_async_context(serve(tiny_model, [FULL] * count, **numbers))

        yield start


@pytest.fixture
async def in_front() -> AsyncIterator[InFront]:
    """Start a proxy of a configuration: its backends, and its other tables by name."""
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(ClientSession())

        async def start(*backends: dict[str, Any], **tables: Any) -> Proxy:
            listed = [{"adapter": "llamacpp", "name": "llama", **each} for each in backends]
            server = {"listen": "127.0.0.1:0"}
            service = build(load(None, {"server": server, "backend": listed, **tables}, {}))
            store = service.state.store
            if store is not None:
                store.start()
                stack.push_async_callback(store.close)
            stack.push_async_callback(service.stop)
            host, port = await service.start()
            service.looks.watch(service.state.router.targets)
            return Proxy(f"http://{host}:{port}", session)

        yield start
