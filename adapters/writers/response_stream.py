"""The response as a stream: OpenAI's semantic events, the last of which has the whole response."""

from __future__ import annotations

from wellspoken.adapters.events import Event, Fault, Text
from wellspoken.adapters.exchange import Exchange, ResponseFacts
from wellspoken.adapters.requests.responses.renamed import rename_fault
from wellspoken.adapters.writers.response_body import ResponseFold
from wellspoken.adapters.writers.response_events import ResponseEvents
from wellspoken.adapters.writers.response_objects import ResponseEnvelope, response_failure


class ResponseStream(ResponseFold):
    """Events in, SSE bytes out; `fault` and `done` tell how the answer ended, `body()` the end.

    Nothing is written before there is something to tell, so that an answer that fails before is a
    status (`started` False). What ends items waits for the answer's end: only that tells whether
    they are complete. `closing`: how many of the last bytes tell no more than that.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.events = ResponseEvents(self.opening)
        super().__init__(exchange, self.events)
        self.started = False
        self.closing = 0

    def __call__(self, events: list[Event]) -> bytes:
        """Return the bytes that these events are; b"" for what only changes the state."""
        for event in events:
            if type(event) is Text and event.choice == 0 and not self.done:
                self.items.add_text(event)
            elif not self.done:
                self.take(event)
                if self.done:
                    self._end()
        self.started = self.events.number > 0
        return self.events.take()

    def take_growth(self) -> int:
        """Return how many bytes more are kept to the answer's end than when this was last asked."""
        grown, self.events.said = self.events.said, 0
        return grown

    def _end(self) -> None:
        """Write how the answer ended, unless it failed before anything of it was written."""
        events, fault = self.events, self.fault
        if fault is not None and not events.number:
            return
        told = events.size()
        response = self.body()
        if fault is not None:
            events.write_error(fault, response_failure(fault))
            events.write_response(b"response.failed", response)
        else:
            name = b"completed" if self.completed_at is not None else b"incomplete"
            events.write_response(b"response." + name, response)
        self.closing = events.size() - told


def fail_stream(facts: ResponseFacts, model: str, created: int, fault: Fault) -> bytes:
    """Return the whole stream of a response that failed before anything of it came.

    For a client that has the head of a stream already; `created`: epoch seconds.
    """
    envelope = ResponseEnvelope(facts, model, created)
    events = ResponseEvents(lambda: envelope.write("in_progress", []))
    fault = rename_fault(fault, facts)
    failure = response_failure(fault)
    events.begin()
    events.write_error(fault, failure)
    events.write_response(b"response.failed", envelope.write("failed", [], error=failure))
    return events.take()
