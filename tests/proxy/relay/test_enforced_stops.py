"""Stop strings with logprobs on llama.cpp, which loses entries to them: the proxy enforces them.

The scripted chunks have the form of llama.cpp b11549 with `timings_per_token`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.clock import steady_clock
from tests.conformance import (
    Request,
    check_body,
    check_completion_body,
    check_completion_stream,
    check_stream,
)
from tests.conforming import MODEL
from tests.fakes.upstream import DONE, Gate, Stall, Step, Upstream, event, stream, whole
from tests.fold import fold, fold_completion
from tests.proxy.conftest import Proxy, StartProxy
from tests.proxy.endpoints.test_completions import post
from tests.proxy.relay.test_several import settled

Json = dict[str, Any]
WORDS = ["Hello", " world", "!", " caf", "é", " done"]
INCLUDE = {"include_usage": True}
CACHED = {"prompt_tokens_details": {"cached_tokens": 1}}  # of the timings


def row(text: str) -> Json:
    own = {"id": 7, "token": text, "bytes": list(text.encode()), "logprob": -0.25}
    return {**own, "top_logprobs": [own]}


def said(kind: str, text: str, made: int, reason: str | None = None) -> bytes:
    """Return a chunk of llama.cpp's; `made`: tokens so far."""
    lp = {"content": [row(text)]} if text else None
    timings = {"cache_n": 1, "prompt_n": 4, "predicted_n": made}
    chunk: Json = {"id": "chatcmpl-0123456789", "created": 1_741_570_283, "model": MODEL}
    if kind == "native":
        counts = {"tokens_predicted": made, "tokens_evaluated": 5, "index": 0}
        probs = {"completion_probabilities": [row(text)]} if text else {}
        ends = {"stop": reason is not None, "stop_type": {"stop": "eos"}.get(reason or "", reason)}
        return event({"content": text, **ends, **counts, **probs})
    if kind == "chat":
        choice: Json = {"index": 0, "delta": {"content": text} if text else {}}
        name = "chat.completion.chunk"
    else:
        choice, name = {"index": 0, "text": text}, "text_completion"
    if lp is not None:
        choice["logprobs"] = lp
    choice["finish_reason"] = reason
    return event({**chunk, "object": name, "choices": [choice], "timings": timings})


def words(kind: str, words: list[str] = WORDS, reason: str = "stop") -> list[bytes]:
    """Return the chunks of a whole answer."""
    chunks = [said(kind, word, n) for n, word in enumerate(words, 1)]
    last = [said(kind, "", len(words) + (reason == "stop"), reason)]
    return [*chunks, *last, *([] if kind == "native" else [DONE])]


class Kind:
    """One endpoint and adapter, with what its answers are checked and folded by."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.chat = name == "chat"
        self.adapter = "llamacpp-native" if name == "native" else "llamacpp"

    async def post(self, proxy: Proxy, **more: Any) -> Any:
        if self.chat:
            return await proxy.chat(logprobs=True, top_logprobs=1, **more)
        return await post(proxy, model=MODEL, prompt="Hi", logprobs=1, max_tokens=99, **more)

    def checked(self, data: bytes, stream: bool, **more: Any) -> Json:
        """Return the body, once it has passed the checker."""
        prompts = () if self.chat else ("Hi",)
        asked: Json = {"logprobs": True, "k": 1, "include_usage": stream, "prompts": prompts}
        request = Request(model=MODEL, **asked | more)
        if self.chat:
            check = check_stream if stream else check_body
            found = fold(data) if stream else json.loads(data)
        else:
            check = check_completion_stream if stream else check_completion_body
            found = fold_completion(data) if stream else json.loads(data)
        assert check(data, request) == []
        return dict(found)

    def of(self, choice: Json) -> tuple[str, list[str]]:
        """Return a choice's text and tokens."""
        if self.chat:
            entries = choice["logprobs"]["content"] if choice["logprobs"] else None
            tokens = [entry["token"] for entry in entries or ()]
            return choice["message"]["content"], tokens
        tokens = choice["logprobs"]["tokens"] if choice["logprobs"] else []
        return choice["text"], tokens


