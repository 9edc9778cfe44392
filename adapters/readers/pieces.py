"""What one choice of a body or chunk holds, as events: what both paths of a reader share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal

from msgspec import UNSET, Raw, UnsetType

from wellspoken.adapters.events import (
    FUNCTION_CALL,
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
    Text,
    ToolDelta,
)
from wellspoken.adapters.nesting import is_too_deep
from wellspoken.adapters.readers import legacy, strict
from wellspoken.adapters.readers.streamed import Streamed, Written
from wellspoken.adapters.readers.strict import NONE
from wellspoken.adapters.repairs import faults
from wellspoken.adapters.repairs.context import Context
from wellspoken.adapters.repairs.finish_reasons import FAILURES, Failure
from wellspoken.adapters.repairs.token_bytes import settle
from wellspoken.adapters.repairs.token_ids import OWN, PROMPT, holds_ids
from wellspoken.adapters.repairs.tools import Row

Where = Literal["answer", "choice", "message"]

_SILENT = strict.WirePart()
_TEXTLESS = strict.WirePart(content="")
LONGEST_REASON = 64  # characters of a backend's finish reason that an error quotes
OBJECTS = {"annotations": b"[{", "audio": b"{"}
"""OpenAI's own keys of a message that pass as they are, and how their JSON begins."""


