"""Repairs of usage: counts where OpenAI has them, as integers that add up."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from wellspoken.adapters.events import Usage
from wellspoken.adapters.lenient import raw
from wellspoken.adapters.repairs.context import Context

PROMPT_DETAILS = ("cached_tokens", "audio_tokens", "cache_write_tokens")
COMPLETION_DETAILS = (
    "reasoning_tokens",
    "audio_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)
MOVED = {
    "reasoning_tokens": ("completion", "reasoning_tokens"),  # SGLang >= 0.5
    "prompt_cache_hit_tokens": ("prompt", "cached_tokens"),  # DeepSeek
    "cached_tokens": ("prompt", "cached_tokens"),
}
"""A count beside the totals -> the details object and key where OpenAI has it."""

_KNOWN = {
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
}


def count(value: Any) -> int | None:
    """Return a token count as int; None for what is no count."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1e15 else None


def usage(value: Any, context: Context) -> Usage | None:
    """Return the usage that any object tells, None if it tells nothing.

    Counts `usage_null_details`, `usage_details_moved` and `usage_total_wrong`; every other key is
    dropped and counted as a field.
    """
    if not isinstance(value, dict):
        return None
    prompt, completion = count(value.get("prompt_tokens")), count(value.get("completion_tokens"))
    total = count(value.get("total_tokens"))
    if prompt is None and completion is None and total is None:
        return None
    if total is not None and prompt is not None and completion is None and total >= prompt:
        completion = total - prompt
    if total != (prompt or 0) + (completion or 0):
        context.note("usage_total_wrong")
    details = {
        "prompt": _details(value, "prompt_tokens_details", PROMPT_DETAILS, context),
        "completion": _details(value, "completion_tokens_details", COMPLETION_DETAILS, context),
    }
    for key, item in value.items():
        if key in _KNOWN:
            continue
        number = count(item)
        if key in MOVED and number is not None:
            side, name = MOVED[key]
            details[side].setdefault(name, number)
            context.note("usage_details_moved")
        elif item is not None:
            context.notes.dropped(f"usage.{key}")
    return Usage(prompt, completion, _raw(details["prompt"]), _raw(details["completion"]))


def _details(
    value: dict[str, Any], key: str, known: tuple[str, ...], context: Context
) -> dict[str, int]:
    given = value.get(key)
    if given is None:
        if key in value:
            context.note("usage_null_details")
        return {}
    if not isinstance(given, dict):
        context.notes.dropped(f"usage.{key}")
        return {}
    kept = {}
    for name, item in given.items():
        number = count(item)
        if name in known and number is not None:
            kept[name] = number
        elif item is not None:
            context.notes.dropped(f"usage.{key}.{name}")
    return kept


def _raw(details: dict[str, int]) -> Raw:
    return raw(details) if details else Raw()
