"""Order (contract rule 5): choices first appear as 0, 1, 2, ...

A choice that comes before a lower one is preceded by that one's role, if it came, or waits for it;
at the end nothing waits any more. Numbers that a server never uses (a single choice called 1) are
closed up, and choices that nobody asked for are left out.
"""

from __future__ import annotations

from wellspoken.adapters.events import (
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Open,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange

_OF_CHOICE = (Text, Reasoning, Refusal, ToolDelta, Finish)


class OrderStage:
    """The stage; one for an answer.

    `merged`: it is made of several answers, or held back for `echo`: its order is no deviation.
    """

    def __init__(self, exchange: Exchange, *, merged: bool = False) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.merged = merged
        self.n = exchange.n
        self.any_number = "n_cmpl" in exchange.switches  # llama.cpp's own `n`
        self.numbers: dict[int, int] = {}  # the backend's number -> ours
        self.waiting: dict[int, list[Event]] = {}
        self.opens: dict[int, Open] = {}  # choices whose role came, and nothing else
        self.extra: set[int] = set()  # choices that are more than were asked for

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events so that each choice first appears behind all lower ones."""
        if len(events) == 1:
            event = events[0]
            if type(event) is Text and self.numbers.get(event.choice) == event.choice:
                return events
        out: list[Event] = []
        for event in events:
            if type(event) is Open:
                if event.choice in self.numbers:
                    out.append(self._number(event.choice, event))
                else:  # nothing of the choice is written before more of it comes
                    self.opens[event.choice] = event
            elif isinstance(event, _OF_CHOICE):
                self._choice(event.choice, event, out)
            elif type(event) is Extra and event.choice is not None:
                self._choice(event.choice, event, out)
            else:
                if self.waiting and type(event) in (Usage, End, Fault):
                    self._flush(out)
                elif type(event) is Start:
                    self.exchange.result.id = event.id
                out.append(event)
        return out

    def _choice(self, choice: int, event: Event, out: list[Event]) -> None:
        if choice in self.numbers:
            out.append(self._number(choice, event))
            return
        if self._full:
            self._leave_out(choice)
            return
        self.waiting.setdefault(choice, []).append(event)
        if self.n == 1:
            self._begin(choice, self.waiting.pop(choice), out)
        while not self._full and (
            (following := len(self.numbers)) in self.waiting
            or (following in self.opens and following < choice)
        ):
            opened: list[Event] = [Open(following, now=True)]
            self._begin(following, self.waiting.pop(following, opened), out)
        if choice in self.waiting and not self.merged:
            self.notes.add("choices_out_of_order")

    @property
    def _full(self) -> bool:
        return len(self.numbers) >= self.n and not self.any_number

    def _leave_out(self, choice: int) -> None:
        """Note a choice, once, that is more than were asked for."""
        if choice not in self.extra:
            self.extra.add(choice)
            self.notes.add("choice_unasked")

    def _begin(self, choice: int, events: list[Event], out: list[Event]) -> None:
        self.numbers[choice] = len(self.numbers)
        opened = self.opens.pop(choice, None)
        if opened is not None:
            out.append(self._number(choice, opened))
        for event in events:
            out.append(self._number(choice, event))

    def _number(self, choice: int, event: Event) -> Event:
        number = self.numbers[choice]
        if number != choice:
            self.notes.add("choice_renumbered")
            event.choice = number  # type: ignore[union-attr]
            if not isinstance(event, Extra | Reasoning):
                event.raw = None  # type: ignore[union-attr]
        if type(event) is Finish and event.reason is not None:
            self.exchange.result.reasons[number] = event.reason
        return event

    def _flush(self, out: list[Event]) -> None:
        for choice in sorted(self.waiting):
            events = self.waiting.pop(choice)
            if self._full:
                self._leave_out(choice)
            else:
                self._begin(choice, events, out)