class Pieces:
    """Collects an answer's events in `out`; `whole` tells a body from a stream.

    `ended`: the answer is over or has failed, and nothing that still comes is read.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.exchange = context.exchange
        self.notes = context.notes
        self.out: list[Event] = []
        self.whole = False
        self.ended = False
        self.told_ids = False  # token ids came
        self.roles: set[int] = set()
        self.streamed: dict[int, Streamed] = {}
        self.written: defaultdict[int, Written] = defaultdict(Written)
        self.roled = False  # the choice at hand carries a role

    def take(self) -> list[Event]:
        """Return the events collected since the last time."""
        out, self.out = self.out, []
        return out

    def fold(self) -> None:
        """Keep of what was said so far what has to be kept: a stream may have no end."""
        for written in self.written.values():
            written.fold()

    def end(self, event: End | Fault) -> None:
        """End the answer, cleanly or not."""
        self.ended = True
        self.out.append(event)

    def fail(self, reason: Failure, key: str) -> None:
        """End the answer since `key` gives a reason by which it is not usable."""
        why = FAILURES.get(reason)
        if why is not None:
            self.notes.add(f"finish_reason_{reason}")
        else:
            self.notes.add("finish_reason_like_failure")
        self.end(
            Fault(
                502,
                f"The answer is not usable: {why or 'the backend failed'} "
                f'({key} "{reason[:LONGEST_REASON]}"). Try again; if it repeats, see the '
                "backend's log.",
                code=f"upstream_{reason if why else 'failure'}",
                retry=False if reason == "parse_error" else None,
            )
        )

    def refuse(self, why: str, expected: str = "") -> None:
        """End the answer since it is no completion; `why` names the field."""
        if not expected:
            part = "text" if self.context.text else "message" if self.whole else "delta"
            expected = f'a list "choices" of objects with "{part}"'
        self.end(faults.no_completion(why, expected, self.context))

    def message(self, choice: strict.WireMessageChoice) -> None:
        """Emit a body's strict choice."""
        self._full(choice, choice.message, None)

    def delta(self, choice: strict.WireDeltaChoice, raw: bytes | None) -> None:
        """Emit a chunk's strict choice; `raw` is the chunk where that may go out as it is. Hot."""
        before, part = self.notes.changes, choice.delta
        if (
            type(part) is not strict.WirePart
            or type(text := part.content) is not str
            or not text
            or (choice.finish_reason is not None and choice.finish_reason is not UNSET)
            or part.role is not UNSET
            or part.tool_calls is not UNSET
            or part.reasoning is not UNSET
            or part.reasoning_content is not UNSET
            or part.refusal is not UNSET
            or part.function_call is not UNSET
            or part.annotations is not NONE
            or part.audio is not NONE
        ):  # not content alone, as it usually is
            self._full(choice, part, raw)
            return
        if choice.finish_reason is UNSET:
            self.notes.add("finish_reason_absent")
        if choice.token_ids is not NONE:  # null on every chunk of vLLM >= 0.10.2
            self.extra("choice", choice.index, "token_ids", choice.token_ids)
        if (
            choice.stop_reason is not NONE
            or choice.matched_stop is not NONE
            or choice.routed_experts is not NONE
        ):
            names = ("stop_reason", "matched_stop", "routed_experts")
            self.extras("choice", choice.index, choice, names)
        lp = self.logprobs(choice.logprobs, text)
        if raw is not None and self.notes.changes != before:
            raw = None
        self.written[choice.index].texts.pieces.append(text)
        self.out.append(Text(choice.index, text, lp, raw))

    def _full(
        self, choice: strict.WireChoice, part: strict.WirePart | UnsetType, raw: bytes | None
    ) -> None:
        before = self.notes.changes
        if part is UNSET:
            self.notes.add("choice_part_misnamed")
            part = strict.WirePart()
        told = self.extras("choice", choice.index, choice, strict.CHOICE_EXTRAS)
        index = choice.index
        text = part.content if isinstance(part.content, str) else ""
        lp = self.logprobs(choice.logprobs, text)
        refused = None
        if isinstance(choice.logprobs, strict.WireLogprobs):
            refused = self._refusal_entries(choice.logprobs)
        finish = choice.finish_reason
        if finish is UNSET:
            self.notes.add("finish_reason_absent")
            finish = None
        rows: list[Row] = []
        if part.tool_calls is not UNSET or part.function_call is not UNSET:
            rows = self._rows(part)
        self.role(index, part.role)
        reasoning = ""
        if part.reasoning is not UNSET or part.reasoning_content is not UNSET:
            reasoning = self._reasoning(part.reasoning, part.reasoning_content)
        told = self.extras("message", index, part, OBJECTS) or told
        refusal = part.refusal if isinstance(part.refusal, str) else ""
        if part.refusal == "":
            self.notes.add("refusal_empty")
        if self.whole:
            if part.refusal is UNSET:
                self.notes.add("refusal_missing")
            if part.content is UNSET or (part.content is None and not rows and not refusal):
                self.notes.add("content_null")
        else:
            self.written[index].add((reasoning, text, refusal, rows))
        if raw is not None and before == self.notes.changes and not reasoning:
            events = _single(index, part, lp, refused, rows, finish, raw, told)
            if events:
                self.out += events
                return
            role_alone = part.role == "assistant" and not (text or rows or refusal or finish)
            self.notes.add("role_chunk_incomplete" if role_alone else "delta_not_single")
        self.piece(index, reasoning, text, lp, refusal, rows, finish, refused=refused)

    def piece(
        self,
        index: int,
        reasoning: str,
        text: str,
        lp: Logprobs | None,
        refusal: str,
        rows: list[Row],
        finish: Reason | None,
        *,
        refused: Logprobs | None = None,
        unknown: bool = False,
        closing: bool = False,
    ) -> None:
        """Emit what one choice of a chunk or body holds, in the order that the stages expect.

        Entries that came with reasoning alone go first, so that the tiling stage finds them waiting
        when the reasoning comes and knows them as its own. `unknown`: a reason that nobody knows.
        `closing`: the calls are all of a stream's, once more.
        """
        out = self.out
        if lp is not None and not lp.entries:
            out.append(Text(index, "", lp))
            lp = None
        size = len(out)
        if lp is not None:
            lp.whole = self.whole
        if lp is not None and not text:
            out.append(Text(index, "", lp))
        if reasoning:
            out.append(Reasoning(index, reasoning))
        if text:
            out.append(Text(index, text, lp))
        if refusal or refused is not None:
            out.append(Refusal(index, refusal, refused))
        for at, row in enumerate(rows):
            apart = not closing and at > 0 and (self.whole or _is_apart(row, rows[at - 1]))
            out.append(ToolDelta(index, *row, apart=apart, closing=at if closing else -1))
        # A role beside a reason: servers that put a reason on every chunk begin so.
        alone = len(out) == size and not self.roled
        if finish is not None or unknown:
            out.append(Finish(index, finish, alone))
        elif len(out) == size:
            out.append(Open(index))

    def extras(self, where: Where, choice: int | None, given: Any, names: Iterable[str]) -> bool:
        """Emit those of these keys of a Struct that came, as `extra` does."""
        emitted = False
        for name in names:
            if (value := getattr(given, name)) is not NONE:
                emitted = self.extra(where, choice, name, value) or emitted
        return emitted

    def extra(self, where: Where, choice: int | None, key: str, value: Raw) -> bool:
        """Emit a key outside the contract if the client gets it, else count what is lost.

        Says whether it was emitted: it may then leave before the rest of its chunk, with text that
        was held back, so that chunk cannot pass as it is.
        """
        if value is NONE:
            return False
        if key == PROMPT:  # where vLLM has it
            if self.context.text and where == "answer" and bytes(value) != b"null":
                self.notes.add("token_ids_renamed")
            where, choice = ("choice", choice or 0) if self.context.text else ("answer", None)
        data = bytes(value)
        if data == b"null":
            self.notes.add("null_key_omitted")
        elif is_too_deep(data):  # what the Structs keep raw was only skipped; the rest is typed
            self.end(faults.nests_too_deeply(self.context))
        elif key in OBJECTS:
            if data.startswith(OBJECTS[key]):
                self.out.append(Extra(where, choice, key, value))
                return True
            if data != b"[]":
                self.notes.drop(key)
        elif key in (OWN, PROMPT) and self.exchange.tells_ids and not holds_ids(value):
            self.notes.drop(key)
        elif self.exchange.keeps(key):
            self.told_ids = self.told_ids or key == OWN
            self.out.append(Extra(where, choice, key, value))
            return True
        else:
            if key in ("stop_reason", "matched_stop"):
                self.notes.add("stop_reason_folded")
            self.notes.drop(key)
        return False

    def role(self, choice: int, role: Any) -> None:
        """Count what is wrong with a role; the writer makes its own."""
        self.roled = role is not UNSET and role is not None and not self.whole
        if self.whole:
            if role != "assistant":
                self.notes.add("role_missing")
        elif role is None:
            self.notes.add("null_key_omitted")
        elif role is not UNSET:
            if choice in self.roles:
                self.notes.add("role_repeated")
            self.roles.add(choice)

    def settle_entries(self, entries: list[Entry], sampled: bool) -> Logprobs:
        """Return the entries with token and bytes settled."""
        return Logprobs(entries, settle(entries, self.context), sampled)

    def _reasoning(self, *given: str | UnsetType | None) -> str:
        """Return the reasoning under either name; with both (TensorRT-LLM) they are one text."""
        if None in given:
            self.notes.add("null_key_omitted")
        found = str(given[0] or given[1] or "")
        if isinstance(given[0], str):
            self.notes.add("reasoning_renamed")
        if "" in given:
            self.notes.add("reasoning_empty")
        if found and not self.exchange.keeps("reasoning_content"):
            self.notes.drop("reasoning_content")  # the writer leaves it out
        return found

    def _rows(self, part: strict.WirePart) -> list[Row]:
        if part.tool_calls is None or part.function_call is None:
            self.notes.add("null_key_omitted")
        rows = [self._row(call, n) for n, call in enumerate(part.tool_calls or ())]
        if rows and self.exchange.functions:
            self.notes.add("tool_calls_as_function_call")
        if part.tool_calls == []:
            self.notes.add("tool_calls_empty")
        if isinstance(part.function_call, strict.WireFunction):
            call = part.function_call
            rows.append((FUNCTION_CALL, None, call.name or None, call.arguments or ""))
        return rows

    def _row(self, call: strict.WireToolCall, n: int) -> Row:
        function = (
            call.function
            if isinstance(call.function, strict.WireFunction)
            else strict.WireFunction()
        )
        if function.name in (None, "") or function.arguments is None or call.id in (None, ""):
            self.notes.add("tool_call_null")
        head = function.name is not UNSET or call.id is not UNSET or self.whole
        if head and (call.type is UNSET or call.type is None or function.arguments is UNSET):
            self.notes.add("tool_call_incomplete")
        if not head and call.type is not UNSET:
            self.notes.add("tool_call_head_repeated")
        index = call.index if isinstance(call.index, int) and call.index >= 0 else None
        if self.whole:
            if index is not None:
                self.notes.add("tool_call_index_in_body")
            index = n
        return (index, call.id or None, function.name or None, function.arguments or "")

    def logprobs(self, given: Any, text: str) -> Logprobs | None:
        """Return the entries of strict logprobs, settled; None where the client asked for none."""
        return legacy.read_logprobs(given, text, self.context)

    def _refusal_entries(self, given: strict.WireLogprobs) -> Logprobs | None:
        """Return the refusal's own entries, trimmed here: they are not tiled."""
        if not isinstance(given.refusal, list) or not given.refusal or not self.exchange.logprobs:
            return None
        for entry in given.refusal:
            if len(entry.top_logprobs) > self.exchange.k:
                self.notes.add("logprobs_trimmed")
                del entry.top_logprobs[self.exchange.k :]
        return self.settle_entries(given.refusal, True)


