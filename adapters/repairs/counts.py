"""Repairs of usage: counts where OpenAI has them, as integers that add up."""

from __future__ import annotations

import re
from typing import Any

from msgspec import Raw

from wellspoken.adapters.events import Usage
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.finish_reasons import split_words
from wellspoken.adapters.repairs.loose_json import raw

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


DETAILS = {
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
    "cached_content_token_count": "prompt_cache_hit_tokens",  # Gemini
    "thoughts_token_count": "reasoning_tokens",  # Gemini
    "reasoning_output_tokens": "reasoning_tokens",  # LM Studio
}
_COUNT = r"(n_|num_|total_)?({})_tokens?(_count)?"
_RENAMED = {
    "prompt_tokens": re.compile(_COUNT.format("prompt|input")),
    "completion_tokens": re.compile(_COUNT.format("completion|output|candidates|generated")),
    "total_tokens": re.compile(r"total_tokens?(_count)?"),
}
"""OpenAI's names -> all others of the same counts, whose words "_" joins: OpenAI's newer ones and
Anthropic's (input_tokens), Amazon Bedrock's (inputTokens, inputTokenCount), Gemini's
(promptTokenCount, candidatesTokenCount), LM Studio's (total_output_tokens)."""

_TEXT = re.compile(r"\d{1,18}(\.0*)?", re.ASCII)


def count(value: Any) -> int | None:
    """Return a token count as int; None for what is no count."""
    if isinstance(value, str) and _TEXT.fullmatch(value):
        value = int(value.partition(".")[0])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 0 <= value < 1e15 else None


def usage(value: Any, context: Context) -> Usage | None:
    """Return the usage that any object tells, None if it tells nothing.

    Of prompt, completion and total any two tell the third. Counts `usage_renamed`,
    `usage_null_details`, `usage_details_moved` and `usage_total_wrong`; every other key is dropped
    and counted as a field.
    """
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        return None
    value = _rename(value, context)
    prompt, completion = count(value.get("prompt_tokens")), count(value.get("completion_tokens"))
    total = count(value.get("total_tokens"))
    if prompt is None and completion is None and total is None:
        return None
    for key, number in (("prompt", prompt), ("completion", completion), ("total", total)):
        if number is None and value.get(f"{key}_tokens") is not None:
            context.notes.drop(f"usage.{key}_tokens")
    if total is not None and prompt is not None and completion is None and total >= prompt:
        completion = total - prompt
    elif total is not None and completion is not None and prompt is None and total >= completion:
        prompt = total - completion
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
            context.notes.drop(f"usage.{key}")
    return Usage(prompt, completion, _raw(details["prompt"]), _raw(details["completion"]))


def _rename(value: dict[str, Any], context: Context) -> dict[str, Any]:
    if "prompt_tokens" in value and "completion_tokens" in value:
        return value
    found = {name: item for key, item in value.items() if (name := _name(key)) and item is not None}
    if not found:
        return value
    context.notes.add("usage_renamed", len(found))
    return found | {key: item for key, item in value.items() if not _name(key)}


def _name(key: str) -> str:
    """Return OpenAI's name of a count or of details that have another, "" if there is none."""
    words = split_words(key)
    if words in DETAILS:
        return DETAILS[words]
    for name, pattern in _RENAMED.items():
        if pattern.fullmatch(words):
            return "" if key == name else name
    return ""


def _tells(value: Any) -> bool:
    """Say whether an object tells how many tokens there are of prompt or answer."""
    if not isinstance(value, dict):
        return False
    names = {_name(key) or key for key, item in value.items() if count(item) is not None}
    return "prompt_tokens" in names or "completion_tokens" in names


_HOLDERS = ("usage", "tokens", "billed_units")


def _rank(name: str) -> int:
    """Return how well a name within a vendor's object says that it holds the counts, 0 the best."""
    words = split_words(name).split("_")
    name = "usage" if "usage" in words else name
    return _HOLDERS.index(name) if name in _HOLDERS else len(_HOLDERS)


def take_misplaced(payload: dict[str, Any], choices: list[Any], context: Context) -> Usage | None:
    """Take the usage from where it does not belong; None if it is nowhere.

    From a choice or its delta (`usage_in_choice`, Moonshot); from an object of a vendor's beside
    `choices` (`usage_in_vendor_object`): Groq's `x_groq`, Gemini's `usageMetadata`, Cohere's
    `meta`, LM Studio's `stats`, and what is called a usage within one.
    """
    for choice in choices:
        if not isinstance(choice, dict):
            continue
        for holder in (choice, choice.get("delta"), choice.get("message")):
            if isinstance(holder, dict) and _tells(holder.get("usage")):
                context.note("usage_in_choice")
                return usage(holder.pop("usage"), context)
    for key, value in payload.items():
        if not isinstance(value, dict):
            continue
        if key != "usage" and _tells(value):
            context.note("usage_in_vendor_object")
            return usage(payload.pop(key), context)
        for name in sorted(value, key=_rank):
            if _rank(name) < len(_HOLDERS) and _tells(value[name]):
                context.note("usage_in_vendor_object")
                payload[key] = {k: v for k, v in value.items() if k != name} or None
                return usage(value[name], context)
    return None


def from_timings(payload: dict[str, Any]) -> Usage | None:
    """Return the counts that stand beside `choices`, None if there are none there.

    llama.cpp's `timings` {prompt_n, cache_n, predicted_n} or its /completion's counts, Ollama's
    `prompt_eval_count` and `eval_count`; where they are used, the stage of usage counts
    `usage_from_timings`. `prompt_n` is without the tokens that the cache had, which llama.cpp
    before pull request #15827 (2025-09) does not tell: then it is no count of the prompt.
    """
    timings = payload.get("timings")
    details = Raw()
    if isinstance(timings, dict):
        prompt, completion = count(timings.get("prompt_n")), count(timings.get("predicted_n"))
        cached = count(timings.get("cache_n"))
        if cached is None:
            prompt = None
        elif prompt is not None:
            prompt += cached
            details = _raw({"cached_tokens": cached})
    else:
        prompt, completion = (
            next((found for key in keys if (found := count(payload.get(key))) is not None), None)
            for keys in (EVAL_COUNTS[::2], EVAL_COUNTS[1::2])
        )
    if prompt is None and completion is None:
        return None
    return Usage(prompt, completion, details, timed=True)


EVAL_COUNTS = ("prompt_eval_count", "eval_count", "tokens_evaluated", "tokens_predicted")
"""Prompt and completion as Ollama and llama.cpp's /completion count them."""


def _details(
    value: dict[str, Any], key: str, known: tuple[str, ...], context: Context
) -> dict[str, int]:
    given = value.get(key)
    if given is None:
        if key in value:
            context.note("usage_null_details")
        return {}
    if not isinstance(given, dict):
        context.notes.drop(f"usage.{key}")
        return {}
    kept = {}
    for name, item in given.items():
        number = count(item)
        if name in known and number is not None:
            kept[name] = number
            if type(item) is not int:
                context.note("shape_unusual")
        elif item is None:
            context.note("null_key_omitted")
        else:
            context.notes.drop(f"usage.{key}.{name}")
    return kept


def _raw(details: dict[str, int]) -> Raw:
    return raw(details) if details else Raw()
