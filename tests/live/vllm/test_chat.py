"""Chat answers of a real vLLM: every number and every text through the proxy as vLLM gave it."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.fold import fold
from tests.live.vllm.asking import Asking, question
from tests.models.tiny_hf import END, Tokens

SAMPLED: dict[str, Any] = {"temperature": 1, "seed": 5}


def leaning(tokens: Tokens, *pieces: str) -> dict[str, float]:
    """Return a logit_bias that lets the model say these tokens only."""
    return {str(tokens.ids[piece.encode()]): 100.0 for piece in pieces}


PLAIN: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": SAMPLED,
    "logprobs alone": {"logprobs": True},
    "k 0": {"logprobs": True, "top_logprobs": 0},
    "k 1": {"logprobs": True, "top_logprobs": 1},
    "k 5": {"logprobs": True, "top_logprobs": 5, **SAMPLED},
    "k 20": {"logprobs": True, "top_logprobs": 20},
    "k 20 sampled": {"logprobs": True, "top_logprobs": 20, **SAMPLED},
    "two": {"n": 2, **SAMPLED},
    "two scored": {"n": 2, "logprobs": True, "top_logprobs": 2, **SAMPLED},
    "three scored": {"n": 3, "logprobs": True, "top_logprobs": 1, **SAMPLED},
    "nucleus": {"top_p": 0.5, "logprobs": True, "top_logprobs": 3, **SAMPLED},
    "penalties": {"presence_penalty": 1, "frequency_penalty": -1, "logprobs": True, **SAMPLED},
    "vendor sampling": {"top_k": 3, "min_p": 0.01, "repetition_penalty": 1.2, **SAMPLED},
    "one token": {"max_tokens": 1, "logprobs": True, "top_logprobs": 2},
    "the newer limit": {"max_completion_tokens": 3, "logprobs": True, "top_logprobs": 2},
}


@pytest.mark.parametrize("more", PLAIN.values(), ids=PLAIN)
async def test_numbers_and_text_survive(ask: Asking, more: dict[str, Any]) -> None:
    both = await ask.both(question(**more))
    assert {one.reason for one in both.given.values()} == {"length"}
    assert {choice["finish_reason"] for choice in both.body["choices"]} == {"length"}
    if more.get("logprobs"):
        assert all(one.rows for one in both.given.values())


@pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
async def test_several_choices_of_temperature_0(ask: Asking, stream: bool) -> None:
    """vLLM refuses them, so each is asked for by itself; they are all the same."""
    wanted = question(n=3, temperature=0, logprobs=True, top_logprobs=2, stream=stream)
    raw = await ask.post(ask.direct, wanted)
    assert raw.status == 400 and "greedy" in raw.json["error"]["message"]
    out = await ask.post(ask.proxy, wanted)
    choices = (fold(out.data) if stream else out.json)["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    one = (await ask.post(ask.proxy, question(temperature=0, logprobs=True, top_logprobs=2))).json
    parts = [(choice["message"]["content"], choice["logprobs"]["content"]) for choice in choices]
    expected = one["choices"][0]
    assert [text for text, _ in parts] == [expected["message"]["content"]] * 3
    for _, entries in parts:
        for entry, same in zip(entries, expected["logprobs"]["content"], strict=True):
            assert entry["bytes"] == same["bytes"]
            assert entry["logprob"] == pytest.approx(same["logprob"], abs=1e-4)


async def test_without_an_asked_usage_a_stream_has_none(ask: Asking) -> None:
    both = await ask.both(question(stream_options=None, logprobs=True))
    assert "usage" not in both.stream


@pytest.mark.parametrize("stop", ["ba", ["cab", "bb"], "b"], ids=["one", "two", "a token"])
async def test_a_stop_string_ends_text_and_logprobs(
    ask: Asking, tokens: Tokens, stop: str | list[str]
) -> None:
    bias = leaning(tokens, "a", "b", "c")
    asked = question(stop=stop, logit_bias=bias, logprobs=True, top_logprobs=2, **SAMPLED)
    both = await ask.both(asked | {"max_tokens": 200})
    given = both.given[0]
    stops = [stop] if isinstance(stop, str) else stop
    assert given.reason == "stop" and given.stop_reason in stops
    joined = b"".join(given.bytes).decode()
    assert joined == given.text + str(given.stop_reason)  # vLLM tells the stop's tokens, too
    choice = both.body["choices"][0]
    assert choice["finish_reason"] == "stop" and "stop_reason" not in choice
    assert len(choice["logprobs"]["content"]) == len(given.text)


async def test_a_stop_string_inside_a_token_clips_its_entry(ask: Asking, tokens: Tokens) -> None:
    bias = leaning(tokens, "assistant", "city")
    asked = question(stop="stan", logit_bias=bias, logprobs=True, top_logprobs=2, **SAMPLED)
    both = await ask.both(asked | {"max_tokens": 100})
    given = both.given[0]
    assert given.text.endswith("assi")
    last = both.body["choices"][0]["logprobs"]["content"][-1]
    assert (last["token"], last["bytes"]) == ("assi", list(b"assi"))
    assert last["logprob"] == given.rows[-1].logprob
    assert "logprobs_clipped" in both.repairs


@pytest.mark.parametrize("included", [False, True])
async def test_the_stop_string_stays_where_the_client_wants_it(
    ask: Asking, tokens: Tokens, included: bool
) -> None:
    """vLLM's include_stop_str_in_output leaves it in the text, and so does the proxy."""
    bias = leaning(tokens, "a", "b", "c")
    asked = question(stop="ba", logit_bias=bias, include_stop_str_in_output=included, **SAMPLED)
    raw = await ask.post(ask.direct, asked)
    out = await ask.post(ask.proxy, asked)
    texts = [answer.json["choices"][0]["message"]["content"] for answer in (raw, out)]
    streamed = await ask.post(ask.proxy, asked | {"stream": True})
    texts.append(fold(streamed.data)["choices"][0]["message"]["content"])
    assert texts[0].endswith("ba") is included
    assert texts[1:] == texts[:1] * 2


