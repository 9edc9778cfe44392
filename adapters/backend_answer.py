"""One answer of a backend, read and put through the stages: bytes in, events out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, UnsetType

from wellspoken.adapters.events import End, Event, Extra, Fault, Finish, Start, Text, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.pipeline import is_token, stages, through
from wellspoken.adapters.readers.framing import is_stream
from wellspoken.adapters.readers.llamacpp_answer import LlamaCppNative, TextOrNative
from wellspoken.adapters.readers.near_openai import NearOpenAI
from wellspoken.adapters.readers.strict import WireBody
from wellspoken.adapters.repairs import faults
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.envelope import PREFIXES
from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.servers.backend import Dialect
from wellspoken.adapters.stages.stop import StopStage
from wellspoken.adapters.stages.tool_calls import ToolCallStage
from wellspoken.adapters.stages.usage import UsageStage
from wellspoken.adapters.tokens.tokenize import Counted, Wanted

Given = WireBody | UnsetType | None
"""What the strict reader made of a body, None if it refused it, UNSET if it was not asked."""


def reader_of(exchange: Exchange, dialect: Dialect) -> LlamaCppNative | TextOrNative | NearOpenAI:
    """Return the reader of one answer."""
    if dialect == "llamacpp":
        return LlamaCppNative(exchange)
    return TextOrNative(exchange) if dialect == "completions" else NearOpenAI(exchange)


class BackendAnswer:
    """One answer of a backend, as the events that the client's answer is made of.

    `ended`: its stream has said all it has to say; `clean`: since the backend ended it, and nothing
    has to be cancelled. `prelude`: events that come before all others but the `Start`. Where the
    backend told no count, the answer's end waits until what is `wanted` was `counted`.
    """

    def __init__(
        self,
        exchange: Exchange,
        dialect: Dialect = "chat",
        prelude: Sequence[Event] = (),
    ) -> None:
        self.exchange = exchange
        self.reader = reader_of(exchange, dialect)
        self.stages = stages(exchange)
        # A lone piece of text is no affair of the calls' stage, unless there may be calls in it.
        self.text_stages = self.stages[type(self.stages[0]) is ToolCallStage :]
        self.stop: StopStage | None = None
        for stage in self.stages:
            if type(stage) is UsageStage:
                self.usage = stage
            elif type(stage) is StopStage and exchange.enforced:
                self.stop = stage
        self.prelude = list(prelude)
        self.ended = self.clean = False
        self.moved = False  # a token has come, not by the hot lane, since `take_move`

    def take_move(self) -> bool:
        """Say whether a token has come since this was last asked."""
        moved, self.moved = self.moved or self.usage.has_moved(), False
        return moved

    def fold(self) -> None:
        """Keep of what was said so far what has to be kept."""
        self.moved = self.take_move()
        self.usage.fold()
        self.reader.fold()

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of these bytes of a stream."""
        return self.pass_on(self.reader.feed(data))

    def pass_on(self, events: list[Event]) -> list[Event]:
        """Return what the stages make of a reader's events."""
        self.moved = self.moved or any(map(is_token, events))
        if self.stop is not None:
            events = self._cut_at_stop(events)
        else:  # as `through`, without a call for each read
            text = len(events) == 1 and type(events[0]) is Text
            for stage in self.text_stages if text else self.stages:
                events = stage(events)
        if (not events or type(events[-1]) is not Text) and not self.ended:
            last = type(events[-1]) if events else None
            self.clean = last is End or self.usage.wanted is not None
            self.ended = self.clean or last is Fault
        return self._add_prelude(events) if self.prelude else events

    def _cut_at_stop(self, events: list[Event]) -> list[Event]:
        """Return the events up to the last stop string; what was made behind it does not count."""
        out: list[Event] = []
        for event in events:
            out += through(self.stages, [event])
            if self.stop is not None and self.stop.over:
                self.stop = None
                self.ended = True
                return out + through(self.stages, [End(True)])
        return out

    def close(self) -> list[Event]:
        """Return the events of a stream's end."""
        return self._add_prelude(through(self.stages, self.reader.close()))

    def whole(
        self, status: int, content_type: str, data: bytes, given: Given = UNSET
    ) -> list[Event]:
        """Return the events of a whole answer, whatever it is; `given`: as `strict_body` has it."""
        if status >= 300:
            return [error_of(self.exchange, status, data)]
        if is_stream(content_type, data):
            self.exchange.notes.add("stream_for_body")
            events = self.reader.feed(data) + self.reader.close()
        else:
            events = self._read_body(data, given)
        return self._add_prelude(through(self.stages, events))

    def _read_body(self, data: bytes, given: Given) -> list[Event]:
        if given is not UNSET and type(self.reader) is NearOpenAI:
            return self.reader.body(data, given=given)
        return self.reader.body(data)

    @property
    def wanted(self) -> Wanted | None:
        """What the backend has to be asked before the answer can end."""
        return self.usage.wanted

    def add_counts(self, found: Counted) -> list[Event]:
        """Return the events that waited for what was wanted."""
        behind = self.stages[self.stages.index(self.usage) + 1 :]
        return self._add_prelude(through(behind, self.usage.add_counts(found)))

    def nothing(self, prompt: int, source: str = "backend") -> list[Event]:
        """Return the events of an answer without tokens, for which no backend is asked.

        `prompt`: how many tokens the prompt has; `source`: who says so.
        """
        exchange = self.exchange
        exchange.result.usage_source = source
        start = Start(PREFIXES[exchange.kind] + exchange.new_id(), exchange.now, exchange.model)
        ids = [Extra("choice", 0, "token_ids", Raw(b"[]"))] if exchange.tells_ids else []
        return [start, *self.prelude, *ids, Finish(0, "length"), Usage(prompt, 0), End(True)]

    def _add_prelude(self, events: list[Event]) -> list[Event]:
        if not self.prelude or not events or type(events[0]) is not Start:
            return events
        prelude, self.prelude = self.prelude, []
        return [events[0], *prelude, *events[1:]]


def error_of(exchange: Exchange, status: int, data: bytes) -> Fault:
    """Return the fault that an answer with an error status is."""
    context = Context(exchange)
    try:
        payload = parse(data)
    except ValueError:
        return faults.fault_from_text(data.decode("utf-8", "replace"), status, context)
    return faults.fault_from(payload, status, context)
