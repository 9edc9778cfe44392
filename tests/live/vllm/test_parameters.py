"""Each parameter through the proxy to a real vLLM, told by what it does to the answer."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.conformance import check_error
from tests.live.vllm.asking import CHAT, NO_CONTROLS, TRUE, Answer, Asking, question
from tests.live.vllm.completing import PATH, completed, prompted
from tests.live.vllm.conftest import StartProxy
from tests.models.tiny_hf import Tokens

USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
HOT: dict[str, Any] = {"temperature": 2, "seed": 1}
ENDPOINTS = [CHAT, PATH]
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])
BOTH_ENDPOINTS = pytest.mark.parametrize("path", ENDPOINTS, ids=["chat", "completions"])


def asking_for(path: str, **more: Any) -> dict[str, Any]:
    """Return a greedy request of either endpoint."""
    return question(**more) if path == CHAT else prompted(**more)


def text_of(answer: Answer) -> str:
    """Return the text of the first choice, of a body or of a stream."""
    assert answer.status == 200, answer.data
    streamed = answer.content_type == "text/event-stream"
    found = ""
    for part in answer.chunks if streamed else [answer.json]:
        for choice in part["choices"]:
            said = choice.get("delta" if streamed else "message", {})
            found += (choice["text"] if "text" in choice else said.get("content")) or ""
    return found


async def texts(ask: Asking, asked: dict[str, Any], path: str = CHAT) -> list[str]:
    """Return the proxy's text of a body and of a stream."""
    return [text_of(await ask.post(ask.proxy, asked | way, path)) for way in ({}, USAGE)]


async def prompt_of(ask: Asking, asked: dict[str, Any]) -> str:
    """Return the prompt that vLLM made of a chat request through the proxy."""
    out = await ask.post(ask.proxy, asked | {"return_token_ids": True, "max_tokens": 1})
    assert out.status == 200, out.data
    return b"".join(TRUE[one] for one in out.json["prompt_token_ids"]).decode()


async def scored_prompt_of(ask: Asking, asked: dict[str, Any]) -> str:
    """Return the same but for its first token, as versions tell it that know no ids."""
    out = await ask.post(ask.proxy, asked | {"prompt_logprobs": 0, "max_tokens": 1})
    assert out.status == 200, out.data
    rows = [row for row in out.json["prompt_logprobs"] if row]
    return b"".join(TRUE[int(one)] for row in rows for one in row).decode()


def refused(answer: Answer, param: str | None, code: str | None = None) -> str:
    """Assert a clean 400, and return what it says."""
    assert answer.status == 400, answer.data
    assert answer.content_type == "application/json"
    assert check_error(answer.data, 400) == []
    error: dict[str, Any] = answer.json["error"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["code"]) == (param, code or error["code"])
    return str(error["message"])


async def test_a_bias_bans_and_forces_in_a_chat(ask: Asking, tokens: Tokens) -> None:
    plain = await ask.both(question())
    said = plain.given[0].ids
    banned, forced = said[0], tokens.ids[b"city"]
    without = await ask.both(question(logit_bias=NO_CONTROLS | {str(banned): -100}))
    assert banned not in without.given[0].ids and banned not in without.given_stream[0].ids
    assert TRUE[said[0]] != TRUE[without.given[0].ids[0]]
    alone = await ask.both(question(logit_bias=NO_CONTROLS | {str(forced): 100}))
    for answer in (alone.body, alone.stream):
        assert answer["choices"][0]["message"]["content"] == "city" * 24


async def test_a_bias_bans_and_forces_in_a_completion(ask: Asking, tokens: Tokens) -> None:
    plain = await completed(ask, prompted())
    banned, forced = plain.given[0].ids[0], tokens.ids[b"city"]
    without = await completed(ask, prompted(logit_bias=NO_CONTROLS | {str(banned): -100}))
    assert banned not in without.given[0].ids and without.body["choices"] != plain.body["choices"]
    alone = await completed(ask, prompted(logit_bias=NO_CONTROLS | {str(forced): 100}))
    for answer in (alone.body, alone.stream):
        assert answer["choices"][0]["text"] == "city" * 12


