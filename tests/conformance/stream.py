"""The check of a chat stream: framing, chunks, and the answer they amount to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conformance.body import check_choice
from tests.conformance.logprobs import check_logprobs
from tests.conformance.model import Facts, Report, Request, Violation
from tests.conformance.shape import (
    REASONS,
    Chunk,
    Stream,
    check_chunks,
    check_keys,
    check_omitted,
    is_int,
    is_text,
)
from tests.fold import finished, fold_choice

TOP = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint",
                 "service_tier", "obfuscation"})  # fmt: skip
CHOICE = frozenset({"index", "delta", "logprobs", "finish_reason"})
DELTA = frozenset({"role", "content", "refusal", "tool_calls", "function_call"})
WHOLE = frozenset({"1.calls", "7.count", "7.missing", "7.numbers", "7.offered", "7.tiling",
                   "8.text", "stop"})  # fmt: skip
CONSTANT = ("id", "created", "model", "system_fingerprint", "service_tier")
CHUNK = Chunk("chat.completion.chunk", TOP, CONSTANT)


@dataclass
class Choice:
    """What has come of one choice."""

    role_content: str | None = None
    opened: bool = False  # something came after the role
    finish: str | None = None
    calls: int = -1
    call_ids: list[str] = field(default_factory=list)


@dataclass
class State(Stream):
    """What has come of one stream, its choices with it."""

    choices: dict[int, Choice] = field(default_factory=dict)
    folded: dict[int, dict[str, Any]] = field(default_factory=dict)


def check_stream(data: bytes, request: Request, facts: Facts | None = None) -> list[Violation]:
    """Check a whole stream; it ends in [DONE], or in an error event without it."""
    report = Report()
    state = State(request, facts, report)
    if check_chunks(data, CHUNK, state, lambda choice, at: _choice(choice, at, state)):
        _end(state)
    return report.found


def _choice(choice: dict[str, Any], event: str, state: State) -> None:
    """Check one choice of one chunk."""
    report, request = state.report, state.request
    index: Any = choice.get("index")
    if not report.check(is_int(index), "5.index", event, index):
        state.broken = True
        return
    at = f"{event} choice {index}"
    check_keys(choice, CHOICE, request, report, at)
    report.check("logprobs" in choice, "7.present", at, "logprobs")
    report.check("finish_reason" in choice, "1.present", at, "finish_reason")
    delta: Any = choice.get("delta")
    if not report.check(isinstance(delta, dict), "types", at, "delta"):
        state.broken = True
        return
    if index not in state.choices:
        report.check(index == len(state.choices), "5.order", at, index)
        state.choices[index] = Choice()
        _role(delta, state.choices[index], at, state)
    else:
        report.check("role" not in delta, "3.repeat", at, delta.get("role"))
    seen = state.choices[index]
    report.check(seen.finish is None, "1.once", at, "after the choice's end")
    _delta(delta, seen, f"{at} delta", state)
    if "content" in delta and "role" not in delta and choice.get("logprobs"):
        seen.opened = True  # an empty content, which is there for its entries
    _reason(choice, delta, seen, at, state)
    texts = {key: delta.get(key) for key in ("content", "refusal")}
    if all(text is None or isinstance(text, str) for text in texts.values()):
        _chunk_logprobs(choice.get("logprobs"), texts, at, state)
        state.broken = state.broken or not _foldable(choice.get("logprobs"))
        if not state.broken:
            fold_choice(state.folded, choice)
    else:
        report.add("types", at, "a text is not a string")
        state.broken = True


def _role(delta: dict[str, Any], seen: Choice, at: str, state: State) -> None:
    """Check the first delta: the role, its content and the refusal key, and at most a call."""
    report = state.report
    form = {"role", "content", "refusal"}
    extra = delta.keys() - form - {"tool_calls", "function_call"} - state.request.keep
    fine = form <= delta.keys() and delta.get("role") == "assistant"
    if not fine or (extra and state.request.extensions != "all"):
        report.add("3.first", at, delta)
        return
    report.check(delta["content"] in ("", None), "3.first", at, "text beside the role")
    report.check(delta["refusal"] is None, "3.first", at, "refusal beside the role")
    seen.role_content = "null" if delta["content"] is None else "text"


def _delta(delta: dict[str, Any], seen: Choice, at: str, state: State) -> None:
    """Check what a delta says, and how the choice opens."""
    report = state.report
    check_keys(delta, DELTA, state.request, report, at)
    check_omitted(delta, ("tool_calls", "function_call", "reasoning_content"), report, at)
    if "role" not in delta:
        check_omitted(delta, ("content", "refusal"), report, at)
        report.check(delta.get("refusal") != "", "8.refusal", at, "empty refusal")
    call = bool(delta.get("tool_calls") or delta.get("function_call"))
    said = call or any(delta.get(k) for k in ("content", "refusal", "reasoning_content"))
    if said and not seen.opened:
        seen.opened = True
        if seen.role_content is not None and not delta.get("refusal"):
            report.check(call == (seen.role_content == "null"), "3.null", at, delta)
    _calls(delta.get("tool_calls"), seen, at, state)
    if delta.get("function_call") is not None:
        function = delta["function_call"]
        sound = isinstance(function, dict) and isinstance(function.get("arguments"), str)
        if not report.check(sound, "4.arguments", at, function):
            state.broken = True


def _calls(calls: Any, seen: Choice, at: str, state: State) -> None:
    """Check a delta's tool calls."""
    if calls is None:
        return
    report = state.report
    if not report.check(isinstance(calls, list), "types", at, "tool_calls is not a list"):
        state.broken = True
        return
    for call in calls:
        function: Any = call.get("function") if isinstance(call, dict) else None
        if not report.check(isinstance(function, dict), "types", at, "call"):
            state.broken = True
            continue
        index = call.get("index")
        next_one = is_int(index) and index >= 0 and index in (seen.calls, seen.calls + 1)
        if not report.check(next_one, "4.index", at, index):
            state.broken = True
            continue
        if index > seen.calls:
            seen.calls = index
            whole = {"index", "id", "type", "function"}
            sound = call.keys() == whole and call.get("type") == "function"
            report.check(sound and is_text(function.get("name")), "4.open", at, call)
            fresh = is_text(call.get("id")) and call["id"] not in seen.call_ids
            report.check(fresh, "4.id", at, call.get("id"))
            seen.call_ids.append(str(call.get("id")))
        else:
            again = call.keys() == {"index", "function"} and "name" not in function
            report.check(again, "4.open", at, call)
        report.check(function.keys() <= {"name", "arguments"}, "keys", at, sorted(function))
        if not report.check(isinstance(function.get("arguments"), str), "4.arguments", at, call):
            state.broken = True


