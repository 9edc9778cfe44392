"""The completions body: events folded into one `text_completion` in OpenAI's key order."""

from __future__ import annotations

from typing import Literal

from msgspec import Raw, Struct

from wellspoken.adapters.events import Reason, Reasoning, Refusal, ToolDelta
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.arrays import ArrayWriter, LogprobArrays
from wellspoken.adapters.writers.base_writers import BodyWriter, ChoiceFold, Piece, encode
from wellspoken.adapters.writers.objects import with_extras

TextReason = Literal["stop", "length", "content_filter"]


class CompletionChoice(Struct, gc=False):
    text: str
    index: int
    logprobs: LogprobArrays | None
    finish_reason: TextReason | None


class CompletionBody(BodyWriter):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    object = "text_completion"

    def _piece(self, event: Piece, folded: ChoiceFold) -> None:
        drop(event, self.exchange)

    def _write_choice(self, index: int, folded: ChoiceFold) -> CompletionChoice | Raw:
        logprobs = ArrayWriter(self.exchange, index).write_all(folded.text, folded.scores)
        reason = None if folded.reason is None else text_reason(folded.reason)
        choice = CompletionChoice("".join(folded.text), index, logprobs, reason)
        return Raw(with_extras(encode(choice), folded.extras)) if folded.extras else choice


def text_reason(reason: Reason | None) -> TextReason:
    """Return one of the three reasons that the completions endpoint has; calls are dropped."""
    if reason is None or reason == "tool_calls" or reason == "function_call":
        return "stop"
    return reason


def drop(event: Piece, exchange: Exchange) -> None:
    """Count what a completions answer has no place for; of a call its first piece alone."""
    if type(event) is Reasoning:
        if exchange.keeps("reasoning_content"):  # else the reader counted it
            exchange.notes.drop("reasoning_content")
    elif type(event) is Refusal:
        exchange.notes.drop("refusal")
    elif type(event) is ToolDelta and event.name is not None:
        exchange.notes.drop("function_call" if exchange.functions else "tool_calls")
