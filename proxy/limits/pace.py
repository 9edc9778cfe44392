"""How long an answer of a backend may go without progress, and how long a whole exchange may take.

A backend that sends comments, pings, roles or empty pieces keeps its connection alive without end.
So what counts is progress: a token, or, where tokens are not known, bytes that are more than that.
Nothing is done per event: who reads the answer sets a flag, and the connection's one timer, which
rings now and then anyway, asks here for the next time at which to look.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

Late = Literal["first_token_timeout", "token_timeout", "total_timeout"]

NEVER: Final = float("inf")
_LOOKS: Final = 10  # in the time that a token may take: it is up to a tenth late that one is missed


class Overdue(NamedTuple):
    """Which limit an answer is over, and its seconds."""

    reason: Late
    seconds: float


def _rests() -> bool:
    return False


class Pace:
    """The pace that one answer has to keep, by the loop's time.

    `first`: seconds for its first token, `between`: for each further one, `total`: until the end of
    the whole exchange, `end`; 0.0: no limit. `look`: when to look for the first time. `moves` says
    whether there was progress since it was last asked, and forgets that.
    """

    __slots__ = ("_begun", "_last", "_limit", "_next", "_total", "end", "look", "moves")

    def __init__(self, first: float, between: float, total: float, end: float, now: float) -> None:
        self._limit = first
        self._next = between
        self._total = total
        self._begun = False
        self._last = now  # the latest moment at which it moved, as far as is known
        self.end = end
        self.moves: Callable[[], bool] = _rests
        least = between if between and (not first or between < first) else first
        look = now + least / _LOOKS if least else end  # as `deadline` has it, without its calls
        self.look = look if look < end else end

    def deadline(self, now: float, *, waits: bool) -> float:
        """Return when to look again; what is not later than `now` is over.

        `waits`: somebody waits for the answer. Who does not, since the client reads slowly, holds
        it up himself.
        """
        if self.moves():
            self._last = now
            if not self._begun:
                self._begun, self._limit = True, self._next
        elif not waits:
            self._last = now
        limits = [seconds for seconds in (self._limit, self._next) if seconds]
        if not limits:
            return self.end
        over = self._last + self._limit if self._limit else NEVER
        return min(self.end, over, max(now + min(limits) / _LOOKS, now + 0.002))

    def judge(self, now: float) -> Overdue | None:
        """Return which limit is over, None for none of these."""
        if now + 0.001 >= self.end:
            return Overdue("total_timeout", self._total)
        if self._limit and now + 0.001 >= self._last + self._limit:
            return Overdue("token_timeout" if self._begun else "first_token_timeout", self._limit)
        return None
