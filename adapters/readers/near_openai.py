"""The near-OpenAI dialect: chat or legacy completions, body and SSE, of all that imitate OpenAI.

What the strict Structs of `strict.py` accept goes straight to events; what they refuse goes through
`tolerant.py`, which repairs it and hands the same to the same `Pieces`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from wellspoken.adapters.events import End, Entry, Event, Extra, Fault, Text, Usage
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.nesting import is_too_deep
from wellspoken.adapters.readers import strict
from wellspoken.adapters.readers.framing import Framed, is_text
from wellspoken.adapters.readers.legacy import read_logprobs
from wellspoken.adapters.readers.numbering import Numbering
from wellspoken.adapters.readers.opening import Opening
from wellspoken.adapters.readers.pieces import Pieces
from wellspoken.adapters.readers.sse import SSEDecoder
from wellspoken.adapters.readers.text import text_choice
from wellspoken.adapters.readers.tolerant import Tolerant
from wellspoken.adapters.repairs import faults
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.counts import usage as repaired_usage
from wellspoken.adapters.repairs.finish_reasons import repair_made_body
from wellspoken.adapters.repairs.loose_json import parse
from wellspoken.adapters.repairs.token_ids import settle_token_ids

_USAGE_NULL = re.compile(rb',\s*"usage"\s*:\s*null|"usage"\s*:\s*null\s*,\s*')
REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NONE = strict.NONE
_LF = 10
BLOCK = 128  # entries, of which twenty alternatives each take about a millisecond

_chunk = msgspec.json.Decoder(strict.WireChunk).decode
_plain_chunk = msgspec.json.Decoder(strict.PlainChunk).decode
_body = msgspec.json.Decoder(strict.WireBody).decode
_split_body = msgspec.json.Decoder(strict.WireSplitBody).decode
_entries = msgspec.json.Decoder(list[Entry]).decode
_long_body = msgspec.json.Decoder(strict.WireLongBody).decode
_text_chunk = msgspec.json.Decoder(strict.WireTextChunk).decode
_text_body = msgspec.json.Decoder(strict.WireTextBody).decode


class NearOpenAI(Framed):
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
            partial(text_choice, self.pieces) if text else self.pieces.delta
        )
        self.said = self.pieces.written[0].texts.pieces  # of the first choice
        self.opening = Opening(self.pieces)
        self.begin = self.opening.begin
        self.usual = None if exchange.include_usage else UNSET  # a chunk's usage
        numbering = Numbering(exchange)
        self.numbering = None if numbering.settled else numbering  # until they number choices

    def close(self) -> list[Event]:
        """Return what the end of the backend's bytes tells."""
        self.take(self.sse.finish())
        if not self.pieces.ended:
            if self.opening.start is not None:
                self.notes.add("done_missing")
            self._end(clean=False)
        return self.pieces.take()

    def body(
        self, data: bytes, status: int = 200, given: strict.WireBody | UnsetType | None = UNSET
    ) -> list[Event]:
        """Return the events of a whole answer; one that is no completion gives a `Fault`.

        `given`: what `strict_body` made of the data, where it was asked.
        """
        self.pieces.whole = True
        if self.exchange.switches:
            self.context.ids = self.exchange.tells_ids
        try:
            if given is None or not is_text(data):
                raise ValueError
            body = self.decode_body(data) if given is UNSET else given
            if len({choice.index for choice in body.choices}) < len(body.choices):
                raise ValueError
            if body.timings is not NONE or body.metrics is not NONE:  # Amazon Bedrock has the last
                if type(body.usage) is not strict.WireUsage or not body.usage.total_tokens:
                    raise ValueError
                if len(body.choices) > 1:  # whose timings show whether the usage is of all
                    raise ValueError
        except (*REFUSED, ValueError):
            self._tolerant(data, status)
        else:
            self.begin(body.id, body.created, body.model, body.system_fingerprint)
            ordered = sorted(body.choices, key=lambda choice: choice.index)
            if ordered != body.choices:
                self.notes.add("choices_out_of_order")
            if not ordered:
                self.pieces.refuse('its "choices" is an empty list')
            self._top(body)
            names = strict.TEXT_EXTRAS if self.text else strict.BODY_EXTRAS
            self.pieces.extras("answer", None, body, names)
            for choice in ordered:
                if self.text:
                    self.emit(choice, None)
                else:
                    self.pieces.message(choice)
        self.pieces.out = repair_made_body(self.pieces.out, self.context)
        if self.context.ids:
            self.pieces.out = settle_token_ids(self.pieces.out, self.context)
        if not any(type(x) is Fault for x in self.pieces.out):
            self.pieces.end(End(True))
        return self.pieces.take()

    def finish(self) -> None:
        """End the answer: the backend said [DONE]."""
        self._end(clean=True)

    def _end(self, *, clean: bool) -> None:
        if self.numbering is not None:
            self.pieces.out += self.numbering.release()
        if self.exchange.tells_ids and not self.pieces.told_ids:
            self.notes.add("token_ids_missing")
        self.pieces.end(End(clean))

    def data(self, data: bytes) -> None:
        """Read one chunk. Hot."""
        if self.numbering is not None:
            self._number(data, self.numbering)
            return
        if self.context.probabilities or not (data.isascii() or is_text(data)):
            self._tolerant(data, 200)
            return
        before = self.notes.changes
        try:
            chunk = self.decode_chunk(data)
        except REFUSED:
            self._tolerant(data, 200)
            return
        same = self.begin(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint)
        usage = None
        if isinstance(chunk.usage, strict.WireUsage):
            usage = self._usage(chunk.usage)
            if usage is not None:
                usage.last = not chunk.choices
            if chunk.choices and not self.exchange.running_usage:
                self.notes.add("usage_misplaced")
        ours = self._note_keys(chunk)
        if _LF in data:
            self.notes.add("sse_data_lines")
        raw = data if same and before == self.notes.changes else None
        if ours and raw is not None:
            raw = _USAGE_NULL.sub(b"", raw, 1)
        if usage is not None and not chunk.choices:
            usage.raw = raw
        if len(chunk.choices) > 1:
            self.notes.add("chunk_of_several_choices")
            raw = None
        for choice in chunk.choices:
            self.emit(choice, raw)

    def is_plain(self) -> bool:
        """Say whether `plain` may be asked, until something is read by `feed` or `take` again."""
        if self.numbering is not None or self.context.probabilities or self.pieces.ended:
            return False
        return not self.text

    def plain(self, data: bytes) -> Text | None:
        """Return the event of a chunk that is some content alone. Hot.

        None for any other, of which nothing was noted or kept: it is one for `take`.
        """
        if self.context.probabilities or not (data.isascii() or is_text(data)):
            return None
        try:
            chunk = _plain_chunk(data)
        except REFUSED:
            return None
        opening, fingerprint = self.opening, chunk.system_fingerprint
        start = opening.start
        if start is None or (fingerprint and fingerprint != start.system_fingerprint):
            return None
        (choice,) = chunk.choices
        text, given, lp = choice.delta.content, choice.logprobs, None
        notes, same, ours = self.notes, opening.same, False
        before = notes.changes
        if (chunk.id, chunk.created, chunk.model) != opening.given:
            same = self.begin(chunk.id, chunk.created, chunk.model, fingerprint)
        if (
            chunk.usage is not self.usual
            or not (fingerprint or fingerprint is UNSET)
            or chunk.service_tier is not UNSET
            or self.exchange.service_tier
        ):
            ours = self._note_keys(chunk)
        if choice.finish_reason is UNSET:
            notes.add("finish_reason_absent")
        if choice.token_ids is None:
            notes.add("null_key_omitted")
        if given is not None:
            lp = read_logprobs(given, text, self.context)
        self.said.append(text)
        if not same or before != notes.changes:
            return Text(0, text, lp)
        return Text(0, text, lp, _USAGE_NULL.sub(b"", data, 1) if ours else data)

    def _note_keys(self, chunk: strict.WireChunk | strict.PlainChunk) -> bool:
        """Note what is odd about the keys beside the choices.

        Returns whether the chunk has a null that only our asking for usage brought.
        """
        ours = False
        if type(chunk.usage) is not strict.WireUsage:
            if (chunk.usage is None) != self.exchange.include_usage:
                ours = self.exchange.asks_usage and chunk.usage is None
                if not ours:
                    null = chunk.usage is UNSET
                    self.notes.add("usage_null_missing" if null else "null_key_omitted")
        if chunk.system_fingerprint is None or chunk.system_fingerprint == "":
            self.notes.add("system_fingerprint_null")
        if chunk.service_tier is not UNSET or self.exchange.service_tier:
            self.opening.tier(chunk.service_tier)
        return ours

    def _number(self, data: bytes, numbering: Numbering) -> None:
        """Read one chunk of which it is not known whether its index numbers a choice."""
        before, self.pieces.out = self.pieces.out, []
        self.numbering = None
        self.data(data)
        found = numbering.read(self.pieces.out)
        self.pieces.out = before + found
        self.pieces.ended = self.pieces.ended or any(type(event) is Fault for event in found)
        if not numbering.settled:
            self.numbering = numbering

    def _usage(self, given: strict.WireUsage) -> Usage | None:
        details = (given.prompt_tokens_details, given.completion_tokens_details)
        total = given.prompt_tokens + given.completion_tokens
        if details == (NONE, NONE) and given.total_tokens == total:
            usage: Usage | None = Usage(given.prompt_tokens, given.completion_tokens)
        elif is_too_deep(bytes(given.prompt_tokens_details)) or is_too_deep(
            bytes(given.completion_tokens_details)
        ):
            self.pieces.end(faults.nests_too_deeply(self.context))
            usage = None
        else:
            usage = repair_usage(given, self.context)
        if usage is not None:
            self.pieces.out.append(usage)
        return usage

    def _top(self, body: strict.WireBody | strict.WireTextBody) -> None:
        if body.system_fingerprint is None or body.system_fingerprint == "":
            self.notes.add("system_fingerprint_null")
        self.opening.tier(body.service_tier)
        if isinstance(body.usage, strict.WireUsage):
            self._usage(body.usage)

    def _tolerant(self, data: bytes, status: int) -> None:
        pieces = self.pieces
        payload = faults.payload_of(data, status, self.context)
        if type(payload) is Fault:
            pieces.end(payload)
            return
        before, size = self.notes.changes, len(pieces.out)
        Tolerant(self.opening).answer(payload)
        for event in pieces.out[size:]:
            if type(event) is Usage:
                event.last = not payload.get("choices")
        kept = any(type(event) is Extra for event in pieces.out[size:])
        if before == self.notes.changes and not (kept or self.context.probabilities):
            self.notes.add("shape_unusual")  # the Structs refused what no repair has a name for


