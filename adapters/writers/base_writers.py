"""What the chat and completions writers do alike: a body's folding, a stream's chunks and end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Any, ClassVar

from msgspec import UNSET, Raw, Struct, UnsetType, json

from wellspoken.adapters.events import (
    End,
    Entry,
    Event,
    Extra,
    Fault,
    Finish,
    Logprobs,
    Open,
    Reason,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.objects import (
    UsageObject,
    error_object,
    extra_keys,
    usage_object,
    with_extras,
)

encode = json.Encoder().encode
encode_into = json.Encoder().encode_into

ALONE = frozenset({"prompt_progress"})
"""Extensions that do not wait for a chunk: they tell of a time in which there is none."""

Piece = Reasoning | Refusal | ToolDelta
ChoiceEvent = Text | Open | Piece | Finish


class AnswerObject(Struct, gc=False):
    """A whole answer in OpenAI's key order."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: UsageObject
    service_tier: str | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


class ToolFunction(Struct, gc=False):
    name: str
    arguments: str


class ToolCallObject(Struct, gc=False):
    id: str
    type: str
    function: ToolFunction


class ChoiceFold(Struct, eq=False):
    """What came of one choice; `scores` has the entries of each piece of `text`.

    `opened_by_call` is None until something came that is no role.
    """

    text: list[str] = []
    reasoning: list[str] = []
    scores: list[Logprobs | None] = []
    refusal: str | None = None
    refused: list[Entry] | None = None
    calls: list[ToolCallObject] = []
    arguments: list[list[str]] = []
    opened_by_call: bool | None = None
    reason: Reason | None = None
    extras: list[Extra] = []


class BodyWriter(ABC):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    object: ClassVar[str]

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.start: Start | None = None
        self.fault: Fault | None = None
        self.usage: Usage | None = None
        self.extras: list[Extra] = []
        self.choices: defaultdict[int, ChoiceFold] = defaultdict(ChoiceFold)

    def __call__(self, events: list[Event]) -> None:
        """Fold these events into the answer."""
        for event in events:
            if type(event) is Fault:
                self.fault = event
                return
            if type(event) is Start:
                self.start = event
            elif type(event) is Usage:
                self.usage = event
            elif type(event) is Extra:
                own = self.extras if event.choice is None else self.choices[event.choice].extras
                own.append(event)
            elif isinstance(event, ChoiceEvent):
                self._fold(event, self.choices[event.choice])

    def _fold(self, event: ChoiceEvent, folded: ChoiceFold) -> None:
        if folded.opened_by_call is None and not (type(event) is Open and event.raw is None):
            folded.opened_by_call = type(event) is ToolDelta
        if type(event) is Text:
            folded.text.append(event.text)
            folded.scores.append(event.lp)
        elif type(event) is Finish:
            folded.reason = event.reason or "stop"
        elif isinstance(event, Piece):
            self._piece(event, folded)

    @abstractmethod
    def _piece(self, event: Piece, folded: ChoiceFold) -> None:
        """Fold what else a message may hold."""

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        start, usage = self.start, self.usage
        assert start is not None and usage is not None
        answer = AnswerObject(
            start.id,
            self.object,
            start.created,
            start.model,
            [self._write_choice(index, self.choices[index]) for index in sorted(self.choices)],
            usage_object(usage),
            "default" if self.exchange.service_tier else UNSET,
            start.system_fingerprint or UNSET,
        )
        return with_extras(encode(answer), self.extras)

    @abstractmethod
    def _write_choice(self, index: int, folded: ChoiceFold) -> Any:
        """Return the object of a choice."""


