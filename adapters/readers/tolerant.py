"""The tolerant path: any JSON that stands for a chat completion or chunk, repaired by name.

Each field has its own repair; a field that is absent is what the contract says of absence; a key
that nobody knows is an extra. What comes out goes to the same `Pieces` as the strict path's.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from wellspoken.adapters.events import FUNCTION_CALL, UNNUMBERED, Logprobs, Reason, Usage
from wellspoken.adapters.readers.legacy import undo_bytes
from wellspoken.adapters.readers.opening import Opening
from wellspoken.adapters.readers.pieces import Where
from wellspoken.adapters.readers.streamed import Said
from wellspoken.adapters.readers.text import drop_repeated, is_all_again, offsets
from wellspoken.adapters.repairs.counts import EVAL_COUNTS, from_timings, take_misplaced, usage
from wellspoken.adapters.repairs.envelope import (
    REASONING,
    content_text,
    reasoning_in,
    refusal_in,
    without_end_token,
)
from wellspoken.adapters.repairs.finish_reasons import ELSEWHERE, Failure, finish_reason
from wellspoken.adapters.repairs.finish_reasons import finish_reason_elsewhere as elsewhere
from wellspoken.adapters.repairs.logprobs import logprobs
from wellspoken.adapters.repairs.loose_json import raw
from wellspoken.adapters.repairs.numbers import holds_probabilities
from wellspoken.adapters.repairs.token_ids import OWN, token_ids_renamed, token_ids_verbose
from wellspoken.adapters.repairs.tools import Row, tool_call, tool_calls
from wellspoken.adapters.sums import is_full
from wellspoken.adapters.tokens.table import digits

_ENVELOPE = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier")
)
_CHOICE = frozenset(("index", "delta", "message", "text", "logprobs", "finish_reason"))
_PART = frozenset(("role", "content", "refusal", "tool_calls", "function_call"))
_MESSAGES = _PART | {*REASONING, "annotations", "audio"}


def _says(part: dict[str, Any]) -> bool:
    """Say whether a delta or message holds more than a role."""
    return any(value for key, value in part.items() if key != "role")


def _reason_beside(payload: dict[str, Any], choices: list[Any]) -> dict[str, Any]:
    """Take what tells a single choice's reason from beside `choices`, if it has none itself."""
    choice = choices[0] if len(choices) == 1 else None
    if not isinstance(choice, dict) or choice.get("finish_reason") not in (None, ""):
        return {}
    return {key: payload.pop(key) for key in ELSEWHERE if key in payload}


