"""The response as a body, and the fold that the stream is written by as well."""

from __future__ import annotations

from msgspec import Raw

from wellspoken.adapters.events import (
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Reason,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.requests.responses.renamed import rename_fault
from wellspoken.adapters.writers.response_events import ResponseEvents
from wellspoken.adapters.writers.response_items import CUT, OutputItems
from wellspoken.adapters.writers.response_objects import (
    IncompleteDetails,
    ResponseEnvelope,
    ResponseExtras,
    response_failure,
    response_usage,
)


class ResponseFold:
    """What comes of an answer, told by its events; `events`: where the stream's are written.

    `fault`: the answer failed; what it says is in the names of the response's request.
    """

    def __init__(self, exchange: Exchange, events: ResponseEvents | None = None) -> None:
        facts = exchange.response
        assert facts is not None
        self.facts = facts
        self.exchange = exchange
        self.notes = exchange.notes
        self.envelope = ResponseEnvelope(facts, exchange.model, exchange.now)
        self.items = OutputItems(facts, exchange.notes, events)
        self.extras = ResponseExtras(facts, exchange.notes)
        self.usage: Usage | None = None
        self.reason: Reason = "stop"
        self.fault: Fault | None = None
        self.done = False
        self.completed_at: int | None = None
        self.final = b""  # the response, once it is written
        self.others = False  # choices that nobody asked for

    def take(self, event: Event) -> None:
        """Fold an event. Hot."""
        if self.done:
            return
        if isinstance(event, Text | Reasoning | Refusal | ToolDelta):
            if event.choice == 0:
                self.items.add(event)
            else:
                self._leave_out()
        elif type(event) is Start:
            self._start(event)
        elif type(event) is Extra:
            self.extras.add(event)
        elif type(event) is Usage:
            self.usage = event
        elif type(event) is Finish:
            if event.choice == 0:
                self.reason = event.reason or "stop"
        elif type(event) is Fault:
            self.done = True
            self.fault = rename_fault(event, self.facts)
        elif type(event) is End:
            self.done = True
            if self.reason not in CUT:
                self.completed_at = self.facts.clock()

    def _start(self, start: Start) -> None:
        self.envelope.model = start.model

    def _leave_out(self) -> None:
        if not self.others:
            self.others = True
            self.notes.add("choice_unasked")

    def opening(self) -> bytes:
        """Return the response as it is at its begin."""
        return self.envelope.write("in_progress", [])

    def body(self) -> bytes:
        """Return the JSON of the response, complete, incomplete or failed, once it is."""
        if not self.final:
            self.final = self._write()
        return self.final

    def _write(self) -> bytes:
        usage, extras = response_usage(self.usage), self.extras
        if self.fault is not None:
            error = response_failure(self.fault)
            output: list[Raw] = self.items.cut_off()
            return self.envelope.write("failed", output, error=error, usage=usage, extras=extras)
        output = self.items.finish(self.reason)
        if self.reason in CUT:
            why = IncompleteDetails(
                "max_output_tokens" if self.reason == "length" else "content_filter"
            )
            return self.envelope.write(
                "incomplete", output, incomplete=why, usage=usage, extras=extras
            )
        at = self.completed_at
        return self.envelope.write("completed", output, completed_at=at, usage=usage, extras=extras)


class ResponseBody(ResponseFold):
    """Events in; `body()` once they are all in, unless `fault` is set."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)

    def __call__(self, events: list[Event]) -> None:
        """Fold these events into the answer."""
        for event in events:
            self.take(event)