def _reason(
    choice: dict[str, Any], delta: dict[str, Any], seen: Choice, at: str, state: State
) -> None:
    """Check that a reason ends the choice on an empty delta."""
    reason = choice.get("finish_reason")
    if reason is None:
        return
    if not isinstance(reason, str) or reason not in REASONS:
        state.report.add("1.enum", at, reason)
        state.broken = True
        return
    state.report.check(not delta, "1.empty_delta", at, delta)
    state.report.check(choice.get("logprobs") is None, "1.empty_delta", at, "logprobs")
    if seen.finish is None:
        seen.finish = reason


def _chunk_logprobs(logprobs: Any, texts: dict[str, Any], at: str, state: State) -> None:
    """Check a chunk's entries against its own text, in the terms of rule 7.chunk."""
    own = Report()
    check_logprobs(logprobs, texts["content"] or "", texts["refusal"], state.request, own, at)
    for found in own.found:
        rule = "7.chunk" if found.rule == "7.tiling" else found.rule
        state.report.add(rule, found.where, found.detail)


def _foldable(logprobs: Any) -> bool:
    """Say whether a chunk's logprobs are lists, at least."""
    if logprobs is None:
        return True
    if not isinstance(logprobs, dict):
        return False
    lists = (logprobs.get("content"), logprobs.get("refusal"))
    return all(part is None or isinstance(part, list) for part in lists)


def _end(state: State) -> None:
    """Check what only the whole stream shows."""
    report, request = state.report, state.request
    report.check(len(state.choices) == request.n, "5.count", "stream", len(state.choices))
    for index, seen in state.choices.items():
        report.check(seen.finish is not None, "1.once", f"choice {index}", "no finish_reason")
        empty = seen.role_content == "null" and not seen.opened
        report.check(not empty, "3.null", f"choice {index}", "null, and no call came")
    if state.broken:
        return
    for index, folded in state.folded.items():
        choice = finished(folded)
        choice["finish_reason"] = state.choices[index].finish or "stop"
        whole = Report()
        known = None if state.facts is None else state.facts.choices.get(index)
        check_choice(choice, request, known, whole, f"choice {index}")
        # the rest was said of each chunk
        report.found += [v for v in whole.found if v.rule in WHOLE]
