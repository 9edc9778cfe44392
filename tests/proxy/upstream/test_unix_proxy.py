"""The whole proxy in front of a unix socket, with a real llama.cpp behind it too."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.clock import own_time
from tests.conformance import Request, check_body, check_stream
from tests.fakes.upstream import DONE, Stall, Upstream, stream, whole
from tests.models.tiny import TEXT
from tests.proxy.conftest import MESSAGES, StartProxy
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS
from tests.proxy.upstream.test_unix import place
from wellspoken.proxy.lifecycle.banner import banner
from wellspoken.proxy.upstream import detector

__all__ = ["place"]  # a fixture


async def test_body_and_stream_through_the_proxy(place: Path, start_proxy: StartProxy) -> None:
    async with Upstream(whole(PLAIN), stream(*EVENTS, DONE), path=place) as upstream:
        proxy = await start_proxy(f"unix://{place}")
        async with await proxy.chat() as response:
            assert await response.read() == PLAIN
        async with await proxy.chat(stream=True) as response:
            assert await response.read() == b"".join(EVENTS) + DONE
        assert (await proxy.get("/readyz"))[0] == 200
        assert upstream.opened == 3  # each on trial after the first answer of its kind
        said = await banner(proxy.service, "127.0.0.1", proxy.port)
        assert f"  backend default: unix:{place} (adapter openai)" in said.split("\n")
    place.unlink(missing_ok=True)
    error = await proxy.error(502)
    assert error["code"] == "backend_unavailable"
    assert error["message"].startswith(f"The backend at unix:{place} does not run:")


async def test_a_client_that_leaves_the_proxy_ends_the_request(
    place: Path, start_proxy: StartProxy
) -> None:
    async with Upstream([Stall()], path=place) as upstream:
        proxy = await start_proxy(upstream)
        for n, wants_stream in enumerate((False, True)):
            task = asyncio.create_task(proxy.chat(stream=wants_stream))
            seen = await upstream.request(n)
            await asyncio.sleep(0.02)
            left = own_time()
            task.cancel()
            await seen.closed.wait()
            assert seen.by_peer and seen.closed_at - left < 30  # far sooner than the answer


@contextmanager
def llamacpp(model: Path, place: Path) -> Iterator[None]:
    """A real llama.cpp on a unix socket, in this process."""
    import xllamacpp  # native: only the test that needs it pays for it

    params: Any = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"tiny"}
    params.hostnames = [str(place)]
    params.n_ctx = 2048
    params.n_parallel = 2
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.fit_params = False
    params.ui = False
    params.verbosity = -1
    server = xllamacpp.Server(params)
    assert server.listening_address == f"unix://{place}"
    assert stat.S_ISSOCK(place.stat().st_mode)
    yield
    del server


async def test_a_real_llamacpp(
    tiny_model: Path, place: Path, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked with OpenAI's SDK, through a proxy that finds out what it is; then started again."""
    monkeypatch.setattr(detector, "SECONDS", 60.0)
    proxy = await start_proxy(f"unix:{place}", adapter="auto", timeouts={"probe": 60})
    asked: dict[str, Any] = {
        "model": "tiny",
        "temperature": 0,
        "messages": MESSAGES,
        "logprobs": True,
        "top_logprobs": 2,
    }
    sdk = openai.AsyncOpenAI(
        base_url=proxy.url("/v1"), api_key="none", max_retries=0, _strict_response_validation=True
    )
    async with sdk:
        for _ in range(2):
            with llamacpp(tiny_model, place):
                body = await sdk.chat.completions.create(**asked)
                assert body.choices[0].message.content == TEXT
                pieces = [
                    chunk.choices[0].delta.content or ""
                    async for chunk in await sdk.chat.completions.create(**asked, stream=True)
                ]
                assert "".join(pieces) == TEXT
                assert [model.id async for model in sdk.models.list()] == ["tiny"]
            place.unlink(missing_ok=True)
            with pytest.raises(openai.InternalServerError, match="does not run"):
                await sdk.chat.completions.create(**asked)
        found = proxy.service.state.router.targets[0].detector
        assert found is not None and "llama.cpp" in found.described


async def test_its_answers_are_the_contracts(
    tiny_model: Path, place: Path, start_proxy: StartProxy
) -> None:
    request = Request(model="tiny", logprobs=True, k=3)
    with llamacpp(tiny_model, place):
        proxy = await start_proxy(f"unix:{place}", adapter="llamacpp")
        for streams, check in ((False, check_body), (True, check_stream)):
            more: dict[str, Any] = {
                "model": "tiny",
                "logprobs": True,
                "top_logprobs": 3,
                "stream": streams,
            }
            async with await proxy.chat(**more) as response:
                assert response.status == 200
                assert check(await response.read(), request) == []
