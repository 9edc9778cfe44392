"""Completions of a real vLLM: echo, token ids, batches, and the four arrays number by number."""

from __future__ import annotations

import math
from typing import Any

import openai
import pytest
from aiohttp import ClientSession

from tests.conformance import check_completion_body, check_completion_stream, check_error
from tests.corpus import checked_request
from tests.live.vllm.asking import NO_CONTROLS, Asking, conforms, facts, question
from tests.live.vllm.completing import PATH, completed, completion_given, prompted
from tests.live.vllm.conftest import StartProxy
from tests.live.vllm.server import MODEL
from tests.live.vllm.test_characters import characters
from tests.live.vllm.test_chat import SAMPLED, leaning
from tests.models.tiny_hf import CONTEXT, Tokens

PROMPT = "Grüße from Köln 😀, "

ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "k 0": {"logprobs": 0},
    "k 1": {"logprobs": 1},
    "k 2": {"logprobs": 2, **SAMPLED},
    "k 3": {"logprobs": 3, **SAMPLED},
    "k 4": {"logprobs": 4, **SAMPLED},
    "k 5": {"logprobs": 5, **SAMPLED},
    "n": {"n": 2, **SAMPLED},
    "n scored": {"n": 3, "logprobs": 2, **SAMPLED},
    "echo": {"echo": True},
    "echo scored": {"echo": True, "logprobs": 1},
    "echo k 5": {"echo": True, "logprobs": 5, **SAMPLED},
    "hot": {"temperature": 2, "seed": 1, "logprobs": 3},
}
PROMPTS: dict[str, Any] = {
    "text": PROMPT,
    "ids": [264, 269, 293],
    "batch": ["Hello world", PROMPT, "x"],
    "batch of ids": [[264, 269], [69, 47, 276, 305, 165]],
}


