"""Nulls in messages: what a client gives back with all its keys says nothing by those."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.adapters.sending import USER, Json, chat
from wellspoken.adapters.servers import registry
from wellspoken.adapters.servers.backend import Backend

SERVERS: Final = [
    one for one in registry.BACKENDS.values() if one.chat and one.chat.dialect == "chat"
]
KEYS: Final = (
    *("name", "refusal", "audio", "function_call", "tool_calls", "tool_call_id", "annotations"),
    *("reasoning", "reasoning_content", "cache_control"),
)
NULLS: Final[Json] = dict.fromkeys(KEYS)


@pytest.mark.parametrize("backend", SERVERS, ids=lambda backend: backend.name)
def test_optional_nulls_are_left_out(backend: Backend) -> None:
    """openai-python's `message.model_dump()`; llama.cpp b11549 and vLLM 0.32 refuse some of them.

    Mutant: `leave_out_nulls` not called.
    """
    said = {"role": "assistant", "content": "null", **NULLS}
    messages = [{**USER, **NULLS}, said, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    sent = chat(backend, messages=messages)["messages"]
    kept = [{key: x for key, x in one.items() if x is not None} for one in messages]
    assert sent == kept


@pytest.mark.parametrize(
    "messages",
    [
        [USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function",
         "function": {"name": "f", "arguments": "{}"}}]}],
        [{"role": "user", "content": [{"type": "text", "text": "null"}]}],
    ],
    ids=["a call's content", "a text"],
)  # fmt: skip
def test_what_says_something_stays(messages: Any) -> None:
    """Mutant: `leave_out_nulls` without `content`."""
    assert chat(registry.BACKENDS["vllm"], messages=messages)["messages"] == messages
