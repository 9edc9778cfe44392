"""llama.cpp's own dialect: what POST /completion answers, a body, several, or a stream.

A body is one object, for several prompts a list of them ({"results": [...]} in early 2024); a
stream's events have `stop: false` until a choice's last one, which carries its counts, and several
choices' events come mixed. No [DONE] follows: a stream is over when each of its choices has
stopped. Streams up to b4273 repeat in the last event the logprobs that were streamed before.
`choices` beside the native keys is the hybrid of pull request #10627, read as near-OpenAI.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec
from msgspec import Struct, field

from wellspoken.adapters.events import End, Entry, Event, Extra, Fault, Start, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.nesting import is_too_deep
from wellspoken.adapters.readers import llamacpp_wire
from wellspoken.adapters.readers.framing import Framed, is_text
from wellspoken.adapters.readers.llamacpp_hybrid import Hybrid
from wellspoken.adapters.readers.llamacpp_wire import FLAGS, KEYS, Native, event_of
from wellspoken.adapters.readers.near_openai import REFUSED, NearOpenAI
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.sse import SSEDecoder
from wellspoken.adapters.readers.streamed import Streamed
from wellspoken.adapters.readers.strict import NONE
from wellspoken.adapters.repairs import faults, native
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.counts import from_timings
from wellspoken.adapters.repairs.envelope import PREFIXES
from wellspoken.adapters.repairs.finish_reasons import Failure
from wellspoken.adapters.repairs.token_ids import OWN, settle_token_ids

UNDECIDED = 65_536  # bytes without an event after which it is not waited for one
_FIRST = re.compile(rb"^data: *[^ \r\n][^\r\n]*[\r\n]", re.MULTILINE)


class _NativeChoice(Struct, eq=False):
    """What is known of one choice: whether it stopped, and the entries that it streamed."""

    held: native.Held = field(default_factory=native.Held)
    stopped: bool = False
    streamed: Streamed = field(default_factory=Streamed)


class LlamaCppNative(Framed):
    """One answer's reader: `feed` and `close` for a stream, `body` for a whole answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.context = Context(exchange)
        self.pieces = Pieces(self.context)
        self.sse = SSEDecoder()
        self.choices: defaultdict[int, _NativeChoice] = defaultdict(_NativeChoice)
        self.counts: dict[int, tuple[int | None, int | None]] = {}
        self.begun = False
        self.start: Start | None = None
        self.hybrid: Hybrid | None = None

    def close(self) -> list[Event]:
        """Return what the end of the backend's bytes tells; counts `done_missing` if it is cut."""
        self.take(self.sse.finish())
        if not self.pieces.ended:
            stopped = bool(self.choices) and all(x.stopped for x in self.choices.values())
            if not stopped and self.begun:
                self.notes.add("done_missing")
            if self.exchange.tells_ids and self.begun:
                self.notes.add("token_ids_missing")
            self._end(stopped)
        return self.pieces.take()

    def body(self, data: bytes, status: int = 200) -> list[Event]:
        """Return the events of a whole answer; one that is no completion gives a `Fault`."""
        self.pieces.whole = True
        self.context.ids = self.exchange.tells_ids
        self.data(data, status)
        if not self.pieces.ended:
            self._end(True)
        if self.context.ids:
            self.pieces.out = settle_token_ids(self.pieces.out, self.context)
        return self.pieces.take()

    def finish(self) -> None:
        """End the answer: an OpenAI-like [DONE], which llama.cpp does not send here."""
        self._end(True)

    def data(self, data: bytes, status: int = 200) -> None:
        """Read one event of a stream, or a body."""
        try:
            if not is_text(data):
                raise ValueError
            event = llamacpp_wire.decode(data)
            if not event.pure:
                raise ValueError
        except (*REFUSED, ValueError):
            self._tolerant(data, status)
        else:
            self._event(event)

    def _tolerant(self, data: bytes, status: int) -> None:
        """Read any JSON that stands for a native answer."""
        payload = faults.payload_of(data, status, self.context)
        if type(payload) is Fault:
            self.pieces.end(payload)
            return
        if self.pieces.whole and isinstance(payload, dict) and "content" not in payload:
            payload = payload.get("results", payload)
        self._payload(payload)

    def _payload(self, payload: Any) -> None:
        if payload is None and not self.pieces.whole:
            self.notes.add("chunk_null")  # b11549 begins a stream of several prompts so
            return
        answers = payload if isinstance(payload, list) else [payload]
        if not answers:
            self._nothing("it is an empty list")
        numbered = not self.pieces.whole or _have_indices(answers)
        if not numbered:
            self.notes.add("choice_index_repeated")
        for place, answer in enumerate(answers):
            if self.pieces.ended:
                return
            if not isinstance(answer, dict):
                self._nothing("it is no JSON object")
            elif faults.is_error(answer):
                self.pieces.end(faults.fault_from(answer, 200, self.context))
            elif answer.get("choices") or ("choices" in answer and KEYS.isdisjoint(answer)):
                self._hybrid(answer)
            elif not KEYS.isdisjoint(answer):
                event = event_of(answer, self.context)
                if not numbered:
                    event.index = place
                self._event(event)
            else:
                self._nothing('it has neither "content" nor "choices"')

    def _nothing(self, why: str) -> None:
        self.pieces.refuse(why, 'an object with "content" and "stop"')

    def _hybrid(self, payload: dict[str, Any]) -> None:
        if self.hybrid is None:
            self.hybrid = Hybrid(self.exchange, self.pieces.whole, self.start)
            self.begun = True
        events = self.hybrid.answer(payload)
        self.pieces.out += events
        self.pieces.ended = self.hybrid.ended
        if payload.get("stop") is True:
            self.choices[0].stopped = True

    # What one body or event holds

    def _event(self, event: Native) -> None:
        if not self.begun:
            self.begun = True
            self.notes.add("native_answer")
            prefix = PREFIXES[self.exchange.kind]
            name = prefix + self.exchange.new_id()
            self.start = Start(name, self.exchange.now, self.exchange.model)
            self.pieces.out.append(self.start)
        index = event.index or 0
        opened = index in self.choices
        choice = self.choices[index]
        last = event.stop or self.pieces.whole
        entries = self._entries(choice, event, last)
        text, reason = event.content, None
        unknown = self.notes.counts.get("finish_reason_unknown", 0)
        if last:
            choice.stopped = True
            reason = self._last(index, event)
            text = text or self._unsent(choice, event)
            entries += choice.held.rest(self.context)
        elif self.exchange.enforced:  # this answer may be cut before its last event
            self.pieces.out.append(Usage(event.tokens_evaluated, event.tokens_predicted))
        odd = self.notes.counts.get("finish_reason_unknown", 0) > unknown
        given = self.exchange.logprobs and event.completion_probabilities is not None
        lp = self.pieces.settle_entries(entries, True) if entries or given else None
        # A stream's lack those that begin a character, and [] stands for what was not told.
        if self.context.ids and (bytes(event.tokens) != b"[]" or not event.tokens_predicted):
            self.pieces.extra("choice", index, OWN, event.tokens)
        told_times = event.timings is not NONE and bytes(event.timings) != b"null"
        if told_times and is_too_deep(bytes(event.timings)):  # what is kept raw was only skipped
            self.pieces.end(faults.nests_too_deeply(self.context))
            return
        if told_times and self.exchange.keeps("timings"):
            self.pieces.out.append(Extra("answer", None, "timings", event.timings))
        self.pieces.extra("answer", None, "prompt_progress", event.prompt_progress)
        told = None if isinstance(reason, Failure) else reason
        if text or lp is not None or told is not None or odd or not opened:
            self.pieces.piece(index, "", text, lp, "", [], told, unknown=odd)
        if isinstance(reason, Failure):
            self.pieces.fail(reason, "stop_type")

    def _last(self, index: int, event: Native) -> Any:
        """Return the reason of a choice's last event, and keep its counts."""
        counts = (event.tokens_evaluated, event.tokens_predicted)
        if counts == (None, None) and event.timings is not NONE:
            try:
                timings = msgspec.json.decode(event.timings)
            except REFUSED:  # what is kept raw was not looked into
                timings = None
            found = from_timings({"timings": timings})
            if found is not None:
                counts = (found.prompt, found.completion)
                if not self.exchange.enforced:
                    self.notes.add("usage_from_timings")
        self.counts[index] = counts
        flags = {name: getattr(event, name) for name in FLAGS}
        return native.finish(event.stop_type, flags, event.truncated, self.context)

    def _entries(self, choice: _NativeChoice, event: Native, last: bool) -> list[Entry]:
        """Return the entries that come with an event's text, none of them for a second time."""
        given = event.completion_probabilities or []
        if not self.exchange.logprobs:
            if given:
                self.notes.add("logprobs_unasked")
            return []
        if last and not self.pieces.whole:
            given = self._new(choice, given, event.content)
        choice.streamed.add(given)
        return choice.held.take(given, self.context)

    def _unsent(self, choice: _NativeChoice, event: Native) -> str:
        """Return the text that a stream held back and never sent (`native_text_restored`).

        b11549 does so where the limit is reached while the text may begin a stop string; a body has
        that text. It is known only with logprobs, of tokens that are among their alternatives.
        """
        if self.pieces.whole or event.stop_type != "limit":
            return ""
        text = choice.held.unsent()
        if text:
            self.notes.add("native_text_restored")
        return text

    def _new(self, choice: _NativeChoice, given: list[Entry], text: str) -> list[Entry]:
        """Return the entries of a last event without those that were streamed before.

        Up to b4273 it has all of the answer, the streamed ones first: of each event as many as its
        text has tokens were sent, which may be fewer than there were.
        """
        if not choice.streamed.again(given, text):
            return given
        self.notes.add("native_logprobs_repeated")
        return given[choice.streamed.size :]

    # The end

    def _end(self, clean: bool) -> None:
        usage: Usage | None = native.usage(self.counts, self.context)
        if usage is not None:
            self.pieces.out.append(usage)
        self.pieces.end(End(clean))