@BOTH_WAYS
@BOTH_ENDPOINTS
async def test_a_bias_outside_the_vocabulary_is_a_400(
    ask: Asking, tokens: Tokens, path: str, stream: bool
) -> None:
    """vLLM itself streams a 200 with one error event."""
    last = len(tokens) - 1
    inside = await ask.post(ask.proxy, asking_for(path, logit_bias={str(last): 1}), path)
    assert inside.status == 200
    asked = asking_for(path, logit_bias={str(last + 1): 1}, stream=stream)
    raw = await ask.post(ask.direct, asked, path)
    assert raw.status == (200 if stream else 400)
    message = refused(await ask.post(ask.proxy, asked, path), "logit_bias")
    assert str(last + 1) in message and f"Vocabulary size: {len(tokens)}" in message


@BOTH_ENDPOINTS
async def test_a_seed_repeats_every_choice(ask: Asking, path: str) -> None:
    asked = asking_for(path, n=2, **HOT)
    one, two, other = [
        [choice.get("text") or choice["message"] for choice in out.json["choices"]]
        for out in [await ask.post(ask.proxy, asked | {"seed": seed}, path) for seed in (5, 5, 6)]
    ]
    assert one == two != other
    assert one[0] != one[1]


async def served(ask: Asking, path: str) -> int:
    """Return how many POSTs of a path vLLM has answered."""
    async with ask.session.get(f"{ask.direct}/metrics") as answer:
        told = await answer.text()
    label = f'handler="{re.escape(path)}"'
    found = re.findall(rf"^http_requests_total\{{[^}}]*{label}[^}}]*\}} ([0-9.]+)$", told, re.M)
    return int(sum(map(float, found)))


@BOTH_WAYS
@BOTH_ENDPOINTS
async def test_choices_are_one_request(ask: Asking, path: str, stream: bool) -> None:
    asked = asking_for(path, n=3, **HOT)
    raw = (await ask.post(ask.direct, asked, path)).json["usage"]
    before = await served(ask, path)
    assert before > 0
    out = await ask.post(ask.proxy, asked | (USAGE if stream else {}), path)
    assert await served(ask, path) == before + 1
    usage = out.chunks[-1]["usage"] if stream else out.json["usage"]
    assert usage == {
        key: raw[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    assert usage["completion_tokens"] == 3 * asked["max_tokens"]


async def test_the_best_of_several_is_answered(ask: Asking) -> None:
    """vLLM 0.32 ignores `best_of`; the proxy asks for each with a seed of its own."""
    asked = prompted(temperature=1, seed=7, logprobs=1)
    means: dict[str, float] = {}
    for seed in (7, 8, 9):
        choice = (await ask.post(ask.direct, asked | {"seed": seed}, PATH)).json["choices"][0]
        values = choice["logprobs"]["token_logprobs"]
        means[choice["text"]] = sum(values) / len(values)
    assert len(means) == 3
    out = await ask.post(ask.proxy, asked | {"best_of": 3}, PATH)
    (choice,) = out.json["choices"]
    assert choice["text"] == max(means, key=means.__getitem__)
    assert out.json["usage"]["completion_tokens"] == 3 * asked["max_tokens"]
    two = await ask.post(ask.proxy, asked | {"best_of": 3, "n": 2}, PATH)
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    assert [choice["text"] for choice in two.json["choices"]] == ranked[:2]


@BOTH_ENDPOINTS
@pytest.mark.parametrize(
    "narrow", [{"top_p": 1e-6}, {"temperature": 0}, {"top_k": 1}, {"min_p": 1}], ids=str
)
async def test_narrow_sampling_is_greedy(ask: Asking, path: str, narrow: dict[str, Any]) -> None:
    greedy = await texts(ask, asking_for(path), path)
    wide = await texts(ask, asking_for(path, **HOT), path)
    assert greedy[0] == greedy[1] != wide[0] == wide[1]
    assert await texts(ask, asking_for(path, **HOT) | narrow, path) == greedy


@BOTH_ENDPOINTS
@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
async def test_a_penalty_keeps_tokens_from_coming_again(ask: Asking, path: str, name: str) -> None:
    asked = asking_for(path, max_tokens=40, return_token_ids=True)
    kinds = []
    for value in (-2, 0, 2):
        out = await ask.post(ask.proxy, asked | {name: value}, path)
        stream = await ask.post(ask.proxy, asked | {name: value} | USAGE, path)
        assert text_of(stream) == text_of(out)
        kinds.append(len(set(out.json["choices"][0]["token_ids"])))
    assert kinds[0] < kinds[1] < kinds[2] > 30  # of 40 tokens


SPACES = [b"\t", b"\n", b"\r", b" ", b"  ", b"\n\n"]
FORMATS: dict[str, tuple[dict[str, Any], str]] = {
    "const": (
        {"type": "structural_tag", "format": {"type": "const_string", "value": "Paris"}},
        "P",
    ),
    "schema": (
        {
            "type": "json_schema",
            "json_schema": {"name": "c", "strict": True, "schema": {"enum": ["Paris", "Rome"]}},
        },
        '"',
    ),
}


@pytest.mark.parametrize("name", FORMATS)
async def test_a_format_holds_the_text(ask: Asking, tokens: Tokens, name: str) -> None:
    wanted, first = FORMATS[name]
    bias = {str(tokens.ids[data]): -100.0 for data in SPACES}
    asked = question(response_format=wanted, logit_bias=bias)
    for text in await texts(ask, asked):
        assert text.startswith(first) and text.strip('"') in ("Paris", "Rome")
    free = await texts(ask, asked | {"response_format": {"type": "text"}})
    assert not free[0].startswith(first)


@pytest.mark.parametrize("seed", [3, 4, 5])
async def test_a_json_object_is_one(ask: Asking, tokens: Tokens, seed: int) -> None:
    # The key's quote and what ends an object soon, so that noise makes a whole one.
    bias = {str(tokens.ids[data]): 8.0 for data in (b'"', b":", b"1", b"}")}
    bias |= {str(tokens.ids[data]): -100.0 for data in SPACES}
    asked = question(logit_bias=bias, temperature=1, seed=seed, max_tokens=200)
    asked["response_format"] = {"type": "json_object"}
    for text in await texts(ask, asked):
        assert isinstance(json.loads(text), dict)


@BOTH_ENDPOINTS
@pytest.mark.parametrize(
    ("constraint", "allowed"),
    [
        ({"choice": ["Paris", "Rome"]}, {"Paris", "Rome"}),
        ({"regex": "(ab){3}"}, {"ababab"}),
        ({"json": {"const": 12}}, {"12"}),
    ],
    ids=["choice", "regex", "json"],
)
async def test_vllms_structured_outputs_pass(
    ask: Asking, path: str, constraint: dict[str, Any], allowed: set[str]
) -> None:
    asked = asking_for(path, structured_outputs=constraint, logit_bias=None)
    assert set(await texts(ask, asked, path)) <= allowed


@BOTH_WAYS
@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"max_completion_tokens": 2}, 2),
        ({"max_completion_tokens": 2, "max_tokens": 5}, 2),
        ({"max_completion_tokens": None, "max_tokens": 3}, 3),
    ],
    ids=["newer", "both", "older"],
)
async def test_the_limit_of_a_chat(
    ask: Asking, limits: dict[str, Any], count: int, stream: bool
) -> None:
    asked = question(max_tokens=None, **{k: v for k, v in limits.items() if k != "max_tokens"})
    out = await ask.post(ask.proxy, asked | limits | (USAGE if stream else {}))
    usage = out.chunks[-1]["usage"] if stream else out.json["usage"]
    assert usage["completion_tokens"] == count


