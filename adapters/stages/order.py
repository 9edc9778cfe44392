"""Order (contract rule 5): choices first appear as 0, 1, 2, ...

A choice that comes before a lower one waits for it; at the end nothing waits any more. Numbers that
a server never uses (a single choice called 1) are closed up.
"""

from __future__ import annotations

from wellspoken.adapters.events import (
    Call,
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Open,
    Reasoning,
    Refusal,
    Text,
    Usage,
)
from wellspoken.adapters.exchange import Exchange

_OF_CHOICE = (Text, Reasoning, Refusal, Call, Finish)


class Order:
    """The stage; one for an answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.notes = exchange.notes
        self.n = exchange.n
        self.numbers: dict[int, int] = {}  # the backend's number -> ours
        self.waiting: dict[int, list[Event]] = {}

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events so that each choice first appears behind all lower ones."""
        if len(events) == 1:
            event = events[0]
            if type(event) is Text and self.numbers.get(event.choice) == event.choice:
                return events
        out: list[Event] = []
        for event in events:
            if type(event) is Open:
                out.append(event)  # nothing of the choice is written before more of it comes
            elif isinstance(event, _OF_CHOICE):
                self._choice(event.choice, event, out)
            elif type(event) is Extra and event.choice is not None:
                self._choice(event.choice, event, out)
            else:
                if type(event) in (Usage, End, Fault):
                    self._flush(out)
                out.append(event)
        return out

    def _choice(self, choice: int, event: Event, out: list[Event]) -> None:
        if choice in self.numbers:
            out.append(self._numbered(choice, event))
            return
        if choice == len(self.numbers) or self.n == 1:
            self._begin(choice, [event], out)
            while len(self.numbers) in self.waiting:
                following = len(self.numbers)
                self._begin(following, self.waiting.pop(following), out)
            return
        self.notes.add("choices_out_of_order")
        self.waiting.setdefault(choice, []).append(event)

    def _begin(self, choice: int, events: list[Event], out: list[Event]) -> None:
        self.numbers[choice] = len(self.numbers)
        out += [self._numbered(choice, event) for event in events]

    def _numbered(self, choice: int, event: Event) -> Event:
        number = self.numbers[choice]
        if number != choice:
            self.notes.add("choice_renumbered")
            event.choice = number  # type: ignore[union-attr]
            if not isinstance(event, Extra | Reasoning):
                event.raw = None  # type: ignore[union-attr]
        return event

    def _flush(self, out: list[Event]) -> None:
        for choice in sorted(self.waiting):
            self._begin(choice, self.waiting.pop(choice), out)
