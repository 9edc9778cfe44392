"""Several answers of a backend as one: each is one choice of the client's answer.

For a backend that gives one choice an answer, or takes one prompt a request. The answers' events
come in any order, each answer's in its own; the `Order` stage behind this lets choices first appear
as 0, 1, 2, ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wellspoken.adapters.events import (
    UNKNOWN,
    End,
    Entry,
    Event,
    Extra,
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
from wellspoken.adapters.stages.usage import SOURCES
from wellspoken.adapters.sums import add_usage

_OF_CHOICE = Open | Text | Reasoning | Refusal | ToolDelta | Finish


class Merge:
    """Events of answer `place` as those of choice `place`; one envelope, one usage, one end.

    `parts` are their exchanges; each prompt counts once, with the first of its `each` answers.
    """

    def __init__(self, exchange: Exchange, parts: Sequence[Exchange], each: int) -> None:
        self.exchange = exchange
        self.parts = parts
        self.each = each
        self.begun = False
        self.open = len(parts)
        self.usage = Usage(0, 0)

    def __call__(self, place: int, events: list[Event]) -> list[Event]:
        """Return what these events are in the client's answer."""
        out: list[Event] = []
        for event in events:
            if type(event) is Start:
                if not self.begun:
                    self.begun = True
                    out.append(event)
            elif type(event) is Usage:
                add_usage(self.usage, event, prompt=place % self.each == 0)
            elif type(event) is End:
                self.open -= 1
                if not self.open:
                    result = self.exchange.result
                    result.usage = self.usage
                    result.usage_source = weakest(x.result.usage_source for x in self.parts)
                    out += [self.usage, event]
            elif type(event) is Extra:
                event.choice = place if event.choice is not None else None
                out.append(event)
            elif isinstance(event, _OF_CHOICE):
                event.choice = place
                if not isinstance(event, Reasoning):
                    event.raw = None  # the backend's chunk says choice 0 and an id of its own
                out.append(event)
            else:
                out.append(event)
        return out


class Best:
    """The best `n` of each prompt's `of` answers: those with the highest logprob per token.

    Source: OpenAI's reference of /v1/completions, `best_of`. Nothing goes out before all answers
    have ended; all their tokens count. `leading`: how many entries each answer begins with that are
    an echoed prompt's, which do not score.
    """

    def __init__(
        self, exchange: Exchange, parts: Sequence[Exchange], of: int, leading: Sequence[int] = ()
    ) -> None:
        self.exchange = exchange
        self.of = self.each = of
        self.leading = leading or [0] * len(parts)
        self.merge = Merge(exchange, parts, of)
        self.held: list[list[Event]] = [[] for _ in parts]

    def __call__(self, place: int, events: list[Event]) -> list[Event]:
        """Hold the events of a choice; return those of the chosen ones at the end."""
        out: list[Event] = []
        for event in self.merge(place, events):
            if getattr(event, "choice", None) is not None:
                self.held[place].append(event)
            elif type(event) is Usage:
                out += [*self._choose(), event]
            else:
                out.append(event)
        return out

    def _choose(self) -> list[Event]:
        prompts = len(self.held) // self.of
        n = self.exchange.n // prompts
        chosen: list[Event] = []
        for prompt in range(prompts):
            first = prompt * self.of
            answers = range(first, first + self.of)
            # The sort is stable, so of equal scores the answer that was asked for first is kept.
            ranked = sorted(answers, key=self._score, reverse=True)[:n]
            best = [self.held[place] for place in ranked]
            for place, events in enumerate(best):
                for event in events:
                    event.choice = prompt * n + place  # type: ignore[union-attr]
                    if not self.exchange.logprobs and isinstance(event, Text):
                        event.lp = None
                chosen += events
        return chosen

    def _score(self, place: int) -> float:
        values = [x.logprob for x in entries_in(self.held[place])[self.leading[place] :]]
        return sum(values) / len(values) if values else UNKNOWN


def weakest(sources: Iterable[str]) -> str:
    """Return the least certain of the usage's sources."""
    return max(sources, key=SOURCES.index)


def entries_in(events: list[Event]) -> list[Entry]:
    """Return the logprob entries of all content."""
    texts = (event for event in events if isinstance(event, Text) and event.lp is not None)
    return [entry for event in texts if event.lp is not None for entry in event.lp.entries]