class TextOrNative:
    """The reader of what POST /v1/completions answers: a completion, or a native answer.

    llama.cpp before 2025-01 and llamafile answered there as at /completion. The first event tells
    which it is, or the body.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.reader: NearOpenAI | LlamaCppNative | None = None
        self.begun = b""

    def fold(self) -> None:
        """Keep of what was said so far what has to be kept."""
        if self.reader is not None:
            self.reader.fold()

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of all server events that `data` completes."""
        if self.reader is not None:
            return self.reader.feed(data)
        self.begun += data
        first = _FIRST.search(self.begun)
        if first is None and len(self.begun) < UNDECIDED:
            return []
        begun, self.begun = self.begun, b""
        self.reader = self._of(first[0] if first else b"")
        return self.reader.feed(begun)

    def close(self) -> list[Event]:
        """Return what the end of the backend's bytes tells."""
        if self.reader is None:
            self.reader = self._of(self.begun)
            return self.reader.feed(self.begun) + self.reader.close()
        return self.reader.close()

    def body(self, data: bytes) -> list[Event]:
        """Return the events of a whole answer; one that is no completion gives a `Fault`."""
        return self._of(data).body(data)

    def _of(self, data: bytes) -> NearOpenAI | LlamaCppNative:
        if b'"choices"' not in data and b'"content"' in data and b'"stop"' in data:
            return LlamaCppNative(self.exchange)
        return NearOpenAI(self.exchange, text=True)


def _have_indices(answers: list[Any]) -> bool:
    """Say whether each of a body's answers has an index of its own."""
    numbers = [str(answer.get("index")) for answer in answers if isinstance(answer, dict)]
    return len(answers) == 1 or len(set(numbers)) == len(numbers)
