"""A proxy in this process, listening on a port of its own, and a time limit for every test."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientSession
from aiohttp.test_utils import BaseTestServer, TestClient
from pytest_aiohttp import AiohttpClient
from yarl import URL

from tests.conforming import MODEL
from tests.fakes.upstream import Upstream
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build
from wellspoken.proxy.lifecycle.signals import ALL
from wellspoken.proxy.server import Service
from wellspoken.proxy.store import completions, failover, queue
from wellspoken.proxy.upstream import context_lengths, detector

SECONDS = 600  # a test that hangs fails after this long
PROBE = 60.0
"""Seconds that a backend has to answer a question, in place of two: a machine may stand still."""

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hi"}]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every asynchronous test of this folder its own time limit."""
    here = __file__.rpartition("/")[0]
    for item in items:
        if isinstance(item, pytest.Function) and str(item.path).startswith(here):
            if inspect.iscoroutinefunction(item.obj):
                item.obj = _limited(item.obj)


def _limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(SECONDS):
            await test(*args, **kwargs)

    return limited


@pytest.fixture(scope="session", autouse=True)
def patient_store() -> Iterator[None]:
    """Let the store wait for a busy machine's disk and database; a test may say less."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue, "COMMIT_SECONDS", 300.0)
        for name in ("INSERT_SECONDS", "CAUGHT_UP_SECONDS"):
            patch.setattr(failover, name, 300.0)
        for name in ("OPEN_SECONDS", "READY_SECONDS"):
            patch.setattr(completions, name, 300.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def patient_questions() -> Iterator[None]:
    """Let the questions to a backend that have a limit of their own be as late; likewise."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (detector, context_lengths):
            patch.setattr(module, "SECONDS", PROBE)
        yield


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Undo what a service leaves that was ended by a signal: it ignores more of them."""
    before = {number: signal.getsignal(number) for number in ALL}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class ProxyServer(BaseTestServer):
    """A real `Service` on a port, as pytest-aiohttp's `aiohttp_client` wants it."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self.service = service

    async def start_server(self, loop: Any = None, **kwargs: Any) -> None:
        host, self.port = await self.service.start()
        if self.service.state.store is not None:
            self.service.state.store.start()
        self._root = URL(f"http://{host}:{self.port}")

    async def close(self) -> None:
        await self.service.stop()
        await self.service.state.counters.close()
        if self.service.state.store is not None:
            await self.service.state.store.close()

    async def _make_runner(self, **kwargs: Any) -> Any:
        raise AssertionError("the service listens by itself, and no runner is asked for")


@dataclass
class Proxy:
    """The proxy under test: its service, and a client session that is pointed at it."""

    service: Service
    client: TestClient[Any, Any]
    port: int

    @property
    def session(self) -> ClientSession:
        return self.client.session

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def chat(self, headers: dict[str, str] | None = None, **more: Any) -> ClientResponse:
        """POST a chat request; the keys given replace or add to a plain one's."""
        body = {"model": MODEL, "messages": MESSAGES, **more}
        return await self.session.post(self.url(CHAT), json=body, headers=headers)

    async def error(self, status: int, **more: Any) -> dict[str, Any]:
        """POST a chat request that fails with `status`; return the error object."""
        async with await self.chat(**more) as response:
            text = await response.text()
            assert response.status == status, text
            return envelope(text)

    async def get(self, path: str) -> tuple[int, Any]:
        """GET a path; return status and decoded JSON."""
        async with self.session.get(self.url(path)) as response:
            return response.status, await response.json()

    async def metrics(self) -> dict[str, float]:
        """Return the samples of a scrape by name and labels, as they are written there."""
        async with self.session.get(self.url("/metrics")) as response:
            lines = (await response.text()).splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


def envelope(text: str | bytes) -> dict[str, Any]:
    """Return the error object of OpenAI's envelope, whose form is checked on the way."""
    decoded = json.loads(text)
    assert list(decoded) == ["error"], decoded
    error: dict[str, Any] = decoded["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return error


StartProxy = Callable[..., Awaitable[Proxy]]


@pytest.fixture
def start_proxy(aiohttp_client: AiohttpClient) -> StartProxy:
    """Start a proxy: `await start_proxy(upstream, timeouts={...}, adapter="vllm", ...)`.

    Tables named server, timeouts, limits, store, health and auth (a dict) are the configuration's;
    other keys are the backend's.
    The adapter is openai where none is named: it asks a scripted upstream nothing of itself.
    """

    async def start(*upstreams: Upstream | str | dict[str, Any], **more: Any) -> Proxy:
        names = ["server", "timeouts", "limits", "store", "health"]
        names += ["auth"] if isinstance(more.get("auth"), dict) else []  # else the backend's
        tables = {name: more.pop(name, {}) for name in names}
        backends = [
            {"adapter": "openai", **one}
            if isinstance(one, dict)
            else {"adapter": "openai", "url": one if isinstance(one, str) else one.url, **more}
            for one in upstreams
        ]
        tables["server"] = {"listen": "127.0.0.1:0", **tables["server"]}
        tables["timeouts"] = {"probe": PROBE, **tables["timeouts"]}
        service = build(load(None, {**tables, "backend": backends}, {}))
        client: TestClient[Any, Any] = await aiohttp_client(ProxyServer(service))
        assert client.port is not None
        return Proxy(service, client, client.port)

    return start


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A scripted upstream without scripts; a test sets them."""
    async with Upstream() as server:
        yield server


async def raw(port: int, data: bytes, *, eof: bool = False) -> bytes:
    """Send bytes to a port and return everything that comes until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        if eof:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
