"""The completions body: events folded into one `text_completion` in OpenAI's key order."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, json

from wellspoken.adapters.events import (
    Entry,
    Extra,
    Finish,
    Reason,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.arrays import ArrayWriter, LogprobArrays
from wellspoken.adapters.writers.base_writers import BodyWriter, ChoiceEvent
from wellspoken.adapters.writers.objects import UsageObject, usage_object, with_extras

_encode = json.Encoder().encode
TextReason = Literal["stop", "length", "content_filter"]


class CompletionChoice(Struct, gc=False):
    text: str
    index: int
    logprobs: LogprobArrays | None
    finish_reason: TextReason | None


class CompletionAnswer(Struct, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: UsageObject
    system_fingerprint: str | UnsetType = UNSET


class _CompletionFold(Struct, eq=False):
    text: list[str] = []
    entries: list[Entry] = []
    reason: TextReason | None = None
    extras: list[Extra] = []


class CompletionBody(BodyWriter):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.choices: dict[int, _CompletionFold] = {}

    def _choice(self, event: ChoiceEvent) -> None:
        folded = self.choices.get(event.choice or 0)
        if folded is None:
            folded = self.choices[event.choice or 0] = _CompletionFold()
        if type(event) is Text:
            folded.text.append(event.text)
            if event.lp is not None:
                folded.entries += event.lp.entries
        elif type(event) is Finish:
            folded.reason = text_reason(event.reason)
        elif type(event) is Extra:
            folded.extras.append(event)
        elif isinstance(event, Reasoning | Refusal | ToolDelta):
            drop(event, self.exchange)

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        start, usage = self.start, self.usage
        assert start is not None and usage is not None
        completion = CompletionAnswer(
            start.id,
            "text_completion",
            start.created,
            start.model,
            [self._write_choice(index) for index in sorted(self.choices)],
            usage_object(usage),
            start.system_fingerprint or UNSET,
        )
        return with_extras(_encode(completion), self.extras)

    def _write_choice(self, index: int) -> CompletionChoice | Raw:
        folded = self.choices[index]
        logprobs = ArrayWriter(self.exchange, index)(folded.entries) if folded.entries else None
        choice = CompletionChoice("".join(folded.text), index, logprobs, folded.reason)
        return Raw(with_extras(_encode(choice), folded.extras)) if folded.extras else choice


def text_reason(reason: Reason | None) -> TextReason:
    """Return one of the three reasons that the completions endpoint has; calls are dropped."""
    if reason is None or reason == "tool_calls" or reason == "function_call":
        return "stop"
    return reason


def drop(event: Reasoning | Refusal | ToolDelta, exchange: Exchange) -> None:
    """Count what a completions answer has no place for; of a call its first piece alone."""
    if type(event) is Reasoning:
        if exchange.keeps("reasoning_content"):  # else the reader counted it
            exchange.notes.drop("reasoning_content")
    elif type(event) is Refusal:
        exchange.notes.drop("refusal")
    elif type(event) is ToolDelta and event.name is not None:
        exchange.notes.drop("function_call" if exchange.functions else "tool_calls")
