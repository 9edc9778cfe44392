"""A real llama.cpp behind the proxy, asked through OpenAI's own Python SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from aiohttp import ClientSession
from openai.types.chat import ChatCompletion

from tests.conformance import Request, check_body, check_error, check_stream
from tests.fold import comparable, fold
from tests.models.tiny import TEXT

MODEL = "tiny"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "parameters": {"type": "object", "properties": {"tz": {"type": "string"}}},
        },
    }
]
LOGPROBS: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}


def question(content: str = "Say hello.", **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": content}]
    return {"model": MODEL, "temperature": 0, "messages": messages, **more}


@pytest.fixture(params=[False, True], ids=["default", "strict"])
async def sdk(proxy: str, request: pytest.FixtureRequest) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, default and with strict validation of what it gets."""
    async with openai.AsyncOpenAI(
        base_url=f"{proxy}/v1",
        api_key="none",
        max_retries=0,
        timeout=120,
        _strict_response_validation=request.param,
    ) as client:
        yield client


def entries(choice: Any) -> list[Any]:
    assert choice.logprobs is not None and choice.logprobs.content is not None
    found: list[Any] = choice.logprobs.content
    return found


def joined(found: list[Any]) -> bytes:
    return b"".join(bytes(entry.bytes or ()) for entry in found)


async def test_logprobs_tile_the_text_streamed_and_not(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question(**LOGPROBS))
    choice = body.choices[0]
    assert (choice.message.content, choice.finish_reason) == (TEXT, "stop")
    found = entries(choice)
    assert joined(found) == TEXT.encode()
    assert all(len(entry.top_logprobs) == 3 for entry in found)
    assert all(-9999 <= entry.logprob <= 0 for entry in found)

    streamed, reasons = [], []
    async for chunk in await sdk.chat.completions.create(**question(**LOGPROBS), stream=True):
        part = chunk.choices[0]
        if part.logprobs is not None:
            assert joined(entries(part)).decode() == part.delta.content
            streamed += entries(part)
        if part.finish_reason is not None:
            reasons.append(part.finish_reason)
    assert [entry.model_dump() for entry in streamed] == [entry.model_dump() for entry in found]
    assert reasons == ["stop"]


async def test_the_stream_helper_gathers_the_body(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question(**LOGPROBS))
    async with sdk.chat.completions.stream(**question(**LOGPROBS)) as stream:
        texts = [event.delta async for event in stream if event.type == "content.delta"]
        final = await stream.get_final_completion()
    assert "".join(texts) == TEXT
    assert final.choices[0].message.role == "assistant"
    assert final.choices[0].finish_reason == "stop"
    dumped = [entry.model_dump() for entry in entries(final.choices[0])]
    assert dumped == [entry.model_dump() for entry in entries(body.choices[0])]


async def test_a_tool_call_body_stream_and_helper(sdk: openai.AsyncOpenAI) -> None:
    asked = question("@tool", tools=TOOLS)
    body = await sdk.chat.completions.create(**asked)
    async with sdk.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    for choice in (body.choices[0], final.choices[0]):
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert call.type == "function" and call.id
        assert call.function.name == "get_time"
        assert json.loads(call.function.arguments) == {"tz": "UTC"}


async def test_reasoning_stands_beside_the_content(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question("@think"))
    message = body.choices[0].message
    assert message.content == "Yes indeed"
    assert (message.model_extra or {})["reasoning_content"].strip() == "Hmm, let me see."
    texts, thoughts = "", ""
    async for chunk in await sdk.chat.completions.create(**question("@think"), stream=True):
        delta = chunk.choices[0].delta
        texts += delta.content or ""
        thoughts += (delta.model_extra or {}).get("reasoning_content", "")
    assert (texts, thoughts.strip()) == ("Yes indeed", "Hmm, let me see.")


async def test_broken_utf8_is_tiled_with_replacement(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question("@cut", **LOGPROBS))
    content = body.choices[0].message.content
    assert content is not None
    assert content.startswith("cut: ") and "\ufffd" in content and content.endswith(" end")
    assert joined(entries(body.choices[0])).decode("utf-8", "replace") == content


async def test_the_limit_is_a_length(sdk: openai.AsyncOpenAI) -> None:
    for limit in ({"max_tokens": 7}, {"max_completion_tokens": 7}):
        body = await sdk.chat.completions.create(**question("@loop", **LOGPROBS, **limit))
        assert body.choices[0].finish_reason == "length"
        assert body.usage is not None and body.usage.completion_tokens == 7
        assert len(entries(body.choices[0])) == 7


async def test_an_immediate_end_is_an_empty_answer(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question("@empty"))
    choice = body.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("", "stop")
    chunks = await sdk.chat.completions.create(**question("@empty"), stream=True)
    parts = [chunk.choices[0] async for chunk in chunks]
    assert "".join(part.delta.content or "" for part in parts) == ""
    assert [part.finish_reason for part in parts if part.finish_reason] == ["stop"]


