"""Tool calls (contract rule 4): index from 0 ascending, id and name once, arguments in pieces.

A call is *open* once its first piece was written, which needs its name; until then its arguments
wait. A piece is looked up by its index, without one by its id, else it is of the last call. Whether
it goes on with the call that is found there, or says it again, or begins another is told by the
name and by whether the arguments so far are whole:

    the piece has      arguments so far not whole      whole
    more of its name   goes on                         another
    another name       another                         another
    no name            goes on                         goes on (`_next_without_name`)
    the same name      goes on, whatever its id        another if a JSON value begins, and it is not
                                                       the same id's once more; else nothing new

At an index where no call is known, one of its id is looked up (LocalAI #9722, new-api #6278:
`tool_call_index_changes`), unless that is a bare number (TGI 2.x: "0" for all). What begins another
then, of the same name, is held until its arguments are whole: it may be the same ones in pieces. A
body's list has no pieces: each of it is a call.

So an id that changes opens nothing by itself: vLLM to 0.8 and TensorRT-LLM make a new one for each
piece of a forced call. Calls that all say index 0 (Ollama 0.5) are as many as there are whole
arguments; two alike in one list, that say no more than the name, are two. A `function_call` beside
`tool_calls` says one of them again (llama-cpp-python).

A name may come in pieces (Gemini's "edit_ex" + "isting_file", Continue PR #5849), or each time as
far as it is known: `tool_call_name_in_pieces`. The offered tools tell: two names of which at least
one is no tool's are one if a tool's name begins with both. So a call whose name more may follow is
not open before another piece came.

What stands behind whole arguments and is no value, such as one more brace, is left out, as is all
that comes of a whole call behind the next one's begin (`tool_arguments_trailing`).

Arguments that begin with all that came before them say that once more (Baidu Qianfan; Hermes Agent
PR #35718, Vercel AI PR #15888; vLLM's last chunk, with other white space), and only the rest of
them is new: `tool_arguments_cumulative`. An empty object that opens a call waits for its next piece
and gives way to arguments there: `tool_arguments_placeholder` (LiteLLM with Anthropic). A message
that closes a stream says the calls again, by id or place, and adds what they lack.
A call that was in the text too is one (`call_twins.py`).

Arguments that never come are `{}` (`tool_arguments_empty`), unless the limit cut the call before
them. Since that is known at the end alone, what other calls have waits until then, as it does where
the pieces of several calls come by turns.

Where the request allows one call at a time, the first of a choice is kept and the others are
dropped (`tool_calls_parallel`): llama.cpp and others ignore `parallel_tool_calls: false`. A limit
that is met in one of those did not cut what is kept.
"""

from __future__ import annotations

from collections import defaultdict

from wellspoken.adapters.events import FUNCTION_CALL, End, Event, Fault, Finish, ToolDelta
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.repairs.tools import Unfilled
from wellspoken.adapters.stages.call_arguments import is_whole
from wellspoken.adapters.stages.call_pieces import (
    OPENING,
    CallInPieces,
    ChoiceCalls,
    is_behind,
    join_names,
    number_of,
    says_again,
    tells_call,
)
from wellspoken.adapters.stages.call_twins import Twins

