"""Responses of a real vLLM, translated and passed: every number as its chat answers have it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from itertools import groupby
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from tests.live.responding import (
    LOGPROBS,
    Json,
    chat_rows,
    check_events,
    check_same_numbers,
    comparable,
    response_rows,
    spoken,
)
from tests.live.vllm.asking import NO_CONTROLS
from tests.live.vllm.conftest import StartProxy
from tests.live.vllm.server import MODEL
from tests.live.vllm.test_chat import leaning
from tests.live.vllm.test_tools import CITIES
from tests.models.tiny_hf import Tokens

HELLO = "Hello world"
BIAS = leaning(Tokens(), "a", "city", "assistant", " café", "?", " ")
"""Of these tokens alone: each is text, so that each has an entry on both sides."""
SCORED: Json = {"include": LOGPROBS, "top_logprobs": 3}
TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": CITIES}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
Make = Callable[..., openai.AsyncOpenAI]


class City(BaseModel):
    """What the model is held to."""

    city: Literal["Paris", "Köln"]


def asked(said: Any = HELLO, **more: Any) -> Any:
    """Return a request for a greedy response."""
    body = {"logit_bias": BIAS, "temperature": 0}
    return {"model": MODEL, "input": said, "max_output_tokens": 24, "extra_body": body, **more}


async def chat(
    client: openai.AsyncOpenAI, *texts: str, bias: dict[str, float] = BIAS
) -> ChatCompletion:
    """Return the chat answer to a conversation, the user's texts and the answers in turn."""
    roles = ["user", "assistant"] * len(texts)
    messages: Any = [
        {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
    ]
    return await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        max_tokens=24,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
        extra_body={"logit_bias": bias},
    )


@pytest.fixture
async def connect() -> AsyncIterator[Make]:
    """Return a client of a base URL, which is strict about what it gets where it should be."""
    clients = []

    def make(url: str, strict: bool = True) -> openai.AsyncOpenAI:
        clients.append(
            openai.AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key="none",
                max_retries=0,
                timeout=60,
                _strict_response_validation=strict,
            )
        )
        return clients[-1]

    yield make
    for client in clients:
        await client.close()


@pytest.fixture
async def own(vllm: str, connect: Make) -> openai.AsyncOpenAI:
    """The client of vLLM itself."""
    return connect(vllm, False)


@pytest.fixture
async def translated(proxy: str, connect: Make) -> openai.AsyncOpenAI:
    """The client of a proxy that makes responses of chat answers."""
    return connect(proxy)


@pytest.fixture
async def passed(vllm: str, start_proxy: StartProxy, connect: Make) -> openai.AsyncOpenAI:
    """The client of a proxy that passes vLLM's own responses on."""
    return connect(await start_proxy(vllm, responses="pass"), False)


async def test_each_number_is_the_chats(
    translated: openai.AsyncOpenAI, own: openai.AsyncOpenAI
) -> None:
    response = await translated.responses.create(**asked(**SCORED))
    rows = response_rows(response)
    expected = await chat(own, HELLO)
    assert response.output_text == expected.choices[0].message.content
    check_same_numbers(rows, chat_rows(expected))
    assert response.status == "incomplete" and response.usage and expected.usage
    assert response.usage.output_tokens == 24
    assert response.usage.input_tokens == expected.usage.prompt_tokens


async def test_parts_of_characters_are_as_in_a_chat(translated: openai.AsyncOpenAI) -> None:
    body = {"logit_bias": NO_CONTROLS, "temperature": 0}
    response = await translated.responses.create(**asked(extra_body=body, **SCORED))
    expected = await chat(translated, HELLO, bias=NO_CONTROLS)
    assert "\ufffd" in response.output_text
    rows = [
        (token, number, spelled or [], more) for token, number, spelled, more in chat_rows(expected)
    ]
    assert response_rows(response) == rows


