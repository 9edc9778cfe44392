"""What tells a stream's entries that are sent again from those that are new."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from wellspoken.adapters.events import Entry

Mark = tuple[str, float, Any]
"""What tells one entry from another: token, logprob, id."""


class Streamed(Struct, eq=False):
    """The entries that one choice's chunks brought so far: how many, the first, the last."""

    size: int = 0
    first: Mark | None = None
    last: Mark | None = None

    def again(self, entries: list[Entry], text: str) -> bool:
        """Say whether these begin with all that came so far, and are more than their own `text`."""
        size = self.size
        if not 0 < size <= len(entries) or mark(entries[0]) != self.first:
            return False
        tokens = "".join(entry.token for entry in entries)
        own = bool(text) and "".join(tokens.split()) == "".join(text.split())
        return mark(entries[size - 1]) == self.last and not own

    def add(self, entries: list[Entry]) -> None:
        """Count entries that came, which are none of those before."""
        if entries:
            self.first = self.first or mark(entries[0])
            self.last = mark(entries[-1])
            self.size += len(entries)


def mark(entry: Entry) -> Mark:
    """Return what tells an entry from another."""
    return (entry.token, entry.logprob, entry.id)
