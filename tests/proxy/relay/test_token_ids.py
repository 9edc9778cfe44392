"""What is asked of a backend for `return_token_ids`, in front of scripted servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conforming import body as chat_body
from tests.conforming import choice
from tests.fakes.llamacpp import BEGIN, LlamaCpp, refused, split
from tests.fakes.upstream import Upstream, whole
from tests.proxy.conftest import CHAT, MESSAGES, StartProxy, envelope
from tests.proxy.endpoints.test_completions import answered, post

Json = dict[str, Any]
TEXTS, NATIVE, TOKENIZE, TEMPLATE = "/v1/completions", "/completion", "/tokenize", "/apply-template"
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@pytest.fixture
async def llamacpp() -> Any:
    async with LlamaCpp() as server:
        yield server


def ids_of(prompt: str) -> list[int]:
    return [BEGIN, *(id for id, _ in split(prompt))]


def verbose(*ids: int, **more: Any) -> Json:
    return chat_body(choice(), **more) | {"__verbose": {"tokens": list(ids), "prompt": "<s>hi>"}}


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_chat_on_llamacpp(
    llamacpp: LlamaCpp, start_proxy: StartProxy, wants_stream: bool
) -> None:
    llamacpp.odd[CHAT] = whole(verbose(7, 8))
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    said = [{"role": "user", "content": "hé"}]
    asked: Json = {"messages": said, "return_token_ids": True, "stream": wants_stream}
    async with await proxy.chat(**asked) as response:
        text = await response.text()
    lines = [x.removeprefix("data: ") for x in text.split("\n\n") if x and "[DONE]" not in x]
    parts = [json.loads(line) for line in lines]
    assert parts[0]["prompt_token_ids"] == ids_of("hé>")
    assert [x for part in parts for x in part["choices"][0].get("token_ids", ())] == [7, 8]
    (sent,) = llamacpp.asked(CHAT)
    assert (sent["verbose"], sent["return_tokens"]) == (True, True)
    assert not {"return_token_ids", "stream", "logprobs"} & sent.keys()


async def test_several_choices_of_a_chat_tell_the_prompt_once(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    llamacpp.odd[CHAT] = whole(verbose(7))
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    async with await proxy.chat(n=2, return_token_ids=True) as response:
        found = await response.json()
    assert [x["token_ids"] for x in found["choices"]] == [[7], [7]]
    assert found["prompt_token_ids"] == ids_of(llamacpp.asked(TOKENIZE)[0]["content"])
    assert len(llamacpp.asked(TOKENIZE)) == len(llamacpp.asked(TEMPLATE)) == 1
    async with await proxy.chat(n=2, return_token_ids=True, stream=True) as response:
        text = await response.text()
    assert text.count('"prompt_token_ids"') == 1 and text.count('"token_ids":[7]') == 2


@pytest.mark.parametrize("adapter", ["llamacpp", "llamacpp-native"])
async def test_prompts_of_completions(
    llamacpp: LlamaCpp, start_proxy: StartProxy, adapter: str
) -> None:
    """Of every build, by /completion. Mutants: /v1/completions; a router is told no model."""
    proxy = await start_proxy(llamacpp, adapter=adapter)
    found = await answered(proxy, prompt=["a", "é"], n=2, return_token_ids=True)
    told = [x["prompt_token_ids"] for x in found["choices"]]
    assert told == [ids_of("a")] * 2 + [ids_of("é")] * 2
    sent = [(x["return_tokens"], x["model"]) for x in llamacpp.asked(NATIVE)]
    assert sent == [(True, found["model"])] * 4
    assert not any("return_token_ids" in x for x in llamacpp.asked(NATIVE))
    assert llamacpp.asked(TEXTS) == []
    assert len(llamacpp.asked(TOKENIZE)) == 2


async def test_a_prompt_of_ids_is_told_as_it_was_sent(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    found = await answered(proxy, prompt=[1, 104], return_token_ids=True)
    assert found["choices"][0]["prompt_token_ids"] == [1, 104]
    assert llamacpp.asked(TOKENIZE) == []


async def test_no_token_is_no_ids(llamacpp: LlamaCpp, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    found = await answered(proxy, prompt="a", max_tokens=0, return_token_ids=True)
    (told,) = found["choices"]
    assert (told["prompt_token_ids"], told["token_ids"]) == (ids_of("a"), [])


async def test_a_prompt_that_is_more_than_text_has_none(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    llamacpp.odd[CHAT] = whole(verbose(7))
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    said = [{"role": "user", "content": [{"type": "text", "text": "hi"}, IMAGE]}]
    explain = {"x-wellspoken-explain": "1"}
    async with await proxy.chat(explain, messages=said, return_token_ids=True) as response:
        found = await response.json()
        assert "prompt_token_ids_missing" in response.headers["x-wellspoken-repairs"]
    assert "prompt_token_ids" not in found
    assert found["choices"][0]["token_ids"] == [7]
    assert llamacpp.asked(TEMPLATE) == []


@pytest.mark.parametrize(
    ("headers", "asked", "helps"),
    [
        ({}, {}, False),
        ({}, {"return_token_ids": False}, False),
        ({"x-wellspoken-extensions": "none"}, {"return_token_ids": True}, False),
        ({"x-wellspoken-extensions": "all"}, {"return_token_ids": True}, True),
        ({"x-wellspoken-extensions": "all"}, {}, False),
    ],
)
async def test_only_who_gets_them_is_told(
    llamacpp: LlamaCpp, start_proxy: StartProxy, headers: Any, asked: Json, helps: bool
) -> None:
    llamacpp.odd[CHAT] = whole(verbose(7))
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    async with await proxy.chat(headers, **asked) as response:
        text = await response.text()
    assert ('"token_ids":[7]' in text) == ('"prompt_token_ids"' in text) == helps
    assert bool(llamacpp.asked(TOKENIZE)) == helps


async def test_who_gets_none_gets_a_stream(llamacpp: LlamaCpp, start_proxy: StartProxy) -> None:
    """Mutant: llama.cpp is asked for the body that would tell them."""
    proxy = await start_proxy(llamacpp, adapter="llamacpp", extensions="none")
    async with await proxy.chat(return_token_ids=True, stream=True) as response:
        assert response.status == 200
        await response.read()
    (sent,) = llamacpp.asked(CHAT)
    assert sent["stream"] is True
    assert not {"return_token_ids", "return_tokens", "verbose"} & sent.keys()


@pytest.mark.parametrize("path", [TEMPLATE, TOKENIZE])
@pytest.mark.parametrize("answer", [refused(404, "no"), refused(500, "no"), whole({})])
async def test_a_prompt_that_is_not_told_costs_no_answer(
    llamacpp: LlamaCpp, start_proxy: StartProxy, path: str, answer: Any
) -> None:
    """Before PR ggml-org/llama.cpp#11489 and ikawrakow/ik_llama.cpp#999 there is no template."""
    llamacpp.odd |= {CHAT: whole(verbose(7)), path: answer}
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    explain = {"x-wellspoken-explain": "1"}
    async with await proxy.chat(explain, return_token_ids=True) as response:
        found = await response.json()
        assert response.status == 200, found
        assert "prompt_token_ids_missing" in response.headers["x-wellspoken-repairs"]
    assert "prompt_token_ids" not in found and found["choices"][0]["token_ids"] == [7]


