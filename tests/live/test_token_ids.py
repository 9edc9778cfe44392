"""A real llama.cpp: token ids are those of its own /completion and /tokenize, in every form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.fold import fold, fold_completion

Json = dict[str, Any]
CHAT, TEXTS = "/v1/chat/completions", "/v1/completions"
NATIVE, TOKENIZE, TEMPLATE = "/completion", "/tokenize", "/apply-template"
TOOL = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
BOTH = pytest.mark.parametrize("proxy", ["llamacpp", "llamacpp-native"], indirect=True)
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["body", "stream"])


async def ask(url: str, path: str, **fields: Any) -> bytes:
    sent = {"model": "tiny", "temperature": 0, **fields}
    async with ClientSession() as session, session.post(url + path, json=sent) as answer:
        data = await answer.read()
        assert answer.status == 200, data
        return data


async def told(url: str, path: str, **fields: Any) -> Json:
    """Return the answer, the ids of a stream's chunks joined, and its prompt's from the first."""
    data = await ask(url, path, return_token_ids=True, **fields)
    if not fields.get("stream"):
        return dict(json.loads(data))
    found = fold(data) if path == CHAT else fold_completion(data)
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    parts = [json.loads(line) for line in lines if line != b"[DONE]"]
    first = parts[0].get("prompt_token_ids")
    assert all("prompt_token_ids" not in part for part in parts[1:])
    ids: dict[int, dict[str, list[int]]] = {}
    for choice in [choice for part in parts for choice in part["choices"]]:
        own = ids.setdefault(choice["index"], {})
        for key in ("prompt_token_ids", "token_ids"):
            if key in choice:
                own[key] = own.get(key, []) + choice[key]
    choices = [{**choice, **ids[choice["index"]]} for choice in found["choices"]]
    return {**found, "choices": choices} | ({"prompt_token_ids": first} if first else {})


async def template(llamacpp: str, messages: list[Json], **more: Any) -> str:
    answer = await ask(llamacpp, TEMPLATE, messages=messages, **more)
    return str(json.loads(answer)["prompt"])


async def ids_of(llamacpp: str, prompt: str) -> list[int]:
    sent = {"content": prompt, "add_special": True, "parse_special": True}
    return list(json.loads(await ask(llamacpp, TOKENIZE, **sent))["tokens"])


async def made_of(llamacpp: str, prompt: Any, most: int = 40, **more: Any) -> list[int]:
    sent = {"prompt": prompt, "n_predict": most, "return_tokens": True, **more}
    answer = json.loads(await ask(llamacpp, NATIVE, **sent))
    assert len(answer["tokens"]) == answer["tokens_predicted"]
    return list(answer["tokens"])


def user(text: str) -> list[Json]:
    return [{"role": "user", "content": text}]


@BOTH
@STREAMS
@pytest.mark.parametrize("text", ["hi", "@think", "@empty", "@cut", "@loop", "@tool"])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_a_chats_ids(
    llamacpp: str, proxy: str, stream: bool, text: str, logprobs: bool
) -> None:
    """Those of reasoning, broken characters and the end, with logprobs or without."""
    asked: Json = {"messages": user(text), "max_tokens": 40, "stream": stream}
    found = await told(proxy, CHAT, **asked, logprobs=logprobs)
    prompt = await template(llamacpp, user(text))
    assert found["prompt_token_ids"] == await ids_of(llamacpp, prompt)
    assert found["choices"][0]["token_ids"] == await made_of(llamacpp, prompt)
    plain = json.loads(await ask(proxy, CHAT, **{**asked, "stream": False}, logprobs=logprobs))
    assert found["choices"][0]["logprobs"] == plain["choices"][0]["logprobs"]


@STREAMS
async def test_the_ids_of_a_call(llamacpp: str, proxy: str, stream: bool) -> None:
    asked: Json = {"messages": user("@tool"), "tools": [TOOL], "max_tokens": 60}
    found = await told(proxy, CHAT, **asked, stream=stream)
    assert found["choices"][0]["message"]["tool_calls"]
    usage = json.loads(await ask(llamacpp, CHAT, **asked))["usage"]
    assert len(found["prompt_token_ids"]) == usage["prompt_tokens"]
    assert len(found["choices"][0]["token_ids"]) == usage["completion_tokens"]
    whole = json.loads(await ask(llamacpp, CHAT, **asked, verbose=True, return_tokens=True))
    assert found["choices"][0]["token_ids"] == whole["__verbose"]["tokens"]


@BOTH
@STREAMS
@pytest.mark.parametrize("most", [1, 5, 6])
async def test_a_completions_ids(llamacpp: str, proxy: str, stream: bool, most: int) -> None:
    """The fifth token begins a character that the sixth ends."""
    prompt = await template(llamacpp, user("hi"))
    more: Json = {"prompt": prompt, "max_tokens": most, "stream": stream}
    (choice,) = (await told(proxy, TEXTS, **more))["choices"]
    assert choice["prompt_token_ids"] == await ids_of(llamacpp, prompt)
    assert choice["token_ids"] == await made_of(llamacpp, prompt, most)


@BOTH
@STREAMS
async def test_every_choice_has_its_own(llamacpp: str, proxy: str, stream: bool) -> None:
    prompts = [await template(llamacpp, user("hi")), "yo"]
    more: Json = {"prompt": prompts, "n": 2, "max_tokens": 40, "stream": stream}
    choices = (await told(proxy, TEXTS, **more))["choices"]
    for place, choice in enumerate(choices):
        prompt = prompts[place // 2]
        assert choice["prompt_token_ids"] == await ids_of(llamacpp, prompt)
        assert choice["token_ids"] == await made_of(llamacpp, prompt)
    found = await told(proxy, CHAT, messages=user("hi"), n=2, max_tokens=40, stream=stream)
    own = await made_of(llamacpp, prompts[0])
    assert [choice["token_ids"] for choice in found["choices"]] == [own, own]
    assert found["prompt_token_ids"] == await ids_of(llamacpp, prompts[0])


@BOTH
@STREAMS
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("stop", ["caf", "é", "o w", " done", "."])
async def test_a_stop_string_ends_the_ids(
    llamacpp: str, proxy: str, stream: bool, logprobs: bool, stop: str
) -> None:
    """They are those that llama.cpp makes until it stops there by itself."""
    prompt = await template(llamacpp, user("hi"))
    own = await made_of(llamacpp, prompt, stop=[stop])
    asked: Json = {"messages": user("hi"), "max_tokens": 40, "stop": stop, "stream": stream}
    found = await told(proxy, CHAT, **asked, logprobs=logprobs)
    assert found["choices"][0]["token_ids"] == own
    more: Json = {"prompt": prompt, "max_tokens": 40, "stop": stop, "stream": stream}
    (choice,) = (await told(proxy, TEXTS, **more, logprobs=1 if logprobs else None))["choices"]
    assert choice["token_ids"] == own


@BOTH
async def test_an_echoed_prompt_keeps_its_ids(llamacpp: str, proxy: str) -> None:
    prompt = await template(llamacpp, user("hi"))
    more: Json = {"prompt": prompt, "max_tokens": 40, "echo": True, "logprobs": 1}
    (choice,) = (await told(proxy, TEXTS, **more))["choices"]
    assert choice["text"].startswith(prompt)
    assert choice["prompt_token_ids"] == await ids_of(llamacpp, prompt)
    assert choice["token_ids"] == await made_of(llamacpp, prompt)


@BOTH
async def test_nobody_is_told_who_did_not_ask(llamacpp: str, proxy: str) -> None:
    for more in ({}, {"return_token_ids": False}, {"return_token_ids": None}):
        assert b"token_ids" not in await ask(proxy, CHAT, messages=user("hi"), **more)