async def test_usage_comes_last_and_only_when_asked(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question())
    assert body.usage is not None
    asked = question(stream_options={"include_usage": True})
    stream = await sdk.chat.completions.create(**asked, stream=True)
    chunks = [chunk async for chunk in stream]
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    last = chunks[-1]
    assert last.choices == [] and last.usage is not None
    assert last.usage.total_tokens == body.usage.total_tokens == 10 + body.usage.prompt_tokens


async def test_several_choices(sdk: openai.AsyncOpenAI) -> None:
    body: ChatCompletion = await sdk.chat.completions.create(**question(n=2, **LOGPROBS))
    assert [choice.index for choice in body.choices] == [0, 1]
    assert {choice.message.content for choice in body.choices} == {TEXT}
    assert {joined(entries(choice)) for choice in body.choices} == {TEXT.encode()}


async def test_a_stop_string_ends_the_text(sdk: openai.AsyncOpenAI) -> None:
    body = await sdk.chat.completions.create(**question(stop=" done"))
    assert body.choices[0].message.content == TEXT.removesuffix(" done.")
    assert body.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"temperature": 3}, "temperature", None),
        ({"top_logprobs": 3}, "top_logprobs", None),
        ({"n": 0}, "n", None),
        ({"messages": []}, "messages", None),
    ],
)
async def test_what_openai_refuses_is_refused(
    sdk: openai.AsyncOpenAI, change: dict[str, Any], param: str, code: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat.completions.create(**(question() | change))
    assert caught.value.param == param


async def test_llama_cpps_own_refusal_is_in_the_envelope(sdk: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(**question("x " * 3000), stream=stream)
        assert caught.value.code == "context_length_exceeded"
        assert caught.value.type == "invalid_request_error"


async def test_models_are_listed(sdk: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in sdk.models.list()] == [MODEL]
    assert (await sdk.models.retrieve(MODEL)).object == "model"


EVERY = [
    ("", {}),
    ("", LOGPROBS),
    ("", {"logprobs": True}),
    ("@tool", {"tools": TOOLS}),
    ("@think", {}),
    ("@think", LOGPROBS),
    ("@cut", {}),
    ("@cut", LOGPROBS),
    ("@loop", {"max_tokens": 9, **LOGPROBS}),
    ("@empty", {}),
    ("@empty", LOGPROBS),
]


@pytest.mark.parametrize("proxy", ["llamacpp", "openai", "auto"], indirect=True)
async def test_every_answer_conforms_and_a_stream_folds_to_its_body(proxy: str) -> None:
    async with ClientSession(f"{proxy}/v1/") as session:
        for content, more in EVERY:
            asked = question(content or "Say hello.", **more)
            names = tuple(tool["function"]["name"] for tool in more.get("tools", ()))
            request = Request(
                model=MODEL,
                logprobs=more.get("logprobs", False),
                k=more.get("top_logprobs", 0),
                tools=names,
            )
            async with session.post("chat/completions", json=asked) as answer:
                body = await answer.read()
            assert check_body(body, request) == [], (content, more)
            async with session.post("chat/completions", json=asked | {"stream": True}) as answer:
                stream = await answer.read()
            assert check_stream(stream, request) == [], (content, more)
            assert comparable(fold(stream)) == comparable(json.loads(body)), (content, more)


@pytest.mark.parametrize("proxy", ["llamacpp", "llamacpp-native"], indirect=True)
async def test_an_answer_given_back_with_its_nulls_is_read(proxy: str) -> None:
    """b11549 itself answers 500 for a null `name` or `reasoning_content`."""
    nulls = dict.fromkeys(("name", "reasoning_content", "tool_call_id", "refusal", "tool_calls"))
    user: dict[str, Any] = {"role": "user", "content": "Hi", **nulls}
    said = [user, {"role": "assistant", "content": "Yes.", **nulls}, user]
    async with ClientSession(f"{proxy}/v1/") as session:
        asked = question(messages=said)
        async with session.post("chat/completions", json=asked) as answer:
            body = await answer.json()
    assert body["choices"][0]["message"]["content"] == TEXT


async def test_every_refusal_conforms(proxy: str) -> None:
    async with ClientSession(f"{proxy}/v1/") as session:
        for data, status in [
            (b"{", 400),
            (b"[" * 100_000, 400),
            (b'{"model": "\xff"}', 400),
            (b'{"model": "tiny", "messages": 3}', 400),
            (json.dumps(question("x " * 3000)).encode(), 400),
            (json.dumps(question(tools=[{"type": "function"}])).encode(), 400),
        ]:
            headers = {"Content-Type": "application/json"}
            async with session.post("chat/completions", data=data, headers=headers) as answer:
                body = await answer.read()
            assert answer.status == status
            assert check_error(body, status) == []