async def test_a_stop_token_is_folded_or_kept(ask: Asking, tokens: Tokens) -> None:
    stop = tokens.ids[b"b"]
    asked = question(
        stop_token_ids=[stop],
        logit_bias=leaning(tokens, "a", "b"),
        logprobs=True,
        top_logprobs=1,
        max_tokens=200,
        **SAMPLED,
    )
    folded = await ask.both(asked)
    assert folded.given[0].stop_reason == stop
    assert "stop_reason" not in folded.body["choices"][0]
    assert folded.body["choices"][0]["finish_reason"] == "stop"
    assert "stop_reason_folded" in folded.repairs
    kept = await ask.both(asked, x_wellspoken_keep="stop_reason")
    assert kept.body["choices"][0]["stop_reason"] == stop
    told = [c for chunk in kept.client_stream.chunks for c in chunk["choices"]]
    assert [c["stop_reason"] for c in told if c.get("stop_reason") is not None] == [stop]


async def test_an_end_of_text_has_no_entry(ask: Asking, tokens: Tokens) -> None:
    end = {"2": 100.0}
    empty = await ask.both(question(logit_bias=end, logprobs=True, top_logprobs=1))
    given = empty.given[0]
    assert (given.text, given.reason, len(given.rows)) == ("", "stop", 1)
    assert given.bytes == [END.encode()]
    choice = empty.body["choices"][0]
    assert choice["message"]["content"] == "" and choice["finish_reason"] == "stop"
    late = end | {str(tokens.ids[b"a"]): 50.0}
    some = await ask.both(question(logit_bias=late, min_tokens=3, logprobs=True, top_logprobs=1))
    assert (some.given[0].text, some.given[0].reason) == ("aaa", "stop")
    assert len(some.given[0].rows) == 4
    assert len(some.body["choices"][0]["logprobs"]["content"]) == 3


async def test_a_cut_loop_is_a_length(ask: Asking, tokens: Tokens) -> None:
    """vLLM names the reason `repetition`, which OpenAI's clients do not know."""
    repeated = {"max_pattern_size": 2, "min_count": 4}
    both = await ask.both(
        question(logit_bias=leaning(tokens, "a"), repetition_detection=repeated, logprobs=True)
    )
    assert both.given[0].reason == "repetition"
    assert both.body["choices"][0]["finish_reason"] == "length"
    assert both.stream["choices"][0]["finish_reason"] == "length"


async def test_a_seed_repeats_itself(ask: Asking) -> None:
    asked = question(logprobs=True, top_logprobs=3, temperature=1.5, seed=11)
    one, two = [await ask.post(ask.proxy, asked) for _ in range(2)]
    other = await ask.post(ask.proxy, asked | {"seed": 12})
    assert one.json["choices"] == two.json["choices"] != other.json["choices"]


async def test_the_sdk_reads_body_stream_and_helper(
    sdk: openai.AsyncOpenAI, tokens: Tokens
) -> None:
    asked: dict[str, Any] = question(stop="ba", logit_bias=leaning(tokens, "a", "b", "c"))
    asked |= {"max_tokens": 200, "logprobs": True, "top_logprobs": 5, **SAMPLED}
    body = await sdk.chat.completions.create(**asked)
    text = body.choices[0].message.content
    assert text and body.choices[0].finish_reason == "stop"
    streamed = ""
    async for chunk in await sdk.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed += choice.delta.content or ""
    assert streamed == text
    async with sdk.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == text
    found = [choice.logprobs for choice in (body.choices[0], final.choices[0])]
    assert found[0] is not None and found[0].content and found[1] is not None
    assert found[1].content is not None
    assert [e.model_dump() for e in found[1].content] == [e.model_dump() for e in found[0].content]


async def test_the_sdk_reads_two_choices(sdk: openai.AsyncOpenAI, tokens: Tokens) -> None:
    asked: dict[str, Any] = question(n=2, stop="ba", logit_bias=leaning(tokens, "a", "b", "c"))
    asked |= {"max_tokens": 200, "logprobs": True, "top_logprobs": 1, **SAMPLED}
    body = await sdk.chat.completions.create(**asked)
    async with sdk.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    texts = [[c.message.content for c in answer.choices] for answer in (body, final)]
    assert texts[0] == texts[1] and len(set(texts[0])) == 2