def _is_apart(row: Row, before: Row) -> bool:
    """Say whether of two calls in a list the second is another, though nothing tells so."""
    if row[0] is not None or before[0] is not None or (row[1] and row[1] == before[1]):
        return False
    return row[2] is not None and row[2] == before[2] and not (row[3] + before[3]).strip()


def _single(
    index: int,
    part: strict.WirePart,
    lp: Logprobs | None,
    refused: Logprobs | None,
    rows: list[Row],
    finish: Reason | None,
    raw: bytes | None,
    told: bool = False,
) -> list[Event]:
    """Return the one event that a conforming chunk is, nothing if it is none or several.

    A list without entries comes before it: the end of a choice tells that, as only it can know.
    Where `told`, keys that the chunk has may leave before the event, unless that is a role.
    """
    own = None if told else raw
    text, role, refusal = part.content, part.role, part.refusal
    bare = text is UNSET and role is UNSET
    if lp is not None and not lp.entries:
        others = _single(index, part, None, refused, rows, finish, None)
        silent = finish is None and part == _SILENT
        return [Text(index, "", lp), *others] if others or silent else []
    if finish is not None:
        if bare and refusal is UNSET and not rows and lp is None:
            return [Finish(index, finish, True, own)]
    elif len(rows) == 1 and lp is None and refusal in (UNSET, None) and text in (UNSET, None):
        if bare or role == "assistant":
            n, call_id, name, arguments = rows[0]
            return [ToolDelta(index, n, call_id, name, arguments, own, not bare)]
    elif rows or lp is not None:
        return [Text(index, "", lp)] if part == _TEXTLESS else []
    elif role == "assistant" and text in ("", None) and refusal is None:
        return [Open(index, raw, text is None)]
    elif bare and isinstance(refusal, str) and refusal:
        return [Refusal(index, refusal, refused, own)]
    return []
