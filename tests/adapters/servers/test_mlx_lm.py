"""What mlx-lm's server is sent, and what its answers become.

After mlx_lm/server.py of the wheels 0.24.0 to 0.32.2. test_tables_alike.py tries the rows of SENT,
and completions.
"""

from __future__ import annotations

import json

import pytest

from tests.adapters.sending import GONE, NO_PARAMETERS, USER, Json, chat, differs, refused, tool
from tests.answers import body, stream
from wellspoken.adapters.requests.chat import decode_chat
from wellspoken.adapters.servers.known.mlx_lm import MLX_LM, NO_LIMIT
from wellspoken.adapters.servers.prepare import lacks_in_streams
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.adapters.servers.versions import for_version

F = tool("f", parameters=NO_PARAMETERS, description="")
SAME: Json = {
    "stop": "x",
    "seed": 7,
    "temperature": 0,
    "top_p": 1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "logit_bias": {"5": -100},
    "max_tokens": 9,
}
SENT: dict[str, tuple[Json, Json]] = {
    "what it knows, as it is": (SAME, SAME),
    "no limit, where 512 is the default": ({}, {"max_tokens": NO_LIMIT}),
    "the older limit": (
        {"max_completion_tokens": 9},
        {"max_tokens": 9, "max_completion_tokens": GONE},
    ),
    "n is made of single requests": ({"n": 2}, {"n": GONE}),
    "options that break its stream": (
        {"stream": True, "stream_options": {"include_obfuscation": False}},
        {"stream_options": GONE},
    ),
    "one call": (
        {"tools": [F], "parallel_tool_calls": False},
        {"tools": [F], "parallel_tool_calls": GONE},
    ),
    "a seed below 0": ({"seed": -1}, {"seed": 2**63 - 1}),
    "no calls": ({"tools": [F], "tool_choice": "none"}, {"tools": GONE, "tool_choice": GONE}),
    "effort": (
        {"reasoning_effort": "low"},
        {"reasoning_effort": GONE, "chat_template_kwargs": {"reasoning_effort": "low"}},
    ),
    "the role that templates know": (
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        {"messages": [{"role": "system", "content": "be brief"}, USER]},
    ),
    "text is no format": ({"response_format": {"type": "text"}}, {"response_format": GONE}),
}


def test_the_general_rows_would_send_most_of_it_otherwise() -> None:
    same = [n for n, (fields, said) in SENT.items() if not differs(chat(GENERAL, **fields), said)]
    assert {"no limit, where 512 is the default", "no calls", "effort"}.isdisjoint(same)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [F], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [F], "tool_choice": tool("f")}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"verbosity": "low"}, "verbosity"),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    assert refused(MLX_LM, chat, **fields) == param


def test_older_versions_refuse() -> None:
    assert refused(for_version(MLX_LM, "0.31.0"), chat, presence_penalty=1) == "presence_penalty"
    assert refused(for_version(MLX_LM, "0.26.0"), chat, seed=7) == "seed"


def test_logprobs_are_asked_for_in_a_body() -> None:
    fields = {"model": "m", "messages": [USER], "logprobs": True}
    assert lacks_in_streams(MLX_LM, decode_chat(json.dumps(fields).encode()).fields)


def test_a_stream() -> None:
    """A role in every delta and no content where there is none."""
    head = {
        "id": "chatcmpl-7a3cbb1e-6a5b-4f9e-9d53-0a8a1c6f7c11",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "m",
        "system_fingerprint": "0.32.2",
    }
    thought = {"role": "assistant", "reasoning": "Hm."}
    deltas = [thought, {"role": "assistant", "content": "Hi"}, {"role": "assistant"}]
    parts = [
        {**head, "choices": [{"index": 0, "finish_reason": reason, "delta": delta}]}
        for delta, reason in zip(deltas, (None, None, "stop"), strict=True)
    ]
    said = stream(parts)
    assert (said.message["content"], said.message["reasoning_content"]) == ("Hi", "Hm.")
    assert said.answer["id"] == head["id"]


def test_an_error_is_a_text() -> None:
    said = body({"error": "max_tokens must be at least 1"}, status=400)
    assert (said.status, said.error and said.error["message"]) == (
        400,
        "max_tokens must be at least 1",
    )
