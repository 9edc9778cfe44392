"""Lengths of time as people write them: 90, "90s", "15m", "1h30m", "500ms", "2d"."""

from __future__ import annotations

import re
from typing import Final

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


PATTERN: Final = r"\s*([0-9]+(\.[0-9]+)?|([0-9]+(\.[0-9]+)?([mM][sS]|[sSmMhHdD]))+)\s*"
"""What `seconds` takes, for a JSON Schema; that no unit may come twice it cannot say."""


def seconds(text: str) -> float:
    """Return the seconds that `text` says; a bare number is seconds.

    Raises ValueError, whose text says how to write it, also for a unit that comes twice.
    """
    given = text.strip().lower()
    if _NUMBER.fullmatch(given):
        return float(given)
    parts = _PART.findall(given) if _WHOLE.fullmatch(given) else []
    units = [unit for _, unit in parts]
    if not parts or len(set(units)) < len(units):
        raise ValueError(f"{text!r} is no length of time. Write it like 90s, 15m or 1h30m.")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