@pytest.mark.parametrize("prompt", ["57", "abc"])
async def test_a_prompt_of_no_token_has_no_ids(
    llamacpp: LlamaCpp, start_proxy: StartProxy, prompt: str
) -> None:
    """Mutant: a text's characters are taken for ids, which is [5, 7], and a 500."""
    llamacpp.odd[TOKENIZE] = whole({"tokens": []})
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    found = await answered(proxy, prompt=prompt, return_token_ids=True)
    assert found["choices"][0]["prompt_token_ids"] == []


async def test_a_stop_string_beside_logprobs_is_enforced_on_a_body(
    llamacpp: LlamaCpp, start_proxy: StartProxy
) -> None:
    llamacpp.odd[CHAT] = whole(verbose(7))
    proxy = await start_proxy(llamacpp, adapter="llamacpp")
    asked: Json = {"stop": "x", "logprobs": True, "return_token_ids": True}
    async with await proxy.chat(**asked) as response:
        assert response.status == 200
    (sent,) = llamacpp.asked(CHAT)
    assert not {"stop", "stream"} & sent.keys()


async def test_sglangs_chat_is_asked_for_a_body(
    upstream: Upstream, start_proxy: StartProxy
) -> None:
    told = choice(response_token_ids=[7], prompt_token_ids=[1, 2])
    upstream.script(CHAT, whole(chat_body(told)))
    proxy = await start_proxy(upstream, adapter="sglang")
    async with await proxy.chat(stream=True, return_token_ids=True) as response:
        text = await response.text()
    assert '"prompt_token_ids":[1,2]' in text and '"token_ids":[7]' in text
    sent = upstream.requests[-1].json()
    assert sent["return_token_ids"] is True and "stream" not in sent


