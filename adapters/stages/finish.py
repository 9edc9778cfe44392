"""Finish (contract rule 1): one reason per choice, or the answer failed.

A choice that wrote something and ended cleanly is complete even without a reason: it called tools,
reached its limit, or stopped. A reason on a delta that held more is kept back until the next event
or the end, since servers that put one there may put it on every chunk; one where logprobs are
lacking until the end, since a closing message may have them.

    state      text, call          reason alone       reason beside text   end, clean      end, cut
    nothing    -> written          -> finished        -> kept              fault           fault
    written    written             -> finished        -> kept              -> finished     fault
    kept       kept                -> finished        kept (the last)      -> finished     finished
    finished   drop, counted       drop, counted      drop, counted        -               -
"""

from __future__ import annotations

from collections import defaultdict

from msgspec import Struct

from wellspoken.adapters.events import (
    End,
    Event,
    Fault,
    Finish,
    Open,
    Reason,
    Reasoning,
    Refusal,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.exchange import Exchange


class _State(Struct, eq=False):
    written: bool = False
    called: bool = False
    finished: bool = False
    kept: Finish | None = None
    scored: bool = False  # entries came
    over: bool = False  # a reason came alone, which waits since entries may come behind it
    unlisted: Text | None = None  # tells that the logprobs given have no entry of content
    tokens: int = 0  # logprob entries, else pieces of text

    def count(self, event: Text | ToolDelta | Reasoning | Refusal) -> None:
        """Take note of a piece that is written."""
        self.written = True
        if type(event) is Text and event.lp is not None:
            self.tokens += len(event.lp.entries)
            self.scored = True
        else:
            self.tokens += 1


_EMPTY = Fault(
    502,
    "The backend ended its answer without a token and without a finish_reason. Try again; if "
    "it repeats, see the backend's log.",
    code="empty_answer",
)
_CUT = Fault(
    502,
    "The backend's stream ended in the middle of the answer: no finish_reason and no [DONE]. "
    "Try again; if it repeats, see the backend's log.",
    code="upstream_cut",
)


class FinishStage:
    """The stage; one for an answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.states: defaultdict[int, _State] = defaultdict(_State)
        self.usage: Usage | None = None

    def __call__(self, events: list[Event]) -> list[Event]:
        """Return the events with exactly one `Finish` for each choice, or a `Fault` at the end."""
        if len(events) == 1 and type(event := events[0]) is Text:  # changes nothing, as a rule
            state = self.states.get(event.choice)
            if state is not None and not (state.finished or state.over):
                state.count(event)
                return events
        out: list[Event] = []
        for event in events:
            kind = type(event)
            if kind is Text or kind is ToolDelta or kind is Reasoning or kind is Refusal:
                self._write_piece(event, out)  # type: ignore[arg-type]
            elif type(event) is Finish:
                self._finish(event, out)
            elif type(event) is End:
                self._end(event, out)
            else:
                if type(event) is Open:
                    self.states[event.choice]
                elif type(event) is Usage:
                    self.usage = event
                out.append(event)
        return out

    def is_plain(self) -> bool:
        """Say whether the first choice's text passes, and is only counted."""
        state = self.states.get(0)
        return state is not None and not (state.finished or state.over)

    def keep(self, tokens: int, *, scored: bool) -> None:
        """Take note of plain texts, with as many entries, or of as many without."""
        state = self.states[0]
        state.written = True
        state.tokens += tokens
        state.scored = state.scored or scored

    def _write_piece(self, event: Text | ToolDelta | Reasoning | Refusal, out: list[Event]) -> None:
        state = self.states[event.choice]
        if type(event) is Text and not event.text and event.lp and not event.lp.entries:
            state.unlisted = event
            return
        if state.finished or (state.over and not (type(event) is Text and not event.text)):
            self.notes.add("text_after_finish")
            return
        state.count(event)
        if type(event) is ToolDelta:
            state.called = True
        out.append(event)

    def _finish(self, event: Finish, out: list[Event]) -> None:
        state = self.states[event.choice]
        if state.finished:
            self.notes.add("finish_reason_repeated")
        elif not event.alone or event.reason is None or self._awaits_entries(state):
            state.over = state.over or (event.alone and event.reason is not None)
            if state.kept is not None:
                self.notes.add("finish_reason_repeated")
            state.kept = event
        else:
            self._write(event, state, out)

    def _awaits_entries(self, state: _State) -> bool:
        """Say whether entries of the text may come behind the reason, with a closing message."""
        return self.exchange.logprobs and not state.scored and state.unlisted is None

    def _write(self, event: Finish, state: _State, out: list[Event]) -> None:
        state.finished = True
        reason = event.reason or self._decide(state)
        if reason == "stop" and state.called and not self.exchange.forced_tool:
            self.notes.add("finish_reason_stop_after_call")
            reason = "tool_calls"
        if reason in ("tool_calls", "function_call") and not state.called:
            self.notes.add("finish_reason_tool_calls_without_call")
            reason = "stop"
        if reason in ("tool_calls", "function_call") and state.called:
            wanted: Reason = "function_call" if self.exchange.functions else "tool_calls"
            if reason != wanted:
                self.notes.add("finish_reason_call_kind")
                reason = wanted
        if reason != event.reason:
            event = Finish(event.choice, reason)
        if state.unlisted is not None:
            out.append(state.unlisted)
        out.append(event)

    def _has_reason(self, state: _State) -> bool:
        """Say whether a choice without text ended all the same: some reason, and tokens counted.

        Ollama's "load" and "unload" answers are such.
        """
        return state.kept is not None and bool(self.usage and self.usage.completion)

    def _decide(self, state: _State) -> Reason:
        if state.called:
            return "tool_calls"
        limit = self.exchange.max_tokens
        counted = self.usage.completion if self.usage and len(self.states) == 1 else None
        if limit is not None and (counted if counted is not None else state.tokens) >= limit:
            return "length"
        return "stop"

    def _end(self, event: End, out: list[Event]) -> None:
        clean = event.clean or (self.usage is not None and self.usage.last)
        if not self.states:
            out.append(_EMPTY if clean else _CUT)
            return
        for choice in sorted(self.states):
            state = self.states[choice]
            if state.finished:
                continue
            if state.kept is not None and state.kept.reason is not None:
                self._write(state.kept, state, out)
            elif clean and (state.written or self._has_reason(state)):
                if state.kept is None:
                    self.notes.add("finish_reason_missing")
                self._write(Finish(choice, None), state, out)
            else:
                out.append(_EMPTY if clean else _CUT)
                return
        out.append(event)
