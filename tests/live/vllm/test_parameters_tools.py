"""Tools through the proxy to a real vLLM: each choice by its effect, and older versions' rows.

The random model is held to one text by vLLM's `structured_outputs`, which its parser then reads.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.fold import fold
from tests.live.vllm.asking import Answer, Asking, question
from tests.live.vllm.conftest import StartProxy
from tests.live.vllm.test_parameters import (
    BOTH_WAYS,
    HOT,
    USAGE,
    prompt_of,
    refused,
    scored_prompt_of,
    text_of,
)
from tests.live.vllm.test_tools import NAMED, calls, held, tool
from tests.models.tiny_hf import Tokens

PARIS = ("get_weather", {"city": "Paris"})
LATE = ("get_time", {"city": "Paris"})
MARKUP = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
    for name, arguments in (PARIS, LATE)
)
OLDER = ["0.6.5", "0.11.0", "0.23.0"]
BOTH_VERSIONS = pytest.mark.parametrize("version", [None, "0.11.0"], ids=["0.32", "rows of 0.11"])


def calling(**more: Any) -> dict[str, Any]:
    """Return a request whose answer is two calls, unless tools are not to be called."""
    tools = [tool("get_weather"), tool("get_time")]
    for one in tools:  # vLLM would hold the text to these schemas instead
        del one["function"]["strict"]
    held_to = {"choice": [MARKUP]}
    return question(tools=tools, structured_outputs=held_to, logit_bias=None, **more) | {
        "max_tokens": 300
    }


async def messages(ask: Asking, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the first choice of the proxy's body and of its stream, folded."""
    body = await ask.post(ask.proxy, asked)
    stream = await ask.post(ask.proxy, asked | USAGE)
    assert (body.status, stream.status) == (200, 200), (body.data, stream.data)
    return [body.json["choices"][0], fold(stream.data)["choices"][0]]


async def test_auto_calls_what_the_model_calls(ask: Asking) -> None:
    for more in ({}, {"tool_choice": "auto"}, {"parallel_tool_calls": True}):
        for choice in await messages(ask, calling(**more)):
            assert calls(choice["message"]) == [PARIS, LATE]
            assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)


async def test_none_leaves_the_same_text_alone(ask: Asking) -> None:
    for choice in await messages(ask, calling(tool_choice="none")):
        assert choice["message"]["content"] == MARKUP
        assert choice["finish_reason"] == "stop" and "tool_calls" not in choice["message"]


@BOTH_VERSIONS
async def test_one_call_alone(vllm: str, start_proxy: StartProxy, version: str | None) -> None:
    """vLLM drops the others from 0.12 on; in front of older ones the proxy does."""
    proxy = await start_proxy(vllm, version=version)
    async with ClientSession() as session:
        ask = Asking(session, vllm, proxy)
        for choice in await messages(ask, calling(parallel_tool_calls=False)):
            assert calls(choice["message"]) == [PARIS]
            assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
async def test_only_allowed_tools_are_called(ask: Asking, tokens: Tokens, name: str) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": name}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    asked = held(tokens, tool_choice=choice, parallel_tool_calls=False, **HOT)
    for answer in await messages(ask, asked):
        assert {called for called, _ in calls(answer["message"])} == {name}


@BOTH_WAYS
async def test_an_allowed_tool_that_is_not_offered_is_a_400(ask: Asking, stream: bool) -> None:
    other = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": other}
    out = await ask.post(ask.proxy, calling(tool_choice=choice, stream=stream))
    assert "other" in refused(out, "tool_choice")


async def test_functions_are_called_as_tools_are(ask: Asking) -> None:
    asked = calling()
    functions = [tool["function"] for tool in asked.pop("tools")]
    for choice in await messages(ask, asked | {"functions": functions}):
        called = choice["message"]["function_call"]
        assert (called["name"], json.loads(called["arguments"])) == PARIS
        assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]


async def test_a_tools_answer_reaches_the_prompt(ask: Asking) -> None:
    past: list[dict[str, Any]] = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
        },
        {"role": "function", "name": "get_weather", "content": "the sun"},
    ]
    prompt = await prompt_of(ask, question(messages=past, functions=[{"name": "get_weather"}]))
    assert "<|im_start|>tool\nthe sun<|im_end|>" in prompt


@pytest.fixture(params=OLDER)
async def older(
    vllm: str, start_proxy: StartProxy, request: pytest.FixtureRequest
) -> tuple[str, str]:
    """An older version and a proxy that goes by its rows: what it sends, every version takes."""
    return request.param, await start_proxy(vllm, version=request.param)


async def asked_older(vllm: str, older: tuple[str, str], asked: dict[str, Any]) -> list[Answer]:
    """Return the answers of the proxy that takes vLLM for an older one: a body, a stream."""
    async with ClientSession() as session:
        ask = Asking(session, vllm, older[1])
        return [await ask.post(older[1], asked | way) for way in ({}, USAGE)]


async def test_older_rows_name_a_tool(vllm: str, older: tuple[str, str], tokens: Tokens) -> None:
    body, stream = await asked_older(vllm, older, held(tokens, tool_choice=NAMED))
    for choice in (body.json["choices"][0], fold(stream.data)["choices"][0]):
        assert [name for name, _ in calls(choice["message"])] == ["get_weather"]


async def test_older_rows_hold_a_schema(vllm: str, older: tuple[str, str], tokens: Tokens) -> None:
    schema = {"name": "c", "schema": {"enum": ["Paris"]}}
    asked = held(tokens, response_format={"type": "json_schema", "json_schema": schema})
    del asked["tools"]
    for answer in await asked_older(vllm, older, asked):
        assert text_of(answer) == '"Paris"'


async def test_older_rows_tell_developer_and_effort(vllm: str, older: tuple[str, str]) -> None:
    turn = [{"role": "developer", "content": "Be brief"}, {"role": "user", "content": "Hello"}]
    async with ClientSession() as session:
        ask = Asking(session, vllm, older[1])
        for effort, told in (("low", "effort low]"), ("none", "thinking False]")):
            asked = question(messages=turn, reasoning_effort=effort)
            prompt = await scored_prompt_of(ask, asked)
            assert told in prompt and "system\nBe brief<|im_end|>" in prompt


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_past_reasoning_reaches_the_template(
    vllm: str, start_proxy: StartProxy, name: str
) -> None:
    """0.32 takes both names again; what is sent to those between is in test_past_reasoning.py."""
    asked_first = {"role": "user", "content": "Hello"}
    said = {"role": "assistant", "content": "Hi", name: "I thought"}
    asked = question(messages=[asked_first, said, asked_first])
    async with ClientSession() as session:
        for version in ("0.32.0", "0.12.0"):
            ask = Asking(session, vllm, await start_proxy(vllm, version=version))
            assert "assistant\n[I thought]Hi" in await prompt_of(ask, asked)


@BOTH_WAYS
async def test_what_an_older_version_lacks_is_a_400(
    vllm: str, start_proxy: StartProxy, stream: bool
) -> None:
    proxy = await start_proxy(vllm, version="0.8.2")
    async with ClientSession() as session:
        asked = calling(tool_choice="required", stream=stream)
        out = await Asking(session, vllm, proxy).post(proxy, asked)
    message = refused(out, "tool_choice", "unsupported_parameter")
    assert "Version 0.8.3 brought it, and this server is 0.8.2" in message
