"""Quotas before a real proxy: what a request reserves, pays and gives back, and what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from aiohttp import ClientError
from openai import AsyncOpenAI, RateLimitError

from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Cut, Gate, Stall, Step, Upstream, event, stream, whole
from tests.proxy.conftest import CHAT, MESSAGES, Proxy, StartProxy, envelope
from tests.proxy.endpoints.test_chat_body import PLAIN
from tests.proxy.endpoints.test_chat_stream import EVENTS, read_word
from tests.proxy.limits.clients import MakeClient, key_of
from tests.proxy.limits.clients import client as client
from tests.waiting import read_until, until
from wellspoken.proxy.limits.accounts import Account, Accounts
from wellspoken.proxy.limits.quota import MINUTE

A = key_of("a")
LIMIT = 6000  # tokens a minute, so that a hundred are a second
QUOTA = {"requests_per_minute": 60, "tokens_per_minute": LIMIT}
USED = {"prompt_tokens": 30, "completion_tokens": 12, "total_tokens": 42}
ANSWER = whole({**json.loads(PLAIN), "usage": USED})
REFUSED = {"error": {"message": "no", "type": "x", "param": None, "code": None}}
LEFT, LEFT_TOKENS = "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"


class Counted:
    """A proxy that counts the client a by a clock which stands still: no bucket fills by itself."""

    def __init__(self, proxy: Proxy) -> None:
        self.now = 1000.0
        proxy.service.state.counters = self.accounts = Accounts(lambda: self.now)

    @property
    def account(self) -> Account:
        return self.accounts["a"]

    @property
    def tokens(self) -> int:
        """How many tokens of the minute are taken."""
        return round(max(self.account.tokens - self.now, 0.0) * LIMIT / MINUTE)

    @property
    def requests(self) -> int:
        """How many of sixty requests of the minute are taken."""
        return round(max(self.account.requests - self.now, 0.0))

    async def ended(self) -> None:
        """Wait until no request is open."""
        await until(lambda: self.account.open == 0)


async def start(
    start_proxy: StartProxy, client: MakeClient, upstream: Upstream, **quota: Any
) -> tuple[Proxy, Counted]:
    """Start a proxy with the client a, and count by the test's clock."""
    more = quota.pop("more", {})
    proxy = await start_proxy(upstream, auth={"client": [client("a", **quota)]}, **more)
    return proxy, Counted(proxy)


async def test_a_request_reserves_what_it_may_need_and_pays_what_it_used(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    gate, body = Gate(), json.loads(PLAIN)
    body["choices"] = [{**body["choices"][0], "index": at} for at in range(2)]
    upstream.script(CHAT, [gate, *whole({**body, "usage": USED})])
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    asking = asyncio.create_task(proxy.chat(A, max_tokens=1000, n=2))
    await gate.reached.wait()
    reserved = counted.tokens
    prompt = len(upstream.requests[0].body) // 4
    assert 2000 + prompt // 2 < reserved < 2000 + prompt * 2
    assert (counted.requests, counted.account.open) == (1, 1)
    gate.open()
    async with await asking as answer:
        headers = answer.headers
        assert answer.status == 200
    assert {name: headers[name] for name in headers if name.startswith("x-ratelimit-")} == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": str(LIMIT - reserved),
        "x-ratelimit-reset-tokens": f"{reserved / 100:g}s",
    }
    await counted.ended()
    assert (counted.tokens, counted.requests) == (42, 1)


CHUNK: dict[str, Any] = {**json.loads(PLAIN), "object": "chat.completion.chunk", "choices": []}


@pytest.mark.parametrize(
    ("last", "tokens"),
    [([event({**CHUNK, "usage": USED})], 42), ([], 3)],
    ids=["told by the backend", "counted here"],
)
async def test_a_stream_pays_what_it_used(
    upstream: Upstream,
    start_proxy: StartProxy,
    client: MakeClient,
    last: list[bytes],
    tokens: int,
) -> None:
    upstream.script(CHAT, stream(*EVENTS, *last, DONE))
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    async with await proxy.chat(A, stream=True, max_tokens=500) as answer:
        assert answer.headers[LEFT] == "59" and await answer.read()
    await counted.ended()
    assert counted.tokens == tokens if last else tokens <= counted.tokens < 60


