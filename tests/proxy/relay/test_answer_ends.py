"""What every end of an answer does alike: a body, a stream, several in one; see answer.finish."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from tests.conforming_completions import body, end, piece
from tests.fakes.upstream import (
    DONE,
    Cut,
    Gate,
    Reset,
    Script,
    Step,
    Upstream,
    event,
    stream,
    whole,
)
from tests.proxy.conftest import Proxy, StartProxy
from tests.waiting import read_until
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.proxy.relay.send import LARGE

PATH = "/v1/completions"
EXPLAIN = {"x-wellspoken-explain": "1"}


async def post(proxy: Proxy, **more: Any) -> tuple[int, bytes]:
    """POST a completions request that wants its repairs explained; return status and body."""
    data = {"model": "m", "prompt": "Hi", **more}
    async with proxy.session.post(proxy.url(PATH), json=data, headers=EXPLAIN) as response:
        return response.status, await response.read()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("sends_stream", [False, True])
async def test_an_answer_that_is_cut_has_the_engine_looked_at(
    upstream: Upstream, start_proxy: StartProxy, n: int, wants_stream: bool, sends_stream: bool
) -> None:
    """A stream that ends in good order, but without its end, is how an engine's death looks."""
    upstream.scripts = [stream(event(piece("a")))] if sends_stream else [stream()]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    (target,) = proxy.service.state.router.targets
    looked: list[int] = []
    target.look = lambda: looked.append(1)
    await post(proxy, n=n, stream=wants_stream)
    assert looked


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "fails", [whole({"error": "no"}, status=500), whole(b"{"), whole({"error": {"message": "no"}})]
)
async def test_repairs_are_explained_at_the_end_of_a_stream_that_failed(
    upstream: Upstream, start_proxy: StartProxy, n: int, fails: Script
) -> None:
    gate = Gate()
    upstream.scripts = [[gate, *fails]]
    proxy = await start_proxy(upstream, adapter="llamacpp", timeouts={"heartbeat": 0.05})
    data = {"model": "m", "prompt": "Hi", "n": n, "stream": True}
    async with proxy.session.post(proxy.url(PATH), json=data, headers=EXPLAIN) as response:
        gate.open()  # the head has left
        text = await response.read()
    *_, failed, explained = text.split(b"\n\n")[:-1]
    assert list(json.loads(failed.removeprefix(b"data: "))) == ["error"]
    assert explained.startswith(b": repairs ")


@pytest.mark.parametrize("n", [1, 2])
async def test_a_body_for_a_stream_is_a_repair_of_several_too(
    upstream: Upstream, start_proxy: StartProxy, n: int
) -> None:
    upstream.scripts = [whole(body())]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    _, data = await post(proxy, n=n, stream=True)
    assert b"body_for_stream=%d" % n in data


async def test_a_large_body_made_of_several_is_written_beside_the_loop(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    original = StreamTranslator.answer

    def note(translator: StreamTranslator) -> Any:
        seen.append(threading.current_thread() is not threading.main_thread())
        return original(translator)

    monkeypatch.setattr(StreamTranslator, "answer", note)
    upstream.scripts = [whole(body({**body()["choices"][0], "text": "x" * LARGE}))]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    status, data = await post(proxy, n=2)
    assert status == 200 and len(data) > 2 * LARGE
    assert seen == [True]


@pytest.mark.parametrize("n", [1, 2])
async def test_a_whole_answer_that_fails_is_a_status_though_it_says_something(
    upstream: Upstream, start_proxy: StartProxy, n: int
) -> None:
    choice = {**body()["choices"][0], "finish_reason": "parse_error"}
    upstream.scripts = [whole(body(choice))]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    status, data = await post(proxy, n=n, stream=True)
    assert status == 502 and b"upstream_parse_error" in data


async def test_an_untouched_stream_that_fails_in_the_proxy_is_a_status(
    upstream: Upstream, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head has not left yet, so the connection stays good."""

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("wellspoken.proxy.metrics.passing.PassingUsage.feed", fail)
    upstream.scripts = [stream(event(piece("a")), event(end()), DONE)]
    proxy = await start_proxy(upstream, adapter="llamacpp")
    async with asyncio.timeout(60):
        status, data = await post(proxy, stream=True, oai_compat=False)
    assert status == 500 and list(json.loads(data)) == ["error"]


async def test_what_only_the_folding_repairs_is_counted(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """Alternatives of the same text become one key where the arrays are made."""
    twice = [{"token": "a", "logprob": value, "bytes": [97]} for value in (-0.25, -1.75)]
    content = [{**twice[0], "top_logprobs": twice}]
    choice = {**body()["choices"][0], "text": "a", "logprobs": {"content": content}}
    upstream.scripts = [whole(body(choice))]
    proxy = await start_proxy(upstream, adapter="general")
    asked = {"model": "m", "prompt": "Hi", "logprobs": 2}
    async with proxy.session.post(proxy.url(PATH), json=asked) as response:
        await response.read()
        named = response.headers["x-wellspoken-repairs"].split(", ")
    assert "logprobs_alternative_merged" in named
    scraped = await proxy.metrics()
    for rule in named:
        assert scraped[f'wellspoken_repairs_total{{backend="default",rule="{rule}"}}'] == 1


@pytest.mark.parametrize("adapter", ["vllm", "llamacpp"])  # n at once; each choice by itself
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "last",
    [Reset(), Cut(), event({"error": {"message": "no", "code": 500}}), b"error: {}\n\n"],
    ids=["reset", "cut", "error", "error field"],
)
async def test_content_never_waits_and_no_reason_comes_before_an_error(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, n: int, last: Step
) -> None:
    """Whether all choices have ended or one; the text is there before the backend goes on."""
    gate = Gate()
    said = [event({**piece("Hi"), "choices": [{**piece("Hi")["choices"][0], "index": i}]})
            for i in range(n if adapter == "vllm" else 1)]  # fmt: skip
    upstream.scripts = [stream(*said, event(end()), gate, last)]
    proxy = await start_proxy(upstream, adapter=adapter)
    data = {"model": "m", "prompt": "Hi", "n": n, "stream": True, "temperature": 1}
    async with proxy.session.post(proxy.url(PATH), json=data) as response:
        found = await read_until(response.content.readany, b'"Hi"', n)
        gate.open()
        found += await response.read()
    assert found.count(b'"error"') == 1 and b"[DONE]" not in found
    assert b'"finish_reason":"stop"' not in found
