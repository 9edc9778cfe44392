"""Order (contract rule 5): choices first appear as 0, 1, 2, ...

A choice that comes before a lower one waits for it. If that one's role came, this is written first,
but where tools are offered: there its role waits, and with it the higher choice, until it is known
whether a call opens it (rule 3). At the end nothing waits any more. What writes no chunk by itself,
a key that goes with the next one, or reasoning that the client does not get, begins no choice.
Numbers that a server never uses (a single choice called 1) are closed up, and choices that nobody
asked for are left out.
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

_OF_CHOICE = (Open, Text, Reasoning, Refusal, ToolDelta, Finish)


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
        self.waiting: dict[int, list[Event]] = {}  # what came of choices that have not begun
        self.speaking: set[int] = set()  # those of them of which a chunk is to be written
        self.extra: set[int] = set()  # choices that are more than were asked for

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events so that each choice first appears behind all lower ones."""
        if len(events) == 1:
            event = events[0]
            if type(event) is Text and self.numbers.get(event.choice) == event.choice:
                return events
        out: list[Event] = []
        for event in events:
            if isinstance(event, _OF_CHOICE):
                self._choice(event.choice, event, out)
            elif type(event) is Extra and event.choice is not None:
                self._choice(event.choice, event, out)
            else:
                if self.waiting and _ends(event):
                    self._flush(out)
                elif type(event) is Start:
                    self.exchange.result.id = event.id
                out.append(event)
        return out

    def is_plain(self) -> bool:
        """Say whether the first choice's text passes."""
        return self.numbers.get(0) == 0

    def _choice(self, choice: int, event: Event, out: list[Event]) -> None:
        if choice in self.numbers:
            out.append(self._number(choice, event))
            return
        silent = self._is_silent(event)
        if self._full:
            if not silent:
                self._leave_out(choice)
            return
        self.waiting.setdefault(choice, []).append(event)
        if silent:
            return
        self.speaking.add(choice)
        if self.n == 1:
            self._begin(choice, out)
        while not self._full and self._may_begin(following := len(self.numbers), choice):
            self._begin(following, out)
        if choice in self.waiting and not self.merged:
            if any(lower not in self.waiting for lower in range(len(self.numbers), choice)):
                self.notes.add("choices_out_of_order")

    def _is_silent(self, event: Event) -> bool:
        """Say whether an event writes no chunk, so that its choice does not appear by it."""
        if type(event) is Reasoning:
            return self.n > 1 and not self.exchange.keeps("reasoning_content")
        return type(event) is Open or (type(event) is Extra and self.n > 1)

    def _may_begin(self, following: int, choice: int) -> bool:
        """Say whether the next choice may begin, now that one, it or a higher one, speaks."""
        if following in self.speaking:
            return True
        # Its role would say whether a call opens it, which is known if no call can come.
        return following in self.waiting and following < choice and not self.exchange.tools

    @property
    def _full(self) -> bool:
        return len(self.numbers) >= self.n and not self.any_number

    def _leave_out(self, choice: int) -> None:
        """Note a choice, once, that is more than were asked for."""
        if choice not in self.extra:
            self.extra.add(choice)
            self.notes.add("choice_unasked")

    def _begin(self, choice: int, out: list[Event]) -> None:
        number = self.numbers[choice] = len(self.numbers)
        for event in self.waiting.pop(choice):
            if type(event) is Finish and self.n > 1:
                out.append(Open(number, now=True))  # the writer holds back what tells the end
            out.append(self._number(choice, event))
        if choice not in self.speaking:
            out.append(Open(number, now=True))

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
            if choice not in self.speaking:
                continue
            if self._full:
                self._leave_out(choice)
            else:
                self._begin(choice, out)


def _ends(event: Event) -> bool:
    """Say whether nothing of a choice follows an event."""
    return type(event) in (End, Fault) or (type(event) is Usage and not event.running)
