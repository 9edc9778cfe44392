"""What a backend's server was seen to refuse, so that it is asked otherwise at once.

A refusal costs a request that computes nothing. What is remembered is forgotten as soon as another
server may stand there: when it is recognised anew, and when a connection to it failed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SYSTEM: Final = "system"
"""Of a model's template: system messages that are not one, the first."""
USAGE: Final = "stream_options"
"""Of a path and a model: to tell a stream's usage."""
_MOST: Final = 1000  # remembered at a time; a client may call a model by any name


@dataclass(slots=True, eq=False)
class Refusals:
    """What one server refuses: SYSTEM or USAGE, each with whose it is."""

    _seen: set[tuple[str, ...]] = field(default_factory=set)

    def __contains__(self, refusal: tuple[str, ...]) -> bool:
        return refusal in self._seen

    def note(self, *refusal: str) -> None:
        """Remember one."""
        if len(self._seen) < _MOST:
            self._seen.add(refusal)

    def forget(self) -> None:
        """Forget them all."""
        self._seen.clear()
