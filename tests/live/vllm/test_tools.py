"""Tool calls of a real vLLM whose random model is held to JSON by the request."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.live.vllm.asking import NO_CONTROLS, Asking, question
from tests.models.tiny_hf import Tokens

CITIES = ["Paris", "Köln"]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
SCORED: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}


def tool(name: str) -> dict[str, Any]:
    """Return a function whose arguments can only be one of two objects."""
    city = {"type": "string", "enum": CITIES}
    parameters = {
        "type": "object",
        "properties": {"city": city},
        "required": ["city"],
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "strict": True, "parameters": parameters},
    }


def held(tokens: Tokens, **more: Any) -> dict[str, Any]:
    """Return a request whose tool call ends: without white space, which JSON has no end of."""
    banned = [b"\t", b"\n", b"\r", b" ", b"  ", b"\n\n"]
    bias = NO_CONTROLS | {str(tokens.ids[data]): -100.0 for data in banned}
    del bias["2"]  # the end of text
    tools = [tool("get_weather"), tool("get_time")]
    return question(tools=tools, logit_bias=bias, max_tokens=120, **more)


def calls(message: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]


@pytest.mark.parametrize("scored", [{}, SCORED], ids=["plain", "scored"])
async def test_a_named_tool_is_called(ask: Asking, tokens: Tokens, scored: dict[str, Any]) -> None:
    both = await ask.both(held(tokens, tool_choice=NAMED, **scored))
    (told,) = calls(both.raw["choices"][0]["message"])
    for answer in (both.body, both.stream):
        choice = answer["choices"][0]
        assert calls(choice["message"]) == [told] and told[0] == "get_weather"
        assert choice["finish_reason"] in ("stop", "tool_calls")  # either: the client forced it
        assert choice["message"]["tool_calls"][0]["id"]


@pytest.mark.parametrize("parallel", [True, False])
async def test_a_required_tool_is_called(ask: Asking, tokens: Tokens, parallel: bool) -> None:
    asked = held(tokens, tool_choice="required", parallel_tool_calls=parallel, n=2)
    both = await ask.both(asked | {"temperature": 1, "seed": 3, "max_tokens": 400})
    for answer, given in ((both.body, both.given), (both.stream, both.given_stream)):
        for choice in answer["choices"]:
            found = calls(choice["message"])
            assert found and {name for name, _ in found} <= {"get_weather", "get_time"}
            assert all(set(arguments) == {"city"} for _, arguments in found)
            assert choice["finish_reason"] == "tool_calls"
            assert given[choice["index"]].reason in ("stop", "tool_calls")
            ids = [call["id"] for call in choice["message"]["tool_calls"]]
            assert all(ids) and len(set(ids)) == len(ids)


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_noise_is_no_call(ask: Asking, tokens: Tokens, choice: str) -> None:
    both = await ask.both(held(tokens, tool_choice=choice, **SCORED) | {"max_tokens": 24})
    assert both.body["choices"][0]["message"]["content"]
    assert "tool_calls" not in both.body["choices"][0]["message"]


async def test_functions_are_asked_as_tools(ask: Asking, tokens: Tokens) -> None:
    asked = held(tokens)
    functions = [tool["function"] for tool in asked.pop("tools")]
    asked |= {"functions": functions, "function_call": {"name": "get_time"}}
    out = await ask.post(ask.proxy, asked)
    choice = out.json["choices"][0]
    assert choice["finish_reason"] in ("stop", "function_call")  # either: the client forced it
    assert choice["message"]["function_call"]["name"] == "get_time"
    assert json.loads(choice["message"]["function_call"]["arguments"])["city"] in CITIES


async def test_a_schema_holds_the_text(ask: Asking, tokens: Tokens) -> None:
    schema = {"name": "weather", "strict": True, "schema": tool("x")["function"]["parameters"]}
    asked = held(tokens, response_format={"type": "json_schema", "json_schema": schema}, **SCORED)
    del asked["tools"]
    both = await ask.both(asked)
    assert json.loads(both.body["choices"][0]["message"]["content"])["city"] in CITIES
    assert both.body["choices"][0]["finish_reason"] == "stop"


async def test_the_sdk_gathers_a_call(sdk: openai.AsyncOpenAI, tokens: Tokens) -> None:
    asked = held(tokens, tool_choice=NAMED)
    body = await sdk.chat.completions.create(**asked)
    async with sdk.chat.completions.stream(**asked) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_completion()
    for message in (body.choices[0].message, final.choices[0].message):
        assert message.tool_calls is not None
        (call,) = message.tool_calls
        assert call.type == "function" and call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in CITIES


async def test_a_cut_call_is_told_as_vllm_tells_it(ask: Asking, tokens: Tokens) -> None:
    """A body that the limit cut holds the markup as text; its stream has the call's beginning."""
    asked = held(tokens, tool_choice=NAMED) | {"max_tokens": 34}
    both = await ask.both(asked)
    assert both.given[0].text.startswith("<tool_call>")
    assert both.body["choices"][0]["finish_reason"] == "length"
    (call,) = both.stream["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get_weather"
