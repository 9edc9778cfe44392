"""What LM Studio is sent, by its documentation and the issues that its table names.

test_tables_alike.py tries the rows of SENT, and completions.
"""

from __future__ import annotations

import pytest

from tests.adapters.sending import GONE, USER, Json, chat, differs, refused, tool
from tests.answers import body
from wellspoken.adapters.servers.known.lmstudio import LMSTUDIO
from wellspoken.adapters.servers.registry import GENERAL

SAME: Json = {
    "stop": "x",
    "seed": 7,
    "temperature": 0,
    "top_p": 1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {"5": -100},
}
F, G = tool("f"), tool("g")
SCHEMA: Json = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "array"}}}
OBJECT: Json = {
    "type": "json_schema",
    "json_schema": {"name": "object", "schema": {"type": "object"}},
}
SENT: dict[str, tuple[Json, Json]] = {
    "what it knows, as it is": (SAME, SAME),
    "the older limit": (
        {"max_completion_tokens": 9},
        {"max_tokens": 9, "max_completion_tokens": GONE},
    ),
    "n is made of single requests": ({"n": 2}, {"n": GONE}),
    "one call": (
        {"tools": [F], "parallel_tool_calls": False},
        {"tools": [F], "parallel_tool_calls": GONE},
    ),
    "a seed that is no random one": ({"seed": -1}, {"seed": 2**31 - 1}),
    "no logprobs": ({"logprobs": False}, {"logprobs": GONE}),
    "no named tool (issue #670)": (
        {"tools": [F, G], "tool_choice": tool("g")},
        {"tools": [G], "tool_choice": "required"},
    ),
    "a named function": (
        {"functions": [{"name": "f"}, {"name": "g"}], "function_call": {"name": "g"}},
        {"tools": [G], "tool_choice": "required", "functions": GONE, "function_call": GONE},
    ),
    "no json_object (issue #189)": (
        {"response_format": {"type": "json_object"}},
        {"response_format": OBJECT},
    ),
    "a schema": ({"response_format": SCHEMA}, {"response_format": SCHEMA}),
    "no text format (issue #307)": (
        {"response_format": {"type": "text"}},
        {"response_format": GONE},
    ),
    "the role that templates know": (
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        {"messages": [{"role": "system", "content": "be brief"}, USER]},
    ),
}


def test_the_general_rows_would_send_most_of_it_otherwise() -> None:
    other = {n for n, (fields, said) in SENT.items() if differs(chat(GENERAL, **fields), said)}
    assert other >= {
        "no named tool (issue #670)",
        "a named function",
        "no json_object (issue #189)",
        "no text format (issue #307)",
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        ({"verbosity": "low"}, "verbosity"),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    assert refused(LMSTUDIO, chat, **fields) == param


def test_an_error_is_a_text() -> None:
    said = body({"error": "Invalid tool_choice type: 'object'."}, status=400)
    assert (said.status, said.error and said.error["message"]) == (
        400,
        "Invalid tool_choice type: 'object'.",
    )
