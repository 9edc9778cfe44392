"""TGI and Ollama behind the proxy: what they lack and the proxy does for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.upstream import DONE, Upstream, event, stream, whole
from tests.fold import fold_completion
from tests.proxy.conftest import Proxy, StartProxy, envelope

Json = dict[str, Any]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
HEAD = {"id": "", "object": "text_completion", "created": 1_760_000_000, "model": "m"}


def text(said: str, reason: str | None = "stop") -> Json:
    choice = {"text": said, "index": 0, "logprobs": None, "finish_reason": reason}
    return {**HEAD, "choices": [choice], "usage": USAGE}


async def asked(proxy: Proxy, path: str = "/v1/completions", **more: Any) -> tuple[int, bytes]:
    fields = {"model": "m", "prompt": "Say:", **more}
    async with await proxy.session.post(proxy.url(path), json=fields) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("adapter", ["tgi", "ollama"])
async def test_an_echo_is_the_prompts_text(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    upstream.scripts = [whole(text(" Hi!"))]
    proxy = await start_proxy(upstream, adapter=adapter)
    status, data = await asked(proxy, echo=True)
    assert status == 200
    assert json.loads(data)["choices"][0]["text"] == "Say: Hi!"
    (request,) = upstream.requests
    assert "echo" not in request.json()


@pytest.mark.parametrize("adapter", ["tgi", "ollama"])
async def test_several_choices_of_several_prompts(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    upstream.scripts = [whole(text(f" {at}")) for at in range(4)]
    proxy = await start_proxy(upstream, adapter=adapter)
    status, data = await asked(proxy, prompt=["a", "b"], n=2, seed=7)
    assert status == 200
    found = json.loads(data)
    assert sorted(x["text"] for x in found["choices"]) == [" 0", " 1", " 2", " 3"]
    sent = [request.json() for request in upstream.requests]
    assert sorted((x["prompt"], x["seed"]) for x in sent) == [
        ("a", 7),
        ("a", 8),
        ("b", 7),
        ("b", 8),
    ]
    assert found["usage"] == {"prompt_tokens": 6, "completion_tokens": 8, "total_tokens": 14}


async def test_tgis_stream_ends_as_it_should(upstream: Upstream, start_proxy: StartProxy) -> None:
    """Its finish_reason is "" until "eos_token", and its last chunk has the usage, unasked."""
    parts = [text("Hi", ""), text("!", ""), text("</s>", "eos_token")]
    for part in parts[:2]:
        del part["usage"]
    upstream.scripts = [stream(b"".join(map(event, parts)) + DONE)]
    proxy = await start_proxy(upstream, adapter="tgi")
    fields: Json = {"stream": True, "stream_options": {"include_usage": True}}
    status, data = await asked(proxy, **fields)
    assert status == 200
    found = fold_completion(data)
    assert (found["choices"][0]["finish_reason"], found["usage"]) == ("stop", USAGE)
    assert "stream_options" not in upstream.requests[0].json()


async def test_a_stop_is_enforced_where_ollama_would_lose_logprobs(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    def chunk(said: str, reason: str | None = None) -> Json:
        entry = {"token": said, "logprob": -0.5, "bytes": list(said.encode())}
        choice: Json = {"index": 0, "delta": {"content": said}, "finish_reason": reason}
        if reason is None:
            choice["logprobs"] = {"content": [entry]}
        return {**HEAD, "object": "chat.completion.chunk", "choices": [choice]}

    parts = [chunk(said) for said in ("one", " two", " three", " four")] + [chunk("", "stop")]
    upstream.scripts = [stream(b"".join(map(event, parts)) + DONE)]
    proxy = await start_proxy(upstream, adapter="ollama")
    more = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "stop": " three"}
    status, data = await asked(proxy, "/v1/chat/completions", prompt=None, **more)
    assert status == 200
    choice = json.loads(data)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "stop")
    assert [row["token"] for row in choice["logprobs"]["content"]] == ["one", " two"]
    sent = upstream.requests[0].json()
    assert sent["stream"] is True and "stop" not in sent


@pytest.mark.parametrize("adapter", ["tgi", "ollama"])
async def test_what_is_refused_never_reaches_the_server(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    proxy = await start_proxy(upstream, adapter=adapter)
    status, data = await asked(proxy, logprobs=1)
    error = envelope(data.decode())
    assert (status, error["param"], error["code"]) == (400, "logprobs", "unsupported_parameter")
    assert not upstream.requests
