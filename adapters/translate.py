"""Backend bytes in, OpenAI's bytes out: reader | stages | writer, for a body and for a stream.

translate_body    a whole answer (or an error, HTML, or a stream though a body was asked)
StreamTranslator  answers as they arrive, whole or as streams, into a stream or (`fold`) a body

`dialect` is what the backend's answer is read as, `exchange.kind` what the client gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from msgspec import UNSET, Raw, Struct, UnsetType

from wellspoken.adapters import plain_body
from wellspoken.adapters.events import End, Event, Extra, Fault, Finish, Start, Text, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.lane import Lane, lane_of
from wellspoken.adapters.merge import Best, Merge, weakest
from wellspoken.adapters.pipeline import is_token, stages, through
from wellspoken.adapters.plain_body import asks_plainly
from wellspoken.adapters.readers.framing import is_stream
from wellspoken.adapters.readers.llamacpp_answer import LlamaCppNative, TextOrNative
from wellspoken.adapters.readers.near_openai import NearOpenAI, strict_body
from wellspoken.adapters.readers.strict import WireBody
from wellspoken.adapters.repairs import faults
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.envelope import PREFIXES
from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.rest import demand_all
from wellspoken.adapters.servers.backend import Dialect
from wellspoken.adapters.stages.order import OrderStage
from wellspoken.adapters.stages.stop import StopStage
from wellspoken.adapters.stages.tool_calls import ToolCallStage
from wellspoken.adapters.stages.usage import UsageStage
from wellspoken.adapters.sums import add_usage
from wellspoken.adapters.tokens.tokenize import NOTHING, Counted, Wanted
from wellspoken.adapters.writers.chat_body import ChatBody
from wellspoken.adapters.writers.chat_stream import ChatStream
from wellspoken.adapters.writers.completion_body import CompletionBody
from wellspoken.adapters.writers.completion_stream import CompletionStream
from wellspoken.adapters.writers.objects import error_object

Given = WireBody | UnsetType | None
"""What the strict reader made of a body, None if it refused it, UNSET if it was not asked."""


class BodyAnswer(Struct, gc=False):
    """What the client gets for a body: `status`, JSON `body`; `retry` False: do not try again."""

    status: int
    body: bytes
    retry: bool | None = None


def reader_of(exchange: Exchange, dialect: Dialect) -> LlamaCppNative | TextOrNative | NearOpenAI:
    """Return the reader of one answer."""
    if dialect == "llamacpp":
        return LlamaCppNative(exchange)
    return TextOrNative(exchange) if dialect == "completions" else NearOpenAI(exchange)


def body_writer(exchange: Exchange) -> ChatBody | CompletionBody:
    """Return the writer of the client's body."""
    return ChatBody(exchange) if exchange.kind == "chat" else CompletionBody(exchange)


def stream_writer(exchange: Exchange) -> ChatStream | CompletionStream:
    """Return the writer of the client's stream."""
    return ChatStream(exchange) if exchange.kind == "chat" else CompletionStream(exchange)


def fault_answer(fault: Fault) -> BodyAnswer:
    """Return the error answer that a fault is."""
    return BodyAnswer(fault.status, error_object(fault), fault.retry)


def translate_body(
    exchange: Exchange, status: int, content_type: str, data: bytes, dialect: Dialect = "chat"
) -> BodyAnswer:
    """Return the client's answer for a backend's whole answer of any kind.

    Nobody is asked for a count that it lacks.
    """
    translator = StreamTranslator(exchange, dialect, fold=True)
    translator.whole(status, content_type, data)
    if translator.missing_counts() is not None:
        translator.add_counts(NOTHING)
    return translator.answer()


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