async def test_a_stream_says_what_a_body_says(translated: openai.AsyncOpenAI) -> None:
    stream = await translated.responses.create(**asked(**SCORED), stream=True)
    events: list[Any] = [event async for event in stream]
    check_events(events, "response.incomplete")
    body = await translated.responses.create(**asked(**SCORED))
    assert spoken(events, "output_text") == body.output_text
    assert comparable(events[-1].response) == comparable(body)
    numbers = [
        row.logprob
        for event in events
        if event.type == "response.output_text.delta"
        for row in event.logprobs
    ]
    assert numbers == [number for _, number, _, _ in response_rows(body)]


async def test_three_turns_are_one_conversation(
    translated: openai.AsyncOpenAI, own: openai.AsyncOpenAI
) -> None:
    previous, texts = None, []
    for number in range(3):
        texts.append(f"Hello {number}")
        response = await translated.responses.create(
            **asked(texts[-1], previous_response_id=previous, **SCORED)
        )
        expected = await chat(own, *texts)
        check_same_numbers(response_rows(response), chat_rows(expected))
        previous = response.id
        texts.append(response.output_text)


async def test_parse(translated: openai.AsyncOpenAI, tokens: Tokens) -> None:
    response = await translated.responses.parse(**held(tokens, text_format=City))
    assert isinstance(response.output_parsed, City)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
@pytest.mark.parametrize("streamed", [False, True], ids=["body", "stream"])
async def test_tools_in_a_loop(
    translated: openai.AsyncOpenAI, tokens: Tokens, choice: Any, streamed: bool
) -> None:
    wanted = held(tokens, tools=[TOOL], tool_choice=choice)
    if streamed:
        stream = await translated.responses.create(**wanted, stream=True)
        events: list[Any] = [event async for event in stream]
        check_events(events)
        first = events[-1].response
    else:
        first = await translated.responses.create(**wanted)
    call = first.output[0]
    assert call.type == "function_call" and call.name == "get_weather"
    assert json.loads(call.arguments)["city"] in CITIES
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "12 degrees"}
    second = await translated.responses.create(
        **asked([output], previous_response_id=first.id, tools=[TOOL])
    )
    assert second.output_text


def held(tokens: Tokens, **more: Any) -> Any:
    """Return a request whose JSON ends: without white space, which JSON has no end of."""
    banned = [b"\t", b"\n", b"\r", b" ", b"  ", b"\n\n"]
    bias = NO_CONTROLS | {str(tokens.ids[data]): -100.0 for data in banned}
    del bias["2"]  # the end of text
    body = {"logit_bias": bias, "temperature": 0}
    return asked(extra_body=body, **more) | {"max_output_tokens": 120}


async def test_passed_is_vllms_own(
    passed: openai.AsyncOpenAI, own: openai.AsyncOpenAI, translated: openai.AsyncOpenAI
) -> None:
    bodies = [await one.responses.create(**asked(**SCORED)) for one in (passed, own, translated)]
    assert comparable(bodies[0]) == comparable(bodies[1])
    assert bodies[0].id.startswith("resp_") and bodies[0].output_text == bodies[2].output_text
    check_same_numbers(response_rows(bodies[2]), response_rows(bodies[0]))
    streams = []
    for one in (passed, own):
        stream = await one.responses.create(**asked(**SCORED), stream=True)
        streams.append([event async for event in stream])
    # How many tokens a delta has is a matter of how busy vLLM is.
    assert [key for key, _ in groupby(streams[0], type)] == [
        key for key, _ in groupby(streams[1], type)
    ]
    assert spoken(streams[0], "output_text") == bodies[1].output_text


async def test_a_single_request_may_pass(
    translated: openai.AsyncOpenAI, own: openai.AsyncOpenAI
) -> None:
    wanted = asked(**SCORED)
    wanted["extra_body"] = {**wanted["extra_body"], "oai_compat": False}
    raw = await translated.responses.with_raw_response.create(**wanted)
    direct = await own.responses.with_raw_response.create(**asked(**SCORED))
    found, expected = json.loads(raw.content), json.loads(direct.content)
    assert found.keys() == expected.keys()
    assert found["output"][0]["content"] == expected["output"][0]["content"]