@pytest.mark.parametrize("more", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
async def test_numbers_and_text_survive(ask: Asking, prompt: Any, more: dict[str, Any]) -> None:
    both = await completed(ask, prompted(prompt, **more))
    count = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert len(both.body["choices"]) == count * more.get("n", 1)
    if more.get("logprobs") is not None:
        assert all(one.rows for one in both.given.values())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("echo", [False, True])
async def test_characters_of_several_tokens(
    ask: Asking, tokens: Tokens, seed: int, echo: bool
) -> None:
    asked = prompted(PROMPT, logit_bias=characters(tokens), logprobs=3, echo=echo)
    both = await completed(ask, asked | {"temperature": 0.8, "seed": seed, "max_tokens": 40})
    assert any(character in both.given[0].text for character in "😀€é")
    arrays = both.body["choices"][0]["logprobs"]
    told = [row.logprob for row in both.given[0].rows]
    assert arrays["token_logprobs"] == told[: len(arrays["token_logprobs"])]


async def test_a_token_of_a_character_and_a_half(ask: Asking, tokens: Tokens) -> None:
    """Byte-level vocabularies have tokens like 世 and the first byte of 界; vLLM tells "".

    Which of two such tokens owns a U+FFFD nothing tells in some bodies (of 13 seeds one, 6).
    """
    bias = leaning(tokens, "世", " quick", "Paris")
    both_of_it = {str(tokens.ids["世界".encode()[:end]]): 100.0 for end in (4, 5)}
    asked = prompted(logit_bias=bias | both_of_it, logprobs=2, **SAMPLED)
    await completed(ask, asked | {"max_tokens": 16})


@pytest.mark.parametrize("stop", ["ba", ["cab", "bb"]], ids=["one", "two"])
async def test_a_stop_string_ends_text_and_arrays(
    ask: Asking, tokens: Tokens, stop: str | list[str]
) -> None:
    asked = prompted(stop=stop, logit_bias=leaning(tokens, "a", "b", "c"), logprobs=2, **SAMPLED)
    both = await completed(ask, asked | {"max_tokens": 200})
    choice = both.body["choices"][0]
    assert both.given[0].stop_reason in ([stop] if isinstance(stop, str) else stop)
    assert choice["finish_reason"] == "stop" and "stop_reason" not in choice
    assert len(choice["logprobs"]["tokens"]) == len(choice["text"])
    kept = await completed(ask, asked | {"max_tokens": 200}, x_wellspoken_keep="stop_reason")
    assert kept.body["choices"][0]["stop_reason"] == both.given[0].stop_reason


async def test_a_loglikelihood_is_vllms_own(ask: Asking) -> None:
    """As lm-evaluation-harness asks: one token more, echoed, and the prompt's numbers are read."""
    asked = prompted("Hello world in the city", echo=True, logprobs=1, max_tokens=1)
    both = await completed(ask, asked)
    arrays, raw = (answer["choices"][0]["logprobs"] for answer in (both.body, both.raw))
    assert arrays["token_logprobs"] == raw["token_logprobs"]
    assert arrays["token_logprobs"][0] is None and arrays["top_logprobs"][0] is None
    assert len(arrays["tokens"]) == both.raw["usage"]["total_tokens"]
    greedy = [
        max(top, key=top.__getitem__) == token
        for token, top in zip(arrays["tokens"][1:], arrays["top_logprobs"][1:], strict=True)
    ]
    assert greedy[-1] and not all(greedy)


async def test_echo_of_nothing_more(ask: Asking) -> None:
    asked = prompted(PROMPT, echo=True, logprobs=2, max_tokens=0)
    raw = await ask.post(ask.direct, asked, PATH)
    out = await ask.post(ask.proxy, asked, PATH)
    assert (raw.status, out.status) == (200, 200), (raw.data, out.data)
    assert out.json["choices"][0]["text"] == PROMPT == raw.json["choices"][0]["text"]
    arrays, own = (answer.json["choices"][0]["logprobs"] for answer in (out, raw))
    assert arrays["token_logprobs"] == own["token_logprobs"]


async def test_echo_beside_token_ids(ask: Asking) -> None:
    out = await ask.post(ask.proxy, prompted(echo=True, logprobs=1, return_token_ids=True), PATH)
    assert out.json["choices"][0]["text"].startswith("Hello world")


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
async def test_echo_of_several_choices(ask: Asking, stream: bool) -> None:
    """vLLM 0.32 mostly fails after the first choice ("264"): so it is asked for a body.

    It asserts that each choice's first output has the prompt, which only the first one has; where
    both came into its queue before it was read they are one, and the stream is whole.
    """
    asked = prompted(echo=True, logprobs=2, n=2, stream=stream, **SAMPLED)
    raw = await ask.post(ask.direct, asked, PATH)
    out = await ask.post(ask.proxy, asked, PATH)
    assert (raw.status, out.status) == (200, 200)
    checked = checked_request(asked)
    if not stream:
        given = completion_given(raw, streamed=False)
        known = facts(given, raw.json["usage"], scored=True)
        conforms(check_completion_body(out.data, checked, known), out)
        return
    if "error" in raw.chunks[-1]:
        assert raw.chunks[-1]["error"]["code"] == 500
    else:
        assert {choice["index"] for chunk in raw.chunks for choice in chunk["choices"]} == {0, 1}
    conforms(check_completion_stream(out.data, checked), out)
    assert "error" not in out.chunks[-1]


async def test_prompt_logprobs_and_ids_pass_exactly(ask: Asking) -> None:
    asked = prompted(["Hello world", PROMPT], prompt_logprobs=2, return_token_ids=True)
    raw = (await ask.post(ask.direct, asked, PATH)).json
    out = (await ask.post(ask.proxy, asked, PATH)).json
    for own, choice in zip(raw["choices"], out["choices"], strict=True):
        for key in ("prompt_logprobs", "prompt_token_ids", "token_ids"):
            assert own[key] and choice[key] == own[key]


async def test_a_prompts_number_agrees_with_its_own_echo(ask: Asking) -> None:
    """Two ways to ask vLLM for the same numbers: prompt_logprobs, and echo with logprobs."""
    echoed = await ask.post(ask.proxy, prompted(echo=True, logprobs=1, max_tokens=1), PATH)
    asked = prompted(prompt_logprobs=1, return_token_ids=True, max_tokens=1)
    told = (await ask.post(ask.proxy, asked, PATH)).json["choices"][0]
    ids = told["prompt_token_ids"]
    own = [told["prompt_logprobs"][at][str(one)]["logprob"] for at, one in enumerate(ids) if at]
    arrays = echoed.json["choices"][0]["logprobs"]["token_logprobs"]
    assert arrays[1 : len(ids)] == own
    assert all(math.isfinite(value) for value in own)


REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "temperature": ({"temperature": -1}, 400, None),
    "context": ({"prompt": "Hello world " * CONTEXT}, 400, "context_length_exceeded"),
    "unknown model": ({"model": "none"}, 404, "model_not_found"),
    "out of the vocabulary": ({"prompt": [99_999]}, 400, None),
    "empty": ({"prompt": ""}, 400, None),
}


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
@pytest.mark.parametrize("name", REFUSED)
async def test_vllms_refusals_are_in_the_envelope(
    vllm: str, start_proxy: StartProxy, name: str, stream: bool
) -> None:
    change, status, code = REFUSED[name]
    proxy = await start_proxy(vllm, bounds="backend")
    async with ClientSession() as session:
        ask = Asking(session, vllm, proxy)
        raw = await ask.post(ask.direct, prompted() | change | {"stream": stream}, PATH)
        out = await ask.post(ask.proxy, prompted() | change | {"stream": stream}, PATH)
    assert out.status == status, (raw.data, out.data)
    assert check_error(out.data, out.status) == []
    assert code is None or out.json["error"]["code"] == code
    told = raw.chunks[0] if raw.status == 200 else raw.json
    assert out.json["error"]["message"] == told["error"]["message"]