class Tolerant:
    """The tolerant path of one answer, to the same pieces as the strict one."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.pieces = opening.pieces
        self.whole = self.pieces.whole
        self.context = self.pieces.context
        self.text = self.context.text
        self.notes = self.context.notes
        self.exchange = self.context.exchange
        self.closes = False  # what is at hand calls itself a whole answer, in a stream

    def answer(self, payload: Any) -> None:
        """Emit what one body or chunk holds; what is neither becomes a `Fault`."""
        choices = payload.get("choices") if isinstance(payload, dict) else None
        if isinstance(choices, dict):
            self.notes.add("choices_object")
            choices = [choices]
        if not isinstance(choices, list):
            self._no_choices(payload)
            return
        if not choices and self.whole:
            self.pieces.refuse('its "choices" is an empty list')
            return
        payload = dict(payload)
        choices = [dict(choice) if isinstance(choice, dict) else choice for choice in choices]
        self._envelope(payload)
        self._usage(payload, choices)
        beside = _reason_beside(payload, choices)
        ids = token_ids_verbose(payload, self.context) if self.whole else None
        if ids is not None and isinstance(choices[0], dict):
            choices[0][OWN] = ids
        for key, value in payload.items():
            if key not in _ENVELOPE and key != "completion_probabilities":
                self._extra("answer", None, key, value)
        self._choices(choices, payload, beside)

    def _envelope(self, payload: dict[str, Any]) -> None:
        wanted = "chat.completion" if self.whole else "chat.completion.chunk"
        if self.text:
            wanted = "text_completion"
        self.closes = payload.get("object") == "chat.completion" and not self.whole
        if payload.get("object") != wanted:
            self.notes.add("object_wrong")
        if payload.get("system_fingerprint", "") is None:
            self.notes.add("null_key_omitted")
        self.opening.tier(payload.get("service_tier", UNSET))
        given, model = payload.get("id"), payload.get("model")
        fingerprint = payload.get("system_fingerprint")
        self.opening.begin(
            given if isinstance(given, str) else "",
            payload.get("created"),
            model if isinstance(model, str) else "",
            fingerprint if isinstance(fingerprint, str) else None,
        )

    def _usage(self, payload: dict[str, Any], choices: list[Any]) -> None:
        """Emit the usage, wherever it stands, and take it from where it does not belong."""
        found = usage(payload.get("usage"), self.context)
        timed = self._timings(payload, choices)
        if found is None:
            found = take_misplaced(payload, choices, self.context)
        else:
            if not (found.prompt or found.completion):  # zeros, beside which there may be more
                found = take_misplaced(payload, choices, self.context) or found
            if choices and not self.whole and not self.exchange.running_usage:
                self.notes.add("usage_misplaced")
            # b7376 and b11549 tell both of one choice, whatever `n`.
            if timed is not None and (not self.whole or found.completion == timed.completion):
                found.slot = timed.slot
        if found is None or not is_full(found):
            for key in EVAL_COUNTS:
                payload.pop(key, None)
        elif found.prompt and found.completion:  # else it may be a constant, and they the counts
            timed = None
        self.pieces.out += [each for each in (found, timed) if each is not None]

    def _timings(self, payload: dict[str, Any], choices: list[Any]) -> Usage | None:
        """Return what a body or last chunk says of its counts in other words, if it does.

        Those of a stream are one choice's; those of a body's several the first one's, since
        llama.cpp adds the others' choices to its answer (b4240 to b11549, `server-context.cpp`).
        """
        last = [x for x in choices if isinstance(x, dict) and x.get("finish_reason")]
        if not (self.whole or last or not choices or self.exchange.enforced):
            return None
        found = from_timings(payload)
        if found is not None and (not self.whole or len(choices) > 1):
            last = last[:1] if self.whole else last
            index = last[0].get("index") if len(last) == 1 else None
            found.slot = index if type(index) is int and index >= 0 else UNNUMBERED
        return found

    def _choices(self, choices: list[Any], payload: dict[str, Any], beside: dict[str, Any]) -> None:
        native = payload.get("completion_probabilities")  # llama.cpp's own key beside `choices`
        if native and len(choices) == 1 and isinstance(choices[0], dict):
            self.notes.add("logprobs_native_probabilities")
            choices = [{**choices[0], "logprobs": native}]
        if not self.context.probabilities:
            self.context.probabilities = any(
                holds_probabilities(x.get("logprobs")) for x in choices if isinstance(x, dict)
            )
        for index, choice in self._number(choices):
            if not self.pieces.ended:
                self._choice(index, choice, beside)

    def _number(self, choices: list[Any]) -> list[tuple[int, dict[str, Any]]]:
        """Return the choices with their numbers: their own, else their places in the list.

        In a body a number that repeats or is missing leaves nothing but the places.
        """
        found: list[tuple[int | None, dict[str, Any]]] = []
        for choice in choices:
            if isinstance(choice, dict):
                found.append((self._index(choice.get("index")), choice))
            else:
                self.notes.drop("choices")
        numbers = [number for number, _ in found]
        if self.whole and (None in numbers or len({*numbers}) < len(numbers)):
            if None not in numbers:
                self.notes.add("choice_index_repeated")
            return [(place, choice) for place, (_, choice) in enumerate(found)]
        numbered = [
            (place if number is None else number, choice)
            for place, (number, choice) in enumerate(found)
        ]
        return sorted(numbered, key=lambda pair: pair[0]) if self.whole else numbered

    def _index(self, given: Any) -> int | None:
        """Return a choice's index; text and a float count by value."""
        value = digits(given)
        if isinstance(given, float) and 0 <= given < 1e6 and given == int(given):
            value = int(given)
        if value is not None:
            self.notes.add("choice_index_text")
            return value
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            self.notes.add("choice_index_missing")
            return None
        return given

    def _choice(self, index: int, choice: dict[str, Any], beside: dict[str, Any]) -> None:
        part, apart = self._part(choice)
        for key, ids in token_ids_renamed(choice, part, self.context).items():
            self.pieces.extra("choice", index, key, ids)
        if self.text and not self.whole:
            part = without_end_token(part, choice.get("finish_reason"), self.context)
        given, unknown = self._reason(choice, part, beside)
        text = content_text(part.get("content"), self.context)
        refusal = part.get("refusal") or refusal_in(part.get("content"))
        lp = self._logprobs(choice, text)
        rows = self._rows(part)
        if self.text:
            text, lp = self._new_entries(index, choice, text, lp, given is not None or unknown)
        else:
            self.pieces.role(index, part.get("role", UNSET))
            self._message(part, text, bool(rows))
        refused = refusal if isinstance(refusal, str) else ""
        said: Said = (self._reasoning(part), text, refused, rows)
        self._extras(index, choice, part)
        written = self.pieces.written[index]
        closing = apart and (self.closes or "delta" in choice or written.called)
        if apart:
            new = written.take_new(said, whole=self.closes or "delta" in choice)
            if new != said or (rows and written.called):
                self.notes.add("message_repeated")
                said, lp = self._say_before(index, new, lp)
        elif not self.whole:
            written.add(said)
        reason = None if isinstance(given, Failure) else given
        self.pieces.piece(index, *said[:2], lp, *said[2:], reason, unknown=unknown, closing=closing)
        if isinstance(given, Failure):
            self.pieces.fail(given, "finish_reason")

    def _say_before(
        self, index: int, said: Said, lp: Logprobs | None
    ) -> tuple[Said, Logprobs | None]:
        """Emit what a closing message adds, since its entries are of all that was said before too.

        Returns what is left of the message, and its entries.
        """
        if lp is None or not lp.entries or not self.exchange.logprobs:
            return said, None
        lp.late = True
        if any(said):
            self.pieces.piece(index, *said[:2], None, *said[2:], None, closing=True)
        return ("", "", "", []), lp

    def _reason(
        self, choice: dict[str, Any], part: dict[str, Any], beside: dict[str, Any]
    ) -> tuple[Reason | Failure | None, bool]:
        """Return a choice's reason, wherever it stands, and whether it has one nobody knows."""
        before = self.notes.counts.get("finish_reason_unknown", 0)
        if "finish_reason" not in choice:
            self.notes.add("finish_reason_absent")
        given = finish_reason(choice.pop("finish_reason", None), self.context)
        silent = given is None and self.notes.counts.get("finish_reason_unknown", 0) == before
        for holder in (choice, part, beside) if silent else ():
            given = given or elsewhere(holder, self.context)
        return given, self.notes.counts.get("finish_reason_unknown", 0) > before

    def _part(self, choice: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return a choice's message or delta, and whether it is a message in a stream."""
        wanted, other = ("message", "delta") if self.whole else ("delta", "message")
        if self.text and isinstance(choice.get("text"), str):
            return {"content": choice.get("text")}, False
        part, second = choice.get(wanted), choice.get(other)
        if not isinstance(part, dict) or isinstance(second, dict):
            self.notes.add("choice_part_misnamed")
        if isinstance(second, dict) and not (isinstance(part, dict) and _says(part)):
            return dict(second), not self.whole
        if not isinstance(part, dict):
            part = {"content": choice.get("text")}
        return dict(part), False

    def _logprobs(self, choice: dict[str, Any], text: str) -> Logprobs | None:
        given = choice.get("logprobs")
        if "logprobs" not in choice:
            self.notes.add("logprobs_key_missing")
        if given is None:
            return None
        if not (self.exchange.logprobs or self.context.ids):
            self.notes.add("logprobs_unasked")
            return None
        chat = isinstance(given, dict) and "content" in given and not self.text
        if chat and "refusal" not in given:
            self.notes.add("logprobs_refusal_missing")
        found = logprobs(given, text, self.context)
        if found and self.text:
            undo_bytes(found[0])
        return self.pieces.settle_entries(*found) if found else None

    def _new_entries(
        self, index: int, choice: dict[str, Any], text: str, lp: Logprobs | None, ends: bool
    ) -> tuple[str, Logprobs | None]:
        """Return what a completions chunk adds of text and entries."""
        given = choice.get("logprobs")
        found = given.get("text_offset") if isinstance(given, dict) else None
        if lp is not None and lp.entries and isinstance(given, dict) and "text_offset" in given:
            offsets(self.pieces, index, found)
        if ends and lp is not None and is_all_again(self.pieces, index, text, lp, found):
            text = ""
        return text, drop_repeated(self.pieces, index, text, lp)

    def _rows(self, part: dict[str, Any]) -> list[Row]:
        if part.get("tool_calls", 0) is None or part.get("function_call", 0) is None:
            self.notes.add("null_key_omitted")
        rows = tool_calls(part.get("tool_calls"), self.context)
        if self.whole:
            if any(row[0] is not None for row in rows):
                self.notes.add("tool_call_index_in_body")
            rows = [(n, *row[1:]) for n, row in enumerate(rows)]
        call = part.get("function_call")
        if isinstance(call, dict):
            rows.append((FUNCTION_CALL, *tool_call({"function": call}, self.context)[1:]))
        return rows

    def _message(self, part: dict[str, Any], text: str, called: bool) -> None:
        if not self.whole:
            return
        if "refusal" not in part:
            self.notes.add("refusal_missing")
        if part.get("content") is None and not called and not part.get("refusal"):
            self.notes.add("content_null")

    def _reasoning(self, part: dict[str, Any]) -> str:
        if any(part.get(key, 0) is None for key in REASONING):
            self.notes.add("null_key_omitted")
        found, key = reasoning_in(part)
        if key not in ("", "reasoning_content"):
            self.notes.add("reasoning_renamed")
        if found and not self.exchange.keeps("reasoning_content"):
            self.notes.drop("reasoning_content")  # the writer leaves it out
        return found

    def _extras(self, index: int, choice: dict[str, Any], part: dict[str, Any]) -> None:
        for key, value in choice.items():
            if key not in _CHOICE:
                self._extra("choice", index, key, value)
        for key, value in part.items():
            if key not in _PART and key not in REASONING:
                self.pieces.extra("message", index, key, raw(value))

    def _extra(self, where: Where, index: int | None, key: str, value: Any) -> None:
        """Hand on an extra of an answer or choice; a message's own key there is none."""
        if key not in _MESSAGES:
            self.pieces.extra(where, index, key, raw(value))
        elif value not in (None, "", []):
            self.notes.drop(key)

    def _no_choices(self, payload: Any) -> None:
        given = payload.get("usage") if isinstance(payload, dict) else None
        found = None if self.whole else usage(given, self.context)
        if found is not None:
            self.notes.add("choices_missing")
            self.pieces.out.append(found)
        elif not self.whole and (payload is None or payload == ""):
            self.notes.add("chunk_null")
        elif self.whole or not isinstance(payload, dict):
            self.pieces.refuse('it has no "choices"')
        else:
            self.notes.add("chunk_without_choices")
            self.notes.drop("chunk")
