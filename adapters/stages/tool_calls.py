"""Tool calls (contract rule 4): index from 0 ascending, id and name once, arguments in pieces.

A call is *open* once its first piece was written, which needs its name; until then its arguments
wait. A piece belongs to the call of its index; without an index a name opens a call and anything
else continues the last. A name at a used index is a new call if it comes with another id (Ollama
0.5 gives every call index 0), or if the arguments there are complete and it is another name or
brings arguments of its own.

Where the request allows one call at a time, the first of a choice is kept and the others are
dropped (`tool_calls_parallel`): llama.cpp and others ignore `parallel_tool_calls: false`. A limit
that is met in one of those did not cut what is kept.
"""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct, field

from wellspoken.adapters.events import End, Event, Fault, Finish, ToolDelta
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.repairs.tools import Unfilled


class _Json(Struct, eq=False):
    """Arguments as they come; looks at each piece once, and only when asked for `complete`."""

    pieces: list[str] = []
    looked: int = 0
    began: bool = False
    depth: int = 0
    quoted: bool = False
    slash: bool = False

    @property
    def empty(self) -> bool:
        """Whether nothing came yet."""
        return not self.pieces

    def complete(self) -> bool:
        """Say whether what came is a whole JSON object or array."""
        for piece in self.pieces[self.looked :]:
            self._look(piece)
        self.looked = len(self.pieces)
        return self.began and self.depth <= 0 and not self.quoted

    def _look(self, piece: str) -> None:
        for mark in piece:
            if self.slash:
                self.slash = False
            elif mark == "\\":
                self.slash = self.quoted
            elif mark == '"':
                self.quoted = not self.quoted
            elif self.quoted:
                continue
            elif mark in "{[":
                self.began = True
                self.depth += 1
            elif mark in "}]":
                self.depth -= 1


class _ToolCall(Struct, eq=False):
    """One call: what the backend said of it, and what of that was written.

    `n` is our index, -1 until it is open; `given` the backend's own id; `waiting` the arguments
    until then. `unfilled`: its arguments were an empty object, and nothing followed yet. `dropped`:
    the client does not get it.
    """

    index: int | None
    given: str | None = None
    name: str | None = None
    n: int = -1
    waiting: list[str] = []
    unfilled: bool = False
    dropped: bool = False
    arguments: _Json = field(default_factory=_Json)

    def take(self, text: str) -> str:
        """Return what these arguments add, and remember them."""
        if isinstance(text, Unfilled):
            self.unfilled = self.unfilled or self.arguments.empty
            return ""
        if text:
            self.unfilled = False
            self.arguments.pieces.append(text)
        return text


class _ChoiceCalls(Struct, eq=False):
    """The calls of one choice: `by_index` the last of each index, `size` how many there are."""

    size: int = 0
    unfilled: list[_ToolCall] = []
    by_index: dict[int, _ToolCall] = {}
    ids: set[str] = set()
    last: _ToolCall | None = None
    opened: int = 0

    def new(self, index: int | None) -> _ToolCall:
        """Return a call that was not known before."""
        call = self.last = _ToolCall(index)
        self.size += 1
        if index is not None:
            self.by_index[index] = call
        return call


_NAMELESS = Fault(
    502,
    "The backend sent a tool call without a function name, and more than one tool was offered, "
    "so the call cannot be told. Try again, or force the tool with tool_choice.",
    code="tool_call_without_name",
)