class StreamTranslator:
    """Streams as they arrive: `feed` what was read, `close` at the end of it.

    `done`: the last event was written ([DONE] or an error); nothing more will come. `fault`: the
    answer failed; if nothing was written before (`started` False) it is not in the stream, and a
    proper error answer can still be given. `fold`: the client wants a body, the `answer`; it is the
    backend's own (`given`) where a single whole one needed no repair. Several `sources` become one
    answer by `merge`, which takes (place, events). Where a source's bytes end
    and a count is `wanted`, it ends with what was `counted`. A stream that is `stored` is folded
    too: `kept` has its body, and `written` says how many bytes went to the client.
    """

    def __init__(
        self,
        exchange: Exchange,
        dialect: Dialect = "chat",
        *,
        sources: Sequence[BackendAnswer] = (),
        merge: Callable[[int, list[Event]], list[Event]] | None = None,
        fold: bool = False,
    ) -> None:
        self.exchange = exchange
        self.dialect = dialect
        self._sources = sources
        # An unrepaired body is the client's; arrays of logprobs are always made anew.
        alike = dialect == exchange.kind and (exchange.kind == "chat" or not exchange.logprobs)
        self.passes = alike and not sources
        self.merge = merge
        self.order = OrderStage(exchange, merged=True) if merge is not None else None
        # What a merge asks for is there, or the answer fails; llama.cpp's own key is no `n`.
        self.may_lack = merge is None and exchange.n > 1 and "n_cmpl" not in exchange.switches
        self.body = body_writer(exchange) if fold else None
        self.asks_plainly = fold and not sources and asks_plainly(exchange, dialect)
        self.stream = None if fold else stream_writer(exchange)
        self.kept = body_writer(exchange) if exchange.stored and not fold else None
        self.lane: Lane | None = None
        if merge is None and type(self.stream) is ChatStream and self.kept is None:
            source = self.sources[0]
            self.lane = lane_of(exchange, source.reader, source.stages, self.stream)
        self.given: bytes | None = None
        self.written = 0
        self.done = False
        self.started = False
        self.fault: Fault | None = None

    @property
    def sources(self) -> Sequence[BackendAnswer]:
        """The backend's answers; the usual single one is made when events of it are needed."""
        if not self._sources:
            self._sources = (BackendAnswer(self.exchange, self.dialect),)
        return self._sources

    @sources.setter
    def sources(self, sources: Sequence[BackendAnswer]) -> None:
        self._sources = sources

    def feed(self, data: bytes, place: int = 0) -> bytes:
        """Return what the client gets for these bytes of the backend."""
        lane = self.lane
        if lane is None:
            return self._write(self.sources[place].feed(data), place)
        values = lane.split(data)
        if values is None:
            return self._pass(self.sources[place].feed(data), lane)
        out = bytearray()
        at, event = lane.run(values, 0, out)
        if at < len(values):
            self._go_on(values, at, event, out, lane)
        self.written += len(out)
        return bytes(out)

    def _go_on(
        self, values: list[bytes], at: int, event: Text | None, out: bytearray, lane: Lane
    ) -> None:
        """Add what the client gets for a read's events from the first one that is not plain."""
        source, before = self.sources[0], self.written
        while at < len(values):
            if event is None:
                at, events = lane.take(values, at)
            else:
                at, events = at + 1, [event]
            out += self._pass(source.pass_on(events), lane)
            if source.ended:  # of a read that goes the whole way at once, no stage sees the rest
                lane.read_all(values[at:])
                break
            at, event = lane.run(values, at, out)
        self.written = before

    def _pass(self, events: list[Event], lane: Lane) -> bytes:
        out = self._write(events, 0)
        lane.follow(events)
        return out

    def close(self, place: int = 0) -> bytes:
        """Return what the client gets when a backend's bytes end."""
        return self._write(self.sources[place].close(), place)

    def _may_be_plain(self, status: int, content_type: str) -> bool:
        return self.asks_plainly and status < 300 and "text/event-stream" not in content_type

    def steps(self, status: int, content_type: str, data: bytes) -> Iterator[None]:
        """Translate a whole answer in steps, between which others may work, if it can be cut so.

        It is to be given to `whole` unless it is `done` then.
        """
        if self._may_be_plain(status, content_type):
            self.given = yield from plain_body.translate_in_blocks(data, self.exchange)
            self.done = self.given is not None

    def whole(self, status: int, content_type: str, data: bytes, place: int = 0) -> bytes:
        """Return what the client gets for a whole answer."""
        given: Given = UNSET
        if self._may_be_plain(status, content_type):
            given = strict_body(data)
            if given is not None:
                self.given = plain_body.translate(data, given, self.exchange)
                if self.given is not None:
                    self.done = True
                    return b""
        if status < 300 and self.stream is not None:
            self.exchange.notes.add("body_for_stream")
        before = self.exchange.notes.changes
        events = self.sources[place].whole(status, content_type, data, given)
        if self.may_lack:
            events = demand_all(events, self.exchange)
        if not self.started:  # a whole answer that failed leaves as a status, not as its beginning
            events = [x for x in events if type(x) is Fault] or events
        out = self._write(events, place)
        if self.passes and self.done and self.exchange.notes.changes == before:
            self.given = data if self.fault is None else None
        return out

    def missing_counts(self, place: int = 0) -> Wanted | None:
        """Return what the backend has to be asked before this answer of it can end."""
        return None if self.done else self.sources[place].wanted

    def add_counts(self, found: Counted, place: int = 0) -> bytes:
        """Return what the client gets once that is known, as far as it is."""
        return self._write(self.sources[place].add_counts(found), place)

    def nothing(self, prompt: int, place: int = 0, source: str = "backend") -> bytes:
        """Return what the client gets where no token was asked for."""
        return self._write(self.sources[place].nothing(prompt, source), place)

    def fail(self, fault: Fault, place: int = 0) -> bytes:
        """Return what the client gets when the connection to a backend fails.

        What the stages still hold goes out before, unless nothing has yet: then it is a status.
        """
        events: list[Event] = [fault]
        if self.started:
            events = through(self.sources[place].stages, events)
        return self._write(events, place)

    def count_so_far(self) -> None:
        """Set the exchange's usage, of an answer that has failed or that nobody waits for."""
        if self.done and self.fault is None:
            return
        result = self.exchange.result
        each = self.merge.each if isinstance(self.merge, Merge | Best) else len(self.sources)
        total, known = Usage(0, 0), dict[int, list[str]]()  # by prompt
        for place, source in enumerate(self.sources):
            source.usage.count_so_far()
            found = source.exchange.result
            if found.usage is not None:
                add_usage(total, found.usage, prompt=place // each not in known)
                known.setdefault(place // each, []).append(found.usage_source)
        if known:
            result.usage = total
            result.usage_source = weakest(chain.from_iterable(known.values()))

    def answer(self) -> BodyAnswer:
        """Return the body that the streams fold to."""
        if self.given is not None:
            return BodyAnswer(200, self.given)
        assert self.body is not None
        if self.body.fault is not None:
            return fault_answer(self.body.fault)
        return BodyAnswer(200, self.body.body())

    def _write(self, events: list[Event], place: int) -> bytes:
        if self.done or not events:
            return b""
        if self.may_lack:
            events = demand_all(events, self.exchange)
        if self.merge is not None and self.order is not None:
            events = self.order(self.merge(place, events))
            if not self.started:  # what only waited for its turn has not begun the answer
                events = [x for x in events if type(x) is Fault] or events
        if self.stream is None:
            assert self.body is not None
            self.body(events)
            ended = bool(events) and type(events[-1]) is End  # a merge may hold all of them back
            self.done = ended or self.body.fault is not None
            self.fault = self.body.fault
            return b""
        if self.kept is not None:
            self.kept(events)
        out = self.stream(events)
        self.written += len(out)
        self.done = self.stream.done
        self.started = self.stream.started
        self.fault = self.stream.fault
        return out


def error_of(exchange: Exchange, status: int, data: bytes) -> Fault:
    """Return the fault that an answer with an error status is."""
    context = Context(exchange)
    try:
        payload = parse(data)
    except ValueError:
        return faults.fault_from_text(data.decode("utf-8", "replace"), status, context)
    return faults.fault_from(payload, status, context)
