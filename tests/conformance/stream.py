"""The check of a chat stream: framing, chunks, and the answer they amount to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.conformance.body import check_choice
from tests.conformance.logprobs import check_logprobs
from tests.conformance.model import Facts, Report, Request, Violation
from tests.conformance.shape import (
    REASONS,
    check_envelope,
    check_error_object,
    check_keys,
    check_omitted,
    check_usage,
    is_int,
    is_text,
)
from tests.conformance.wire import frames, load_object
from tests.fold import finished, fold_choice

TOP = frozenset({"id", "object", "created", "model", "choices", "usage", "system_fingerprint",
                 "service_tier", "obfuscation"})  # fmt: skip
CHOICE = frozenset({"index", "delta", "logprobs", "finish_reason"})
DELTA = frozenset({"role", "content", "refusal", "tool_calls", "function_call"})
WHOLE = frozenset({"1.calls", "7.count", "7.missing", "7.numbers", "7.offered", "7.tiling",
                   "8.text", "stop"})  # fmt: skip
CONSTANT = ("id", "created", "model", "system_fingerprint", "service_tier")


@dataclass
class Choice:
    """What has come of one choice."""

    role_content: str | None = None
    opened: bool = False  # something came after the role
    finish: str | None = None
    calls: int = -1
    call_ids: list[str] = field(default_factory=list)


@dataclass
class State:
    """What has come of one stream."""

    request: Request
    facts: Facts | None
    report: Report
    constant: dict[str, Any] = field(default_factory=dict)
    choices: dict[int, Choice] = field(default_factory=dict)
    folded: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage_at: int | None = None
    failed: bool = False
    broken: bool = False  # too wrong to be folded


def check_stream(data: bytes, request: Request, facts: Facts | None = None) -> list[Violation]:
    """Check a whole stream; it ends in [DONE], or in an error event without it."""
    report = Report()
    state = State(request, facts, report)
    payloads = frames(data, report)
    done = [n for n, payload in enumerate(payloads) if payload == b"[DONE]"]
    for n, payload in enumerate(payloads):
        if payload == b"[DONE]":
            continue
        at = f"event {n}"
        if state.failed:
            report.add("12.done", at, "after the error event")
        chunk = load_object(payload, report, at)
        if chunk is None:
            state.broken = True
        elif "error" in chunk:
            check_error_object(chunk, report, at)
            state.failed = True
        else:
            _chunk(chunk, n, state)
    if state.failed:
        report.check(not done, "12.done", "stream", "[DONE] after an error")
    else:
        report.check(done == [len(payloads) - 1], "11.done", "stream", f"[DONE] at {done}")
        _end(state)
    return report.found


def _chunk(chunk: dict[str, Any], n: int, state: State) -> None:
    """Check one chunk: envelope, usage, choices."""
    report, at = state.report, f"event {n}"
    check_keys(chunk, TOP, state.request, report, at)
    check_envelope(chunk, "chat.completion.chunk", state.request, state.facts, report)
    for key in CONSTANT:
        value = chunk.get(key)
        same = state.constant.setdefault(key, value) == value if value is not None else True
        report.check(same, "6.constant", at, f"{key} {value!r}")
    choices: Any = chunk.get("choices")
    if not report.check(isinstance(choices, list), "types", at, "choices"):
        state.broken = True
        return
    _usage(chunk, choices, n, state)
    for choice in choices:
        if report.check(isinstance(choice, dict), "types", at, "choice is not an object"):
            _choice(choice, at, state)
        else:
            state.broken = True


def _usage(chunk: dict[str, Any], choices: list[Any], n: int, state: State) -> None:
    """Check where usage is: nowhere, or null and then on a last chunk of its own."""
    report, at = state.report, f"event {n}"
    if state.usage_at is not None:
        report.add("10.last", at, "a chunk after the usage chunk")
    if not state.request.include_usage:
        report.check("usage" not in chunk, "10.unasked", at, chunk.get("usage"))
        report.check(bool(choices), "10.unasked", at, "a chunk without choices")
        return
    usage = chunk.get("usage")
    if usage is None:
        report.check("usage" in chunk, "10.null", at, "no usage key")
        report.check(bool(choices), "10.last", at, "no choices and no usage")
        return
    if choices:
        report.add("10.last", at, "usage beside choices")
        return
    state.usage_at = n
    check_usage(usage, state.request, state.facts, report, at)


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
    if request.include_usage:
        report.check(state.usage_at is not None, "10.last", "stream", "no usage chunk")
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
