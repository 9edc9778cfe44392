"""The chat body: events folded into one `chat.completion` in OpenAI's key order."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType, json

from wellspoken.adapters.events import (
    Entry,
    Extra,
    Finish,
    Open,
    Reason,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.base_writers import BodyWriter, ChoiceEvent
from wellspoken.adapters.writers.objects import UsageObject, usage_object, with_extras

_encode = json.Encoder().encode


class ChatFunction(Struct, gc=False):
    name: str
    arguments: str


class ChatToolCall(Struct, gc=False):
    id: str
    type: str
    function: ChatFunction


class ChatMessage(Struct, gc=False):
    role: str
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    function_call: ChatFunction | UnsetType = UNSET


class ChatLogprobs(Struct, gc=False):
    content: list[Entry] | None
    refusal: list[Entry] | None


class ChatBodyChoice(Struct, gc=False):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Reason | None


class ChatAnswer(Struct, gc=False):
    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: UsageObject | UnsetType = UNSET
    service_tier: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


class _ChatFold(Struct, eq=False):
    text: list[str] = []
    reasoning: list[str] = []
    entries: list[Entry] | None = None
    refusal: str | None = None
    refused: list[Entry] | None = None
    calls: list[ChatToolCall] = []
    arguments: list[list[str]] = []
    opened_by_call: bool | None = None
    reason: Reason | None = None
    extras: list[Extra] = []


class ChatBody(BodyWriter):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.choices: dict[int, _ChatFold] = {}

    def _choice(self, event: ChoiceEvent) -> None:
        folded = self.choices.get(event.choice or 0)
        if folded is None:
            folded = self.choices[event.choice or 0] = _ChatFold()
        if type(event) is Extra:
            folded.extras.append(event)
            return
        if folded.opened_by_call is None and not (type(event) is Open and event.raw is None):
            folded.opened_by_call = type(event) is ToolDelta
        if type(event) is Text:
            folded.text.append(event.text)
            if event.lp is not None:
                folded.entries = _join(folded.entries, event.lp.entries)
        elif type(event) is Reasoning:
            if self.exchange.keeps("reasoning_content"):
                folded.reasoning.append(event.text)
        elif type(event) is Refusal:
            folded.refusal = (folded.refusal or "") + event.text
            if event.lp is not None:
                folded.refused = _join(folded.refused, event.lp.entries)
        elif type(event) is ToolDelta:
            self._call(folded, event)
        elif type(event) is Finish:
            folded.reason = event.reason

    def _call(self, folded: _ChatFold, event: ToolDelta) -> None:
        if event.name is not None:
            function = ChatFunction(event.name, "")
            folded.calls.append(ChatToolCall(event.id or "", "function", function))
            folded.arguments.append([])
        folded.arguments[event.n or 0].append(event.arguments)

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        start, usage = self.start, self.usage
        assert start is not None and usage is not None
        completion = ChatAnswer(
            start.id,
            "chat.completion",
            start.created,
            start.model,
            [self._write_choice(index) for index in sorted(self.choices)],
            usage_object(usage),
            "default" if self.exchange.service_tier else UNSET,
            start.system_fingerprint or UNSET,
        )
        return with_extras(_encode(completion), self.extras)

    def _write_choice(self, index: int) -> ChatBodyChoice | Raw:
        folded = self.choices[index]
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
        if folded.entries is not None or folded.refused is not None:
            logprobs = ChatLogprobs(folded.entries, folded.refused)
        choice = ChatBodyChoice(index, message, logprobs, folded.reason)
        if not folded.extras:
            return choice
        return self._with_extras(choice, folded.extras)

    def _with_extras(self, choice: ChatBodyChoice, extras: list[Extra]) -> Raw:
        parts: dict[str, Any] = {
            "index": choice.index,
            "message": Raw(
                with_extras(_encode(choice.message), [x for x in extras if x.where == "message"])
            ),
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        return Raw(with_extras(_encode(parts), [x for x in extras if x.where == "choice"]))


def _join(before: list[Entry] | None, more: list[Entry]) -> list[Entry]:
    if before is None:
        return list(more)
    before += more
    return before
