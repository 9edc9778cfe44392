"""Answers of a scripted upstream through the proxy as responses, held to the checker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.responses import (
    check_response,
    check_response_error,
    check_response_stream,
    comparable_response,
    fold_response_stream,
)
from tests.corpus import Fixture, fixtures
from tests.fakes.upstream import Upstream, stream, whole
from tests.proxy.conftest import Proxy, StartProxy
from tests.reading import facts_of
from tests.responses_replay import as_response_request

Json = dict[str, Any]
BY_NAME = {f.name: f for f in fixtures()}

# a body and, where there is one, the stream of the same question
ANSWERS = {
    "text": ("llamacpp/b11549-chat_plain.json", "llamacpp/b11549-chat_stream.sse"),
    "logprobs": ("llamacpp/b11549-chat_logprobs.json", "llamacpp/b11549-chat_stream_logprobs.sse"),
    "a part of a character": ("llamacpp/b11549-x_cut.json", "llamacpp/b11549-x_cut_stream.sse"),
    "a call": ("llamacpp/b11549-x_tool.json", "llamacpp/b11549-x_tool_stream.sse"),
    "vllm": ("vllm/0.32.0-chat_logprobs.json", "vllm/0.32.0-chat_stream_logprobs.sse"),
    "old vllm": ("vllm/0.4.2-legacy-length.json", "vllm/0.4.2-legacy-length.sse"),
}


def script(upstream: Upstream, fixture: Fixture) -> None:
    """Let the upstream answer as the fixture's did."""
    if fixture.streamed:
        pieces = [piece + b"\n\n" for piece in fixture.raw.split(b"\n\n") if piece.strip()]
        upstream.scripts = [stream(*pieces)]
    else:
        upstream.scripts = [whole(fixture.raw, fixture.status)]


async def ask(proxy: Proxy, asked: Json) -> tuple[int, bytes]:
    """POST a request for a response; return status and body."""
    async with proxy.session.post(proxy.url("/v1/responses"), json=asked) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_proxied_response_conforms(
    upstream: Upstream, start_proxy: StartProxy, name: str
) -> None:
    proxy = await start_proxy(upstream, bounds="backend")  # some limits are below OpenAI's
    whole_one, streamed = (BY_NAME[each] for each in ANSWERS[name])
    asked = as_response_request(whole_one.request, stream=False)
    script(upstream, whole_one)
    status, body = await ask(proxy, asked)
    assert status == 200, body
    assert check_response(body, asked, facts_of(whole_one)) == []
    asked = as_response_request(streamed.request, stream=True)
    script(upstream, streamed)
    status, sent = await ask(proxy, asked)
    assert status == 200, sent
    assert check_response_stream(sent, asked, facts_of(streamed)) == []
    folded = comparable_response(fold_response_stream(sent), usage=False)
    assert folded == comparable_response(json.loads(body), usage=False)
    assert [request.target for request in upstream.requests] == ["/v1/chat/completions"] * 2


@pytest.mark.parametrize("place", [0, 1], ids=["of a body", "of a stream"])
@pytest.mark.parametrize("name", ANSWERS)
async def test_a_kept_response_conforms(
    upstream: Upstream, start_proxy: StartProxy, name: str, place: int
) -> None:
    proxy = await start_proxy(upstream, bounds="backend")
    fixture = BY_NAME[ANSWERS[name][place]]
    asked = as_response_request(fixture.request, stream=bool(place))
    script(upstream, fixture)
    _, sent = await ask(proxy, asked)
    given = fold_response_stream(sent) if place else json.loads(sent)
    url = proxy.url(f"/v1/responses/{given['id']}")
    async with proxy.session.get(url) as response:
        kept = await response.read()
    assert json.loads(kept) == given
    assert check_response(kept, asked, facts_of(fixture)) == []
    async with proxy.session.get(url, params={"stream": "true"}) as response:
        again = await response.read()
    assert check_response_stream(again, asked, facts_of(fixture)) == []
    assert fold_response_stream(again) == given


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_an_answer_that_breaks_off_is_a_failure(
    upstream: Upstream, start_proxy: StartProxy, wants_stream: bool
) -> None:
    fixture = BY_NAME["llamacpp/b11549-chat_stream.sse"]
    events = fixture.raw.split(b"\n\n")
    upstream.scripts = [stream(*(event + b"\n\n" for event in events[:4]))]
    proxy = await start_proxy(upstream)
    asked = as_response_request(fixture.request, stream=wants_stream)
    status, sent = await ask(proxy, asked)
    if not wants_stream:
        assert check_response_error(sent, status) == []
        return
    assert status == 200
    assert check_response_stream(sent, asked) == []
    assert fold_response_stream(sent)["status"] == "failed"


async def test_a_backend_s_refusal_is_an_error_in_the_client_s_names(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    fixture = BY_NAME["llama-cpp-python/0.3.35-context.json"]
    script(upstream, fixture)
    proxy = await start_proxy(upstream)
    for wants_stream in (False, True):
        asked = as_response_request(fixture.request, stream=wants_stream)
        status, sent = await ask(proxy, asked)
        assert status == fixture.status
        assert check_response_error(sent, status) == []
