"""What the chat and completions writers do alike: a body's folding, a stream's state and end."""

from __future__ import annotations

from abc import ABC, abstractmethod

from wellspoken.adapters.events import (
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Open,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.writers.objects import error_object

ChoiceEvent = Text | Open | Reasoning | Refusal | ToolDelta | Finish | Extra


class BodyWriter(ABC):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.start: Start | None = None
        self.fault: Fault | None = None
        self.usage: Usage | None = None
        self.extras: list[Extra] = []

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
            elif type(event) is Extra and event.choice is None:
                self.extras.append(event)
            elif isinstance(event, ChoiceEvent):
                self._choice(event)

    @abstractmethod
    def _choice(self, event: ChoiceEvent) -> None:
        """Fold an event into its choice."""

    @abstractmethod
    def body(self) -> bytes:
        """Return the JSON of the answer."""


class StreamWriter:
    """Events in, SSE bytes out; `fault` and `done` tell how the answer ended."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.start: Start | None = None
        self.fault: Fault | None = None
        self.done = False
        self.started = False
        self.usage_null = b',"usage":null' if exchange.include_usage else b""
        self.extras: list[Extra] = []

    def _end(self, event: Event, out: list[bytes]) -> None:
        """End the stream on a fault or on its end; other events leave it as it is."""
        if type(event) is Fault:
            self.fault = event
            self.done = True
            if self.started or out:
                out.append(b"data: " + error_object(event) + b"\n\n")
        elif type(event) is End:
            self.done = True
            out.append(b"data: [DONE]\n\n")
            for extra in self.extras:  # they came behind the last chunk that could carry them
                self.exchange.notes.drop(extra.key)
