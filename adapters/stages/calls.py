"""Tool calls (contract rule 4): index from 0 ascending, id and name once, arguments in pieces.

A call is *open* once its first piece was written, which needs its name; until then its arguments
wait. A piece belongs to the call of its index; without an index a name opens a call and anything
else continues the last; a new id with a name at a used index is a new call (Ollama 0.5 gives every
call index 0).
"""

from __future__ import annotations

from wellspoken.adapters.events import Call, End, Event, Fault, Finish
from wellspoken.adapters.exchange import Exchange


class _Known:
    __slots__ = ("id", "index", "n", "name", "waiting")

    def __init__(self, index: int | None) -> None:
        self.index = index  # the backend's
        self.id: str | None = None
        self.name: str | None = None
        self.n = -1  # ours, once open
        self.waiting = ""


class Calls:
    """The stage; one for an answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.calls: dict[int, list[_Known]] = {}

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with every `Call` normal; an unnamed call at the end is a `Fault`."""
        if not self.calls and (
            type(events[0]) is not Call
            if len(events) == 1
            else not any(type(event) is Call for event in events)
        ):
            return events
        out: list[Event] = []
        for event in events:
            if type(event) is Call:
                self._call(event, out)
                continue
            if type(event) is Finish or type(event) is End:
                choices = [event.choice] if type(event) is Finish else list(self.calls)
                if any(call.n < 0 for choice in choices for call in self.calls.get(choice, ())):
                    out.append(_unnamed())
                    return out
            out.append(event)
        return out

    def _call(self, event: Call, out: list[Event]) -> None:
        known = self.calls.setdefault(event.choice, [])
        call = self._find(event, known)
        if call is None:
            call = _Known(event.n)
            known.append(call)
        if call.n >= 0:
            self._continue(call, event, out)
            return
        call.id = call.id or event.id
        call.name = call.name or event.name
        call.waiting += event.arguments
        if call.name is None and len(self.exchange.tools) == 1:
            self.notes.add("tool_call_name_missing")
            call.name = self.exchange.tools[0]
        if call.name is not None:
            self._open(call, event, known, out)

    def _find(self, event: Call, known: list[_Known]) -> _Known | None:
        if event.n is None:
            if known:
                self.notes.add("tool_call_index_missing")
            last = known[-1] if known else None
            fresh = event.name is not None and not (last and event.id and last.id == event.id)
            return None if fresh else last
        found = next((call for call in reversed(known) if call.index == event.n), None)
        if found and found.id and event.id and event.name and found.id != event.id:
            self.notes.add("tool_call_index_repeated")
            return None
        return found

    def _open(self, call: _Known, event: Call, known: list[_Known], out: list[Event]) -> None:
        call.n = sum(1 for other in known if other.n >= 0)
        if call.id is None:
            self.notes.add("tool_call_id_missing")
            call.id = "call_" + self.exchange.new_id()
        whole = (event.n, event.id, event.name, event.arguments)
        if whole != (call.n, call.id, call.name, call.waiting):
            if event.n is not None and event.n != call.n:
                self.notes.add("tool_call_index_renumbered")
            event = Call(event.choice, call.n, call.id, call.name, call.waiting)
        call.waiting = ""
        out.append(event)

    def _continue(self, call: _Known, event: Call, out: list[Event]) -> None:
        if event.id or event.name:
            self.notes.add("tool_call_head_repeated")
        elif event.n == call.n and event.arguments:
            out.append(event)
            return
        if event.arguments:
            out.append(Call(event.choice, call.n, None, None, event.arguments))


def _unnamed() -> Fault:
    return Fault(
        502,
        "The backend sent a tool call without a function name, and more than one tool was offered, "
        "so the call cannot be told. Try again, or force the tool with tool_choice.",
        code="tool_call_without_name",
    )
