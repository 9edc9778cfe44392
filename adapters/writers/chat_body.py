"""The chat body: events folded into one `chat.completion` in OpenAI's key order."""

from __future__ import annotations

from itertools import chain
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from wellspoken.adapters.events import Entry, Extra, Reason, Reasoning, Refusal, ToolDelta
from wellspoken.adapters.writers.base_writers import (
    BodyWriter,
    ChoiceFold,
    Piece,
    ToolCallObject,
    ToolFunction,
    encode,
)
from wellspoken.adapters.writers.objects import with_extras


class ChatMessage(Struct, gc=False):
    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallObject] | UnsetType = UNSET
    function_call: ToolFunction | UnsetType = UNSET


class ChatLogprobs(Struct, gc=False):
    content: list[Entry] | None
    refusal: list[Entry] | None


class ChatBodyChoice(Struct, gc=False):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None


class ChatBody(BodyWriter):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    object = "chat.completion"

    def _piece(self, event: Piece, folded: ChoiceFold) -> None:
        if type(event) is Reasoning:
            if self.exchange.keeps("reasoning_content"):
                folded.reasoning.append(event.text)
        elif type(event) is Refusal:
            folded.refusal = (folded.refusal or "") + event.text
            if event.lp is not None:
                folded.refused = (folded.refused or []) + event.lp.entries
        elif type(event) is ToolDelta:
            if event.name is not None:
                function = ToolFunction(event.name, "")
                folded.calls.append(ToolCallObject(event.id or "", "function", function))
                folded.arguments.append([])
            folded.arguments[event.n or 0].append(event.arguments)

    def _write_choice(self, index: int, folded: ChoiceFold) -> ChatBodyChoice | Raw:
        text = "".join(folded.text)
        empty = not text and (folded.opened_by_call or folded.refusal is not None)
        message = ChatMessage("assistant", None if empty else text, folded.refusal)
        if folded.reasoning:
            message.reasoning_content = "".join(folded.reasoning)
        for call, pieces in zip(folded.calls, folded.arguments, strict=True):
            call.function.arguments = "".join(pieces)
        if folded.calls and self.exchange.functions:
            message.function_call = folded.calls[0].function
        elif folded.calls:
            message.tool_calls = folded.calls
        logprobs = None
        scored = [lp.entries for lp in folded.scores if lp is not None]
        if scored or folded.refused is not None:
            entries = list(chain.from_iterable(scored)) if scored else None
            logprobs = ChatLogprobs(entries, folded.refused)
        choice = ChatBodyChoice(index, message, logprobs, folded.reason)
        if not folded.extras:
            return choice
        return self._with_extras(choice, folded.extras)

    def _with_extras(self, choice: ChatBodyChoice, extras: list[Extra]) -> Raw:
        parts: dict[str, Any] = {
            "index": choice.index,
            "message": Raw(
                with_extras(encode(choice.message), [x for x in extras if x.where == "message"])
            ),
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        return Raw(with_extras(encode(parts), [x for x in extras if x.where == "choice"]))
