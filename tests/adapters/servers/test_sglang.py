"""What SGLang is sent, and what its answers become.

After python/sglang/srt/entrypoints/openai/protocol.py, serving_chat.py, serving_completions.py,
utils.py and serving_base.py of the wheels 0.4.6 to 0.5.23.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.adapters.sending import GONE, USER, Json, chat, differs, refused, text, tool
from tests.answers import body, entry, scored
from wellspoken.adapters.prompt_scores import read_text
from wellspoken.adapters.servers.known.sglang import SGLANG
from wellspoken.adapters.servers.registry import GENERAL
from wellspoken.adapters.servers.versions import for_version
from wellspoken.adapters.tokens.tokenize import read_count, text_request

SAME: Json = {
    "n": 2,
    "stop": "x",
    "seed": 7,
    "temperature": 0.5,
    "top_p": 1,
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "logit_bias": {"5": -100},
}
AUDIO: Json = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}
WORDS: Json = {"type": "text", "text": "what is said?"}
IMAGE: Json = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}

SENT: dict[str, tuple[Json, Json]] = {
    "what it knows, as it is": (SAME, SAME),
    "the limit by the name that 0.4.6 knows": (
        {"max_completion_tokens": 9, "max_tokens": 3},
        {"max_tokens": 9, "max_completion_tokens": GONE},
    ),
    "no limit is its default": ({}, {"max_tokens": GONE}),
    "at least one alternative": ({"logprobs": True}, {"logprobs": True, "top_logprobs": 1}),
    "usage alone": (
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"stream_options": {"include_usage": True}},
    ),
    "named tools": (
        {"tools": [tool("f")], "tool_choice": tool("f"), "parallel_tool_calls": False},
        {"tools": [tool("f")], "tool_choice": tool("f"), "parallel_tool_calls": False},
    ),
    "no call, which its template then does not hear of": (
        {"tools": [tool("f")], "tool_choice": "none"},
        {"tools": [tool("f")], "tool_choice": "none"},
    ),
    "allowed tools": (
        {
            "tools": [tool("f"), tool("g")],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [tool("g")]},
            },
        },
        {"tools": [tool("g")], "tool_choice": "required"},
    ),
    "a role that came with 0.5.9": (
        {"messages": [{"role": "developer", "content": "be brief"}, USER]},
        {"messages": [{"role": "system", "content": "be brief"}, USER]},
    ),
    "audio by the name that 0.4.6 knows": (
        {"messages": [{"role": "user", "content": [WORDS, AUDIO, IMAGE]}]},
        {
            "messages": [
                {
                    "role": "user",
                    "content": [
                        WORDS,
                        {
                            "type": "audio_url",
                            "audio_url": {"url": "data:audio/mpeg;base64,AA=="},
                        },
                        IMAGE,
                    ],
                }
            ]
        },
    ),
    "for the proxy": (
        {"store": True, "metadata": {"a": "b"}, "service_tier": "flex", "user": "u"},
        {"store": GONE, "metadata": GONE, "service_tier": GONE, "user": GONE},
    ),
    "vendors' keys": ({"top_k": 3, "regex": "a+"}, {"top_k": 3, "regex": "a+"}),
}


@pytest.mark.parametrize(("fields", "expected"), SENT.values(), ids=SENT.keys())
def test_what_is_sent(fields: Json, expected: Json) -> None:
    assert differs(chat(SGLANG, **fields), expected) == []


def test_the_general_rows_would_send_something_else() -> None:
    other = [
        name for name, (fields, said) in SENT.items() if differs(chat(GENERAL, **fields), said)
    ]
    assert other == ["a role that came with 0.5.9", "audio by the name that 0.4.6 knows"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"verbosity": "low"}, "verbosity"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_what_is_refused(fields: Json, param: str) -> None:
    assert refused(SGLANG, chat, **fields) == param


def test_older_versions() -> None:
    old = for_version(SGLANG, "0.4.6")
    assert refused(old, chat, logit_bias={"5": -100}) == "logit_bias"
    assert refused(old, chat, seed=7) == "seed"
    assert refused(old, chat, tools=[tool("f")], tool_choice="required") == "tool_choice"
    old = for_version(SGLANG, "0.5.2")
    sent = chat(old, reasoning_effort="low")
    assert differs(sent, {"reasoning_effort": GONE}) == []
    assert sent["chat_template_kwargs"] == {"reasoning_effort": "low"}
    assert for_version(SGLANG, "0.5.23") is SGLANG


def test_completions() -> None:
    fields = {**SAME, "prompt": [[1, 2], [3]], "echo": True, "logprobs": 2}
    assert differs(text(SGLANG, **fields), fields) == []
    sent = text(SGLANG, user="u", logprobs=0)
    assert differs(sent, {"user": GONE, "logprobs": 1}) == []
    assert refused(SGLANG, text, suffix="y") == "suffix"
    assert SGLANG.scores == "backend" and SGLANG.several and SGLANG.least_tokens == 1


def test_a_body() -> None:
    """`matched_stop`, `metadata` and the null reasoning are not for the client; no `refusal`."""
    rows = {"content": [entry("Hi", -0.25, [("Hi", -0.25)])]}
    choice: Json = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "Hi",
            "reasoning_content": None,
            "tool_calls": None,
        },
        "logprobs": rows,
        "finish_reason": "stop",
        "matched_stop": 151645,
    }
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "reasoning_tokens": 0,
        "prompt_tokens_details": None,
    }
    answer = {
        "id": "0123456789abcdef0123456789abcdef",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "m",
        "choices": [choice],
        "usage": usage,
        "metadata": {"weight_version": "default"},
    }
    said = body(answer, scored(1))
    assert said.choice["logprobs"]["content"] == rows["content"]
    assert "matched_stop" not in said.choice and "metadata" not in said.answer
    assert said.answer["id"] == "chatcmpl-0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (
            {
                "object": "error",
                "message": "top_p must be in (0, 1], got 0.0.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            },
            400,
            None,
        )
    ],
)
def test_an_error(error: Json, status: int, code: Any) -> None:
    said = body(error, status=status)
    assert said.status == status and said.error is not None
    assert said.error["message"] == error["message"]
    assert said.error["code"] is None or isinstance(said.error["code"], str)


def test_the_text_of_token_ids() -> None:
    """DetokenizeResponse of protocol.py; vLLM says `prompt`, llama.cpp `content`."""
    assert SGLANG.detokenize == "/detokenize"
    for name in ("text", "prompt", "content"):
        assert read_text(json.dumps({name: "Hi"}).encode()) == "Hi"
    with pytest.raises(ValueError, match="a text"):
        read_text(b'{"texts": "Hi"}')


def test_the_count_of_a_text() -> None:
    assert SGLANG.tokenize is not None
    asked = json.loads(text_request(SGLANG.tokenize, "Hi", None, prompt=True))
    assert asked == {"prompt": "Hi", "add_special_tokens": True}
    assert read_count(b'{"tokens":[1,2],"count":2,"max_model_len":4096}') == 2
