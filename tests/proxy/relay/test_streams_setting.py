"""A backend that only streams, or never does: clients get what they ask for all the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance import Request, check_body, check_stream
from tests.conforming import MODEL, body, chunk, finish, message, role, sse
from tests.fakes.upstream import Upstream, stream, whole
from tests.fold import fold
from tests.proxy.conftest import CHAT, StartProxy

Json = dict[str, Any]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CHUNKS = [role(), chunk({"content": "Hel"}), chunk({"content": "lo"}), finish()]
COUNTED = {**chunk({}), "choices": [], "usage": USAGE}
COMPLETIONS = "/v1/completions"
TEXT = {"id": "cmpl-12345678", "object": "text_completion", "created": 1_700_000_000}


def piece(text: str, reason: str | None = None) -> Json:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    return {**TEXT, "model": MODEL, "choices": [choice]}


async def test_a_body_from_a_backend_that_only_streams(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.script(CHAT, stream(sse([*CHUNKS, COUNTED])))
    proxy = await start_proxy(upstream, streams="always")
    async with await proxy.chat() as response:
        data = await response.read()
        assert response.status == 200 and response.content_type == "application/json"
    assert check_body(data, Request(model=MODEL)) == []
    found = json.loads(data)
    assert found["choices"][0]["message"]["content"] == "Hello"
    assert found["usage"] == USAGE
    sent = upstream.requests[0].json()
    assert sent["stream"] is True and sent["stream_options"] == {"include_usage": True}


async def test_its_failures_have_a_status(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(CHAT, stream(sse(CHUNKS[:2], done=False)))
    proxy = await start_proxy(upstream, streams="always")
    error = await proxy.error(502)
    assert error["type"] == "server_error"


async def test_a_completion_from_a_backend_that_only_streams(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    events = [piece("Hel"), piece("lo", "stop"), {**piece(""), "choices": [], "usage": USAGE}]
    upstream.script(COMPLETIONS, stream(sse(events)))
    proxy = await start_proxy(upstream, streams="always")
    asked = {"model": MODEL, "prompt": "Hi"}
    async with proxy.session.post(proxy.url(COMPLETIONS), json=asked) as response:
        found = await response.json()
    assert response.status == 200, found
    assert found["choices"][0]["text"] == "Hello" and found["usage"] == USAGE
    assert upstream.requests[0].json()["stream"] is True


@pytest.mark.parametrize("include", [True, False])
async def test_a_stream_from_a_backend_that_never_streams(
    include: bool, upstream: Upstream, start_proxy: StartProxy
) -> None:
    whole_body = body(message_content("Hello"), usage=USAGE)
    upstream.script(CHAT, whole(whole_body))
    proxy = await start_proxy(upstream, streams="never")
    more: Json = {"stream": True}
    if include:
        more["stream_options"] = {"include_usage": True}
    async with await proxy.chat(**more) as response:
        data = await response.read()
        assert response.content_type == "text/event-stream"
    request = Request(model=MODEL, include_usage=include)
    assert check_stream(data, request) == []
    folded = fold(data)
    assert folded["choices"] == whole_body["choices"]
    assert (folded.get("usage") == USAGE) is include
    sent = upstream.requests[0].json()
    assert "stream" not in sent and "stream_options" not in sent


def message_content(text: str) -> Json:
    return {"index": 0, "message": message(text), "logprobs": None, "finish_reason": "stop"}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_stops_are_cut_from_a_body_where_it_never_streams(
    path: str, upstream: Upstream, start_proxy: StartProxy
) -> None:
    """llama.cpp loses entries to a stop string, so it is not told them, nor to stream."""
    entry: Json = {"logprob": -0.5, "bytes": None, "top_logprobs": []}
    lp = {"content": [{"token": token, **entry} for token in ("Hel", "lo")]}
    asked: Json = {"model": MODEL, "stop": ["lo"]}
    if path == CHAT:
        answer = {**message_content("Hello"), "logprobs": lp}
        upstream.script(path, whole(body(answer, usage=USAGE)))
        asked |= {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True}
    else:
        answer = {"index": 0, "text": "Hello", "logprobs": lp, "finish_reason": "length"}
        upstream.script(path, whole({**TEXT, "model": MODEL, "choices": [answer], "usage": USAGE}))
        asked |= {"prompt": "Hi", "logprobs": 0}
    proxy = await start_proxy(upstream, adapter="llamacpp", streams="never")
    async with proxy.session.post(proxy.url(path), json=asked) as response:
        found = await response.json()
        assert response.status == 200, found
    (choice,) = found["choices"]
    assert (choice["message"]["content"] if path == CHAT else choice["text"]) == "Hel"
    entries = choice["logprobs"]["content" if path == CHAT else "tokens"]
    assert len(entries) == 1 and choice["finish_reason"] == "stop"
    sent = upstream.requests[-1].json()
    assert "stream" not in sent and "stop" not in sent


async def test_a_body_is_asked_for_as_a_body(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.script(CHAT, whole(body(message_content("Hello"))))
    proxy = await start_proxy(upstream)
    async with await proxy.chat() as response:
        assert response.status == 200
    assert "stream" not in upstream.requests[0].json()
