"""What a backend's data declare: one choice an answer, one request at a time, bare streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.answers import choice, completion, scored
from tests.conformance import Request, check_body, check_stream
from tests.conforming import MODEL
from tests.fakes.upstream import Gate, Upstream, whole
from tests.proxy.conftest import StartProxy, envelope

Json = dict[str, Any]
HI = {"content": [{"token": "Hi", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}


def answer(text: str, **more: Any) -> Json:
    return completion(choice(text, **more), model=MODEL)


async def test_a_backend_that_gives_one_choice_is_asked_one_after_the_other(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *whole(answer("one"))], whole(answer("two"))]
    proxy = await start_proxy(upstream, adapter="llama-cpp-python")
    asking = asyncio.create_task(proxy.chat(n=2, seed=7))
    await gate.reached.wait()
    assert len(upstream.requests) == 1  # another would end it (llama-cpp-python's issue #867)
    gate.open()
    async with await asking as response:
        data = await response.read()
    assert check_body(data, Request(model=MODEL, n=2)) == []
    found = json.loads(data)
    assert [x["message"]["content"] for x in found["choices"]] == ["one", "two"]
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}
    assert [x.json()["seed"] for x in upstream.requests] == [7, 8]
    assert not any("n" in x.json() for x in upstream.requests)


async def test_what_its_streams_lack_comes_from_a_body(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(answer("Hi", logprobs=HI))]
    proxy = await start_proxy(upstream, adapter="llama-cpp-python")
    asked: Json = {"stream": True, "logprobs": True, "stream_options": {"include_usage": True}}
    async with await proxy.chat(**asked) as response:
        data = await response.read()
    request = Request(model=MODEL, logprobs=True, include_usage=True)
    assert check_stream(data, request) == []
    sent = upstream.requests[0].json()
    assert not {"stream", "stream_options"} & sent.keys() and sent["logprobs"] is True


async def test_a_stream_without_logprobs_stays_one(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(answer("Hi"))]
    proxy = await start_proxy(upstream, adapter="llama-cpp-python")
    async with await proxy.chat(stream=True) as response:
        await response.read()
    assert upstream.requests[0].json()["stream"] is True


async def test_token_ids_where_prompts_are_texts(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream, adapter="llama-cpp-python")
    for prompt, more, param in (
        ([1, 2], {}, "prompt"),
        ("a", {"echo": True, "max_tokens": 0}, "max_tokens"),
    ):
        asked = {"model": MODEL, "prompt": prompt, **more}
        async with proxy.session.post(proxy.url("/v1/completions"), json=asked) as response:
            error = envelope(await response.read())
        assert (response.status, error["param"]) == (400, param)
        assert error["code"] == "unsupported_parameter"
    assert upstream.requests == []


async def test_a_value_that_is_the_best_alternatives(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """cortex.llamacpp gives each entry its best alternative's; the others' adapters keep it."""
    row = {**HI["content"][0], "bytes": [72, 105]}
    row["top_logprobs"] = [{"token": "Ho", "logprob": -0.5, "bytes": [72, 111]}]
    for adapter, value in (("cortex", -9999.0), ("vllm", -0.5)):
        upstream.scripts = [whole(answer("Hi", logprobs={"content": [row], "refusal": None}))]
        proxy = await start_proxy(upstream, adapter=adapter)
        wanted = {k: v for k, v in scored(1).items() if k in ("logprobs", "top_logprobs")}
        async with await proxy.chat(**wanted) as response:
            found = await response.json()
        assert found["choices"][0]["logprobs"]["content"][0]["logprob"] == value
