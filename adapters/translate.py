"""Backend bytes in, OpenAI's bytes out: reader | stages | writer, for a body and for a stream.

translate_body         a whole answer (or an error, HTML, or a stream though a body was asked)
StreamTranslator       a stream, as it arrives
translate_stream_body  a whole answer where the client asked for a stream
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from wellspoken.adapters.events import Event, Fault
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.lenient import parse
from wellspoken.adapters.readers.near_openai import NearOpenAI
from wellspoken.adapters.repairs import errors
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.stages.calls import Calls
from wellspoken.adapters.stages.finish import FinishStage
from wellspoken.adapters.stages.order import Order
from wellspoken.adapters.stages.stop import Stop
from wellspoken.adapters.stages.tiling import Tiling
from wellspoken.adapters.stages.usage import UsageStage
from wellspoken.adapters.writers.chat_body import ChatBody
from wellspoken.adapters.writers.chat_stream import ChatStream
from wellspoken.adapters.writers.shapes import error_object

Stage = Callable[[list[Event]], list[Event]]


class Answer(Struct, gc=False):
    """What the client gets for a body: `status`, JSON `body`; `retry` False: do not try again."""

    status: int
    body: bytes
    retry: bool | None = None


def stages(exchange: Exchange) -> tuple[Stage, ...]:
    """Return the stages that this exchange needs, in order."""
    stop = (Stop(exchange),) if exchange.stops else ()
    tiling = (Tiling(exchange),) if exchange.logprobs else ()
    return (
        Calls(exchange),
        *stop,
        *tiling,
        FinishStage(exchange),
        UsageStage(exchange),
        Order(exchange),
    )


def fault_answer(fault: Fault) -> Answer:
    """Return the error answer that a fault is."""
    return Answer(fault.status, error_object(fault), fault.retry)


def translate_body(exchange: Exchange, status: int, content_type: str, data: bytes) -> Answer:
    """Return the client's answer for a backend's whole answer of any kind.

    The backend's own bytes go out if nothing had to be repaired.
    """
    if status >= 300:
        return fault_answer(_error(exchange, status, data))
    before = exchange.notes.changes
    reader = NearOpenAI(exchange)
    if _is_stream(content_type, data):
        exchange.notes.add("stream_for_body")
        events = reader.feed(data) + reader.close()
    else:
        events = reader.body(data)
    writer = ChatBody(exchange)
    writer(_through(stages(exchange), events))
    if writer.fault is not None:
        return fault_answer(writer.fault)
    if exchange.notes.changes == before:
        return Answer(200, data)
    return Answer(200, writer.body())


def translate_stream_body(exchange: Exchange, content_type: str, data: bytes) -> bytes | Fault:
    """Return the client's stream for a whole answer, or the fault that it is."""
    exchange.notes.add("body_for_stream")
    reader = NearOpenAI(exchange)
    writer = ChatStream(exchange)
    written = writer(_through(stages(exchange), reader.body(data)))
    return written if writer.fault is None else writer.fault


class StreamTranslator:
    """A stream as it arrives: `feed` what was read, `close` at the end of it.

    `done`: the last event was written ([DONE] or an error); nothing more will come. `fault`: the
    answer failed; if nothing was written before (`started` False) it is not in the stream, and a
    proper error answer can still be given.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.reader = NearOpenAI(exchange)
        self.stages = stages(exchange)
        self.writer = ChatStream(exchange)

    @property
    def done(self) -> bool:
        """Whether the last event was written."""
        return self.writer.done

    @property
    def fault(self) -> Fault | None:
        """What failed, if anything did."""
        return self.writer.fault

    @property
    def started(self) -> bool:
        """Whether the client was given bytes."""
        return self.writer.started

    def feed(self, data: bytes) -> bytes:
        """Return what the client gets for these bytes of the backend."""
        return self._write(self.reader.feed(data))

    def close(self) -> bytes:
        """Return what the client gets when the backend's bytes end."""
        return self._write(self.reader.close())

    def fail(self, fault: Fault) -> bytes:
        """Return what the client gets when the connection to the backend fails."""
        return self._write([fault])

    def _write(self, events: list[Event]) -> bytes:
        if self.writer.done or not events:
            return b""
        for stage in self.stages:
            events = stage(events)
        return self.writer(events)


def _through(pipeline: tuple[Stage, ...], events: list[Event]) -> list[Event]:
    for stage in pipeline:
        events = stage(events)
    return events


def _is_stream(content_type: str, data: bytes) -> bool:
    if "text/event-stream" in content_type:
        return True
    return data[:64].lstrip(b"\xef\xbb\xbf\r\n ").startswith((b"data:", b"event:", b": "))


def _error(exchange: Exchange, status: int, data: bytes) -> Fault:
    context = Context(exchange)
    try:
        payload = parse(data)
    except ValueError:
        return errors.fault_from_text(data.decode("utf-8", "replace"), status, context)
    return errors.fault_from(payload, status, context)
