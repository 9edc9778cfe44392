"""The objects that body and stream share, in OpenAI's key order."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType, json

from wellspoken.adapters.events import Extra, Fault, Usage
from wellspoken.adapters.requests.errors import error_json


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
    return error_json(fault.message, fault.type, fault.param, fault.code)


def extra_keys(extras: list[Extra], *, line: bool = False) -> bytes:
    """Return extras as `,"key":value` pairs.

    Of a choice's key that came in pieces the lists are joined; of an answer's own the last counts
    (vLLM's `prompt_token_ids` come with every choice, llama.cpp's `timings` with every chunk).

    `line`: for a stream's event, which is one line.
    """
    told: dict[str, list[bytes]] = {}
    for extra in extras:
        value = bytes(extra.value)
        if line and (b"\n" in value or b"\r" in value):
            value = json.format(value, indent=-1)
        before = told.get(extra.key, [b""])
        if extra.choice is not None and before[0][:1] == value[:1] == b"[":
            before.append(value)
        else:
            told[extra.key] = [value]
    return b"".join(b"," + json.encode(key) + b":" + _join(told[key]) for key in told)


def _join(values: list[bytes]) -> bytes:
    """Return several lists' JSON as one list, a single value as it is."""
    if len(values) == 1:
        return values[0]
    within = (value[1:-1].strip() for value in values)
    return b"[" + b",".join(filter(None, within)) + b"]"


def with_extras(data: bytes, extras: list[Extra]) -> bytes:
    """Return an object's JSON with the extras as its last keys."""
    return data[:-1] + extra_keys(extras) + b"}" if extras else data
