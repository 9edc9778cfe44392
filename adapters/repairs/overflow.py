"""A prompt that is too long: what the backend says of it, in OpenAI's words, with both numbers."""

from __future__ import annotations

import re
from typing import Any, Final

# The numbers stand in this order: the model's limit and what was asked for, or the reverse.
_LIMIT_FIRST: Final = re.compile(
    r"(?:context|sequence|model) (?:length|window|size)[^0-9]{0,20}?(?:is|of)[^0-9]{0,12}([0-9]+)"
    r"[^0-9]{1,40}(?:requested|resulted in|passed|prompt contains|given)[^0-9]{0,24}([0-9]+)"
    r"|must have less than ([0-9]+) tokens\. Given: ([0-9]+)",
    re.IGNORECASE | re.DOTALL,
)
_PROMPT_FIRST: Final = re.compile(
    r"(?:request|prompt|input|requested|tokens)\b[^0-9]{0,12}\(?(?:length )?([0-9]+)\)?"
    r"(?: tokens?)?\)?[^0-9]{1,12}(?:exceeds?|is longer than|longer than|is greater than|should not"
    r" exceed)\b[^0-9]{1,60}([0-9]+)",
    re.IGNORECASE | re.DOTALL,
)


def told_numbers(message: str, body: dict[str, Any]) -> tuple[int, int] | None:
    """Return the model's context length and the prompt's tokens, None where they are not told.

    llama.cpp says them as `n_ctx` and `n_prompt_tokens` (b7376 there alone).
    """
    told = body.get("n_ctx"), body.get("n_prompt_tokens")
    if type(told[0]) is int and type(told[1]) is int:
        return told[0], told[1]
    if found := _LIMIT_FIRST.search(message):
        limit, given = (int(number[:18]) for number in found.groups() if number)
        return limit, given
    if found := _PROMPT_FIRST.search(message):
        return int(found[2][:18]), int(found[1][:18])
    return None


def say_overflow(message: str, body: dict[str, Any], what: str) -> str:
    """Return what OpenAI says of too long a prompt, the backend's own words where it lacks numbers.

    `what`: "messages" or "prompt".
    """
    numbers = told_numbers(message, body)
    if numbers is None or "maximum context length is" in message:
        return message
    return (
        f"This model's maximum context length is {numbers[0]} tokens. However, your {what} "
        f"resulted in {numbers[1]} tokens. Please reduce the length of the {what}."
    )