async def test_the_default_limit_of_a_completion_is_openais(ask: Asking) -> None:
    asked = prompted(max_tokens=None, ignore_eos=True)
    out = await ask.post(ask.proxy, asked, PATH)
    assert out.json["usage"]["completion_tokens"] == 16


@BOTH_ENDPOINTS
async def test_obfuscation_and_usage_of_a_stream(ask: Asking, path: str) -> None:
    options = {"include_usage": True, "include_obfuscation": True}
    asked = asking_for(path, stream=True, stream_options=options)
    chunks = (await ask.post(ask.proxy, asked, path)).chunks
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == asked["max_tokens"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    alone = asked | {"stream_options": {"include_obfuscation": False}}
    chunks = (await ask.post(ask.proxy, alone, path)).chunks
    assert chunks and not any("usage" in chunk for chunk in chunks)


NOTHING: dict[str, dict[str, Any]] = {
    "user": {"user": "u", "safety_identifier": "s"},
    "cache": {"prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    "cache options": {"prompt_cache_options": {"mode": "explicit"}},
    "prediction": {"prediction": {"type": "content", "content": "Paris"}},
    "kept by the proxy": {"store": True, "metadata": {"a": "b"}},
    "text": {"modalities": ["text"], "verbosity": "medium"},
    "no tools": {"tool_choice": "none", "parallel_tool_calls": True},
    "nulls": {"stop": None, "seed": None, "tools": None, "logit_bias": NO_CONTROLS, "n": None},
}


@pytest.mark.parametrize("more", NOTHING.values(), ids=NOTHING)
async def test_what_changes_nothing_is_taken(ask: Asking, more: dict[str, Any]) -> None:
    plain = await texts(ask, question())
    assert await texts(ask, question() | more) == plain


@BOTH_WAYS
async def test_the_service_tier_is_answered(ask: Asking, stream: bool) -> None:
    asked = question(stream=stream, service_tier="flex")
    out = await ask.post(ask.proxy, asked)
    parts = out.chunks if stream else [out.json]
    assert {part["service_tier"] for part in parts} == {"default"}
    plain = await ask.post(ask.proxy, question(stream=stream))
    assert all("service_tier" not in part for part in (plain.chunks if stream else [plain.json]))


def parts(kind: str, value: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "see"}, {"type": kind, kind: value}]
    return {"messages": [{"role": "user", "content": content}]}


FILE = parts("file", {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"})
CUSTOM = {"type": "custom", "custom": {"name": "shell"}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "audio": ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    "spoken": ({"modalities": ["text", "audio"]}, "modalities"),
    "search": ({"web_search_options": {}}, "web_search_options"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),
    "file": (FILE, "messages[0].content[1]"),
    "custom tool": ({"tools": [CUSTOM]}, "tools[0]"),
}


@BOTH_WAYS
@pytest.mark.parametrize("name", REFUSED)
async def test_what_vllm_cannot_do_is_a_400(ask: Asking, name: str, stream: bool) -> None:
    more, param = REFUSED[name]
    out = await ask.post(ask.proxy, question(**more, stream=stream))
    assert "vLLM" in refused(out, param, "unsupported_parameter")


IMAGE = parts("image_url", {"url": "data:image/gif;base64,R0lGODlhAQABAAAAACw="})
AUDIO = parts("input_audio", {"data": "UklGRg==", "format": "wav"})


@BOTH_WAYS
@pytest.mark.parametrize("more", [IMAGE, AUDIO], ids=["image", "audio"])
async def test_a_model_of_text_refuses_other_parts(
    ask: Asking, more: dict[str, Any], stream: bool
) -> None:
    out = await ask.post(ask.proxy, question(**more, stream=stream))
    message = refused(out, "messages[0].content[1]", "unsupported_parameter")
    assert "tiny is not a multimodal model" in message


async def test_a_developer_speaks_as_the_system(ask: Asking) -> None:
    turn = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": "Hello"}]
    prompt = await prompt_of(ask, question(messages=turn))
    assert prompt.startswith("<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHello")


@pytest.mark.parametrize(
    ("effort", "told"), [("high", "[effort high][thinking True]"), ("none", "[thinking False]")]
)
async def test_the_effort_reaches_the_template(ask: Asking, effort: str, told: str) -> None:
    plain, other = [
        await prompt_of(ask, question(**more)) for more in ({}, {"reasoning_effort": effort})
    ]
    assert told in other and other.endswith(plain) and plain.startswith("<|im_start|>user")
    given = question(chat_template_kwargs={"colour": "red"})
    assert (await prompt_of(ask, given)).startswith("[colour red]")


async def test_an_unknown_effort_is_vllms_400(ask: Asking) -> None:
    out = await ask.post(ask.proxy, question(reasoning_effort="silly"))
    assert "'minimal'" in refused(out, "reasoning_effort")


@BOTH_WAYS
async def test_the_whole_vocabulary_is_vllms_to_refuse(
    vllm: str, start_proxy: StartProxy, stream: bool
) -> None:
    """Its default --max-logprobs is 20; the proxy's own cap has to be lifted to reach it."""
    lifted = await start_proxy(vllm, bounds="backend", caps={"n_probs": 1 << 20})
    capped = await start_proxy(vllm, bounds="backend")
    async with ClientSession() as session:
        asked = question(logprobs=True, top_logprobs=-1, stream=stream)
        out = await Asking(session, vllm, lifted).post(lifted, asked)
        own = await Asking(session, vllm, capped).post(capped, asked)
    assert "max allowed: 20" in refused(out, "logprobs")
    refused(own, "top_logprobs")


@BOTH_WAYS
async def test_a_suffix_is_vllms_to_refuse(ask: Asking, stream: bool) -> None:
    out = await ask.post(ask.proxy, prompted(suffix="!", stream=stream), PATH)
    assert "suffix is only supported" in refused(out, "suffix")
