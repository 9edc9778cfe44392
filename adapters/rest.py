"""The choices that a server leaves out though `n` asked for them: they are asked for one by one.

Ollama, KoboldCpp and mlx-lm ignore `n`, others refuse it. Of a server that was not recognised this
shows in its first answer alone: what that lacks is then asked for, and no choice twice. An answer
of one that is said to heed `n`, and of several prompts, must have all of its choices, or fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from wellspoken.adapters.events import End, Event, Fault, Start, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.merge import Merge, weakest
from wellspoken.adapters.sums import add_usage

REFUSALS: Final = (400, 422, 501)
"""Statuses by which a server may say that it gives one choice only."""

CHOICES_MISSING: Final = "choices_missing"
"""The code of a fault: the answer has fewer choices than were asked for."""


def demand_all(events: list[Event], exchange: Exchange) -> list[Event]:
    """Return the events with a `Fault` for the `End` of an answer that lacks choices."""
    given = len(exchange.result.reasons)
    if given >= exchange.n or not events or type(events[-1]) is not End:
        return events
    fault = Fault(
        502,
        f"The backend gave {given} of the {exchange.n} choices. Try again: of a backend that "
        "heeds no 'n' each is then asked for by itself. If it repeats, ask for one at a time.",
        code=CHOICES_MISSING,
    )
    return [*(event for event in events[:-1] if type(event) is not Usage), fault]


class Rest:
    """Events of the answer to `n`, at place 0, and of the choices it lacks, at 1, 2, ...

    When the first has ended, `missing` are the choices to ask for; `expect` their exchanges. A
    refusal of `n` is held back: if it was for another reason, the single choice is refused as well.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.seen: set[int] = set()
        self.begun = False
        self.ended = False
        self.usage: Usage | None = None
        self.source = ""
        self.merge: Merge | None = None

    @property
    def missing(self) -> range:
        """The choices that the first answer lacks, none before it has ended."""
        return range(len(self.seen), self.exchange.n) if self.ended else range(0)

    def expect(self, parts: Sequence[Exchange]) -> None:
        """Expect the answers of these exchanges, one choice each, in order."""
        self.merge = Merge(self.exchange, parts, len(parts))

    def __call__(self, place: int, events: list[Event]) -> list[Event]:
        """Return what these events are in the client's answer."""
        return self._first(events) if place == 0 else self._later(place - 1, events)

    def _first(self, events: list[Event]) -> list[Event]:
        out: list[Event] = []
        for event in events:
            if type(event) is Fault and event.status in REFUSALS and not self.begun:
                self.ended = True
                self.exchange.notes.add("n_refused")
                return []
            if type(event) is End and len(self.seen) < self.exchange.n:
                self.ended = True
                self.exchange.notes.add("n_ignored")
                self.source = self.exchange.result.usage_source
                return out
            self.begun = True
            choice = getattr(event, "choice", None)
            if choice is not None:
                self.seen.add(choice)
            if type(event) is Usage:
                self.usage = event  # comes just before the end, if this is the end
                continue
            if type(event) is End and self.usage is not None:
                out.append(self.usage)
            out.append(event)
        return out

    def _later(self, place: int, events: list[Event]) -> list[Event]:
        assert self.merge is not None
        first = len(self.seen)
        out: list[Event] = []
        for event in self.merge(place, events):
            if type(event) is Start and self.begun:
                continue
            if type(event) is Usage and self.usage is not None:
                add_usage(event, self.usage, prompt=False)
                event.prompt = self.usage.prompt
                event.prompt_details = self.usage.prompt_details
                result = self.exchange.result
                result.usage = event
                result.usage_source = weakest((self.source, result.usage_source))
            choice = getattr(event, "choice", None)
            if choice is not None:
                event.choice = choice + first  # type: ignore[union-attr]
            out.append(event)
        return out
