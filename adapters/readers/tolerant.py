"""The tolerant path: any JSON that stands for a chat completion or chunk, repaired by name.

Each field has its own repair; a field that is absent is what the contract says of absence; a key
that nobody knows is an extra. What comes out goes to the same `Pieces` as the strict path's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from wellspoken.adapters.events import Fault, Logprobs, Usage
from wellspoken.adapters.lenient import raw
from wellspoken.adapters.repairs import errors
from wellspoken.adapters.repairs.envelope import content_text
from wellspoken.adapters.repairs.finish import FAILURES, Failure, finish_reason
from wellspoken.adapters.repairs.finish import finish_reason_elsewhere as elsewhere
from wellspoken.adapters.repairs.logprobs import holds_probabilities, logprobs
from wellspoken.adapters.repairs.tools import Row, tool_call, tool_calls
from wellspoken.adapters.repairs.usage import usage

if TYPE_CHECKING:
    from wellspoken.adapters.readers.near_openai import NearOpenAI

_ENVELOPE = frozenset(
    ("id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier")
)
_CHOICE = frozenset(("index", "delta", "message", "text", "logprobs", "finish_reason"))
_PART = frozenset(("role", "content", "refusal", "tool_calls", "function_call"))
REASONING = ("reasoning_content", "reasoning", "thinking", "reasoning_text")
"""Names of the reasoning: DeepSeek and most, vLLM >= 0.16, Ollama, others."""


class _Envelope:
    __slots__ = ("created", "id", "model", "system_fingerprint")

    def __init__(self, payload: dict[str, Any]) -> None:
        given, model = payload.get("id"), payload.get("model")
        fingerprint = payload.get("system_fingerprint")
        self.id = given if isinstance(given, str) else ""
        self.created = payload.get("created")
        self.model = model if isinstance(model, str) else ""
        self.system_fingerprint = fingerprint if isinstance(fingerprint, str) else None


class Tolerant:
    """The tolerant path of one answer, feeding its reader."""

    def __init__(self, reader: NearOpenAI) -> None:
        self.reader = reader
        self.pieces = reader.pieces
        self.whole = reader.pieces.whole
        self.context = reader.context
        self.notes = reader.notes

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
            self._fault('its "choices" is an empty list')
            return
        self._envelope(payload)
        found = self._usage(payload.get("usage"))
        if found is not None:
            if choices and not self.whole:
                self.notes.add("usage_misplaced")
            self.pieces.out.append(found)
        for key, value in payload.items():
            if key not in _ENVELOPE and key != "completion_probabilities":
                self.pieces.extra("answer", None, key, raw(value))
        self._choices(choices, payload)

    def _envelope(self, payload: dict[str, Any]) -> None:
        wanted = "chat.completion" if self.whole else "chat.completion.chunk"
        if payload.get("object") != wanted:
            self.notes.add("object_wrong")
        if payload.get("system_fingerprint", "") is None:
            self.notes.add("null_key_omitted")
        self.reader._tier(payload.get("service_tier", UNSET))
        self.reader._begin(_Envelope(payload))

    def _usage(self, given: Any) -> Usage | None:
        return usage(given, self.context)

    def _choices(self, choices: list[Any], payload: dict[str, Any]) -> None:
        native = payload.get("completion_probabilities")  # llama.cpp's own key beside `choices`
        if native and len(choices) == 1 and isinstance(choices[0], dict):
            self.notes.add("logprobs_native_probabilities")
            choices = [{**choices[0], "logprobs": native}]
        if not self.context.probabilities:
            self.context.probabilities = any(
                holds_probabilities(x.get("logprobs")) for x in choices if isinstance(x, dict)
            )
        indexed = []
        for position, choice in enumerate(choices):
            if not isinstance(choice, dict):
                self.notes.dropped("choices")
                continue
            index = choice.get("index")
            if isinstance(index, bool) or not isinstance(index, int) or index < 0:
                self.notes.add("choice_index_missing")
                index = position
            indexed.append((index, choice))
        if self.whole:
            indexed.sort(key=lambda pair: pair[0])
        for index, choice in indexed:
            if not self.reader.ended:
                self._choice(index, choice)

    def _choice(self, index: int, choice: dict[str, Any]) -> None:
        choice = dict(choice)
        part = self._part(choice)
        before = self.notes.counts.get("finish_reason_unknown", 0)
        given = finish_reason(choice.get("finish_reason"), self.context)
        reason = None if isinstance(given, Failure) else given
        if "finish_reason" not in choice:
            self.notes.add("finish_reason_absent")
            reason = elsewhere(choice, self.context)
        unknown = self.notes.counts.get("finish_reason_unknown", 0) > before
        text = content_text(part.get("content"), self.context)
        refusal = part.get("refusal")
        lp = self._logprobs(choice, text)
        rows = self._rows(part)
        self.pieces.role(index, part.get("role", UNSET))
        self._message(part, text, bool(rows))
        reasoning = self._reasoning(part)
        self._extras(index, choice, part)
        self.pieces.piece(
            index,
            reasoning,
            text,
            lp,
            refusal if isinstance(refusal, str) else "",
            rows,
            reason,
            unknown=unknown,
        )
        if isinstance(given, Failure):
            self._failed(given)

    def _part(self, choice: dict[str, Any]) -> dict[str, Any]:
        wanted, other = ("message", "delta") if self.whole else ("delta", "message")
        part = choice.get(wanted)
        if not isinstance(part, dict):
            self.notes.add("choice_part_misnamed")
            part = choice.get(other)
        if not isinstance(part, dict):
            part = {"content": choice.get("text")}
        return part

    def _failed(self, reason: Failure) -> None:
        self.notes.add(f"finish_reason_{reason}")
        self.reader._fault(
            Fault(
                502,
                f'The answer is not usable: {FAILURES[reason]} (finish_reason "{reason}"). Try '
                "again; if it repeats, see the backend's log.",
                code=f"upstream_{reason}",
                retry=False if reason == "parse_error" else None,
            )
        )

    def _logprobs(self, choice: dict[str, Any], text: str) -> Logprobs | None:
        given = choice.get("logprobs")
        if "logprobs" not in choice:
            self.notes.add("logprobs_key_missing")
        if given is None:
            return None
        if not self.reader.exchange.logprobs:
            self.notes.add("logprobs_unasked")
            return None
        if isinstance(given, dict) and "content" in given and "refusal" not in given:
            self.notes.add("logprobs_refusal_missing")
        found = logprobs(given, text, self.context)
        return self.pieces.settled(*found) if found else None

    def _rows(self, part: dict[str, Any]) -> list[Row]:
        if part.get("tool_calls", 0) is None or part.get("function_call", 0) is None:
            self.notes.add("null_key_omitted")
        rows = tool_calls(part.get("tool_calls"), self.context)
        if self.whole:
            rows = [(n, *row[1:]) for n, row in enumerate(rows)]
        call = part.get("function_call")
        if isinstance(call, dict):
            if not self.reader.exchange.functions:
                self.notes.add("function_call_renamed")
            rows.append((len(rows) if self.whole else None, *tool_call(call, self.context)[1:]))
        return rows

    def _message(self, part: dict[str, Any], text: str, called: bool) -> None:
        if not self.whole:
            return
        if "refusal" not in part:
            self.notes.add("refusal_missing")
        if not isinstance(part.get("content"), str) and not called and not part.get("refusal"):
            self.notes.add("content_null")

    def _reasoning(self, part: dict[str, Any]) -> str:
        given = [(key, part[key]) for key in REASONING if key in part]
        if any(value is None for _, value in given):
            self.notes.add("null_key_omitted")
        key, found = next(
            ((key, value) for key, value in given if isinstance(value, str) and value), ("", "")
        )
        if key not in ("", "reasoning_content"):
            self.notes.add("reasoning_renamed")
        if found and not self.reader.exchange.keeps("reasoning_content"):
            self.notes.dropped("reasoning_content")
            return ""
        return found

    def _extras(self, index: int, choice: dict[str, Any], part: dict[str, Any]) -> None:
        for key, value in choice.items():
            if key not in _CHOICE:
                self.pieces.extra("choice", index, key, raw(value))
        for key, value in part.items():
            if key not in _PART and key not in REASONING:
                self.pieces.extra("message", index, key, raw(value))

    def _no_choices(self, payload: Any) -> None:
        found = self._usage(payload.get("usage")) if isinstance(payload, dict) else None
        if found is not None and not self.whole:
            self.notes.add("choices_missing")
            self.pieces.out.append(found)
        elif self.whole or not isinstance(payload, dict):
            self._fault('it has no "choices"')
        else:
            self.notes.add("chunk_without_choices")
            self.notes.dropped("chunk")

    def _fault(self, why: str) -> None:
        self.reader._fault(errors.no_completion(why))
