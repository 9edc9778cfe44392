"""What a backend's server was seen to refuse, so that it is asked otherwise at once.

A refusal costs a request that computes nothing. What is remembered is forgotten as soon as another
server may stand there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SYSTEM: Final = "system"
"""Of a model's template: system messages that are not one, the first."""
ROLE: Final = "system_role"
"""Of a model's template: any system message."""
USAGE: Final = "stream_options"
"""Of a path and a model: to tell a stream's usage."""
_MOST: Final = 1000  # remembered at a time; a client may call a model by any name


@dataclass(slots=True, eq=False)
class Refusals:
    """What the `server` refuses that was seen last, each with whose it is."""

    _server: tuple[object, ...] = ()
    _seen: set[tuple[str, ...]] = field(default_factory=set)

    def note(self, server: tuple[object, ...], refusal: tuple[str, ...]) -> None:
        """Remember one; of another server than this, nothing."""
        if server != self._server:
            self._server = server
            self._seen.clear()
        if len(self._seen) < _MOST:
            self._seen.add(refusal)

    def hold(self, server: tuple[object, ...], refusal: tuple[str, ...]) -> bool:
        """Say whether this server was seen to refuse that."""
        return refusal in self._seen and server == self._server
