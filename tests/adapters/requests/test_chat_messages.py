"""The messages of a request: which are accepted, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.requests.test_chat_request import CALL, USER, body, refused
from wellspoken.adapters.requests.chat import decode_chat


def message(**fields: Any) -> bytes:
    return body(messages=[USER, fields])


MESSAGES: list[dict[str, Any]] = [
    {"role": "developer", "content": "x"},
    {"role": "system", "content": [{"type": "text", "text": "x"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]},
    {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:,"}}]},
    {
        "role": "user",
        "content": [
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            {"type": "file", "file": {"file_id": "f"}},
        ],
        "name": "n",
    },
    {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"input": ""}}]},
    {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
    {"role": "assistant", "refusal": "no"},
    {"role": "assistant", "audio": {"id": "a"}},
    {"role": "tool", "content": "1", "tool_call_id": "call_1"},
    {"role": "tool", "content": [{"type": "text", "text": "1"}], "tool_call_id": "call_1"},
    {"role": "function", "content": None, "name": "f"},
]


@pytest.mark.parametrize("fields", MESSAGES)
def test_messages_that_are_accepted(fields: dict[str, Any]) -> None:
    assert decode_chat(message(**fields)).messages[1].role == fields["role"]


PART = "messages[1].content[0]"
MISSING = "missing_required_parameter"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"content": "x"}, "messages[1].role", "missing_required_parameter"),
        ({"role": "bot", "content": "x"}, "messages[1].role", "invalid_value"),
        ({"role": "user"}, "messages[1].content", MISSING),
        ({"role": "user", "content": []}, "messages[1].content", "empty_array"),
        ({"role": "assistant"}, "messages[1].content", MISSING),
        ({"role": "assistant", "tool_calls": []}, "messages[1].content", MISSING),
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id", MISSING),
        ({"role": "tool", "tool_call_id": "c"}, "messages[1].content", MISSING),
        ({"role": "function", "content": "x"}, "messages[1].name", "missing_required_parameter"),
        ({"role": "function", "name": "f", "content": []}, "messages[1].content", "invalid_type"),
        ({"role": "user", "content": [{}]}, f"{PART}.type", "missing_required_parameter"),
        ({"role": "user", "content": [{"type": "x"}]}, f"{PART}.type", "invalid_value"),
        ({"role": "system", "content": [{"type": "file"}]}, f"{PART}.type", "invalid_value"),
        (
            {"role": "user", "content": [{"type": "text"}]},
            f"{PART}.text",
            "missing_required_parameter",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": "data:,"}]},
            f"{PART}.image_url",
            "invalid_type",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            f"{PART}.image_url.url",
            "missing_required_parameter",
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 1}}]},
            f"{PART}.image_url.url",
            "invalid_type",
        ),
        (
            {"role": "assistant", "tool_calls": [{}]},
            "messages[1].tool_calls[0].id",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "tool_calls": [CALL, {"id": "c"}]},
            "messages[1].tool_calls[1].type",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "x"}]},
            "messages[1].tool_calls[0].type",
            "invalid_value",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]},
            "messages[1].tool_calls[0].function",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom"}]},
            "messages[1].tool_calls[0].custom",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "function_call": {}},
            "messages[1].function_call.name",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            "messages[1].function_call.arguments",
            "missing_required_parameter",
        ),
        (
            {"role": "assistant", "function_call": {"name": "f", "arguments": {}}},
            "messages[1].function_call.arguments",
            "invalid_type",
        ),
    ],
)
def test_messages_that_are_refused(fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(message(**fields))
    assert (error.param, error.code) == (param, code)
    if not param.endswith("tool_call_id"):
        decode_chat(message(**fields), bounds="backend")
