"""The near-OpenAI dialect: chat completions, body and SSE, of every server that imitates OpenAI.

What the strict Structs of `wire.py` accept goes straight to events; what they refuse goes through
`tolerant.py`, which repairs it and hands the same pieces to the same `_piece`. State changes come
last, so that a chunk the strict path refuses half-way can be read again.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from wellspoken.adapters.events import (
    Call,
    End,
    Entry,
    Event,
    Extra,
    Fault,
    Finish,
    Logprobs,
    Open,
    Reason,
    Reasoning,
    Refusal,
    Start,
    Text,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.lenient import parse
from wellspoken.adapters.readers import legacy, wire
from wellspoken.adapters.readers.tolerant import Tolerant
from wellspoken.adapters.repairs import envelope, errors
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.token_bytes import settle
from wellspoken.adapters.repairs.tools import Row
from wellspoken.adapters.repairs.usage import usage as repaired_usage
from wellspoken.adapters.sse import EventTooLarge, ServerEvent, SSEDecoder

REFUSED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NONE = wire.NONE

_chunk = msgspec.json.Decoder(wire.Chunk).decode
_body = msgspec.json.Decoder(wire.Body).decode


class NearOpenAI:
    """One answer's reader: `feed` and `close` for a stream, `body` for a whole answer."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.notes = exchange.notes
        self.context = Context(exchange)
        self.sse = SSEDecoder()
        self.out: list[Event] = []
        self.start: Start | None = None
        self.given = ("", 0, "")  # the backend's own id, created, model
        self.same = False  # the envelope goes out as the backend sent it
        self.ended = False
        self.roles: set[int] = set()

    def feed(self, data: bytes) -> list[Event]:
        """Return the events of all chunks that `data` completes."""
        try:
            events = self.sse.feed(data)
        except EventTooLarge as error:
            events = error.events
            self._server_events(events)
            self._fault(Fault(502, f"The backend sent {error}.", code="upstream_event_too_large"))
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
            self.out.append(End(False))
        return self._taken()

    def body(self, data: bytes, status: int = 200) -> list[Event]:
        """Return the events of a whole answer; one that is no completion gives a `Fault`."""
        try:
            body = _body(data)
        except REFUSED:
            self._tolerant(data, True, status)
        else:
            self._begin(body)
            ordered = sorted(body.choices, key=lambda choice: choice.index)
            if ordered != body.choices:
                self.notes.add("choices_out_of_order")
            if not ordered:
                self._fault(errors.no_completion('its "choices" is an empty list'))
            self._strict(ordered, None, True)
            self._top(body)
            for name in wire.BODY_EXTRAS:
                self._extra("answer", None, name, getattr(body, name))
        if not self.ended:
            self.ended = True
            self.out.append(End(True))
        return self._taken()

    def _taken(self) -> list[Event]:
        out, self.out = self.out, []
        return out

    def _fault(self, fault: Fault) -> None:
        self.ended = True
        self.out.append(fault)

    # Chunks

    def _server_events(self, events: list[ServerEvent]) -> None:
        for event in events:
            if self.ended:
                return
            if event.error is not None:
                self.notes.add("error_sse_field")
                self._error(event.error)
            elif event.data.strip() == b"[DONE]":
                self.ended = True
                self.out.append(End(True))
            elif event.event == "error":
                self._error(event.data)
            elif event.data:
                self._one(event.data)

    def _one(self, data: bytes) -> None:
        if self.context.probabilities:
            self._tolerant(data, False, 200)
            return
        before = self.notes.changes
        try:
            chunk = _chunk(data)
        except REFUSED:
            self._tolerant(data, False, 200)
            return
        self._begin(chunk)
        usage = None
        if isinstance(chunk.usage, wire.WireUsage):
            usage = self._usage(chunk.usage)
            if chunk.choices:
                self.notes.add("usage_misplaced")
        elif (chunk.usage is None) != self.exchange.include_usage:
            self.notes.add("usage_null_missing" if chunk.usage is UNSET else "null_key_omitted")
        if chunk.system_fingerprint is None:
            self.notes.add("system_fingerprint_null")
        if chunk.service_tier is not UNSET and not self.exchange.service_tier:
            self.notes.add("service_tier_unasked")
        raw = data if self.same and before == self.notes.changes else None
        if usage is not None and not chunk.choices:
            usage.raw = raw
        self._strict(chunk.choices, raw if len(chunk.choices) == 1 else None, False)

    def _usage(self, given: wire.WireUsage) -> Usage | None:
        details = (given.prompt_tokens_details, given.completion_tokens_details)
        total = given.prompt_tokens + given.completion_tokens
        if details == (NONE, NONE) and given.total_tokens == total:
            usage: Usage | None = Usage(given.prompt_tokens, given.completion_tokens)
        else:
            usage = repaired_usage(_plain(given), self.context)
        if usage is not None:
            self.out.append(usage)
        return usage

    def _strict(self, choices: list[wire.Choice], raw: bytes | None, whole: bool) -> None:
        for choice in choices:
            part = choice.message if whole else choice.delta
            if part is UNSET or (choice.message if not whole else choice.delta) is not UNSET:
                part, raw = self._misnamed(choice), None
            self._choice(choice, part, raw, whole)

    def _misnamed(self, choice: wire.Choice) -> wire.Part:
        self.notes.add("choice_part_misnamed")
        for part in (choice.delta, choice.message):
            if isinstance(part, wire.Part):
                return part
        return wire.Part()

    def _choice(self, choice: wire.Choice, part: wire.Part, raw: bytes | None, whole: bool) -> None:
        before = self.notes.changes
        for name in wire.CHOICE_EXTRAS:
            value = getattr(choice, name)
            if value is not NONE:
                self._extra("choice", choice.index, name, value)
        text = part.content
        lp = self._logprobs(choice.logprobs, text if isinstance(text, str) else "")
        if choice.finish_reason is UNSET:
            self.notes.add("finish_reason_absent")
        rows: list[Row] = []
        if part.tool_calls is not UNSET or part.function_call is not UNSET:
            rows = self._rows(part, whole)
        self._role(choice.index, part.role, whole)
        reasoning = ""
        if part.reasoning is not UNSET or part.reasoning_content is not UNSET:
            reasoning = self._reasoning(part.reasoning, part.reasoning_content)
        if part.annotations is not NONE or part.audio is not NONE:
            self._extra("message", choice.index, "annotations", part.annotations)
            self._extra("message", choice.index, "audio", part.audio)
        if whole:
            self._message(part, bool(rows))
        if before != self.notes.changes or reasoning:
            raw = None
        finish = None if choice.finish_reason is UNSET else choice.finish_reason
        if raw is not None and self._pass(choice, part, lp, rows, finish, raw):
            return
        refusal = part.refusal if isinstance(part.refusal, str) else ""
        self._piece(choice.index, reasoning, text or "", lp, refusal, rows, finish, False)

    def _pass(
        self,
        choice: wire.Choice,
        part: wire.Part,
        lp: Logprobs | None,
        rows: list[Row],
        finish: Reason | None,
        raw: bytes,
    ) -> bool:
        """Emit a chunk that is one event and may go out as it is; say whether it is."""
        index = choice.index
        text, role, refusal = part.content, part.role, part.refusal
        if finish is not None:
            if text is UNSET and role is UNSET and refusal is UNSET and not rows and lp is None:
                self.out.append(Finish(index, finish, True, raw))
                return True
            return False
        if isinstance(text, str) and text and role is UNSET and refusal is UNSET and not rows:
            self.out.append(Text(index, text, lp, raw))
            return True
        if len(rows) == 1 and text is UNSET and role is UNSET and refusal is UNSET and lp is None:
            n, call_id, name, arguments = rows[0]
            self.out.append(Call(index, n, call_id, name, arguments, raw))
            return True
        if role is not UNSET and text == "" and refusal is None and not rows and lp is None:
            self.out.append(Open(index, raw))
            return True
        return False

    def _piece(
        self,
        index: int,
        reasoning: str,
        text: str,
        lp: Logprobs | None,
        refusal: str,
        rows: list[Row],
        finish: Reason | None,
        unknown: bool,
    ) -> None:
        """Emit what one choice of a chunk or body holds, in the order that the stages expect.

        Entries that came with reasoning alone go first, so that the tiling stage finds them waiting
        when the reasoning comes and knows them as its own. `unknown`: a reason that nobody knows.
        """
        out = self.out
        size = len(out)
        if lp is not None and not text:
            out.append(Text(index, "", lp))
        if reasoning:
            out.append(Reasoning(index, reasoning))
        if text:
            out.append(Text(index, text, lp))
        if refusal:
            out.append(Refusal(index, refusal))
        for n, call_id, name, arguments in rows:
            out.append(Call(index, n, call_id, name, arguments))
        alone = len(out) == size
        if finish is not None or unknown:
            out.append(Finish(index, finish, alone))
        elif alone:
            out.append(Open(index))

    # Parts that the strict and the tolerant path share

    def _begin(self, answer: Any) -> None:
        """Fix the envelope with the first chunk; count what a later one changes."""
        given = (answer.id, answer.created, answer.model)
        fingerprint = answer.system_fingerprint
        if self.start is None:
            self.start = envelope.start(*given, fingerprint or None, self.context)
            self.given = given
            self.same = given == (self.start.id, self.start.created, self.start.model)
            self.out.append(self.start)
            return
        if given != self.given:
            for name, new, old in zip(("id", "created", "model"), given, self.given, strict=True):
                if new != old:
                    self.notes.add(f"{name}_changes")
        if fingerprint and fingerprint != self.start.system_fingerprint:
            self.start = msgspec.structs.replace(self.start, system_fingerprint=fingerprint)
            self.out.append(self.start)

    def _top(self, body: wire.Body) -> None:
        if body.system_fingerprint is None:
            self.notes.add("system_fingerprint_null")
        if body.service_tier is None:
            self.notes.add("null_key_omitted")
        elif body.service_tier is not UNSET and not self.exchange.service_tier:
            self.notes.add("service_tier_unasked")
        if isinstance(body.usage, wire.WireUsage):
            self._usage(body.usage)

    def _extra(self, where: Any, choice: int | None, key: str, value: Raw) -> None:
        if value is NONE:
            return
        if bytes(value) == b"null":
            self.notes.add("null_key_omitted")
        elif key in ("annotations", "audio"):
            if bytes(value) == b"[]":
                return
            self.out.append(Extra(where, choice, key, value))
        elif self.exchange.keeps(key):
            self.out.append(Extra(where, choice, key, value))
        else:
            if key in ("stop_reason", "matched_stop"):
                self.notes.add("stop_reason_folded")
            self.notes.dropped(key)

    def _role(self, choice: int, role: Any, whole: bool) -> None:
        if whole:
            if role != "assistant":
                self.notes.add("role_missing")
            return
        if role is UNSET:
            return
        if role is None:
            self.notes.add("null_key_omitted")
        elif choice in self.roles:
            self.notes.add("role_repeated")
        else:
            self.roles.add(choice)

    def _message(self, part: wire.Part, called: bool) -> None:
        if part.refusal is UNSET:
            self.notes.add("refusal_missing")
        if part.content is UNSET or (part.content is None and not called and not part.refusal):
            self.notes.add("content_null")

    def _reasoning(self, *given: str | UnsetType | None) -> str:
        """Return the reasoning under either name; with both (TensorRT-LLM) they are one text."""
        if None in given:
            self.notes.add("null_key_omitted")
        found = next((text for text in given if isinstance(text, str) and text), "")
        if isinstance(given[0], str):
            self.notes.add("reasoning_renamed")
        if found and not self.exchange.keeps("reasoning_content"):
            self.notes.dropped("reasoning_content")
            return ""
        return found

    def _rows(self, part: wire.Part, whole: bool) -> list[Row]:
        if part.tool_calls is None or part.function_call is None:
            self.notes.add("null_key_omitted")
        rows = [self._row(call, n, whole) for n, call in enumerate(part.tool_calls or ())]
        if part.tool_calls == []:
            self.notes.add("tool_calls_empty")
        if isinstance(part.function_call, wire.Function):
            call = part.function_call
            if not self.exchange.functions:
                self.notes.add("function_call_renamed")
            n = len(rows) if whole else None
            rows.append((n, None, call.name or None, call.arguments or ""))
        return rows

    def _row(self, call: wire.ToolCall, n: int, whole: bool) -> Row:
        function = call.function if isinstance(call.function, wire.Function) else wire.Function()
        if function.name in (None, "") or function.arguments is None or call.id in (None, ""):
            self.notes.add("tool_call_null")
        head = function.name is not UNSET or call.id is not UNSET or whole
        if head and (call.type is UNSET or call.type is None or function.arguments is UNSET):
            self.notes.add("tool_call_incomplete")
        index = call.index if isinstance(call.index, int) else None
        if whole:
            if index is not None:
                self.notes.add("tool_call_index_in_body")
            index = n
        return (index, call.id or None, function.name or None, function.arguments or "")

    def _logprobs(self, given: Any, text: str) -> Logprobs | None:
        """Return the entries of strict logprobs, settled; None where the client asked for none."""
        if given is UNSET:
            self.notes.add("logprobs_key_missing")
            return None
        if given is None:
            return None
        if not self.exchange.logprobs:
            self.notes.add("logprobs_unasked")
            return None
        if isinstance(given.content, list):
            if given.refusal is UNSET:
                self.notes.add("logprobs_refusal_missing")
            return self._settled(given.content, True)
        return legacy.logprobs(given, text, self.context)

    def _settled(self, entries: list[Entry], sampled: bool) -> Logprobs | None:
        if not entries:
            return None
        plain = settle(entries, self.context)
        return Logprobs(entries, plain, sampled)

    # The tolerant path

    def _tolerant(self, data: bytes, whole: bool, status: int) -> None:
        try:
            payload = parse(data)
        except ValueError:
            self._fault(self._nonsense(data, status))
            return
        if errors.is_error(payload):
            self._fault(errors.fault_from(payload, status, self.context))
            return
        before, size = self.notes.changes, len(self.out)
        Tolerant(self, whole).answer(payload)
        kept = any(type(event) is Extra for event in self.out[size:])
        if before == self.notes.changes and not kept:
            self.notes.add("shape_unusual")  # the Structs refused what no repair has a name for

    def _error(self, data: bytes) -> None:
        try:
            payload = parse(data)
        except ValueError:
            payload = data.decode("utf-8", "replace")
        self._fault(errors.fault_from(payload, 200, self.context))

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
