"""The near-OpenAI dialect: chat or legacy completions, body and SSE, of all that imitate OpenAI.

What the strict Structs of `wire.py` accept goes straight to events; what they refuse goes through
`tolerant.py`, which repairs it and hands the same to the same `Pieces`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from wellspoken.adapters.events import End, Event, Extra, Fault, Start, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.readers import wire
from wellspoken.adapters.readers.framing import is_text
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.sse import EventTooLarge, ServerEvent, SSEDecoder
from wellspoken.adapters.readers.text import text_choice
from wellspoken.adapters.readers.tolerant import Tolerant
from wellspoken.adapters.repairs import envelope, errors
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.repairs.made_body import made_body
from wellspoken.adapters.repairs.usage import usage as repaired_usage

REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NONE = wire.NONE

_chunk = msgspec.json.Decoder(wire.Chunk).decode
_body = msgspec.json.Decoder(wire.Body).decode
_text_chunk = msgspec.json.Decoder(wire.TextChunk).decode
_text_body = msgspec.json.Decoder(wire.TextBody).decode


class NearOpenAI:
    """One answer's reader: `feed` and `close` for a stream, `body` for a whole answer.

    `text`: the answer is the completions endpoint's.
    """

    def __init__(self, exchange: Exchange, *, text: bool = False) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.text = text
        self.context = Context(exchange, text=text)
        self.decode_chunk: Callable[[bytes], Any] = _text_chunk if text else _chunk
        self.decode_body: Callable[[bytes], Any] = _text_body if text else _body
        self.sse = SSEDecoder()
        self.pieces = Pieces(self.context)
        self.emit: Callable[[Any, bytes | None], None] = (
            partial(text_choice, self.pieces) if text else self.pieces.choice
        )
        self.start: Start | None = None
        self.given = ("", 0, "")  # the backend's own id, created, model
        self.same = False  # the envelope goes out as the backend sent it
        self.ended = False

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of all chunks that `data` completes."""
        try:
            events = self.sse.feed(data)
        except EventTooLarge as error:
            events = error.events
            self._server_events(events)
            self.fault(Fault(502, f"The backend sent {error}.", code="upstream_event_too_large"))
        else:
            self._server_events(events)
        return self._taken()

    def close(self) -> list[Event]:
        """Return what the end of the backend's bytes tells."""
        self._server_events(self.sse.finish())
        if not self.ended:
            self.ended = True
            if self.start is not None:
                self.notes.add("done_missing")
            self.pieces.out.append(End(False))
        return self._taken()

    def body(self, data: bytes, status: int = 200) -> list[Event]:
        """Return the events of a whole answer; one that is no completion gives a `Fault`."""
        self.pieces.whole = True
        try:
            if not is_text(data):
                raise ValueError
            body = self.decode_body(data)
            if len({choice.index for choice in body.choices}) < len(body.choices):
                raise ValueError
            if body.usage is UNSET and body.timings is not NONE:
                raise ValueError
        except (*REFUSED, ValueError):
            self._tolerant(data, status)
        else:
            self.begin(body)
            ordered = sorted(body.choices, key=lambda choice: choice.index)
            if ordered != body.choices:
                self.notes.add("choices_out_of_order")
            if not ordered:
                self.nothing('its "choices" is an empty list')
            self._top(body)
            for name in wire.TEXT_EXTRAS if self.text else wire.BODY_EXTRAS:
                self.pieces.extra("answer", None, name, getattr(body, name))
            for choice in ordered:
                self.emit(choice, None)
        self.pieces.out = made_body(self.pieces.out, self.context)
        self.ended = self.ended or any(type(x) is Fault for x in self.pieces.out)
        if not self.ended:
            self.ended = True
            self.pieces.out.append(End(True))
        return self._taken()

    def _taken(self) -> list[Event]:
        out, self.pieces.out = self.pieces.out, []
        return out

    def fault(self, fault: Fault) -> None:
        """End the answer with a failure."""
        self.ended = True
        self.pieces.out.append(fault)

    def nothing(self, why: str) -> None:
        """End the answer since it is no completion; `why` names the field."""
        part = "text" if self.text else "message" if self.pieces.whole else "delta"
        expected = f'a list "choices" of objects with "{part}"'
        self.fault(errors.no_completion(why, expected, self.context))

    # Chunks

    def _server_events(self, events: list[ServerEvent]) -> None:
        for event in events:
            if self.ended:
                return
            if event.data[:1] == b"{" and event.event is None and event.error is None:
                self._one(event.data)  # the usual one, and the hot way
            elif event.error is not None:
                self.notes.add("error_sse_field")
                self._error(event.error)
            elif event.data.strip(b' "') == b"[DONE]":
                self.ended = True
                self.pieces.out.append(End(True))
            elif event.event == "error":
                self._error(event.data)
            else:
                self._one(event.data)

    def _one(self, data: bytes) -> None:
        if self.context.probabilities or not is_text(data):
            self._tolerant(data, 200)
            return
        before = self.notes.changes
        try:
            chunk = self.decode_chunk(data)
        except REFUSED:
            self._tolerant(data, 200)
            return
        self.begin(chunk)
        usage = None
        if isinstance(chunk.usage, wire.WireUsage):
            usage = self._usage(chunk.usage)
            if usage is not None:
                usage.last = not chunk.choices
            if chunk.choices:
                self.notes.add("usage_misplaced")
        elif (chunk.usage is None) != self.exchange.include_usage:
            self.notes.add("usage_null_missing" if chunk.usage is UNSET else "null_key_omitted")
        if chunk.system_fingerprint is None or chunk.system_fingerprint == "":
            self.notes.add("system_fingerprint_null")
        if chunk.service_tier is not UNSET or self.exchange.service_tier:
            self.tier(chunk.service_tier)
        if b"\n" in data:
            self.notes.add("sse_data_lines")
        raw = data if self.same and before == self.notes.changes else None
        if usage is not None and not chunk.choices:
            usage.raw = raw
        if len(chunk.choices) > 1:
            self.notes.add("chunk_of_several_choices")
            raw = None
        for choice in chunk.choices:
            self.emit(choice, raw)

    def _usage(self, given: wire.WireUsage) -> Usage | None:
        details = (given.prompt_tokens_details, given.completion_tokens_details)
        total = given.prompt_tokens + given.completion_tokens
        if details == (NONE, NONE) and given.total_tokens == total:
            usage: Usage | None = Usage(given.prompt_tokens, given.completion_tokens)
        else:
            usage = repaired_usage(_plain(given), self.context)
        if usage is not None:
            self.pieces.out.append(usage)
        return usage

    # Parts that the strict and the tolerant path share

    def begin(self, answer: Any) -> None:
        """Fix the envelope with the first chunk; count what a later one changes."""
        fingerprint = answer.system_fingerprint
        id_, created, model = self.given
        if (
            answer.id == id_
            and answer.created == created
            and answer.model == model
            and self.start is not None
            and (not fingerprint or fingerprint == self.start.system_fingerprint)
        ):
            return
        given = (answer.id, answer.created, answer.model)
        if self.start is None:
            self.start = envelope.start(*given, fingerprint or None, self.context)
            self.given = given
            self.same = given == (self.start.id, self.start.created, self.start.model)
            self.pieces.out.append(self.start)
            return
        if given != self.given:
            for name, new, old in zip(("id", "created", "model"), given, self.given, strict=True):
                if new != old:
                    self.notes.add(f"{name}_changes")
        if not fingerprint or fingerprint == self.start.system_fingerprint:
            return
        if self.start.system_fingerprint is not None:
            self.notes.add("system_fingerprint_changes")
        else:
            self.start = msgspec.structs.replace(self.start, system_fingerprint=fingerprint)
            self.pieces.out.append(self.start)

    def _top(self, body: wire.Body | wire.TextBody) -> None:
        if body.system_fingerprint is None or body.system_fingerprint == "":
            self.notes.add("system_fingerprint_null")
        self.tier(body.service_tier)
        if isinstance(body.usage, wire.WireUsage):
            self._usage(body.usage)

    def tier(self, given: Any) -> None:
        """Count a service tier that is not "default" where one was asked for, absent elsewhere."""
        if self.exchange.service_tier:
            if given != "default":
                self.notes.add("service_tier_replaced")
        elif given is None:
            self.notes.add("null_key_omitted")
        elif given is not UNSET:
            self.notes.add("service_tier_unasked")

    # The tolerant path

    def _tolerant(self, data: bytes, status: int) -> None:
        try:
            payload = parse(data)
        except ValueError:
            self.fault(self._nonsense(data, status))
            return
        if errors.is_error(payload):
            self.fault(errors.fault_from(payload, status, self.context))
            return
        before, size = self.notes.changes, len(self.pieces.out)
        Tolerant(self).answer(payload)
        for event in self.pieces.out[size:]:
            if type(event) is Usage:
                event.last = not payload.get("choices")
        kept = any(type(event) is Extra for event in self.pieces.out[size:])
        if before == self.notes.changes and not (kept or self.context.probabilities):
            self.notes.add("shape_unusual")  # the Structs refused what no repair has a name for

    def _error(self, data: bytes) -> None:
        try:
            payload = parse(data)
        except ValueError:
            payload = data.decode("utf-8", "replace")
        self.fault(errors.fault_from(payload, 200, self.context))

    def _nonsense(self, data: bytes, status: int) -> Fault:
        return errors.fault_from_text(data.decode("utf-8", "replace"), status, self.context)


def _plain(given: wire.WireUsage) -> Any:
    return msgspec.json.decode(
        msgspec.json.encode(
            {
                name: value
                for name in wire.WireUsage.__struct_fields__
                if (value := getattr(given, name)) is not NONE
            }
        )
    )
