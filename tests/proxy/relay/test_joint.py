"""Choices that are one computation are asked for at once, or refused: never one by one.

A beam search divided gives its best choice again and again. Mutants: `joins_choices` always False;
`SEARCHES` alone; each of the reasons to refuse left out; `_count_choices` None.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests import conforming
from tests.conforming_completions import body
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import MESSAGES, Proxy, StartProxy
from tests.proxy.endpoints.test_completions import answered, refused

Json = dict[str, Any]
BEAMS: Json = {"use_beam_search": True, "temperature": 0}


def texts(count: int) -> Json:
    """Return a backend's body of that many choices."""
    choice = {"logprobs": None, "finish_reason": "stop"}
    return body(*({**choice, "index": n, "text": str(n)} for n in range(count)))


async def chat(proxy: Proxy, **more: Any) -> Json:
    asked = {"model": conforming.MODEL, "messages": MESSAGES, **more}
    async with proxy.session.post(proxy.url("/v1/chat/completions"), json=asked) as response:
        assert response.status == 200, await response.text()
        answer: Json = await response.json()
        return answer


@pytest.mark.parametrize(
    "key",
    [
        {"use_beam_search": True},
        {"beam_search": True},
        {"num_beams": 3},
        {"beam_width": 2},
        {"num_beam_groups": 2},
        {"beam_size": 2},
        {"best_of": 4},
    ],
    ids=lambda key: next(iter(key)),
)
async def test_a_chats_beams_are_asked_for_at_once(
    upstream: Upstream, start_proxy: StartProxy, key: Json
) -> None:
    """vLLM alone takes no `n` at temperature 0 but with a search (0.32)."""
    upstream.scripts = [whole(conforming.body(conforming.choice(0), conforming.choice(1)))]
    proxy = await start_proxy(upstream, adapter="vllm")
    answer = await chat(proxy, n=2, temperature=0, **key)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    (sent,) = (request.json() for request in upstream.requests)
    assert sent["n"] == 2 and sent.items() >= key.items()


@pytest.mark.parametrize("key", [{"use_beam_search": False}, {"num_beams": 1}, {"best_of": None}])
async def test_what_asks_for_no_search_joins_nothing(
    upstream: Upstream, start_proxy: StartProxy, key: Json
) -> None:
    upstream.scripts = [whole(conforming.body())]
    proxy = await start_proxy(upstream, adapter="vllm")
    answer = await chat(proxy, n=2, temperature=0, **key)
    assert len(answer["choices"]) == 2 == len(upstream.requests)


async def test_beams_of_several_prompts_are_asked_for_at_once(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(texts(4))]
    proxy = await start_proxy(upstream, adapter="vllm")
    answer = await answered(proxy, prompt=["a", "b"], n=2, **BEAMS)
    assert [choice["text"] for choice in answer["choices"]] == ["0", "1", "2", "3"]
    assert [request.json()["n"] for request in upstream.requests] == [2]


async def test_the_best_of_the_beams_are_its_first(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(texts(4))]
    proxy = await start_proxy(upstream, adapter="vllm")
    answer = await answered(proxy, n=2, best_of=4, **BEAMS)
    assert [choice["text"] for choice in answer["choices"]] == ["0", "1"]
    assert [request.json()["n"] for request in upstream.requests] == [4]
    error = await refused(proxy, prompt=["a", "b"], n=2, best_of=4, **BEAMS)
    assert (error["param"], error["code"]) == ("n", "unsupported_parameter")


async def test_streamed_beams_are_asked_for_in_a_body(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    """vLLM 0.32: "Streaming is not currently supported with beam search"."""
    upstream.scripts = [whole(texts(2))]
    proxy = await start_proxy(upstream, adapter="vllm")
    answer = await answered(proxy, n=2, stream=True, **BEAMS)
    assert [choice["text"] for choice in answer["choices"]] == ["0", "1"]
    assert "stream" not in upstream.requests[0].json()


async def test_beams_that_an_unknown_server_leaves_out_are_not_asked_for_again(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    upstream.scripts = [whole(texts(1))]
    proxy = await start_proxy(upstream, adapter="general")
    asked = {"model": "m", "prompt": "Hi", "n": 2, **BEAMS}
    async with proxy.session.post(proxy.url("/v1/completions"), json=asked) as response:
        error = (await response.json())["error"]
    assert (response.status, error["code"]) == (502, "choices_missing")
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("adapter", ["ollama", "llamacpp", "mlx-lm"])
async def test_a_server_of_single_choices_is_refused_beams(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    proxy = await start_proxy(upstream, adapter=adapter)
    error = await refused(proxy, n=2, **BEAMS)
    assert (error["param"], error["code"]) == ("n", "unsupported_parameter")
    assert "choice by choice" in error["message"] and upstream.requests == []


async def test_no_tokens_of_beams_are_no_computation(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(upstream, adapter="ollama")
    answer = await answered(proxy, n=2, max_tokens=0, **BEAMS)
    assert [choice["text"] for choice in answer["choices"]] == ["", ""]
