"""What Furiosa-LLM 2026.4.0 is sent for each row, and what is refused.

test_tables_alike.py tries the tables that other servers have too.

Sources: the wheel furiosa-llm 2026.4.0. server/protocol.py for what is read (`CR`: its class
ChatCompletionRequest, "no-op, but declared as a placeholder"), server/serving_chat.py,
sampling_params.py, server/chat_utils.py and server/harmony_utils.py for what becomes of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.sending import NO_PARAMETERS, USER, Json, chat, refused, text, tool
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.servers.known.furiosa import FURIOSA
from wellspoken.adapters.servers.prepare import lacks_in_streams

SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
F = tool("f", description="d", parameters={"type": "object"})
G = tool("g", description="", parameters=NO_PARAMETERS)
CALL_F: Json = {"type": "function", "function": {"name": "f"}}
ALLOWED: Json = {"mode": "required", "tools": [CALL_F]}
IMAGE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}


def user(part: Json) -> list[Json]:
    return [{"role": "user", "content": [{"type": "text", "text": "see"}, part]}]


CHAT_SENT: dict[str, tuple[Json, Json]] = {
    "model": ({}, {}),
    "messages": ({}, {}),
    "stream": ({"stream": True}, {"stream": True}),
    "stop": ({"stop": "a"}, {"stop": "a"}),  # CR: str or list; sampling_params drops ""
    "temperature": ({"temperature": 0}, {"temperature": 0}),  # below 1e-5 is greedy
    "top_p": ({"top_p": 0}, {"top_p": 1e-6}),  # _verify_args: 0 is a ValueError, so a 400
    "max_tokens": ({"max_tokens": 5}, {"max_tokens": 5}),
    "max_completion_tokens": (
        {"max_tokens": 9, "max_completion_tokens": 5},
        {"max_tokens": 5},  # to_sampling_params: one or the other, the newer first
    ),
    # to_sampling_params: logprobs alone asks for none
    "logprobs": ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
    "top_logprobs": (
        {"logprobs": True, "top_logprobs": 20},
        {"logprobs": True, "top_logprobs": 20},
    ),
    # CR.StreamOptions takes any key; include_obfuscation is not its affair
    "stream_options": (
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream": True, "stream_options": {"include_usage": True}},
    ),
    "response_format": (
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "text"}},
    ),
    "response_format.json_object": (
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
    ),
    "response_format.json_schema": ({"response_format": SCHEMA}, {"response_format": SCHEMA}),
    # _get_json_schema_from_tool: a named function without parameters is not constrained at all
    "tools": ({"tools": [F, tool("g")]}, {"tools": [F, G]}),
    "tool_choice": (
        {"tools": [F], "tool_choice": "auto"},
        {"tools": [F], "tool_choice": "auto"},
    ),
    # serving_chat.py: the template then has no tools
    "tool_choice.none": (
        {"tools": [F], "tool_choice": "none"},
        {"tools": [F], "tool_choice": "none"},
    ),
    # to_sampling_params: beside a response_format a ValueError, so a 400
    "tool_choice.required": (
        {"tools": [F], "tool_choice": "required", "response_format": SCHEMA},
        {"tools": [F], "tool_choice": "required"},
    ),
    "tool_choice.function": (
        {"tools": [F], "tool_choice": CALL_F, "response_format": SCHEMA},
        {"tools": [F], "tool_choice": CALL_F},
    ),
    # its check_tool_usage fails for other objects
    "tool_choice.allowed_tools": (
        {
            "tools": [F, G],
            "tool_choice": {"type": "allowed_tools", "allowed_tools": ALLOWED},
            "response_format": SCHEMA,
        },
        {"tools": [F], "tool_choice": "required"},
    ),
    # CR: "NOTE this will be ignored"
    "parallel_tool_calls": ({"tools": [F], "parallel_tool_calls": False}, {"tools": [F]}),
    # CR takes three values, harmony_utils.py uses them; other models have it from their template
    "reasoning_effort": (
        {"reasoning_effort": "minimal"},
        {"chat_template_kwargs": {"reasoning_effort": "minimal"}, "reasoning_effort": "low"},
    ),
    "messages.reasoning_content": (
        {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "b"}, USER]},
        {
            "messages": [
                {"role": "assistant", "content": "a", "reasoning_content": "b", "reasoning": "b"},
                USER,
            ]
        },
    ),
    # chat_utils.py hands the role to the template, of which many skip what they do not know
    "messages.developer": (
        {"messages": [{"role": "developer", "content": "x"}, USER]},
        {"messages": [{"role": "system", "content": "x"}, USER]},
    ),
    "messages.image_url": ({"messages": user(IMAGE)}, {"messages": user(IMAGE)}),
    "functions": ({"functions": [F["function"]]}, {"tools": [F]}),
    "function_call": (
        {"functions": [F["function"]], "function_call": {"name": "f"}},
        {"tools": [F], "tool_choice": CALL_F},
    ),
    "return_token_ids": ({"return_token_ids": True}, {"return_token_ids": True}),
    "n": ({"n": 3}, {}),  # _verify_args: above 1 a ValueError
    "store": ({"store": True}, {}),
    "metadata": ({"metadata": {"a": "b"}}, {}),
    "service_tier": ({"service_tier": "auto"}, {}),
    "user": ({"user": "u"}, {}),
    "safety_identifier": ({"safety_identifier": "s"}, {}),
    "prompt_cache_key": ({"prompt_cache_key": "k"}, {}),
    "prompt_cache_options": ({"prompt_cache_options": {"mode": "explicit"}}, {}),
    "prompt_cache_retention": ({"prompt_cache_retention": "24h"}, {}),
    "prediction": ({"prediction": {"type": "content", "content": "x"}}, {}),
}
CHAT_REFUSED: dict[str, tuple[Json, str]] = {
    # CR: placeholders, which nothing reads
    "seed": ({"seed": 1}, "seed"),
    "logit_bias": ({"logit_bias": {"5": 1}}, "logit_bias"),
    "frequency_penalty": ({"frequency_penalty": 0.5}, "frequency_penalty"),
    "presence_penalty": ({"presence_penalty": 0.5}, "presence_penalty"),
    "audio": ({"audio": {"voice": "alloy", "format": "wav"}}, "audio"),
    "modalities": ({"modalities": ["text", "audio"]}, "modalities"),
    "moderation": ({"moderation": {"model": "m"}}, "moderation"),
    "web_search_options": ({"web_search_options": {}}, "web_search_options"),
    "verbosity": ({"verbosity": "low"}, "verbosity"),  # not even declared
    # chat_utils.py: "Audio is not supported yet", "Unknown part type"
    "messages.input_audio": ({"messages": user(AUDIO)}, "messages[0].content[1]"),
    "messages.file": (
        {"messages": user({"type": "file", "file": {"file_id": "f"}})},
        "messages[0].content[1]",
    ),
    # ChatCompletionToolsParam.type: "function" alone
    "tools.custom": ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
}

# server/protocol.py, CompletionRequest; serving_completions.py
TEXT_SENT: dict[str, tuple[Json, Json]] = {
    "model": ({}, {}),
    "prompt": ({"prompt": ["a", "b"]}, {"prompt": ["a", "b"]}),
    "prompt.ids": ({"prompt": [[1, 2]]}, {"prompt": [[1, 2]]}),
    "stream": ({"stream": True}, {"stream": True}),
    "stop": ({"stop": ["a"]}, {"stop": ["a"]}),
    "max_tokens": ({"max_tokens": None}, {"max_tokens": 16}),  # null is an AssertionError
    "temperature": ({"temperature": 0.5}, {"temperature": 0.5}),
    "top_p": ({"top_p": 0}, {"top_p": 1e-6}),
    "logprobs": ({"logprobs": 5}, {"logprobs": 5}),
    "stream_options": (
        {"stream": True, "stream_options": {"include_usage": True}},
        {"stream": True, "stream_options": {"include_usage": True}},
    ),
    "return_token_ids": ({"return_token_ids": True}, {"return_token_ids": True}),
    "n": ({"n": 2}, {}),
    "best_of": ({"best_of": 2}, {}),
    "user": ({"user": "u"}, {}),
}
TEXT_REFUSED: dict[str, Json] = {
    "seed": {"seed": 1},
    "logit_bias": {"logit_bias": {"5": 1}},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "presence_penalty": {"presence_penalty": 0.5},
    "echo": {"echo": True},
    "suffix": {"suffix": "x"},
}


@pytest.mark.parametrize("row", TEXT_REFUSED)
def test_what_a_completion_is_refused(row: str) -> None:
    assert refused(FURIOSA, text, **TEXT_REFUSED[row]) == row


@pytest.mark.parametrize(
    ("effort", "nearest", "template"),
    [
        ("none", "low", {"enable_thinking": False}),
        ("minimal", "low", {"reasoning_effort": "minimal"}),
        ("medium", "medium", {"reasoning_effort": "medium"}),
        ("xhigh", "high", {"reasoning_effort": "xhigh"}),
        ("new", None, {"reasoning_effort": "new"}),
    ],
)
def test_efforts_that_it_takes(effort: str, nearest: str | None, template: Json) -> None:
    sent = chat(FURIOSA, reasoning_effort=effort)
    assert sent["chat_template_kwargs"] == template
    assert sent.get("reasoning_effort") == nearest


# check_tool_usage: 400 "When using `tool_choice`, `tools` must be set."
@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "auto"},
        {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
        {"n": 1, "seed": None, "logit_bias": {}, "frequency_penalty": 0, "presence_penalty": 0},
        {"logprobs": None, "top_logprobs": None, "modalities": ["text"], "functions": None},
    ],
)
def test_what_asks_for_nothing_is_neither_refused_nor_sent(fields: Any) -> None:
    assert chat(FURIOSA, **fields) == {"model": "m", "messages": [USER]}


def test_prompt_logprobs_come_in_a_body() -> None:
    body = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 1}'
    assert lacks_in_streams(FURIOSA, decode_chat(body).fields)
