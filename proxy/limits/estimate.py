"""How many tokens a request may need, from its bytes alone: its usage corrects that at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from wellspoken.adapters.requests.caps import PASSED_LIMITS, inner_objects

BYTES: Final = 4
"""Bytes of a text for each token; English has a few more, code and other scripts a few less."""
FILE: Final = 1000
"""Tokens of an image or another file within a request."""
ANSWER: Final = 512
"""Tokens of an answer for which neither the client nor the configuration sets a limit."""

_LONG: Final = 4096  # bytes of a string that may be a file
_CHOICES: Final = ("n", "best_of", "n_cmpl")


def prompt_tokens(body: bytes) -> int:
    """Return about how many tokens the prompt in a request's body has; files count for FILE."""
    if len(body) < _LONG:
        return len(body) // BYTES + 1
    size, files, at = len(body), 0, 0
    while at < len(body):  # from string to string, of which short ones are not looked at
        quote = body.rfind(b'"', at, at + _LONG)
        if quote < 0:
            quote = body.find(b'"', at + _LONG)
            quote = quote if quote >= 0 else len(body)
            if quote - at >= _LONG and _is_base64(body[at:quote]):
                files += 1
                size -= quote - at
        at = quote + 1
    return size // BYTES + files * FILE + 1


def _is_base64(text: bytes) -> bool:
    return text.isascii() and not any(mark in text for mark in (b" ", b"\\", b"\n"))


def answer_tokens(fields: Mapping[str, Raw], default: int | None, prompts: int = 1) -> int | None:
    """Return the most tokens that all choices of an answer may have; None: there is no limit.

    `fields`: the request's top-level values, of which some servers have theirs in an inner object;
    `default`: the limit of one choice without its own. `prompts`: each has so many choices.
    """
    parts = (fields, *inner_objects(fields))
    limits = [_count(part.get(name)) for part in parts for name in PASSED_LIMITS]
    limit = max((found for found in limits if found is not None), default=default)
    if limit is None:
        return None
    choices = max(_count(part.get(name)) or 1 for part in parts for name in _CHOICES)
    return limit * choices * prompts


def _count(raw: Raw | None) -> int | None:
    """Return a whole number that is not negative; None for anything else."""
    text = bytes(raw) if raw is not None else b""
    return int(text) if text.isdigit() and len(text) < 16 else None
