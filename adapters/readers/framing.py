"""What an event stream's framing tells a reader, whatever its dialect: data, an error, the end."""

from __future__ import annotations

from typing import Protocol

from wellspoken.adapters.events import Event, Fault
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.sse import EventTooLarge, ServerEvent, SSEDecoder
from wellspoken.adapters.repairs.faults import fault_from_event


class Framed(Protocol):
    """A reader as its framing sees it."""

    sse: SSEDecoder
    pieces: Pieces

    def data(self, data: bytes) -> None:
        """Read one event's data."""

    def finish(self) -> None:
        """Take note that the backend said it is done."""


def feed(reader: Framed, data: bytes) -> list[Event]:
    """Return the events of all server events that `data` completes."""
    try:
        take(reader, reader.sse.feed(data))
    except EventTooLarge as error:
        take(reader, error.events)
        fault = Fault(502, f"The backend sent {error}.", code="upstream_event_too_large")
        reader.pieces.end(fault)
    return reader.pieces.take()


def take(reader: Framed, events: list[ServerEvent]) -> None:
    """Hand each server event to the reader until the answer has ended.

    An SSE field `error:` (llama.cpp up to late 2025) is counted `error_sse_field`.
    """
    pieces = reader.pieces
    for event in events:
        if pieces.ended:
            return
        data = event.data
        if data[:1] == b"{" and event.event is None and event.error is None:
            reader.data(data)  # the usual one, and the hot way
        elif event.error is not None:
            pieces.notes.add("error_sse_field")
            pieces.end(fault_from_event(event.error, pieces.context))
        elif data.strip(b' "') == b"[DONE]":
            reader.finish()
        elif event.event == "error":
            pieces.end(fault_from_event(data, pieces.context))
        else:
            reader.data(data)


def is_text(data: bytes) -> bool:
    """Say whether the bytes are UTF-8: what is kept raw is not looked into by the decoder."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