@pytest.fixture(params=["chat", "completions", "native"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(str(request.param))


@pytest.fixture(params=[False, True], ids=["body", "stream"])
def wants_stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def streaming(wants_stream: bool) -> Json:
    return {"stream": True, "stream_options": INCLUDE} if wants_stream else {}


STOPS = {
    "whole token": (["!"], "Hello world", ["Hello", " world"], 3),
    "inside a token": (["rl"], "Hello wo", ["Hello", " wo"], 2),
    "over tokens": (["world! c"], "Hello ", ["Hello", " "], 4),
    "over all but one": (["lo world! caf"], "Hel", ["Hel"], 4),
    "behind a character": (["é d"], "Hello world! caf", ["Hello", " world", "!", " caf"], 6),
    "the first to be complete": (["done", "world", "zz"], "Hello ", ["Hello", " "], 2),
    "at once": (["Hel"], "", [], 1),
}


@pytest.mark.parametrize("named", STOPS)
@pytest.mark.parametrize("at_once", [False, True], ids=["in pieces", "in one read"])
async def test_entries_up_to_the_stop_and_the_counts_of_its_chunk(
    upstream: Upstream,
    start_proxy: StartProxy,
    kind: Kind,
    wants_stream: bool,
    named: str,
    at_once: bool,
) -> None:
    stops, text, tokens, made = STOPS[named]
    chunks = words(kind.name)
    upstream.scripts = [stream(b"".join(chunks)) if at_once else stream(*chunks)]
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    async with await kind.post(proxy, stop=stops, **streaming(wants_stream)) as response:
        data = await response.read()
    found = kind.checked(data, wants_stream, stops=tuple(stops))
    (choice,) = found["choices"]
    assert kind.of(choice) == (text, tokens)
    assert choice["finish_reason"] == "stop"
    if kind.name != "native":
        assert found["usage"] == {
            "prompt_tokens": 5,
            "completion_tokens": made,
            "total_tokens": 5 + made,
            **CACHED,
        }
    sent = upstream.requests[0].json()
    assert "stop" not in sent and sent["stream"] is True
    assert sent.get("timings_per_token", kind.name == "native") is True


async def test_the_counts_of_the_native_endpoint(
    upstream: Upstream, start_proxy: StartProxy, wants_stream: bool
) -> None:
    upstream.scripts = [stream(*words("native"))]
    proxy = await start_proxy(upstream, adapter="llamacpp-native")
    native = Kind("native")
    async with await native.post(proxy, stop="!", **streaming(wants_stream)) as response:
        found = native.checked(await response.read(), wants_stream)
    assert found["usage"] == {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}


async def test_the_upstream_is_closed_when_the_stop_is_met(
    upstream: Upstream, start_proxy: StartProxy, kind: Kind, wants_stream: bool
) -> None:
    gate = Gate()
    chunks: list[Step] = [*words(kind.name)[:2], gate, words(kind.name)[2], Stall()]
    upstream.scripts = [stream(*chunks, end=False)]
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    asking = asyncio.create_task(kind.post(proxy, stop="!", **streaming(wants_stream)))
    request = await upstream.request()
    async with steady_clock() as clock:
        gate.open()
        async with await asking as response:
            found = kind.checked(await response.read(), wants_stream)
        await request.closed.wait()
        assert request.by_peer and clock() < 0.25
    assert kind.of(found["choices"][0])[0] == "Hello world"
    await settled(proxy)


async def test_it_is_closed_before_a_client_that_does_not_read_has_the_end(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    big = said("completions", "x" * 60_000, 1)
    chunks: list[Step] = [*[big] * 100, said("completions", "!", 101), Stall()]
    upstream.scripts = [stream(*chunks, end=False)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    completions = Kind("completions")
    async with await completions.post(proxy, stop="!", stream=True) as response:
        request = await upstream.request()
        data = await response.read()
        async with asyncio.timeout(60):
            await request.closed.wait()
    assert data.count(b'"finish_reason":"stop"') == 1


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_an_answer_that_ends_before_a_stop_keeps_its_own_end(
    upstream: Upstream, start_proxy: StartProxy, kind: Kind, wants_stream: bool, reason: str
) -> None:
    """Its last piece may begin a stop string: it is given when the answer is over."""
    ends = {"stop": "stop", "length": "limit" if kind.name == "native" else "length"}[reason]
    upstream.scripts = [stream(*words(kind.name, reason=ends))]
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    stops = ["done and", "zzz"]
    async with await kind.post(proxy, stop=stops, **streaming(wants_stream)) as response:
        found = kind.checked(await response.read(), wants_stream)
    (choice,) = found["choices"]
    assert kind.of(choice) == ("".join(WORDS), WORDS)
    assert choice["finish_reason"] == reason
    made = len(WORDS) + (reason == "stop")
    assert found["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": made,
        "total_tokens": 5 + made,
        **(CACHED if kind.name != "native" else {}),
    }


async def test_each_choice_is_stopped_by_itself(
    upstream: Upstream, start_proxy: StartProxy, kind: Kind, wants_stream: bool
) -> None:
    """The first has met its stop while the second goes on, which ends by itself."""
    gate = Gate()
    first: list[Step] = [*words(kind.name)[:3], Stall()]
    other = words(kind.name, ["Good", " day"], "limit" if kind.name == "native" else "length")
    upstream.script_choices(9, stream(*first, end=False), stream(other[0], gate, *other[1:]))
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    more = {"n": 2, "stop": "!", "seed": 9, **streaming(wants_stream)}
    asking = asyncio.create_task(kind.post(proxy, **more))
    await upstream.request(1)
    async with asyncio.timeout(60):
        await min(upstream.requests, key=lambda sent: sent.json()["seed"]).closed.wait()
    gate.open()
    async with await asking as response:
        found = kind.checked(await response.read(), wants_stream, n=2)
    assert [kind.of(x)[0] for x in found["choices"]] == ["Hello world", "Good day"]
    assert [x["finish_reason"] for x in found["choices"]] == ["stop", "length"]
    if kind.name != "native":
        usage = {"prompt_tokens": 5, "completion_tokens": 3 + 2, "total_tokens": 10}
        assert found["usage"] == usage | CACHED
    sent = [request.json() for request in upstream.requests]
    assert sorted((x.get("n", 1), x["seed"]) for x in sent) == [(1, 9), (1, 10)]


@pytest.mark.parametrize("streaming", [False, True])
async def test_beside_tools_a_body_is_cut(
    upstream: Upstream, start_proxy: StartProxy, streaming: bool
) -> None:
    """llama.cpp answers a stream with tools and logprobs with a 400 (b11549)."""
    content = {"content": [row("Hello"), row(" wor"), row("ld!")]}
    message = {"role": "assistant", "content": "Hello world!"}
    choice: Json = {"index": 0, "message": message, "finish_reason": "length", "logprobs": content}
    answer = {"id": "chatcmpl-0123456789", "object": "chat.completion", "created": 1_741_570_283}
    usage = {"prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4}
    upstream.scripts = [whole({**answer, "model": MODEL, "choices": [choice], "usage": usage})]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    function = {"name": "f", "parameters": {"type": "object"}}
    offered: tuple[Json, ...] = (
        {"tools": [{"type": "function", "function": function}]},
        {"functions": [function]},
    )
    for more in offered:
        async with await proxy.chat(
            logprobs=True, stop="world", stream=streaming, **more
        ) as response:
            assert response.status == 200
            data = await response.read()
        (said,) = (fold(data) if streaming else json.loads(data))["choices"]
        assert (said["message"]["content"], said["finish_reason"]) == ("Hello ", "stop")
        assert [x["token"] for x in said["logprobs"]["content"]] == ["Hello", " "]
        sent = upstream.requests[-1].json()
        assert sent.keys().isdisjoint(("stop", "stream", "timings_per_token"))
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
@pytest.mark.parametrize("streams", ["both", "always"])
async def test_streams_that_withhold_text_are_not_told_the_stop(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, chat: bool, streams: str
) -> None:
    """At its limit llama.cpp never sends what might have begun a stop string."""
    native = adapter == "llamacpp-native"
    name = "native" if native else "chat" if chat else "completions"
    chunks = words(name, reason="limit" if native else "length")
    upstream.scripts = [whole({"prompt": "Hi"})] if native and chat else []
    upstream.scripts += [stream(*chunks)]
    proxy = await start_proxy(upstream, adapter=adapter, streams=streams)
    more: Json = {"stop": ["done and"], "stream": streams != "always"}
    asking = proxy.chat(**more) if chat else post(proxy, **more)
    async with await asking as response:
        data = await response.read()
    folded = json.loads(data) if streams == "always" else (fold if chat else fold_completion)(data)
    (choice,) = folded["choices"]
    assert (choice["message"]["content"] if chat else choice["text"]) == "".join(WORDS)
    sent = upstream.requests[-1].json()
    assert sent["stream"] is True
    # Of a chat's raw text, with its thoughts and calls, llama.cpp's chat endpoint alone knows.
    assert ("stop" in sent) is (chat and not native)


@pytest.mark.parametrize(
    "more",
    [{}, {"logprobs": 1}, {"stop": "!", "stream": False}, {"logprobs": 1, "stop": []}],
)
async def test_without_both_nothing_is_enforced(
    upstream: Upstream, start_proxy: StartProxy, more: Json
) -> None:
    upstream.scripts = [stream(*words("completions"))]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    fields: Json = {"stream": True, **more}
    async with await post(proxy, **fields) as response:
        await response.read()
    sent = upstream.requests[0].json()
    assert "timings_per_token" not in sent
    assert sent.get("stop", []) == more.get("stop", [])


async def test_another_backend_is_told_the_stop(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [stream(*words("completions"))]
    proxy = await start_proxy(upstream, adapter="vllm")
    async with await post(proxy, stream=True, logprobs=1, stop="!") as response:
        await response.read()
    assert upstream.requests[0].json()["stop"] == "!"


async def test_an_error_in_the_stream_of_a_body(
    upstream: Upstream, start_proxy: StartProxy, kind: Kind
) -> None:
    failed = event({"error": {"message": "out of memory", "code": 500}})
    upstream.scripts = [stream(words(kind.name)[0], failed)]
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    async with await kind.post(proxy, stop="!") as response:
        assert response.status == 500
        assert "out of memory" in await response.text()


async def test_a_body_where_a_stream_was_asked_for_is_stopped_too(
    upstream: Upstream, start_proxy: StartProxy, wants_stream: bool
) -> None:
    lists = {"content": [row(word) for word in WORDS]}
    choice: Json = {"index": 0, "text": "".join(WORDS), "logprobs": lists, "finish_reason": "stop"}
    answer: Json = {"id": "cmpl-0123456789", "object": "text_completion", "created": 1_741_570_283}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    upstream.scripts = [whole({**answer, "model": MODEL, "choices": [choice], "usage": usage})]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    kind = Kind("completions")
    async with await kind.post(proxy, stop="! c", **streaming(wants_stream)) as response:
        found = kind.checked(await response.read(), wants_stream)
    assert kind.of(found["choices"][0]) == ("Hello world", ["Hello", " world"])
    assert found["usage"] == usage


@pytest.mark.no_cover
async def test_a_large_folded_answer(
    upstream: Upstream, start_proxy: StartProxy, kind: Kind
) -> None:
    many = ["word "] * 4000
    upstream.scripts = [stream(b"".join(words(kind.name, [*many, "!"])))]
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    async with await kind.post(proxy, stop="!") as response:
        data = await response.read()
    found = kind.checked(data, False)
    text, tokens = kind.of(found["choices"][0])
    assert (text, len(tokens)) == ("word " * 4000, 4000)
    assert len(data) > 131_072


async def test_a_client_that_leaves_closes_the_stream_behind_a_body(
    upstream: Upstream, start_proxy: StartProxy, kind: Kind
) -> None:
    upstream.scripts = [stream(words(kind.name)[0], Stall(), end=False)]
    proxy = await start_proxy(upstream, adapter=kind.adapter)
    asking = asyncio.create_task(kind.post(proxy, stop="!"))
    request = await upstream.request()
    await asyncio.sleep(0.02)
    asking.cancel()
    async with asyncio.timeout(60):
        await request.closed.wait()
    await settled(proxy)
