"""Lengths of time and sizes as people write them: 90, "90s", "15m", "1h30m"; "64 MB", "1GiB"."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, Final, NamedTuple, get_args

from msgspec import Meta

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER: Final = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE: Final = re.compile(
    r"(\d{1,30}(?:\.\d{1,30})?)\s*([kmgt]?)(i?)(b?)", re.ASCII | re.IGNORECASE
)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class Unit(NamedTuple):
    """What a text in the place of a number means, and the pattern that a JSON Schema has for it.

    `read` raises ValueError, whose text says how to write it.
    """

    read: Callable[[str], float]
    pattern: str


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


def size(text: str) -> int:
    """Return the bytes that `text` says: kB, MB, GB, TB are powers of 1000, KiB, MiB, ... of 1024.

    A bare number is bytes, the B may be missing, and case does not matter, as in "64Mi". Raises
    ValueError, whose text says how to write it, also for a part of a byte.
    """
    found = _SIZE.fullmatch(text.strip())
    number, prefix, binary, _ = found.groups() if found else ("", "", "", "")
    exact = Fraction(number or "0.5") * (1024 if binary else 1000) ** _POWERS[prefix.lower()]
    if not found or (binary and not prefix) or exact.denominator > 1:
        raise ValueError(f"{text!r} is no size. Write it like 64MB, 512KiB or 1GiB.")
    return int(exact)


DURATION: Final = Unit(
    seconds, r"^\s*([0-9]+(\.[0-9]+)?|([0-9]+(\.[0-9]+)?([mM][sS]|[sSmMhHdD]))+)\s*$"
)
"""Of lengths of time; that no unit may come twice the pattern cannot say."""

SIZE: Final = Unit(size, r"^\s*[0-9]{1,30}(\.[0-9]{1,30})?\s*([kKmMgGtT][iI]?)?[bB]?\s*$")


def unit_of(hint: Any) -> Unit | None:
    """Return the unit that a key's type has; None where a number is a number."""
    for part in get_args(hint):
        if isinstance(part, Meta) and part.extra:
            found = part.extra["unit"]
            assert isinstance(found, Unit)
            return found
    return None
