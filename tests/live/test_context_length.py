"""A real llama.cpp, new and old: the context length that the proxy tells is the one that is served.

It is that of one slot: what `-c` says is shared by the slots of `-np`, and the model was trained
for another length (2048).
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live import test_parameters_own as own
from wellspoken.proxy.config import load
from wellspoken.proxy.lifecycle.build import build

NAMES = ("max_model_len", "context_length", "context_window")
ADAPTERS = ["llamacpp", "llamacpp-native", "auto"]


@asynccontextmanager
async def in_front_of(url: str, **backend: Any) -> AsyncIterator[ClientSession]:
    """Start a proxy in front of a server; give a client of it."""
    settings = {"server": {"listen": "127.0.0.1:0"}, "backend": [{"url": url, **backend}]}
    service = build(load(None, settings, {}))
    host, port = await service.start()
    try:
        async with ClientSession(f"http://{host}:{port}") as session:
            yield session
    finally:
        await service.stop()


async def told(client: ClientSession, name: str) -> int:
    """Return the length that the proxy tells of a model, the same under each name."""
    async with client.get(f"/v1/models/{name}") as response:
        model = await response.json()
        assert response.status == 200, model
    (length,) = {*(model[key] for key in NAMES), model["meta"]["n_ctx"]}
    async with client.get("/v1/models") as response:
        listed = {each["id"]: each for each in (await response.json())["data"]}
    # The older build says the time of each request.
    assert listed[name] == model | {"created": listed[name]["created"]}
    return int(length)


async def complete(client: ClientSession, tokens: int) -> tuple[int, Any]:
    """Return the status and the answer of a prompt of so many tokens."""
    asked = {"model": "tiny", "prompt": [300] * tokens, "max_tokens": 1}
    async with client.post("/v1/completions", json=asked) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("build_of", ["newest", "older"])
@pytest.mark.parametrize(("context", "slots"), [(512, 1), (1024, 2)])
async def test_the_length_told_is_the_length_served(
    build_of: str, context: int, slots: int, tiny_model: Path
) -> None:
    """Mutants: GET /props is not asked (the older build), n_ctx_train is taken for it."""
    python = Path(sys.executable) if build_of == "newest" else own.OLD / "bin" / "python"
    if not python.exists():
        pytest.skip("no older llama.cpp here: make .venv-llamacpp-old/.installed")
    with own.serving(python, tiny_model, n_ctx=context, n_parallel=slots) as url:
        for adapter in ADAPTERS:
            aliases = {"gpt-4o": "tiny"}
            async with in_front_of(url, adapter=adapter, aliases=aliases) as client:
                length = await told(client, "tiny")
                assert length == context // slots
                assert await told(client, "gpt-4o") == length
                status, answer = await complete(client, length - 1)
                assert (status, answer.get("error")) == (200, None)
                status, answer = await complete(client, length + 1)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            said = f"maximum context length is {length} tokens"
            assert said in answer["error"]["message"], answer
            assert f"your prompt resulted in {length + 1} tokens" in answer["error"]["message"]
            assert answer["error"]["param"] == "prompt"
