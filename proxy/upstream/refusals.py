"""What a backend's server was seen to refuse, so that it is asked otherwise at once.

A refusal costs a request that computes nothing. What is remembered is forgotten as soon as another
server may stand there.

Some refusals do not tell what they are of. Then a request without what the proxy has added shows
it, unless that is refused too: the client's own mistake, which has cost one request more. After
`MOST_IN_VAIN` of those the server is in doubt: what it has not been seen to take is left out at
first, until it answers something. So mistakes without end cost nothing more.
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
TAKEN: Final = "stream_options taken"
"""Of a path and a model: no refusal, it was seen to tell a stream's usage."""
MOST_IN_VAIN: Final = 5
_MOST: Final = 1000  # remembered at a time; a client may call a model by any name


@dataclass(slots=True, eq=False)
class Refusals:
    """What was seen of the `server` that was seen last, each with whose it is.

    `changes` grows with all that is noted: what was found out before it may be otherwise now.
    """

    changes: int = 0

    _server: tuple[object, ...] = ()
    _seen: set[tuple[str, ...]] = field(default_factory=set)
    _in_vain: int = 0

    def note(self, server: tuple[object, ...], seen: tuple[str, ...] = ()) -> None:
        """Remember what was seen as the server answered; of another server than this, nothing."""
        self._turn_to(server)
        if self._in_vain or (seen and seen not in self._seen):
            self.changes += 1
        self._in_vain = 0
        if seen and len(self._seen) < _MOST:
            self._seen.add(seen)

    def note_in_vain(self, server: tuple[object, ...]) -> None:
        """Note that the server refused also what was sent it once more."""
        self._turn_to(server)
        self._in_vain += 1
        self.changes += 1

    def hold(self, server: tuple[object, ...], seen: tuple[str, ...]) -> bool:
        """Say whether that was seen of this server."""
        return seen in self._seen and server == self._server

    def doubt(self, server: tuple[object, ...]) -> bool:
        """Say whether nothing is to be added that this server has not been seen to take."""
        return self._in_vain >= MOST_IN_VAIN and server == self._server

    def _turn_to(self, server: tuple[object, ...]) -> None:
        if server != self._server:
            self.changes += 1
            self._server = server
            self._seen.clear()
            self._in_vain = 0
