"""A real vLLM's other endpoints, which pass through the proxy byte for byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.live.tee import Tee
from tests.live.vllm.conftest import StartProxy

Json = dict[str, Any]
TALK = [{"role": "user", "content": "Hello"}]
PASSED: list[tuple[str, Json]] = [
    ("/tokenize", {"model": "nice", "prompt": "Hello"}),
    ("/detokenize", {"model": "nice", "tokens": [264]}),
    ("/v1/responses", {"model": "nice", "input": "Hello", "max_output_tokens": 4}),
    ("/v1/responses", {"model": "nice", "input": "Hello", "max_output_tokens": 4, "stream": True}),
    ("/v1/messages", {"model": "nice", "messages": TALK, "max_tokens": 4}),
    ("/v1/messages", {"model": "nice", "messages": TALK, "max_tokens": 4, "stream": True}),
    ("/v1/messages/count_tokens", {"model": "nice", "messages": TALK}),
]


@pytest.mark.parametrize(("path", "body"), PASSED)
async def test_an_endpoint_passes_byte_for_byte(
    vllm: str, start_proxy: StartProxy, path: str, body: Json
) -> None:
    async with Tee(vllm) as tee, ClientSession() as session:
        proxy = await start_proxy(tee.here, aliases={"nice": "tiny"}, responses="pass")
        async with session.post(proxy + path, json=body) as response:
            data = await response.read()
            assert response.status == 200, data
            streamed = response.content_type == "text/event-stream"
        sent = json.dumps(body).replace('"nice"', '"tiny"').encode()
        assert (tee.body, tee.request_body) == (data, sent)
    assert streamed == bool(body.get("stream"))
    assert (b"event: " in data) == streamed


async def test_errors_of_the_two_families(vllm: str, start_proxy: StartProxy) -> None:
    async with Tee(vllm) as tee, ClientSession() as session:
        proxy = await start_proxy(tee.here)
        wrong = {"model": "tiny", "messages": TALK, "max_tokens": -1}
        async with session.post(f"{proxy}/v1/messages", json=wrong) as response:
            assert (response.status, await response.read()) == (400, tee.body)
        for path in ("/tokenize", "/v1/embeddings"):  # the latter is not there for this model
            async with session.post(proxy + path, json={"model": "tiny", "input": "x"}) as response:
                error = (await response.json())["error"]
                assert response.status in (400, 404)
                assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/pause", "/sleep", "/invocations", "/v1/load_lora_adapter"])
async def test_what_administers_the_server_is_not_reached(
    vllm: str, start_proxy: StartProxy, path: str
) -> None:
    async with Tee(vllm) as tee, ClientSession() as session:
        proxy = await start_proxy(tee.here)
        async with session.post(proxy + path, json={}) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (
                404,
                "unknown_url",
            )
        assert tee.asked == b""
