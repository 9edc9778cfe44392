"""JSON that nests as deep as a test says, read from as deep a stack as the proxy has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

FRAMES = 200
"""Calls between a test and the code, more than there are in the proxy."""


def further_down(step: Callable[[], Any], frames: int = FRAMES) -> Any:
    """Return what `step` returns, from so many calls further down."""
    return further_down(step, frames - 1) if frames else step()


def depth_of(data: bytes) -> int:
    """Return how deep JSON nests, slowly: a byte at a time."""
    depth = deepest = at = 0
    quoted = False
    while at < len(data):
        mark = data[at : at + 1]
        at += 1 + (quoted and mark == b"\\")
        quoted ^= mark == b'"'
        if not quoted:
            depth += (mark in (b"[", b"{")) - (mark in (b"]", b"}"))
            deepest = max(deepest, depth)
    return deepest


def filled(answer: Any, depth: int, opening: str = "[", closing: str = "]") -> bytes:
    """Return JSON that nests so deep: in place of its text "@" stands what does."""
    text = json.dumps(answer)

    def make(levels: int) -> bytes:
        return text.replace('"@"', opening * levels + "1" + closing * levels).encode()

    return make(2 * depth - depth_of(make(depth)))
