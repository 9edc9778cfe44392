"""The objects that body and stream share, in OpenAI's key order."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType, json

from wellspoken.adapters.events import Fault, Usage


class UsageObject(Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Raw | UnsetType = UNSET
    completion_tokens_details: Raw | UnsetType = UNSET


def usage_object(usage: Usage) -> UsageObject:
    """Return OpenAI's usage object; total is the sum, absent details are omitted."""
    prompt, completion = usage.prompt or 0, usage.completion or 0
    given, counted = usage.prompt_details, usage.completion_details
    return UsageObject(
        prompt,
        completion,
        prompt + completion,
        given if bytes(given) else UNSET,
        counted if bytes(counted) else UNSET,
    )


def error_object(fault: Fault) -> bytes:
    """Return OpenAI's error object as JSON, all four keys (contract rule 12)."""
    return json.encode(
        {
            "error": {
                "message": fault.message,
                "type": fault.type,
                "param": fault.param,
                "code": fault.code,
            }
        }
    )
