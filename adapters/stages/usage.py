"""Usage (contract rule 10): one count, at the end, from the best source there is.

Sources in order: the backend; a configured tokenizer that can count; the logprob entries seen; an
estimate of four bytes a token. The source is kept on the exchange and counted as a metric.
"""

from __future__ import annotations

from msgspec import structs

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
        self.reasoned = False

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
                self.reasoned = self.reasoned or type(event) is Reasoning
                self.pieces.append(event.text)
            elif type(event) is Call:
                self.pieces.append((event.name or "") + event.arguments)
            elif type(event) is Usage:
                if self.usage is not None and not self.exchange.enforced:
                    self.notes.add("usage_repeated")
                self.usage = event if self.usage is None else _merged(self.usage, event)
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
        if usage is not None and self._is_constant(usage):
            self.notes.add("usage_constant")
            usage = None if not usage.prompt or usage.completion else Usage(usage.prompt, None)
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
        if completion is None and self.entries and not self.exchange.echo:
            completion, source = self.entries, "tokens"
        if completion is None:
            completion, source = _estimate(len(text.encode())), "estimate"
        prompt = given.prompt if given else None
        if prompt is None:
            prompt, source = _estimate(self.exchange.prompt_size), "estimate"
        self.exchange.usage_source = source
        if given is None:
            return Usage(prompt, completion)
        return Usage(prompt, completion, given.prompt_details, given.completion_details)

    def _is_constant(self, usage: Usage) -> bool:
        """Say whether the counts are the same for every answer, since they cannot be this one's.

        KoboldCpp <= 1.76 always says 100, 100, 200; others 0 where a text was written. A model
        writes a byte or more for a token, unless it reasoned where nobody sees it.
        """
        if usage.completion == 0:
            return any(self.pieces) and not self.exchange.echo
        if (usage.prompt, usage.completion) != (100, 100) or self.reasoned or self.entries >= 100:
            return False
        details = bytes(usage.prompt_details) or bytes(usage.completion_details)
        if details or "reasoning_content" in self.notes.fields:
            return False
        return sum(len(piece.encode()) for piece in self.pieces) < 100


def _estimate(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _merged(old: Usage, new: Usage) -> Usage:
    """Return the later of two counts, but what it does not tell from the earlier one.

    Zeros behind a count tell nothing either.
    """
    if not new.prompt and not new.completion:
        return old
    if new.prompt is not None and new.completion is not None:
        return new
    return structs.replace(
        new,
        prompt=old.prompt if new.prompt is None else new.prompt,
        completion=old.completion if new.completion is None else new.completion,
        raw=None,
    )
