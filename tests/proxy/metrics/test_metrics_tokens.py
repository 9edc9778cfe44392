"""tokens_total: what answers tell of their tokens, made ones and those that pass through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.conforming import MODEL, body, chunk, finish, role
from tests.fakes.upstream import DONE, Cut, Upstream, event, stream, whole
from tests.proxy.conftest import MESSAGES, Proxy, StartProxy
from tests.proxy.endpoints.responses.asking import create
from tests.waiting import until
from wellspoken.adapters.events import Usage
from wellspoken.proxy.metrics.passing import LARGE, PassingUsage
from wellspoken.proxy.metrics.service import tokens_of

DETAILED = {
    "prompt_tokens": 30,
    "completion_tokens": 12,
    "total_tokens": 42,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 5},
}
ALL = {"prompt": 30, "completion": 12, "cached": 16, "reasoning": 5}


async def tokens(proxy: Proxy, model: str = "_other") -> dict[str, float]:
    """Return the tokens by kind; whatever else was counted fails."""
    found = {}
    for name, value in (await proxy.metrics()).items():
        if name.startswith("wellspoken_tokens_total"):
            labels = dict(pair.split("=") for pair in name[24:-1].split(","))
            assert labels["backend"] == '"default"' and labels["model"] == f'"{model}"'
            found[labels["kind"].strip('"')] = value
    return found


async def test_a_body_has_all_of_them(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole(body(usage=DETAILED))]
    proxy = await start_proxy(upstream, models=[MODEL])
    for _ in range(2):
        async with await proxy.chat() as response:
            assert response.status == 200
    assert await tokens(proxy, MODEL) == {kind: 2 * count for kind, count in ALL.items()}


async def test_a_stream_has_them_whether_the_client_asked_or_not(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    used = event({**chunk({}), "choices": [], "usage": DETAILED})
    words = event(role()) + event(chunk({"content": "Hi"})) + event(finish())
    upstream.scripts = [stream(words + used + DONE)]
    proxy = await start_proxy(upstream)
    wanted: list[dict[str, Any]] = [{}, {"stream_options": {"include_usage": True}}]
    for options in wanted:
        async with await proxy.chat(stream=True, **options) as response:
            await response.read()
    assert await tokens(proxy) == {kind: 2 * count for kind, count in ALL.items()}


async def test_choices_that_were_asked_for_one_by_one_share_a_prompt(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(body())]  # 19 and 6 tokens
    proxy = await start_proxy(upstream, adapter="llama.cpp")
    async with await proxy.chat(n=3) as response:
        assert response.status == 200
    assert len([one for one in upstream.requests if one.target.endswith("completions")]) == 3
    assert await tokens(proxy) == {"prompt": 19, "completion": 18}


async def test_a_response_has_them_as_its_chat_has(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(body(usage=DETAILED))]
    proxy = await start_proxy(upstream, models=[MODEL])
    response = await create(proxy)
    assert response["usage"]["total_tokens"] == 42
    assert await tokens(proxy, MODEL) == ALL
    labels = f'backend="default",code="200",model="{MODEL}",route="responses",stream="false"'
    assert (await proxy.metrics())[f"wellspoken_requests_total{{{labels}}}"] == 1


async def test_what_failed_has_none(upstream: Upstream, start_proxy: StartProxy) -> None:
    upstream.scripts = [whole({"error": {"message": "no"}, "usage": DETAILED}, 500)]
    proxy = await start_proxy(upstream)
    await proxy.error(500)
    assert await tokens(proxy) == {}


@pytest.mark.parametrize(
    ("details", "cached"),
    [(b'{"cached_tokens":3}', 3), (b"null", 0), (b"[1]", 0), (b'{"cached_tokens":"3"}', 0),
     (b'{"cached_tokens":-3}', 0), (b'{"cached_tokens":1%s}' % (b"0" * 400), 0),
     (b'{"cached_tokens":0}', 0), (b"{", 0), (b"\xff", 0), (b"", 0)],
)  # fmt: skip
def test_details_that_are_none(details: bytes, cached: int) -> None:
    found = dict(tokens_of(Usage(7, None, Raw(details))))
    assert found == {"prompt": 7, **({"cached": cached} if cached else {})}


RESPONSES = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 12,
    "output_tokens_details": {"reasoning_tokens": 5},
    "total_tokens": 42,
}
ANTHROPIC = {"input_tokens": 10, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 4}


def named(kind: str, **fields: Any) -> bytes:
    """Return an event as OpenAI's responses and Anthropic's messages have it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


