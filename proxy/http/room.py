"""Room for so many connections of clients: who is in it, and who has to make place."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Final, Protocol

QUIET_SECONDS: Final = 1.0
"""Idle for so long, a connection may be closed for a new one. A new one has that to ask."""
LOOK_SECONDS: Final = 0.1
"""Until such are looked for again, where there were none."""
PART: Final = 64
"""Of so many open connections one is closed at a time, since each look goes through all."""


class Guest(Protocol):
    """A connection. `quiet_since`: the loop's time since when it is idle, if it is."""

    @property
    def idle(self) -> bool:
        """No request is being read or answered."""

    @property
    def quiet_since(self) -> float:
        """The loop's time."""

    def force_close(self) -> None:
        """Close it, once what was written has left."""


class Room:
    """The connections that are counted, `most` at most, and those in `surplus`, on their way out.

    It belongs to the loop's thread, and nothing in it awaits.
    """

    def __init__(self, most: int, loop: asyncio.AbstractEventLoop) -> None:
        self.most = most
        self.surplus: set[Guest] = set()
        self._loop = loop
        self._inside: set[Guest] = set()
        self._next_look = 0.0

    @property
    def open(self) -> int:
        """How many are counted."""
        return len(self._inside)

    def has_place(self) -> bool:
        """Say whether one more may enter, for whom the quietest have to go if need be."""
        return self.open < self.most or (self.close_quiet() and self.open < self.most)

    def enter(self, guest: Guest) -> None:
        """Count a connection, also while it only begins."""
        self._inside.add(guest)

    def leave(self, guest: Guest) -> None:
        """Count it no longer, since it ends; call it as often as you like."""
        self._inside.discard(guest)
        self.surplus.discard(guest)

    def close_quiet(self) -> bool:
        """Close the connections that have been idle longest; say whether there were some."""
        now = self._loop.time()
        if now < self._next_look:
            return False
        late = now - QUIET_SECONDS
        quiet = [each for each in self._inside if each.idle and each.quiet_since <= late]
        if not quiet:
            self._next_look = now + LOOK_SECONDS
        quiet.sort(key=attrgetter("quiet_since"))
        # At least what a lower limit asks for, after a reload.
        for each in quiet[: max(self.open // PART, self.open - self.most + 1, 1)]:
            self.leave(each)
            each.force_close()
        return bool(quiet)
