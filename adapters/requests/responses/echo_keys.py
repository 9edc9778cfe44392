"""The keys of a response that repeat its request, with OpenAI's defaults where it says nothing."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw, json

from wellspoken.adapters.requests.responses.response_request import (
    FormatOptions,
    ReasoningOptions,
    ResponseRequest,
    TextOptions,
)

_NULL: Final = b"null"
_encode = json.Encoder().encode

DEFAULTS: Final = {
    "instructions": b"null",
    "max_output_tokens": b"null",
    "max_tool_calls": b"null",
    "parallel_tool_calls": b"true",
    "previous_response_id": b"null",
    "presence_penalty": b"0.0",
    "frequency_penalty": b"0.0",
    "prompt_cache_key": b"null",
    "safety_identifier": b"null",
    "temperature": b"1.0",
    "tool_choice": b'"auto"',
    "top_logprobs": b"0",
    "top_p": b"1.0",
    "truncation": b'"disabled"',
    "user": b"null",
    "metadata": b"{}",
}
"""What is told as sent -> what is told where nothing was."""


def echo_request(request: ResponseRequest, stored: bool) -> dict[str, Raw]:
    """Return the values, as JSON; `stored`: whether the response is kept."""
    echo = {"background": Raw(b"false")}
    for key, default in DEFAULTS.items():
        sent = request.fields.get(key)
        given = sent is not None and bytes(sent) != _NULL
        echo[key] = sent.copy() if sent is not None and given else Raw(default)
    wanted = request.text or TextOptions()
    reasoning = request.reasoning or ReasoningOptions()
    summary = reasoning.summary or reasoning.generate_summary
    told: dict[str, Any] = {
        "reasoning": {"effort": reasoning.effort, "summary": summary},
        "service_tier": "default",
        "store": stored,
        "text": {
            "format": _format(wanted.format or FormatOptions()),
            "verbosity": wanted.verbosity or "medium",
        },
        "tools": request.offer.echo,
    }
    return echo | {key: Raw(_encode(value)) for key, value in told.items()}


def _format(wanted: FormatOptions) -> dict[str, Any]:
    if wanted.type != "json_schema":
        return {"type": wanted.type or "text"}
    return {
        "type": wanted.type,
        "name": wanted.name,
        "description": wanted.description,
        "schema": wanted.schema,
        "strict": bool(wanted.strict),
    }
