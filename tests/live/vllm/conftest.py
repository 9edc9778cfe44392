"""The proxy in this process, in front of a real vLLM on the CPU, which runs in a venv of its own.

These tests take minutes: they are collected when WELLSPOKEN_LIVE_VLLM names the executable `vllm`,
as `make live-vllm` sets it, or when the command line names this folder. With
WELLSPOKEN_LIVE_VLLM_URL the tests share a server that runs already, as `Server` would start it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import ClientSession

from tests.live.vllm.asking import Asking
from tests.live.vllm.server import Server
from tests.models.tiny_hf import Tokens, write_model
from wellspoken.adapters.servers.known.vllm import VLLM
from wellspoken.adapters.servers.versions import for_version
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

HERE = Path(__file__).parent
# Read now, since the tests' environment has none of ours.
EXECUTABLE = os.environ.get("WELLSPOKEN_LIVE_VLLM") or None
RUNNING = os.environ.get("WELLSPOKEN_LIVE_VLLM_URL") or None
SECONDS = 240  # a test that hangs fails after this long; the server's start does not count


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out of a run that did not ask for it."""
    asked = [Path(arg.partition("::")[0]).resolve() for arg in config.args]
    named = any(path == HERE or HERE in path.parents for path in asked)
    return None if EXECUTABLE or named else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every asynchronous test of this folder a time limit, and put those that share last.

    So at most one server runs at a time in each process; `make live-vllm` starts two of them.
    """
    items.sort(key=lambda item: "vllm" in getattr(item, "fixturenames", ()))
    for item in items:
        if (
            isinstance(item, pytest.Function)
            and item.path.is_relative_to(HERE)
            and inspect.iscoroutinefunction(item.obj)
        ):
            item.obj = _limited(item.obj)


def _limited(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(SECONDS):
            await test(*args, **kwargs)

    return limited


@pytest.fixture(scope="session")
def executable() -> Path:
    """The `vllm` command; skips where there is none, fails where it was promised."""
    if EXECUTABLE is None:
        pytest.skip("WELLSPOKEN_LIVE_VLLM names no vllm executable: run `make live-vllm`")
    path = Path(EXECUTABLE).resolve()
    if not path.is_file():
        pytest.fail(f"WELLSPOKEN_LIVE_VLLM={EXECUTABLE}: no such file; run `make live-vllm`")
    return path


@pytest.fixture(scope="session")
def tokens() -> Tokens:
    """The vocabulary of the model."""
    return Tokens()


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model as a Hugging Face folder."""
    return write_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def victim(
    executable: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A vLLM that the test may kill."""
    server = Server(executable, model_folder, tmp_path_factory.mktemp("vllm"))
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def vllm(
    executable: Path, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The base URL of the vLLM that most tests share."""
    if RUNNING is not None:
        yield RUNNING
        return
    server = Server(executable, model_folder, tmp_path_factory.mktemp("vllm"))
    try:
        server.wait()
        yield server.url
    finally:
        server.stop()


StartProxy = Callable[..., Awaitable[str]]


@pytest.fixture
async def start_proxy() -> AsyncIterator[StartProxy]:
    """Start a proxy: `await start_proxy(url, timeouts={...}, bounds="backend", ...)`.

    Keys but `timeouts` are the backend's, and `version`, by whose rows the proxy then goes.
    """
    services = []

    async def start(
        url: str,
        timeouts: dict[str, float] | None = None,
        version: str | None = None,
        **backend: Any,
    ) -> str:
        tables: dict[str, Any] = {
            "server": {"listen": "127.0.0.1:0"},
            "timeouts": timeouts or {},
            "backend": [{"url": url, "adapter": "vllm", **backend}],
        }
        services.append(build(load(None, tables, {})))
        if version is not None:
            services[-1].state.router.targets[0].backend = for_version(VLLM, version)
        host, port = await services[-1].start()
        return f"http://{host}:{port}"

    yield start
    for service in services:
        await service.stop()


@pytest.fixture
async def proxy(vllm: str, start_proxy: StartProxy) -> str:
    """The base URL of a proxy in front of the shared vLLM."""
    return await start_proxy(vllm)


@pytest.fixture
async def ask(vllm: str, proxy: str) -> AsyncIterator[Asking]:
    """Ask vLLM itself and the proxy the same, and compare."""
    async with ClientSession() as session:
        yield Asking(session, vllm, proxy)


@pytest.fixture(params=[False, True], ids=["default", "strict"])
async def sdk(proxy: str, request: pytest.FixtureRequest) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, default and with strict validation of what it gets."""
    async with openai.AsyncOpenAI(
        base_url=f"{proxy}/v1",
        api_key="none",
        max_retries=0,
        timeout=60,
        _strict_response_validation=request.param,
    ) as client:
        yield client
