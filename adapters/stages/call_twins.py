"""Calls that an answer has twice: in its text, from where they were recovered, and as calls."""

from __future__ import annotations

from collections import Counter

import msgspec
from msgspec import Struct, field

from wellspoken.adapters.events import ToolDelta
from wellspoken.adapters.nesting import is_text_too_deep
from wellspoken.adapters.stages.call_pieces import CallInPieces


class Twins(Struct, eq=False):
    """The whole calls of one choice that have no twin yet, by what they say.

    `leaked`: those of the text; `names`: of those; `told`: the others, of which `seen` were looked
    at.
    """

    leaked: Counter[str] = field(default_factory=Counter)
    names: set[str | None] = set()
    told: Counter[str] = field(default_factory=Counter)
    seen: int = 0

    def has_told(self, event: ToolDelta, calls: list[CallInPieces]) -> bool:
        """Take a call of the text; say whether one of these `calls` says the same."""
        for call in calls[self.seen :]:
            if not call.leaked and call.arguments.complete():
                self.told[_key(call.name, "".join(call.arguments.pieces))] += 1
        self.seen = len(calls)
        key = _key(event.name, event.arguments)
        if self.told[key]:
            self.told[key] -= 1
            return True
        self.leaked[key] += 1
        self.names.add(event.name)
        self.seen += 1  # it is a call of its own, and the next one
        return False

    def may_have(self, call: CallInPieces, name: str | None) -> bool:
        """Say whether a call, or what will be one of this name, may be one of the text's."""
        return call.n < 0 and (call.name or name) in self.names and not call.leaked

    def take(self, call: CallInPieces) -> bool:
        """Say whether a whole call is one of the text's, which has its twin now."""
        key = _key(call.name, "".join(call.arguments.pieces))
        found = self.leaked[key] > 0
        self.leaked[key] -= found
        return found


def _key(name: str | None, arguments: str) -> str:
    if is_text_too_deep(arguments):
        return f"{name} {arguments}"
    try:
        arguments = msgspec.json.encode(
            msgspec.json.decode(arguments or "{}"), order="deterministic"
        ).decode()
    except ValueError:
        pass
    return f"{name} {arguments}"