Ending = Finish | End | Fault


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
        self.choices: defaultdict[int, ChoiceCalls] = defaultdict(ChoiceCalls)
        self.twins: defaultdict[int, Twins] = defaultdict(Twins)

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
                self._take(event, out)
                continue
            if type(event) is Finish or type(event) is End or type(event) is Fault:
                ending = [event.choice] if type(event) is Finish else self.choices
                choices = [choice for choice in ending if choice in self.choices]
                for choice in choices:
                    self._take_empty(self.choices[choice], out)
                    if type(event) is not Finish or event.alone:
                        self._settle(self.choices[choice], out)
                nameless = any(self.choices[choice].lacks_name() for choice in choices)
                if nameless and type(event) is not Fault:
                    return [*out, _NAMELESS]
                for choice in choices:
                    event = self._end(choice, event, out)
            out.append(event)
        return out

    def is_plain(self) -> bool:
        """Say whether text passes: it is no affair of the calls'."""
        return True

    def _end(self, choice: int, event: Ending, out: list[Event]) -> Ending:
        """Write what waits for a choice's end; return that, changed if it was not the client's."""
        known = self.choices[choice]
        if isinstance(event, Finish):
            known.ended = True
            if event.reason == "length" and known.latest and known.latest.dropped:
                event = Finish(choice, "tool_calls", event.alone)
            known.cut = event.reason == "length"
            if not event.alone:
                return event
        elif not known.ended and not (isinstance(event, End) and event.clean):
            known.cut = True
        rest, known.held = known.held, []
        for n, call in known.unready.items():
            if call.blank and (call.unfilled or not (known.cut and call is known.latest)):
                if not call.unfilled:
                    self.notes.add("tool_arguments_empty")
                rest.append(ToolDelta(choice, n, None, None, "{}"))
        known.unready = {}
        rest.sort(key=number_of)
        out += rest
        return event

    def _take(self, event: ToolDelta, out: list[Event]) -> None:
        """Take a piece, but for a head whose empty object may have to give way to what follows."""
        known = self.choices[event.choice]
        if known.empty and is_behind(event, known.empty[0]):
            text = event.arguments.strip()
            if not text:
                known.empty.append(event)
                return
            if text.startswith("{") and text != "{}":
                self.notes.add("tool_arguments_placeholder")
                head = known.empty[0]
                head.arguments, head.raw = "", None
        self._take_empty(known, out)
        if event.name and event.arguments == "{}" and not isinstance(event.arguments, Unfilled):
            known.empty.append(event)
        else:
            self._call(event, out)

    def _take_empty(self, known: ChoiceCalls, out: list[Event]) -> None:
        """Take the head that waits, as it is by now, and the blank pieces behind it."""
        events, known.empty = known.empty, []
        for event in events:
            self._call(event, out)

    def _call(self, event: ToolDelta, out: list[Event]) -> None:
        known = self.choices[event.choice]
        if event.leaked and self.twins[event.choice].has_told(event, known.order):
            self.notes.add("tool_call_repeated")
            return
        call = self._find(event, known)
        again = call is not None and says_again(event, call)
        if call is None:
            call = self._begin(event, known)
        if event.n != FUNCTION_CALL:
            known.last = call
        if call.dropped != "again":
            known.latest = call
        if again:
            self.notes.add("tool_call_repeated")
        else:
            self._add(event, call, known, out)

    def _add(
        self, event: ToolDelta, call: CallInPieces, known: ChoiceCalls, out: list[Event]
    ) -> None:
        """Add a piece to its call, and open that as soon as it is known to be one of its own."""
        twins = self.twins[event.choice] if event.choice in self.twins else None
        may_be_leaked = twins is not None and twins.may_have(call, event.name)
        may_be_again = may_be_leaked or call.twin is not None
        goes_on = call.head and event.arguments.strip() and not may_be_again
        if known.unsettled is not call or goes_on:
            self._settle(known, out)
        added = call.take(event)
        if added != event.arguments and not isinstance(event.arguments, Unfilled):
            again = call.cumulative
            known.cumulative = known.cumulative or again
            self.notes.add("tool_arguments_cumulative" if again else "tool_arguments_trailing")
        if call.given is not None:
            known.by_id[call.given] = call
        if call.dropped:
            return
        if call.n >= 0:
            self._continue(call, event, added, known, out)
            return
        call.waiting.append(added)
        if call.name is None and len(self.exchange.tools) == 1:
            self.notes.add("tool_call_name_missing")
            call.name = self.exchange.tools[0]
        if call.name is None:
            return
        waits = may_be_again and not call.arguments.complete()
        if waits or self._may_go_on(call.name, bool(added.strip())):
            call.head, known.unsettled = call.head or event, call
            return
        known.unsettled = None
        leaked = twins is not None and may_be_leaked and twins.take(call)
        if leaked or call.equals_twin():
            self.notes.add("tool_call_repeated")
            call.dropped = "again"
            known.size -= 1
            return
        self._open(call, event, known, out)

    def _settle(self, known: ChoiceCalls, out: list[Event]) -> None:
        """Open the call whose name might have gone on."""
        call, known.unsettled = known.unsettled, None
        if call is not None and call.head is not None:
            self._open(call, call.head, known, out)

    def _may_go_on(self, name: str, filled: bool) -> bool:
        """Say whether there may be more of a call's name; `filled`: it has arguments."""
        tools = self.exchange.tools
        if filled and name in tools:
            return False
        return any(len(tool) > len(name) and tool.startswith(name) for tool in tools)

    def _join_name(self, event: ToolDelta, call: CallInPieces) -> None:
        """Make a piece's name the call's, where both are of one offered tool's name.

        Or that of the head behind it, which another call begins with.
        """
        head, tools = call.behind, self.exchange.tools
        if call.n < 0 and not call.arguments.complete():
            joined = join_names(call.name or "", event.name or "", tools)
            call.name = joined or call.name
            call.head = None if joined else call.head
        else:
            joined = join_names(head.name or "", event.name or "", tools) if head else ""
            event.id = event.id or (head.id if joined and head is not None else None)
        if joined:
            self.notes.add("tool_call_name_in_pieces")
            event.name, event.raw = joined, None

    def _find(self, event: ToolDelta, known: ChoiceCalls) -> CallInPieces | None:
        """Return the call that a piece belongs to, None if it begins one."""
        if event.apart or event.leaked:
            return None
        if event.closing >= 0:
            return self._find_closing(event, known)
        if event.n is not None:
            call = known.by_index.get(event.n)
            other = known.by_id.get(event.id or "")
            moved = call is None and tells_call(event.id)
            if other is not None and (moved or other.index == event.n):
                call = other
        else:
            if known.last is not None:
                self.notes.add("tool_call_index_missing")
            call = known.by_id.get(event.id or "", known.last)
        if call is None or not self._begins_another(event, call):
            if call is not None and event.n is not None and event.n not in known.by_index:
                self.notes.add("tool_call_index_changes")
                known.by_index[event.n] = call
            return call
        if event.n in known.by_index:
            self.notes.add("tool_call_index_repeated")
        return None

    def _find_closing(self, event: ToolDelta, known: ChoiceCalls) -> CallInPieces | None:
        """Return the call that a closing message's says again, by its id or else its place.

        What it says otherwise was written, and is no other call.
        """
        call = known.order[event.closing] if event.closing < len(known.order) else None
        if call is None or call.given != event.id:
            call = known.by_id.get(event.id or "", call)
        if call is not None:
            event.id = event.name = None
            if not call.arguments.said_in(event.arguments) and not call.blank:
                event.arguments = ""
        return call

    def _begins_another(self, event: ToolDelta, call: CallInPieces) -> bool:
        """Say whether a piece where a call is known is of another one (the table above)."""
        other = bool(event.id and call.given and event.id != call.given)
        if event.name and call.name:
            self._join_name(event, call)
            if event.name != call.name:
                return True
        same = bool(event.id) and event.id == call.given
        if call.unfilled and event.name and not same:
            return is_whole(event.arguments)  # an object, as the one before it
        if not call.arguments.complete():
            return False
        if event.name is None:
            return self._next_without_name(event, call, other)
        text = event.arguments.lstrip()
        if not text or (isinstance(event.arguments, Unfilled) and same):
            call.behind = event
            return other and call.bare  # whose names are heads alone
        return text.startswith(OPENING) and not says_again(event, call)

    def _next_without_name(self, event: ToolDelta, call: CallInPieces, other: bool) -> bool:
        """Say whether a piece without a name behind whole arguments begins another call.

        It does if the name came before it, or if another id comes with it where one tool is known.
        """
        known = call.behind or (other and len(self.exchange.tools) == 1)
        if not known or not event.arguments.lstrip().startswith(OPENING):
            return False
        event.name, event.raw = call.name, None
        if call.behind is not None:
            event.id = event.id or call.behind.id
        return True

    def _begin(self, event: ToolDelta, known: ChoiceCalls) -> CallInPieces:
        """Return a call that was not known before, which may be one too many."""
        call = CallInPieces(event.n, cumulative=known.cumulative, leaked=event.leaked)
        if known.last is not None and known.last.behind is not None:
            call.headed = known.last.name == event.name
        if self._is_other_form(event, known):
            self.notes.add("function_call_repeated")
            known.again = True
            call.dropped = "again"
        else:
            if event.n == FUNCTION_CALL and not self.exchange.functions:
                self.notes.add("function_call_renamed")
            if known.size and not self.exchange.parallel_calls:
                self.notes.add("tool_calls_parallel")
                call.dropped = "parallel"
            else:
                known.size += 1
            known.names.add(event.name)
            known.order.append(call)
        if event.n is not None:
            known.by_index[event.n] = call
        other = known.by_id.get(event.id or "")
        if other is not None and other.name == event.name and other.arguments.complete():
            call.twin = other if tells_call(event.id) and not event.apart else None
        return call

    def _is_other_form(self, event: ToolDelta, known: ChoiceCalls) -> bool:
        """Say whether a call is one that OpenAI's other form of calls told before.

        The `function_call` may have a name that no tool has: llama-cpp-python's, of a single call
        that the model chose, has what the model wrote behind it.
        """
        legacy = known.by_index.get(FUNCTION_CALL)
        if known.again or known.latest is None or (legacy is None) != (event.n == FUNCTION_CALL):
            return False
        if legacy is not None:
            return event.name in (None, legacy.name)
        return event.name not in self.exchange.tools or bool(known.names & {event.name, None})

    def _open(
        self, call: CallInPieces, event: ToolDelta, known: ChoiceCalls, out: list[Event]
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
            if event.n is not None and event.n not in (call.n, FUNCTION_CALL):
                self.notes.add("tool_call_index_renumbered")
            event = ToolDelta(event.choice, call.n, own, call.name, arguments)
        before, known.newest = known.newest, call
        if before is not None and not before.arguments.complete():
            known.unready[before.n] = before
        known.write(event, out)
        if call.blank:
            known.unready[call.n] = call

    def _continue(
        self, call: CallInPieces, event: ToolDelta, added: str, known: ChoiceCalls, out: list[Event]
    ) -> None:
        if event.id or event.name:
            self.notes.add("tool_call_head_repeated")
        if not added:
            return
        if call.n < next(iter(known.unready), known.opened - 1):  # one behind it was written
            self.notes.add("tool_arguments_trailing")
            return
        if event.id or event.name or event.n != call.n or event.arguments != added:
            event = ToolDelta(event.choice, call.n, None, None, added)
        known.write(event, out)
        if call.n not in known.unready or call.blank:
            return
        if call is known.newest or call.arguments.complete():
            del known.unready[call.n]
            known.release(out)
