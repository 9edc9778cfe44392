"""What an event stream's framing tells a reader, whatever its dialect: data, an error, the end."""

from __future__ import annotations

from typing import Protocol

from wellspoken.adapters.exchange import Notes
from wellspoken.adapters.readers.sse import ServerEvent


class Framed(Protocol):
    """A reader as its framing sees it; `ended`: nothing that still comes is read."""

    notes: Notes
    ended: bool

    def data(self, data: bytes) -> None:
        """Read one event's data."""

    def error(self, data: bytes) -> None:
        """Read what says that the answer failed."""

    def done(self) -> None:
        """Take note that the backend said it is done."""


def take(reader: Framed, events: list[ServerEvent]) -> None:
    """Hand each server event to the reader until the answer has ended.

    An SSE field `error:` (llama.cpp up to late 2025) is counted `error_sse_field`.
    """
    for event in events:
        if reader.ended:
            return
        if event.error is not None:
            reader.notes.add("error_sse_field")
            reader.error(event.error)
        elif event.data.strip(b' "') == b"[DONE]":
            reader.done()
        elif event.event == "error":
            reader.error(event.data)
        else:
            reader.data(event.data)


def is_text(data: bytes) -> bool:
    """Say whether the bytes are UTF-8: what is kept raw is not looked into by the decoder."""
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
