"""Repairs of the numbers in logprobs: finite, not positive, and no probabilities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from wellspoken.adapters.events import UNKNOWN
from wellspoken.adapters.repairs.context import Context

ABSENT = -1e30  # -3.4e38 is float32's least value: llama.cpp and masked logits mean "none" by it
PROBABILITY = 0.001  # above it a positive number is no rounding error but a probability

VALUE_KEYS = ("logprob", "log_prob", "prob", "value", "lp")
TEXT_KEYS = ("token", "tok_str", "text", "decoded_token", "token_str", "content")
"""What servers call a token's number and its text."""

_MINUS_INF = re.compile(r"-\s*inf(inity)?|nan", re.IGNORECASE)


def logprob(value: Any, context: Context) -> float:
    """Return a finite logprob <= 0 for whatever a server sent as one, `UNKNOWN` where it told none.

    Counts `logprobs_unknown` (null, no number), `logprobs_not_finite` (NaN, the infinities,
    -3.4e38), `logprobs_string` ("-INF"), `logprobs_positive` (a rounding error above 0),
    `logprobs_below_floor` (less than -9999, which OpenAI's scale does not go below).
    """
    if isinstance(value, str):
        context.note("logprobs_string")
        try:
            value = math.nan if _MINUS_INF.fullmatch(value.strip()) else float(value)
        except ValueError:
            value = None
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        context.note("logprobs_unknown")
        return UNKNOWN
    if not abs(value) <= -ABSENT:  # NaN is in no order; an int may be too great for a float
        context.note("logprobs_not_finite")
        return UNKNOWN
    if value > 0 or (value == 0 and context.probabilities):
        return _positive(float(value), context)
    if value < UNKNOWN:
        context.note("logprobs_below_floor")
    return max(float(value), UNKNOWN)


def _positive(value: float, context: Context) -> float:
    if context.probabilities:
        return min(math.log(value), 0.0) if value > 0 else UNKNOWN
    context.note("logprobs_positive")
    return 0.0


def holds_probabilities(value: Any) -> bool:
    """Say whether any number that stands as a logprob in `value` is above 0.001, or is a `prob`."""
    if isinstance(value, dict):
        if any(key in value for key in ("prob", "probs", "top_probs")):
            return True
        if "token_logprobs" in value or "tokens" in value:
            tops = value.get("top_logprobs") or []
            return _above(value.get("token_logprobs")) or _above(tops)
        if isinstance(value.get("content"), list) and "logprob" not in value:
            return holds_probabilities(value["content"])
        return _above(value.get("logprob")) or _above(value.get("top_logprobs"))
    if isinstance(value, list):
        if _is_row(value):
            return _above(value)
        for item in value:  # in a loop: a generator would be a second call for each level
            if holds_probabilities(item):
                return True
        return False
    return _above(value)


def _above(value: Any) -> bool:
    """Say whether a number in numbers, {token: number} or entries is above the threshold."""
    items: Iterable[Any]
    if isinstance(value, list):
        row = _is_row(value)  # [logprob, id, text]
        items = [item for item in value if isinstance(item, float)] if row else value
    elif isinstance(value, dict):
        if "logprob" in value:
            items = [value["logprob"]]
        elif is_object(value) or any(isinstance(value.get(key), str) for key in TEXT_KEYS):
            items = [value.get(key) for key in VALUE_KEYS]
        else:
            items = value.values()
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return False
    else:
        return PROBABILITY < value < -ABSENT
    for item in items:
        if _above(item):
            return True
    return False


def _is_row(value: list[Any]) -> bool:
    """Say whether a list is one token's number and name, not a list of several."""
    return any(isinstance(item, str) for item in value)


def is_object(value: Any) -> bool:
    """Say whether it is one token's object, and not a map of texts to numbers."""
    if not isinstance(value, dict) or not any(key in value for key in VALUE_KEYS):
        return False
    named = any(isinstance(value.get(key), str) for key in TEXT_KEYS)
    return named or isinstance(value.get("id"), int)