class StreamWriter(ABC):
    """Events in, SSE bytes out; `fault` and `done` tell how the answer ended.

    An event that still carries the backend's own chunk goes out as that; any other is written here.
    What tells how choices ended waits for the answer's end: a client that reads a `finish_reason`
    takes the answer for whole, and the backend may still fail, or another choice of the answer.
    """

    object: ClassVar[bytes]

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.fault: Fault | None = None
        self.done = False
        self.started = False
        self.top = b""  # the envelope in front of the choices
        self.fingerprint = b""  # what of it stands behind them
        self.usage_null = b',"usage":null' if exchange.include_usage else b""
        self.frames: dict[int, tuple[bytes, bytes, bytes]] = {}
        self.extras: list[Extra] = []  # they wait for a chunk that can carry them
        # Keys of the usage's chunk, which the client does not get, go with the chunk before.
        self.waits = exchange.asks_usage and (exchange.extensions == "all" or bool(exchange.keep))
        self.waiting: Finish | None = None
        self.ends = bytearray()  # the choices' last chunks, which no error may follow
        self.closing = 0  # how many of the last bytes tell no more than how the answer ended

    def __call__(self, events: list[Event]) -> bytes:
        """Return the bytes that these events are; b"" for what only changes the state."""
        out = bytearray()
        for event in self._put_extras_first(events) if self.waits else events:
            if self.done:
                break
            if type(event) is Text:
                self.text(event, out)
            elif type(event) is Finish:
                self._finish(event, self.ends)
            else:
                self._other(event, out)
        if out:
            self.started = True
        return bytes(out)

    def _put_extras_first(self, events: list[Event]) -> list[Event]:
        """Return the events with each `Finish` behind the extras of the chunk that follows it."""
        ordered: list[Event] = []
        extra = False
        for event in events:
            extra = type(event) is Extra
            if self.waiting is not None and not extra:
                ordered.append(self.waiting)
                self.waiting = None
            if type(event) is Finish:
                self.waiting = event
            else:
                ordered.append(event)
        if self.waiting is not None and extra:
            ordered.append(self.waiting)
            self.waiting = None
        return ordered

    @abstractmethod
    def text(self, event: Text, out: bytearray) -> None:
        """Write a piece of content. Hot."""

    @abstractmethod
    def _finish(self, event: Finish, out: bytearray) -> None:
        """Write the end of a choice."""

    @abstractmethod
    def _begin_choice(self, event: Open, out: bytearray) -> None:
        """Write the begin of a choice, if it has to be written now."""

    @abstractmethod
    def _piece(self, event: Piece, out: bytearray) -> None:
        """Write what else a message may hold."""

    @abstractmethod
    def _frame(self, choice: int) -> tuple[bytes, bytes]:
        """Return what stands before a chunk's content, and what between it and its logprobs."""

    def _other(self, event: Event, out: bytearray) -> None:
        if type(event) is Start:
            self._begin(event)
        elif type(event) is Open:
            self._begin_choice(event, out)
        elif type(event) is Extra:
            self.extras.append(event)
            if event.key in ALONE and self.exchange.n == 1:
                self._begin_choice(Open(0, now=True), out)
                if self.extras:
                    self._chunk(0, b"{}", out)
        elif isinstance(event, Piece):
            self._piece(event, out)
        elif type(event) is Usage and event.running:
            self.extras.append(Extra("answer", None, "usage", Raw(encode(usage_object(event)))))
        elif type(event) is Usage:
            self._write_ends(out)
            if self.exchange.include_usage and not self._pass_raw(event.raw, out):
                usage = b'"choices":[],"usage":' + encode(usage_object(event))
                out += self.top + usage + self.fingerprint + self._take(None) + b"}\n\n"
        elif type(event) is Fault:
            self.fault = event
            self.done = True
            if self.started or out:
                out += b"data: " + error_object(event) + b"\n\n"
        elif type(event) is End:
            self.done = True
            self._write_ends(out)
            out += b"data: [DONE]\n\n"
            self.closing += len(out)
            for extra in self.extras:  # they came behind the last chunk that could carry them
                self.exchange.notes.drop(extra.key)

    def _write_ends(self, out: bytearray) -> None:
        if self.ends:
            self.closing = -len(out)  # until the end is written
        out += self.ends
        self.ends.clear()

    def _begin(self, start: Start) -> None:
        """Take the envelope of all chunks; a later one of the same answer adds a fingerprint."""
        facts = (encode(start.id), self.object, start.created, encode(start.model))
        self.top = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,' % facts
        self.frames.clear()

    def _pass_raw(self, raw: bytes | None, out: bytearray) -> bool:
        """Write the backend's own chunk, if there is one and no key has to be put into it."""
        if raw is None or self.extras:
            return False
        out += b"data: " + raw + b"\n\n"
        return True

    def _chunk(
        self,
        choice: int,
        content: bytes,
        out: bytearray,
        logprobs: bytes = b"null",
        reason: bytes | None = None,
    ) -> None:
        """Write a chunk of a delta or text, with the keys that wait for it. Hot."""
        front, behind, tail = self.frames.get(choice) or self._add_frame(choice)
        if reason is None and not self.extras:
            out += b"".join((front, content, behind, logprobs, tail))
            return
        if content[:1] == b"{":
            keys = self._take(choice, "message")
            content = content[:-1] + (keys if content != b"{}" else keys[1:]) + b"}"
        end = b',"finish_reason":' + (reason or b"null") + self._take(choice) + b"}]"
        usage = b"" if any(extra.key == "usage" for extra in self.extras) else self.usage_null
        end += usage + self.fingerprint + self._take(None) + b"}\n\n"
        out += b"".join((front, content, behind, logprobs, end))

    def _add_frame(self, choice: int) -> tuple[bytes, bytes, bytes]:
        """Return what stands around a chunk's content and logprobs, if it has no other keys."""
        tail = b',"finish_reason":null}]' + self.usage_null + self.fingerprint + b"}\n\n"
        frame = self.frames[choice] = (*self._frame(choice), tail)
        return frame

    def _take(self, choice: int | None, where: str = "") -> bytes:
        """Return the keys that wait for a chunk of this choice, for any chunk with None."""
        taken: list[Extra] = []
        kept: list[Extra] = []
        for extra in self.extras:
            mine = extra.choice == choice and where in ("", extra.where)
            (taken if mine else kept).append(extra)
        self.extras = kept
        return extra_keys(taken, line=True)
