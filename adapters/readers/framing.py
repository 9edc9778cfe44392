"""What an event stream's framing tells a reader, whatever its dialect: data, an error, the end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wellspoken.adapters.events import Event, Fault
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.sse import EventTooLarge, ServerEvent, SSEDecoder
from wellspoken.adapters.repairs.faults import fault_from_event
from wellspoken.adapters.repairs.loose_json import parse


class Framed(ABC):
    """A reader of an event stream; which dialect it is, `data` and `finish` know."""

    sse: SSEDecoder
    pieces: Pieces

    @abstractmethod
    def data(self, data: bytes) -> None:
        """Read one event's data."""

    @abstractmethod
    def finish(self) -> None:
        """Take note that the backend said it is done."""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of all server events that `data` completes."""
        try:
            self.take(self.sse.feed(data))
        except EventTooLarge as error:
            self.take(error.events)
            fault = Fault(502, f"The backend sent {error}.", code="upstream_event_too_large")
            self.pieces.end(fault)
        pieces = self.pieces
        events, pieces.out = pieces.out, []  # as `Pieces.take`, without a call for each read
        return events

    def fold(self) -> None:
        """Keep of what was said so far what has to be kept."""
        self.pieces.fold()

    def take(self, events: list[ServerEvent]) -> None:
        """Read each server event until the answer has ended.

        An SSE field `error:` (llama.cpp up to late 2025) is counted `error_sse_field`.
        """
        pieces = self.pieces
        for event in events:
            if pieces.ended:
                return
            data = event.data
            if data[:1] == b"{" and event.event is None and event.error is None:
                self.data(data)  # the usual one, and the hot way
            elif event.error is not None:
                pieces.notes.add("error_sse_field")
                pieces.end(fault_from_event(event.error, pieces.context))
            elif data.strip(b' "') == b"[DONE]":
                self._take_late(events[events.index(event) + 1 :])
                self.finish()
            elif event.event == "error":
                pieces.end(fault_from_event(data, pieces.context))
            elif data.strip():  # one without data is none (WHATWG HTML, 9.2.6)
                self.data(data)

    def _take_late(self, events: list[ServerEvent]) -> None:
        """Read a usage behind the end, where it came together with that (`usage_misplaced`)."""
        for event in events:
            if b'"usage"' in event.data and _is_usage(event.data):
                self.pieces.notes.add("usage_misplaced")
                self.data(event.data)


def _is_usage(data: bytes) -> bool:
    """Say whether a chunk has a usage, and nothing of a choice."""
    try:
        chunk = parse(data)
    except ValueError:
        return False
    return isinstance(chunk, dict) and bool(chunk.get("usage")) and not chunk.get("choices")


def is_text(data: bytes) -> bool:
    """Say whether the bytes are UTF-8: what is kept raw is not looked into by the decoder."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_stream(content_type: str, data: bytes) -> bool:
    """Say whether a whole answer is an event stream, by its type or by how it begins."""
    if "text/event-stream" in content_type:
        return True
    return data[:64].lstrip(b"\xef\xbb\xbf\r\n ").startswith((b"data:", b"event:", b": "))