FAILURES: dict[str, tuple[list[Step], int]] = {
    "the backend fails": (whole(REFUSED, 500), 500),
    "the backend refuses": (whole(REFUSED, 400), 400),
    "the backend breaks off": ([Cut()], 502),
}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("why", FAILURES)
async def test_what_has_failed_before_a_token_costs_nothing(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, why: str, streams: bool
) -> None:
    script, status = FAILURES[why]
    upstream.script(CHAT, script)
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    async with await proxy.chat(A, stream=streams, max_tokens=500) as answer:
        assert answer.status == status
    await counted.ended()
    assert (counted.tokens, counted.requests) == (0, 0)


@pytest.mark.parametrize("more", [{"temperature": 9}, {"messages": []}, {"logprobs": 3}])
async def test_what_the_proxy_refuses_costs_nothing(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, more: dict[str, Any]
) -> None:
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    async with await proxy.chat(A, **more) as answer:
        assert answer.status == 400
    await counted.ended()
    assert (counted.tokens, counted.requests, len(upstream.requests)) == (0, 0, 0)


async def test_a_stream_that_fails_pays_what_had_come(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script(CHAT, stream(*EVENTS[:3], Cut(), end=False))
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    async with await proxy.chat(A, stream=True, max_tokens=500) as answer:
        assert b'"error"' in await answer.read()
    await counted.ended()
    assert 0 < counted.tokens < 60 and counted.requests == 1


async def test_a_client_that_leaves_pays_what_was_made_so_far(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script(CHAT, stream(*EVENTS[:3], Stall(), end=False))
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    answer = await proxy.chat(A, stream=True, max_tokens=500)
    await read_word(answer, "wide")
    assert counted.tokens > 500
    answer.close()
    await counted.ended()
    assert 0 < counted.tokens < 60 and counted.requests == 1


async def test_a_client_that_leaves_early_pays_its_prompt(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    """Else prompts could be computed for nothing by who never waits for an answer."""
    gate = Gate()
    upstream.script(CHAT, [gate])
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    asking = asyncio.create_task(proxy.chat(A, max_tokens=500))
    await gate.reached.wait()
    asking.cancel()
    with pytest.raises((asyncio.CancelledError, ClientError)):
        await asking
    await counted.ended()
    assert 0 < counted.tokens < 60 and counted.requests == 1


async def test_requests_over_the_limit_are_told_when_to_come_again(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script(CHAT, ANSWER)
    proxy, counted = await start(start_proxy, client, upstream, requests_per_minute=2)
    seen = []
    for status in (200, 200, 429):
        async with await proxy.chat(A) as answer:
            seen.append(answer.headers[LEFT])
            assert answer.status == status
            assert LEFT_TOKENS not in answer.headers
            text = await answer.text()
    assert seen == ["1", "0", "0"]
    assert envelope(text) == {
        "message": "Rate limit reached for a on requests per min (RPM): Limit 2, Used 2, "
        "Requested 1. Please try again in 30s.",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert (answer.headers["Retry-After"], answer.headers["retry-after-ms"]) == ("30", "30000")
    counted.now += 30
    async with await proxy.chat(A) as answer:
        assert answer.status == 200
    samples = await proxy.metrics()
    assert samples['wellspoken_quota_events_total{client="a",event="requests"}'] == 1


async def test_tokens_over_the_limit(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script(CHAT, ANSWER)
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    counted.account.tokens = counted.now + MINUTE  # all are taken
    async with await proxy.chat(A, max_tokens=100) as answer:
        error = envelope(await answer.text())
        assert answer.status == 429 and error["type"] == "tokens"
        assert "Limit 6000, Used 6000, Requested 1" in error["message"]
        assert 1 < int(answer.headers["retry-after-ms"]) / 1000 < 2
        assert answer.headers["Retry-After"] == "2"
        assert answer.headers["x-ratelimit-reset-tokens"] == "1m0s"
    assert upstream.requests == []


@pytest.mark.parametrize("more", [{"max_tokens": LIMIT}, {"max_completion_tokens": 3001, "n": 2}])
async def test_what_would_never_fit_says_so(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, more: dict[str, int]
) -> None:
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    async with await proxy.chat(A, **more) as answer:
        error = envelope(await answer.text())
        assert answer.status == 429 and error["code"] == "rate_limit_exceeded"
        assert "It would not fit later either" in error["message"]
        assert answer.headers["x-should-retry"] == "false"
    assert (upstream.requests, counted.tokens) == ([], 0)


async def test_without_a_limit_of_its_own_an_answer_is_guessed(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script(CHAT, ANSWER)
    small = {"tokens_per_minute": 100}
    proxy, _ = await start(start_proxy, client, upstream, **small)
    async with await proxy.chat(A) as answer:
        assert (answer.status, answer.headers[LEFT_TOKENS]) == (200, "0")
    proxy, _ = await start(start_proxy, client, upstream, **QUOTA)
    async with await proxy.chat(A) as answer:
        assert LIMIT - 600 < int(answer.headers[LEFT_TOKENS]) < LIMIT - 512
    caps = {"more": {"caps": {"max_tokens": 2000}}}
    proxy, _ = await start(start_proxy, client, upstream, **QUOTA, **caps)
    async with await proxy.chat(A) as answer:
        assert LIMIT - 2100 < int(answer.headers[LEFT_TOKENS]) < LIMIT - 2000


async def test_requests_at_once(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    gate = Gate()
    upstream.script(CHAT, [gate, *ANSWER])
    proxy, counted = await start(start_proxy, client, upstream, concurrent=2)
    asking = [asyncio.create_task(proxy.chat(A)) for _ in range(2)]
    await until(lambda: len(upstream.requests) == 2)
    async with await proxy.chat(A) as answer:
        error = envelope(await answer.text())
        assert answer.status == 429 and answer.headers["Retry-After"] == "1"
        assert "concurrent requests: Limit 2" in error["message"]
    gate.open()
    for answer in await asyncio.gather(*asking):
        async with answer:
            assert answer.status == 200
    await counted.ended()
    async with await proxy.chat(A) as answer:
        assert answer.status == 200
    samples = await proxy.metrics()
    assert samples['wellspoken_quota_events_total{client="a",event="concurrent"}'] == 1


PASSING: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "/v1/responses": (
        {"input": "Hi", "max_output_tokens": 900},
        {"usage": {"input_tokens": 5, "output_tokens": 7}},
        12,
    ),
    "/v1/messages": (
        {"messages": MESSAGES, "max_tokens": 900},
        {"usage": {"input_tokens": 5, "output_tokens": 7}},
        12,
    ),
    "/v1/rerank": ({"query": "x" * 400}, {"usage": {"total_tokens": 90}}, 90),
    "/v1/embeddings": (
        {"input": "x" * 400},
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
            "model": MODEL,
            "usage": {"prompt_tokens": 90, "total_tokens": 90},
        },
        90,
    ),
    "/tokenize": ({"prompt": "x" * 400}, {"tokens": [1]}, 1),
    "/v1/completions": (
        {"prompt": ["a", "b"], "max_tokens": 450},
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1_760_000_000,
            "model": MODEL,
            "choices": [
                {"index": at, "text": "x", "finish_reason": "stop", "logprobs": None}
                for at in range(2)
            ],
            "usage": USED,
        },
        42,
    ),
}


@pytest.mark.parametrize("path", PASSING)
async def test_every_endpoint_that_asks_a_model_counts(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, path: str
) -> None:
    body, answer, tokens = PASSING[path]
    upstream.script(path, whole(answer))
    endpoints = [name for name in PASSING if name != "/v1/completions"]
    more = {"endpoints": endpoints, "responses": "pass"}
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA, more=more)
    url, asked = proxy.url(path), {"model": MODEL, **body}
    async with proxy.session.post(url, json=asked, headers=A) as got:
        assert got.status == 200, await got.text()
        reserved = LIMIT - int(got.headers[LEFT_TOKENS])
    generates = any("max" in key for key in body)
    assert (900 < reserved < 1000) if generates else reserved < 120
    await counted.ended()
    assert (counted.tokens, counted.requests) == (tokens, 1)


async def test_a_response_counts_what_it_goes_on_from(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.scripts = [whole(PLAIN)]
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    previous, reserved = None, []
    for text in ("x" * 400, "y"):
        asked = {"model": MODEL, "input": text, "max_output_tokens": 100}
        asked |= {"previous_response_id": previous} if previous else {}
        async with proxy.session.post(proxy.url("/v1/responses"), json=asked, headers=A) as got:
            assert got.status == 200, await got.text()
            previous = (await got.json())["id"]
            reserved.append(LIMIT - int(got.headers[LEFT_TOKENS]) - counted.tokens)
        await counted.ended()
    assert all(150 < tokens < 300 for tokens in reserved)  # of "y" alone they would be 110
    assert counted.requests == 2


LONG = 700  # events of a stream, which are more than an answer is taken to have
PIECES = [event({"choices": [{"index": 0, "delta": {"content": "x"}}]}) for _ in range(LONG)]
BEGUN = event({"usage": {"prompt_tokens": 3, "completion_tokens": 1}, "choices": []})
ENDS: dict[str, list[Step]] = {
    "whole": stream(*PIECES, DONE),
    "broken off": stream(*PIECES, Cut(), end=False),
    "broken off, usage begun": stream(BEGUN, *PIECES, Cut(), end=False),
    "the client leaves": stream(*PIECES, Stall(), end=False),
    "the client leaves, usage begun": stream(BEGUN, *PIECES, Stall(), end=False),
}


@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_that_passes_pays_what_it_had(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient, end: str
) -> None:
    """Without a limit and a usage it had cost what is guessed, and nothing by who left it."""
    upstream.script(CHAT, ENDS[end])
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA)
    answer = await proxy.chat(A, stream=True, oai_compat=False)
    if end.startswith("the client leaves"):
        await read_until(answer.content.readany, b'"x"', LONG)
        answer.close()
    else:
        with contextlib.suppress(ClientError):
            await answer.read()
    await counted.ended()
    assert LONG < counted.tokens < LONG + 60 and counted.requests == 1


async def test_an_endpoint_that_is_not_known_may_generate(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    """Else its answers would cost nothing: SGLang's /generate has its limits in an inner object."""
    upstream.script("/generate", whole({"text": "x"}))
    more = {"more": {"endpoints": ["/generate"]}}
    proxy, counted = await start(start_proxy, client, upstream, **QUOTA, **more)
    for inner, least in (({}, 512), ({"max_new_tokens": 900, "n": 2}, 1800)):
        counted.account.tokens = 0.0
        body = {"text": "Hi", "sampling_params": inner}
        async with proxy.session.post(proxy.url("/generate"), json=body, headers=A) as got:
            assert got.status == 200
        await counted.ended()
        assert least < counted.tokens < least + 60


async def test_what_asks_no_model_is_not_counted(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    proxy, counted = await start(start_proxy, client, upstream, requests_per_minute=1)
    upstream.script("/v1/models", whole({"object": "list", "data": [{"id": "m"}]}))
    for _ in range(3):
        async with proxy.session.get(proxy.url("/v1/models"), headers=A) as answer:
            assert answer.status == 200 and LEFT not in answer.headers
    assert counted.requests == 0


async def test_a_picture_is_not_counted_by_its_bytes(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    upstream.script(CHAT, ANSWER)
    proxy, _ = await start(start_proxy, client, upstream, **QUOTA)
    url = {"url": "data:image/png;base64," + "iVBORw0KGgo" * 10_000}
    parts = [{"type": "image_url", "image_url": url}, {"type": "text", "text": "What is it?"}]
    messages = [{"role": "user", "content": parts}]
    async with await proxy.chat(A, messages=messages, max_tokens=100) as answer:
        assert answer.status == 200
        assert 1100 < LIMIT - int(answer.headers[LEFT_TOKENS]) < 1300
    text = [{"role": "user", "content": "some words and more " * 2000}]
    async with await proxy.chat(A, messages=text, max_tokens=100) as answer:
        assert answer.status == 429


async def test_openais_client_waits_as_it_is_told(
    upstream: Upstream,
    start_proxy: StartProxy,
    client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    upstream.script(CHAT, ANSWER)
    proxy, counted = await start(start_proxy, client, upstream, requests_per_minute=2)
    slept: list[float] = []
    base = proxy.url("/v1")
    async with AsyncOpenAI(api_key="a-key", base_url=base, max_retries=1) as sdk:

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            counted.now += seconds

        monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
        for _ in range(3):
            await sdk.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}]
            )
        counted.account.requests = counted.now + MINUTE
        with pytest.raises(RateLimitError):
            await sdk.with_options(max_retries=0).chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}]
            )
    assert slept == [30.0]


async def test_nobody_else_is_counted(
    upstream: Upstream, start_proxy: StartProxy, client: MakeClient
) -> None:
    """A client without limits has no headers, and nothing is asked of the counters."""
    upstream.script(CHAT, ANSWER)
    proxy = await start_proxy(upstream, auth={"client": [client("b")]})
    counted = Counted(proxy)
    async with await proxy.chat(key_of("b")) as answer:
        assert answer.status == 200
        assert not [name for name in answer.headers if "ratelimit" in name]
    assert not counted.accounts.clients