def strict_body(data: bytes) -> strict.WireBody | None:
    """Return a chat answer whose types are the contract's, None for any other."""
    try:
        return _body(data)
    except REFUSED:
        return None


def strict_body_in_blocks(data: bytes) -> strict.WireBody | None:
    """Return what `strict_body` does, read in blocks where that can be: in a thread.

    A call of the decoder lets no other thread run, so that the loop waits for it: of 10 MB, a tenth
    of a second.
    """
    try:
        body = _split_body(data)
        for choice in body.choices:
            if type(given := choice.logprobs) is strict.WireSplit:
                content = list[Entry]()
                for at in range(0, len(given.content), BLOCK):
                    content += _entries(b"[%b]" % b",".join(given.content[at : at + BLOCK]))
                read = strict.WireLogprobs(content=content, refusal=given.refusal)
                choice.logprobs = read  # type: ignore[assignment]
    except REFUSED:
        return strict_body(data)
    return body


def long_body(data: bytes) -> strict.WireLongBody | None:
    """Return a chat answer with logprobs as arrays, None for any other."""
    try:
        return _long_body(data)
    except REFUSED:
        return None


def repair_usage(given: strict.WireUsage, context: Context) -> Usage:
    """Return the counts of a usage that has details, or a total that is not their sum."""
    value: dict[str, Any] = {}
    for name in strict.WireUsage.__struct_fields__:
        told = getattr(given, name)
        if told is not NONE:
            value[name] = _read_details(told) if type(told) is msgspec.Raw else told
    usage = repaired_usage(value, context)
    assert usage is not None  # which only one without any counts is
    return usage


def _read_details(given: msgspec.Raw) -> Any:
    """Return details, which the Structs have not looked into; None if a number has no end."""
    try:
        return parse(bytes(given))
    except ValueError:
        return None
