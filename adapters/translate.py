"""Backend bytes in, OpenAI's bytes out: reader | stages | writer, for a body and for a stream.

translate_body    a whole answer (or an error, HTML, or a stream though a body was asked)
StreamTranslator  answers as they arrive, whole or as streams, into a stream or (`fold`) a body

`dialect` is what the backend's answer is read as, `exchange.kind` what the client gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from msgspec import UNSET, Struct

from wellspoken.adapters import plain_body
from wellspoken.adapters.backend_answer import BackendAnswer, Given
from wellspoken.adapters.events import End, Event, Fault, Text, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.lane import Lane, lane_of
from wellspoken.adapters.merge import Best, Merge, weakest
from wellspoken.adapters.pipeline import through
from wellspoken.adapters.plain_body import asks_plainly
from wellspoken.adapters.readers.near_openai import strict_body, strict_body_in_blocks
from wellspoken.adapters.rest import demand_all
from wellspoken.adapters.servers.backend import Dialect
from wellspoken.adapters.stages.order import OrderStage
from wellspoken.adapters.sums import add_usage
from wellspoken.adapters.tokens.tokenize import NOTHING, Counted, Wanted
from wellspoken.adapters.writers.chat_body import ChatBody
from wellspoken.adapters.writers.chat_stream import ChatStream
from wellspoken.adapters.writers.completion_body import CompletionBody
from wellspoken.adapters.writers.completion_stream import CompletionStream
from wellspoken.adapters.writers.objects import error_object
from wellspoken.adapters.writers.response_body import ResponseBody
from wellspoken.adapters.writers.response_stream import ResponseStream

FOLD = 65_536
"""Bytes of a stream after which its pieces are joined, or dropped: a token is ten times its text.

A list of single tokens takes 70 bytes for each, 14 MB for the 200,000 of a long stream.
"""


class BodyAnswer(Struct, gc=False):
    """What the client gets for a body: `status`, JSON `body`; `retry` False: do not try again."""

    status: int
    body: bytes
    retry: bool | None = None


def body_writer(exchange: Exchange) -> ChatBody | CompletionBody | ResponseBody:
    """Return the writer of the client's body."""
    if exchange.response is not None:
        return ResponseBody(exchange)
    return ChatBody(exchange) if exchange.kind == "chat" else CompletionBody(exchange)


def stream_writer(exchange: Exchange) -> ChatStream | CompletionStream | ResponseStream:
    """Return the writer of the client's stream."""
    if exchange.response is not None:
        return ResponseStream(exchange)
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
        self.passes = alike and not sources and exchange.response is None
        self.merge = merge
        self.order = OrderStage(exchange, merged=True) if merge is not None else None
        # What a merge asks for is there, or the answer fails; llama.cpp's own key is no `n`.
        self.may_lack = merge is None and exchange.n > 1 and "n_cmpl" not in exchange.switches
        self.body = body_writer(exchange) if fold else None
        self.asks_plainly = fold and not sources and asks_plainly(exchange, dialect)
        self.stream = None if fold else stream_writer(exchange)
        self.kept = self._keep() if not fold else None
        self.lane: Lane | None = None
        if merge is None and type(self.stream) is ChatStream and self.kept is None:
            source = self.sources[0]
            self.lane = lane_of(exchange, source.reader, source.stages, self.stream)
        self.given: bytes | None = None
        self.fed = 0  # bytes of the backend since the sources kept less of what was said
        self.written = 0
        self.done = False
        self.started = False
        self.fault: Fault | None = None

    def _keep(self) -> ChatBody | CompletionBody | ResponseBody | ResponseStream | None:
        """Return what folds the stream: a response's writer, whose last event has it whole."""
        if isinstance(self.stream, ResponseStream):
            return self.stream
        return body_writer(self.exchange) if self.exchange.stored else None

    def kept_growth(self, fed: int) -> int:
        """Return by how many bytes what is kept of the answer grew with a piece of `fed` bytes.

        Of a response the text and its entries, a small part of the events that brought them.
        """
        return self.stream.take_growth() if isinstance(self.stream, ResponseStream) else fed

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
            out = self._write(self.sources[place].feed(data), place)
        elif (values := lane.split(data)) is None:
            out = self._pass(self.sources[place].feed(data), lane)
        else:
            buffer = bytearray()
            at, event = lane.run(values, 0, buffer)
            if at < len(values):
                self._go_on(values, at, event, buffer, lane)
            self.written += len(buffer)
            out = bytes(buffer)
        self.fed += len(data)
        if self.fed >= FOLD:
            self.fed = 0
            for source in self.sources:
                source.fold()
        return out

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

    def whole(
        self,
        status: int,
        content_type: str,
        data: bytes,
        place: int = 0,
        *,
        large: bool = False,
    ) -> bytes:
        """Return what the client gets for a whole answer; `large`: for which a thread has time."""
        given: Given = UNSET
        if large and status < 300 and self.dialect == "chat":
            given = strict_body_in_blocks(data)
        if self._may_be_plain(status, content_type):
            if given is UNSET:
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

    @property
    def has_text(self) -> bool:
        """Whether any text or thought of a backend's has come."""
        return any(source.usage.texts or source.usage.reasoning for source in self.sources)

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
        if self.kept is not None and self.kept is not self.stream:
            self.kept(events)
        out = self.stream(events)
        self.written += len(out)
        self.done = self.stream.done
        self.started = self.stream.started
        self.fault = self.stream.fault
        return out