# Constructed after OpenAI's and Anthropic's API references (streaming), and vLLM 0.32's rerank.
EVENTS = {
    "responses": named("response.created", response={"id": "resp_1", "usage": None})
    + named("response.output_text.delta", delta='"usage"')
    + named("response.completed", response={"id": "resp_1", "usage": RESPONSES}),
    "messages": named("message_start", message={"usage": {**ANTHROPIC, "output_tokens": 1}})
    + named("content_block_delta", delta={"type": "text_delta", "text": "Hi"})
    + named("message_delta", delta={}, usage={"output_tokens": 12})
    + named("message_stop"),
}
WITHOUT = {"messages": {**ALL, "reasoning": 0}}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_stream_that_passes_is_read_however_it_is_cut(name: str, size: int) -> None:
    data, counts = EVENTS[name], PassingUsage()
    for at in range(0, len(data), size):
        counts.feed(data[at : at + size])
    expected = {kind: count for kind, count in WITHOUT.get(name, ALL).items() if count}
    assert dict(tokens_of(counts.usage)) == expected
    assert counts.pieces == data.count(b"\n\n")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"usage": RESPONSES}, ALL),
        ({"usage": DETAILED}, ALL),
        (
            {"usage": {**ANTHROPIC, "output_tokens": 12}},
            {"prompt": 30, "cached": 16, "completion": 12},
        ),
        ({"results": [], "usage": {"total_tokens": 9}}, {"prompt": 9}),
        ({"results": [], "usage": {"prompt_tokens": 9, "total_tokens": 9}}, {"prompt": 9}),
        ({"usage": None}, {}),
        ({"usage": "none"}, {}),
        ({"usage": {"prompt_tokens": "9"}}, {}),
        ({"usage": {"prompt_tokens": -9}}, {}),
        ({"usage": {"prompt_tokens": 10**400, "completion_tokens": 2}}, {"completion": 2}),
        ({"text": '"usage"'}, {}),
        ([{"usage": {"prompt_tokens": 9}}], {}),
        ({"text": "x" * LARGE, "usage": DETAILED, "id": "x"}, ALL),
        ({"usage": RESPONSES, "text": '"usage":{"output_tokens":1}' * LARGE}, {}),
    ],
)  # fmt: skip
def test_a_body_that_passes_is_read(answer: Any, expected: dict[str, int]) -> None:
    counts = PassingUsage()
    counts.body(json.dumps(answer).encode())
    assert dict(tokens_of(counts.usage)) == expected


def test_a_line_without_end_is_not_kept() -> None:
    counts = PassingUsage()
    for _ in range(100):
        counts.feed(b"x" * 65_536)
    assert len(counts._line) <= LARGE
    counts.feed(b"\n" + EVENTS["responses"])
    assert dict(tokens_of(counts.usage)) == ALL


@pytest.mark.parametrize("name", EVENTS)
async def test_what_passes_is_counted_and_unchanged(
    upstream: Upstream, start_proxy: StartProxy, name: str
) -> None:
    upstream.scripts = [stream(EVENTS[name][:90], EVENTS[name][90:])]
    path = f"/v1/{name}"
    proxy = await start_proxy(upstream, endpoints=[path], responses="pass")
    ask = {"model": "m", "input": "Hi", "messages": MESSAGES, "stream": True}
    async with proxy.session.post(proxy.url(path), json=ask) as response:
        assert await response.read() == EVENTS[name]
    assert (await tokens(proxy))["prompt"] == 30
    upstream.scripts = [whole({"usage": RESPONSES})]
    async with proxy.session.post(proxy.url(path), json={**ask, "stream": False}) as response:
        assert await response.json() == {"usage": RESPONSES}
    assert (await tokens(proxy))["completion"] == 24


async def test_a_cut_stream_has_what_it_told(upstream: Upstream, start_proxy: StartProxy) -> None:
    start = EVENTS["messages"].partition(b"event: message_delta")[0]
    upstream.scripts = [stream(start, Cut())]
    proxy = await start_proxy(upstream, endpoints=["/v1/messages"])
    ask = {"model": "m", "messages": MESSAGES, "stream": True}
    with pytest.raises(Exception, match="payload"):
        async with proxy.session.post(proxy.url("/v1/messages"), json=ask) as response:
            await response.read()
    await until(lambda: not proxy.service.state.inflight)
    assert await tokens(proxy) == {"prompt": 30, "cached": 16, "completion": 1}


async def test_embeddings_have_a_prompt(upstream: Upstream, start_proxy: StartProxy) -> None:
    data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
    used = {"prompt_tokens": 9, "total_tokens": 9}
    upstream.scripts = [whole({"object": "list", "data": data, "model": "m", "usage": used})]
    proxy = await start_proxy(upstream)
    for more in ({}, {"oai_compat": False}):
        ask = {"model": "m", "input": "Hi", "encoding_format": "float", **more}
        async with proxy.session.post(proxy.url("/v1/embeddings"), json=ask) as response:
            assert response.status == 200
    assert await tokens(proxy) == {"prompt": 18}


@pytest.mark.parametrize("streams", [False, True])
async def test_an_untouched_answer_counts(
    upstream: Upstream, start_proxy: StartProxy, streams: bool
) -> None:
    answer = body(usage=DETAILED)
    upstream.scripts = [stream(event(answer) + DONE) if streams else whole(answer)]
    proxy = await start_proxy(upstream)
    async with await proxy.chat(oai_compat=False, stream=streams) as response:
        assert response.status == 200
        await response.read()
    assert await tokens(proxy) == ALL