@pytest.mark.parametrize("sdk", [False], indirect=True)  # its strict models refuse echo's nulls
async def test_the_sdk_reads_echo(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.completions.create(**prompted(PROMPT, echo=True, logprobs=2))
    choice = body.choices[0]
    assert choice.text.startswith(PROMPT) and choice.logprobs is not None
    assert choice.logprobs.text_offset is not None and choice.logprobs.token_logprobs is not None
    assert choice.logprobs.text_offset[0] == 0 and choice.logprobs.token_logprobs[0] is None


@pytest.mark.parametrize("sdk", [False], indirect=True)  # nor a chunk without finish_reason
async def test_the_sdk_reads_body_and_stream(sdk: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = prompted([PROMPT, "x"], logprobs=2, n=2, **SAMPLED)
    body = await sdk.completions.create(**asked)
    texts = ["", "", "", ""]
    numbers: list[list[float | None]] = [[], [], [], []]
    async for chunk in await sdk.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                numbers[choice.index] += choice.logprobs.token_logprobs or ()
    assert texts == [choice.text for choice in body.choices]
    assert len(set(texts)) == 4
    for own, choice in zip(numbers, body.choices, strict=True):
        assert choice.logprobs is not None and own == choice.logprobs.token_logprobs


async def test_chat_and_completion_tell_one_token_alike(ask: Asking) -> None:
    """The same prompt by both ways: the numbers are the same, in both shapes."""
    chat = await ask.post(ask.proxy, question(logprobs=True, top_logprobs=3, max_tokens=6))
    told = question(max_tokens=1, return_token_ids=True)
    prompt = (await ask.post(ask.direct, told)).json["prompt_token_ids"]
    asked = prompted(prompt, logprobs=3, max_tokens=6, logit_bias=NO_CONTROLS)
    text = await ask.post(ask.proxy, asked, PATH)
    entries = chat.json["choices"][0]["logprobs"]["content"]
    arrays = text.json["choices"][0]["logprobs"]
    assert arrays["token_logprobs"] == [entry["logprob"] for entry in entries]
    assert text.json["choices"][0]["text"] == chat.json["choices"][0]["message"]["content"]
    assert text.json["model"] == MODEL
