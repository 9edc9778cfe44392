"""What a stream's `index` is where one choice was asked for: the choice's number, or a counter.

TGI 1.4.0 to 1.4.3 count their tokens there, from 1. Nothing says so beforehand, but a choice's
number comes again and again and begins with 0, a counter's never comes twice:

    the chunks so far          a higher index          the same, a lower one, several in a chunk
    none                       -                       they number choices
    one, index 0               kept back               they number choices
    one, index 1 or more       it counts               they number choices
    two, the later kept back   it counts               they number choices
    more: it counts            it counts               a fault, if it has text

A first chunk that only opens the choice may be none of them: who counts tokens begins behind it, so
the same index once more says nothing yet.

So one chunk at most waits for the next, and only where the second's index is not the first's. Of a
choice that nobody asked for nothing may get among the text of the one that was: what looked like a
counter and then goes back is no answer.
"""

from __future__ import annotations

from wellspoken.adapters.events import (
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
)
from wellspoken.adapters.exchange import Exchange

OfChoice = Open | Text | Reasoning | Refusal | ToolDelta | Finish


class Numbering:
    """The indexes of one stream; `settled`: they number choices, and need no second look."""

    def __init__(self, exchange: Exchange) -> None:
        self.notes = exchange.notes
        # Where several are asked for, also under llama.cpp's own name of it, indexes mean choices.
        self.settled = exchange.n > 1 or "n_cmpl" in exchange.switches
        self.first = -1
        self.last = -1
        self.opened = False  # the only chunk so far held nothing but a role
        self.counts = False
        self.waiting: list[Event] = []

    def read(self, chunk: list[Event]) -> list[Event]:
        """Return the events of a chunk, and what waited for it, with the choices that they mean."""
        indexes = {event.choice for event in chunk if isinstance(event, OfChoice)}
        if not indexes:
            return chunk
        index, last = max(indexes), self.last
        self.last = index
        opened, self.opened = self.opened, False
        if last < 0:
            self.first = index
            self.opened = all(type(event) in (Start, Open) for event in chunk)
            self.settled = len(indexes) > 1 or any(type(event) is Finish for event in chunk)
            return chunk
        if self.counts:
            return self._count(chunk, goes_on=len(indexes) == 1 and index >= last)
        if opened and indexes == {last}:
            self.settled = any(type(event) is Finish for event in chunk)
            return chunk
        if len(indexes) > 1 or index <= last:
            self.settled = True
            waiting, self.waiting = self.waiting, []
            return waiting + chunk
        over = any(type(event) is Fault for event in chunk)  # no other is read behind it
        if last == 0 and not self.waiting and not over:  # a second choice may begin here
            self.waiting = chunk
            return []
        self.counts = True
        return self.release() + self._count(chunk, goes_on=True)

    def release(self) -> list[Event]:
        """Return what waits, at the end of all chunks: it only ever went up."""
        waiting, self.waiting = self.waiting, []
        return self._count(waiting, goes_on=True)

    def _count(self, chunk: list[Event], *, goes_on: bool) -> list[Event]:
        """Return the events of a counted chunk as the first choice's."""
        for event in chunk:
            if not goes_on and isinstance(event, Text | Reasoning | Refusal | ToolDelta):
                return [_fault()]
            if isinstance(event, OfChoice | Extra) and event.choice is not None:
                self._rename(event)
        if chunk:
            self.notes.add("choice_index_counts")
        return chunk

    def _rename(self, event: OfChoice | Extra) -> None:
        if type(event) is ToolDelta and event.n == event.choice:
            event.n = None  # TGI 1.4.3 counts there too
        event.choice = self.first
        if not isinstance(event, Extra | Reasoning):
            event.raw = None


def _fault() -> Fault:
    return Fault(
        502,
        "The backend's stream is not usable: one choice was asked for, and the `index` of its "
        "chunks first counted them and then went back. Ask without `stream`, or see whether the "
        "backend makes more choices than it is asked for.",
        code="upstream_choices",
    )
