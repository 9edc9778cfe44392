"""A prompt that is too long: both numbers, told in OpenAI's words, from each server's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.replay import exchange
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.faults import fault_from
from wellspoken.adapters.repairs.overflow import say_overflow, told_numbers

USER = {"role": "user", "content": "Hi"}

# llama.cpp b11549; vLLM 0.32 and older; SGLang; TGI; llama-cpp-python; TabbyAPI.
TEXTS = [
    ("request (13392 tokens) exceeds the available context size (8192 tokens), try", 8192, 13392),
    ("This model's maximum context length is 512 tokens. However, you requested 600", 512, 600),
    (
        "This model's maximum context length is 512 tokens. However, your prompt contains 513",
        512,
        513,
    ),
    ("Input length (600) exceeds model's maximum context length (512).", 512, 600),
    ("The decoder prompt (length 6000) is longer than the maximum model length of 512.", 512, 6000),
    ("The input (1000 tokens) is longer than the model's context length (512 tokens).", 512, 1000),
    ("`inputs` must have less than 4095 tokens. Given: 5000", 4095, 5000),
    ("Requested tokens (5000) exceed context window of 4096", 4096, 5000),
    ("Prompt length 5000 is greater than max_seq_len 4096", 4096, 5000),
]


@pytest.mark.parametrize(("text", "limit", "given"), TEXTS)
def test_both_numbers_are_found(text: str, limit: int, given: int) -> None:
    assert told_numbers(text, {}) == (limit, given)
    said = say_overflow(text, {}, "messages")
    assert f"maximum context length is {limit} tokens" in said and f"{given}" in said


def test_llamacpps_keys_tell_them_where_the_text_does_not() -> None:
    text = "the request exceeds the available context size, try increasing it"
    assert say_overflow(text, {"n_ctx": 1024, "n_prompt_tokens": 9007}, "prompt") == (
        "This model's maximum context length is 1024 tokens. However, your prompt resulted in 9007 "
        "tokens. Please reduce the length of the prompt."
    )
    assert say_overflow(text, {}, "prompt") == text


@pytest.mark.parametrize(
    "asked", [{"model": "m", "messages": [USER]}, {"model": "m", "prompt": "Hi"}]
)
@pytest.mark.parametrize("text", [True, False])
def test_what_is_too_long_is_the_clients(asked: dict[str, Any], text: bool) -> None:
    """llama.cpp answers /v1/completions in the chat's form. Mutant: what the backend's has."""
    param = list(asked)[1]
    context = Context(exchange(asked), text=text)
    said = "request (513 tokens) exceeds the available context size (512 tokens), try increasing it"
    fault = fault_from({"error": {"message": said, "code": 400}}, 400, context)
    assert (fault.param, fault.code) == (param, "context_length_exceeded")
    assert f"your {param} resulted in 513 tokens" in fault.message
