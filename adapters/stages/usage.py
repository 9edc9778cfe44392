"""Usage (contract rule 10): one count, at the end, from the best source there is.

Sources in order: the backend; a configured tokenizer that can count; the logprob entries seen; an
estimate of four bytes a token. The source is kept on the exchange and counted as a metric.
"""

from __future__ import annotations

from wellspoken.adapters.events import Call, End, Event, Reasoning, Refusal, Text, Usage
from wellspoken.adapters.exchange import Exchange

BYTES_PER_TOKEN = 4


class UsageStage:
    """The stage; one for an answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.usage: Usage | None = None
        self.pieces: list[str] = []
        self.entries = 0

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with one `Usage`, just before the `End`."""
        if len(events) == 1 and type(events[0]) is Text:
            self._text(events[0])
            return events
        out: list[Event] = []
        for event in events:
            if type(event) is Text:
                self._text(event)
            elif type(event) is Reasoning or type(event) is Refusal:
                self.pieces.append(event.text)
            elif type(event) is Call:
                self.pieces.append((event.name or "") + event.arguments)
            elif type(event) is Usage:
                if self.usage is not None:
                    self.notes.add("usage_repeated")
                self.usage = event
                continue
            elif type(event) is End:
                out.append(self._final())
            out.append(event)
        return out

    def _text(self, event: Text) -> None:
        self.pieces.append(event.text)
        if event.lp is not None:
            self.entries += len(event.lp.entries)

    def _final(self) -> Usage:
        usage = self.usage
        if usage is not None and _is_constant(usage, self.pieces):
            self.notes.add("usage_constant")
            usage = None
        if usage is None or usage.prompt is None or usage.completion is None:
            if self.exchange.include_usage or not self.exchange.stream:
                self.notes.add("usage_missing")
            usage = self._counted(usage)
        else:
            self.exchange.usage_source = "backend"
            if self.exchange.stream and not self.exchange.include_usage:
                self.notes.add("usage_unasked")
        self.exchange.usage = usage
        return usage

    def _counted(self, given: Usage | None) -> Usage:
        vocabulary = self.exchange.tokens.vocabulary
        text = "".join(self.pieces)
        completion = given.completion if given else None
        source = "backend" if completion is not None else ""
        if completion is None and vocabulary is not None:
            completion, source = vocabulary.count(text), "tokenizer"
        if completion is None and self.entries:
            completion, source = self.entries, "tokens"
        if completion is None:
            completion, source = _estimate(len(text.encode())), "estimate"
        prompt = given.prompt if given else None
        if prompt is None:
            prompt, source = _estimate(self.exchange.prompt_size), "estimate"
        self.exchange.usage_source = source
        return Usage(prompt, completion)


def _estimate(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _is_constant(usage: Usage, pieces: list[str]) -> bool:
    """Say whether it is KoboldCpp's constant (<= 1.76: always 100, 100, 200).

    The model wrote fewer bytes than it would have tokens, which cannot be.
    """
    if usage.prompt != 100 or usage.completion != 100:
        return False
    return sum(len(piece.encode()) for piece in pieces) < 100