class ToolCallStage:
    """The stage; one for an answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.choices: defaultdict[int, _ChoiceCalls] = defaultdict(_ChoiceCalls)

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with every `ToolDelta` normal; a call without a name is a `Fault`."""
        if not self.choices:
            for event in events:
                if type(event) is ToolDelta:
                    break
            else:
                return events
        out: list[Event] = []
        for event in events:
            if type(event) is ToolDelta:
                self._call(event, out)
                continue
            if type(event) is Finish or type(event) is End:
                ending = [event.choice] if type(event) is Finish else self.choices
                choices = [choice for choice in ending if choice in self.choices]
                if any(self.choices[x].opened < self.choices[x].size for x in choices):
                    out.append(_NAMELESS)
                    return out
                if not isinstance(event, Finish) or event.alone:
                    for choice in choices:
                        self._fill(choice, out)
                if isinstance(event, Finish) and event.reason == "length":
                    event = self._end_at_limit(event)
            out.append(event)
        return out

    def _end_at_limit(self, event: Finish) -> Finish:
        """Return the end of a choice whose limit was met; not in what the client gets of it."""
        known = self.choices.get(event.choice)
        if known is None or known.last is None or not known.last.dropped:
            return event
        return Finish(event.choice, "tool_calls", event.alone)

    def _fill(self, choice: int, out: list[Event]) -> None:
        """Write the empty object of the calls that got nothing else."""
        known = self.choices[choice]
        for call in known.unfilled:
            if call.unfilled and call.n >= 0:
                out.append(ToolDelta(choice, call.n, None, None, call.take("{}")))
        known.unfilled = [call for call in known.unfilled if call.unfilled]

    def _call(self, event: ToolDelta, out: list[Event]) -> None:
        known = self.choices[event.choice]
        call = self._find(event, known)
        if call is None:
            call = known.new(event.n)
            if known.size > 1 and not self.exchange.parallel_calls:
                self.notes.add("tool_calls_parallel")
                call.dropped = True
                known.size -= 1
        known.last = call
        if call.dropped:
            call.given = call.given or event.id
            call.name = call.name or event.name
            call.take(event.arguments)  # which tell where the next one begins
            return
        added = call.take(event.arguments)
        if call.unfilled and call not in known.unfilled:
            known.unfilled.append(call)
        if call.n >= 0:
            self._continue(call, event, added, out)
            return
        call.given = call.given or event.id
        call.name = call.name or event.name
        call.waiting.append(added)
        if call.name is None and len(self.exchange.tools) == 1:
            self.notes.add("tool_call_name_missing")
            call.name = self.exchange.tools[0]
        if call.name is not None:
            self._fill(event.choice, out)  # the calls before it are over, as far as one can tell
            self._open(call, event, known, out)

    def _find(self, event: ToolDelta, known: _ChoiceCalls) -> _ToolCall | None:
        """Return the call that a piece belongs to, None if it begins one."""
        if event.n is None:
            last = known.last
            if last is None:
                return None
            self.notes.add("tool_call_index_missing")
            if event.name is None:
                return last
            same = event.id is not None and last.given == event.id
            return last if same and not _another(event, last) else None
        found = known.by_index.get(event.n)
        if found is None or event.name is None:
            return found
        other = event.id and found.given and event.id != found.given
        if other or (found.name is not None and _another(event, found)):
            self.notes.add("tool_call_index_repeated")
            return None
        return found

    def _open(
        self, call: _ToolCall, event: ToolDelta, known: _ChoiceCalls, out: list[Event]
    ) -> None:
        call.n = known.opened
        known.opened += 1
        if call.given is not None and call.given not in known.ids:
            own = call.given
        else:
            if call.given or not self.exchange.functions:  # a function call has no id
                self.notes.add("tool_call_id_repeated" if call.given else "tool_call_id_missing")
            own = "call_" + self.exchange.new_id()
        known.ids.add(own)
        arguments = "".join(call.waiting)
        call.waiting = []
        if (event.n, event.id, event.name, event.arguments) != (call.n, own, call.name, arguments):
            if event.n is not None and event.n != call.n:
                self.notes.add("tool_call_index_renumbered")
            event = ToolDelta(event.choice, call.n, own, call.name, arguments)
        out.append(event)

    def _continue(self, call: _ToolCall, event: ToolDelta, added: str, out: list[Event]) -> None:
        if event.id or event.name:
            self.notes.add("tool_call_head_repeated")
        elif event.n == call.n and added:
            out.append(event)
            return
        if added:
            out.append(ToolDelta(event.choice, call.n, None, None, added))


def _another(event: ToolDelta, call: _ToolCall) -> bool:
    """Say whether a second name is that of another call, since the first one's arguments are whole.

    With the same id and name it is the same call's head once more.
    """
    if event.name == call.name and (not event.arguments or (event.id and event.id == call.given)):
        return False
    return call.arguments.complete()