@pytest.mark.parametrize("path", [CHAT, TEXTS])
async def test_mlx_lm_is_asked_for_entries(
    upstream: Upstream, start_proxy: StartProxy, path: str
) -> None:
    proxy = await start_proxy(upstream, adapter="mlx-lm")
    own: Json = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {}
    more: Json = {**own, "prompt": None} if path == CHAT else {}
    rows = {"content": [{"id": 5, "logprob": -0.5}, {"id": 2, "logprob": -0.5}]}
    told: Json = {"index": 0, "finish_reason": "stop", "logprobs": rows}
    told |= {"text": "Hi"} if path == TEXTS else {"message": {"role": "assistant", "content": "Hi"}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    upstream.script(path, whole({"choices": [told], "usage": usage, "model": "m"}))
    async with await post(proxy, path, return_token_ids=True, stream=True, **more) as response:
        text = await response.text()
    assert '"token_ids":[5,2]' in text and '"content":[' not in text and '"tokens"' not in text
    sent = upstream.requests[-1].json()
    assert sent["logprobs"] is True
    assert not {"top_logprobs", "return_token_ids", "stream"} & sent.keys()


async def test_mlx_lm_tells_ids_or_logprobs(upstream: Upstream, start_proxy: StartProxy) -> None:
    proxy = await start_proxy(upstream, adapter="mlx-lm")
    error = await proxy.error(400, return_token_ids=True, logprobs=True)
    assert (error["param"], error["code"]) == ("return_token_ids", "unsupported_parameter")


OTHERS = "Ask a model whose server tells them: vLLM, llama.cpp."


ADVICE = {
    "tgi": "Name it in the backend's `endpoints` and ask there, or leave the parameter out.",
    **dict.fromkeys(("ollama", "llama-cpp-python", "lmstudio", "cortex"), OTHERS),
}


@pytest.mark.parametrize(
    ("adapter", "path"),
    [(adapter, path) for adapter in ADVICE for path in (CHAT, TEXTS)][:-1],  # cortex has chats only
)
async def test_who_cannot_tell_them_says_so(
    upstream: Upstream, start_proxy: StartProxy, adapter: str, path: str
) -> None:
    proxy = await start_proxy(upstream, adapter=adapter)
    asked: Json = {"model": "m", "return_token_ids": True}
    asked |= {"messages": MESSAGES} if path == CHAT else {"prompt": "hi"}
    async with proxy.session.post(proxy.url(path), json=asked) as response:
        text = await response.text()
        assert response.status == 400
    error = envelope(text)
    assert (error["param"], error["code"]) == ("return_token_ids", "unsupported_parameter")
    assert error["message"].endswith(ADVICE[adapter])
    assert upstream.requests == []


@pytest.mark.parametrize("adapter", ["openai", "general", "vllm", "furiosa"])
async def test_others_get_it_as_it_is(
    upstream: Upstream, start_proxy: StartProxy, adapter: str
) -> None:
    upstream.script(CHAT, whole(chat_body(choice(output_ids=[7]))))
    proxy = await start_proxy(upstream, adapter=adapter)
    async with await proxy.chat(return_token_ids=True) as response:
        found = await response.json()
    assert found["choices"][0]["token_ids"] == [7]
    assert upstream.requests[-1].json()["return_token_ids"] is True
