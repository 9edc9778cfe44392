"""The envelope of a near-OpenAI answer: fixed by its first chunk, the same on all others."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, structs

from wellspoken.adapters.events import Start
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.repairs import envelope


class Opening:
    """What the chunks of one answer have in common; `start` is None before the first."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self.notes = pieces.notes
        self.start: Start | None = None
        self.given: tuple[str, Any, str] = ("", 0, "")  # the backend's own id, created, model
        self.same = False

    def begin(self, id: str, created: Any, model: str, fingerprint: Any) -> bool:
        """Fix the envelope with the first chunk; count what a later one changes. Hot.

        Returns whether the envelope goes out as the backend sent it.
        """
        given = (id, created, model)
        start = self.start
        if start is None:
            self.start = start = envelope.start(*given, fingerprint or None, self.pieces.context)
            self.given = given
            self.same = given == (start.id, start.created, start.model)
            self.pieces.out.append(start)
            return self.same
        if given != self.given:
            for name, new, old in zip(("id", "created", "model"), given, self.given, strict=True):
                if new != old:
                    self.notes.add(f"{name}_changes")
        if not fingerprint or fingerprint == start.system_fingerprint:
            return self.same
        if start.system_fingerprint is not None:
            self.notes.add("system_fingerprint_changes")
        else:
            self.start = structs.replace(start, system_fingerprint=fingerprint)
            self.pieces.out.append(self.start)
        return self.same

    def tier(self, given: Any) -> None:
        """Count a service tier that is not "default" where one was asked for, absent elsewhere."""
        if self.pieces.exchange.service_tier:
            if given != "default":
                self.notes.add("service_tier_replaced")
        elif given is None:
            self.notes.add("null_key_omitted")
        elif given is not UNSET:
            self.notes.add("service_tier_unasked")
