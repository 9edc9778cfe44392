"""The objects around the text: keys, envelope, messages, calls, usage, errors, chunks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.model import Facts, Report, Request, Violation
from tests.conformance.wire import frames, load_object

REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
TIERS = frozenset({"auto", "default", "flex", "scale", "priority", "fast"})
# key -> the request switch that names it (contract, Extensions)
SWITCHED = {
    "prompt_logprobs": ("prompt_logprobs",),
    "prompt_token_ids": ("return_token_ids", "return_tokens_as_token_ids"),
    "token_ids": ("return_token_ids", "return_tokens_as_token_ids"),
    "timings": ("timings", "timings_per_token"),
    "prompt_progress": ("return_progress",),
}
PROMPT_DETAILS = frozenset(
    {"audio_tokens", "cached_tokens", "cache_write_tokens", "image_tokens", "text_tokens"}
)
COMPLETION_DETAILS = frozenset(
    {
        "accepted_prediction_tokens",
        "audio_tokens",
        "reasoning_tokens",
        "rejected_prediction_tokens",
        "text_tokens",
    }
)
_ID = re.compile(r"chatcmpl-[\x21-\x7e]{8,}")
_TEXT_ID = re.compile(r"cmpl-[\x21-\x7e]{8,}")
_OVERFLOW = re.compile(
    r"maximum context length|exceeds? the (available|maximum|model'?s?) context|"
    r"context (length|window|size) exceeded|exceeds? the context (length|window|size)"
)


def is_int(value: object) -> bool:
    """Say whether a JSON value is a whole number, which true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_text(value: object) -> bool:
    """Say whether a JSON value is a string with something in it."""
    return isinstance(value, str) and bool(value)


def check_keys(
    found: dict[str, Any], spec: frozenset[str], request: Request, report: Report, where: str
) -> None:
    """Refuse keys outside `spec` which the request's extensions do not allow."""
    if request.extensions == "all":
        return
    for key in found.keys() - spec - request.keep:
        known = request.extensions == "known"
        if known and any(switch in request.switches for switch in SWITCHED.get(key, ())):
            report.check(found[key] is not None, "keys", where, f"{key} null")
            continue
        if known and key == "reasoning_content" and where.endswith(("message", "delta")):
            report.check(is_text(found[key]), "types", where, "reasoning_content not a text")
            continue
        report.add("keys", where, key)


def check_omitted(found: dict[str, Any], keys: tuple[str, ...], report: Report, where: str) -> None:
    """Refuse null (and an empty list of calls) where the key should be left out."""
    for key in keys:
        if key in found and (found[key] is None or (key == "tool_calls" and found[key] == [])):
            report.add("9.null", where, key)


def check_envelope(
    answer: dict[str, Any], kind: str, request: Request, facts: Facts | None, report: Report
) -> None:
    """Check id, created, model, object and the optional keys beside them."""
    where = "answer"
    got = answer.get("id")
    text = kind == "text_completion"
    form = _TEXT_ID if text else _ID
    report.check(isinstance(got, str) and bool(form.fullmatch(got)), "6.id", where, got)
    own = None if facts is None else facts.id
    if own is not None and text:  # llama.cpp gives a completion a chat's id
        own = own.removeprefix("chat")
    if own is not None and form.fullmatch(own):
        report.check(got == own, "6.id", where, f"the backend's own was {own}")
    created = answer.get("created")
    epoch = is_int(created) and isinstance(created, int) and 10**9 <= created <= 10**11
    report.check(epoch, "6.created", where, created)
    model = answer.get("model")
    asked = is_text(model) and (request.model is None or model == request.model)
    report.check(asked, "6.model", where, model)
    report.check(answer.get("object") == kind, "6.object", where, answer.get("object"))
    check_omitted(answer, ("system_fingerprint", "service_tier"), report, where)
    fingerprint = answer.get("system_fingerprint")
    report.check(fingerprint is None or is_text(fingerprint), "types", where, "system_fingerprint")
    tier = answer.get("service_tier")
    report.check(tier is None or tier in TIERS, "types", where, f"service_tier {tier}")
    if tier is not None and not request.service_tier:
        report.add("keys", where, "service_tier although none was asked for")


def check_reason(reason: object, called: bool, request: Request, report: Report, at: str) -> None:
    """Check one finish reason against the enum and against what the choice holds."""
    if not report.check(isinstance(reason, str) and reason in REASONS, "1.enum", at, reason):
        return
    if called:
        wrong = reason == "stop" and not request.forced_tool
    else:
        wrong = reason in ("tool_calls", "function_call")
    report.check(not wrong, "1.calls", at, f"{reason}, called: {called}")


def check_message(message: dict[str, Any], request: Request, report: Report, at: str) -> None:
    """Check a body's message: keys, role, content, refusal, calls."""
    spec = {"role", "content", "refusal", "tool_calls", "function_call", "annotations", "audio"}
    check_keys(message, frozenset(spec), request, report, at)
    check_omitted(message, ("tool_calls", "function_call", "annotations", "audio"), report, at)
    report.check(message.get("role") == "assistant", "types", at, f"role {message.get('role')}")
    refusal = message.get("refusal")
    shown = "refusal" in message and (refusal is None or is_text(refusal))
    report.check(shown, "8.refusal", at, repr(refusal))
    beside = bool(message.get("tool_calls") or message.get("function_call") or refusal)
    content = message.get("content")
    if content is None:
        report.check("content" in message and beside, "8.content", at, "content null or absent")
    else:
        report.check(isinstance(content, str), "types", at, "content")
    check_calls(message.get("tool_calls"), report, at)
    if message.get("function_call") is not None:
        check_function(message["function_call"], report, f"{at}.function_call")


def check_calls(calls: Any, report: Report, at: str) -> None:
    """Check a body's tool calls; None is no calls."""
    if calls is None:
        return
    if not report.check(isinstance(calls, list), "types", at, "tool_calls is not a list"):
        return
    ids: list[str] = []
    for n, call in enumerate(calls):
        where = f"{at}.tool_calls[{n}]"
        if not report.check(isinstance(call, dict), "types", where, "not an object"):
            continue
        report.check(call.keys() == {"id", "type", "function"}, "4.open", where, sorted(call))
        report.check(call.get("type") == "function", "4.open", where, call.get("type"))
        report.check(is_text(call.get("id")), "4.id", where, call.get("id"))
        ids.append(str(call.get("id")))
        check_function(call.get("function"), report, where)
    report.check(len(set(ids)) == len(ids), "4.id", at, ids)


def check_function(function: Any, report: Report, at: str) -> None:
    """Check a whole call's function: a name, and arguments as a string."""
    if not report.check(isinstance(function, dict), "types", at, "function is not an object"):
        return
    report.check(function.keys() <= {"name", "arguments"}, "keys", at, sorted(function))
    report.check(is_text(function.get("name")), "4.open", at, f"name {function.get('name')!r}")
    report.check(isinstance(function.get("arguments"), str), "4.arguments", at, "no string")


def check_usage(usage: Any, request: Request, facts: Facts | None, report: Report, at: str) -> None:
    """Check one usage object, against the backend's numbers if they are known."""
    if not report.check(isinstance(usage, dict), "types", at, "usage is not an object"):
        return
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    details = {"prompt_tokens_details": PROMPT_DETAILS,
               "completion_tokens_details": COMPLETION_DETAILS}  # fmt: skip
    check_keys(usage, frozenset(counts) | details.keys(), request, report, at)
    check_omitted(usage, tuple(details), report, at)
    prompt, completion, total = (usage.get(key) for key in counts)
    if not all(is_int(v) and v >= 0 for v in (prompt, completion, total)):
        report.add("10.sum", at, usage)
    else:
        report.check(prompt + completion == total, "10.sum", at, usage)
    if facts is not None and facts.usage is not None:
        report.check((prompt, completion) == facts.usage, "10.numbers", at, facts.usage)
    for key, spec in details.items():
        detail = usage.get(key)
        if detail is None:
            continue
        if report.check(isinstance(detail, dict), "types", f"{at}.{key}", "not an object"):
            check_keys(detail, spec, request, report, f"{at}.{key}")
            fine = all(is_int(v) for k, v in detail.items() if k in spec)
            report.check(fine, "types", f"{at}.{key}", detail)


def check_error_object(value: Any, report: Report, at: str) -> None:
    """Check OpenAI's error envelope."""
    if not (isinstance(value, dict) and value.keys() == {"error"}):
        report.add("12.shape", at, "the envelope's only key is error")
        return
    error = value["error"]
    keys = {"message", "type", "param", "code"}
    if not (isinstance(error, dict) and error.keys() == keys):
        report.add("12.shape", at, "keys")
        return
    for key in ("message", "type"):
        report.check(is_text(error[key]), "12.shape", at, f"{key} {error[key]!r}")
    for key in ("param", "code"):
        fine = error[key] is None or isinstance(error[key], str)
        report.check(fine, "12.shape", at, f"{key} {error[key]!r}")
    if isinstance(error["message"], str) and _OVERFLOW.search(error["message"].lower()):
        overflow = error["code"] == "context_length_exceeded"
        report.check(overflow, "12.context", at, error["code"])


def check_error(data: bytes, status: int) -> list[Violation]:
    """Check an error body and its status."""
    report = Report()
    report.check(400 <= status <= 599, "12.status", "status", status)
    value = load_object(data, report, "error")
    if value is not None:
        check_error_object(value, report, "error")
    return report.found


@dataclass(frozen=True)
class Chunk:
    """What the chunks of one endpoint look like: `object`, keys, keys with one value throughout."""

    kind: str
    keys: frozenset[str]
    constant: tuple[str, ...]


@dataclass
class Stream:
    """What has come of one stream, whatever its choices hold."""

    request: Request
    facts: Facts | None
    report: Report
    constant: dict[str, Any] = field(default_factory=dict)
    usage_at: int | None = None
    broken: bool = False  # too wrong to be looked at as a whole


def check_chunks(
    data: bytes, form: Chunk, stream: Stream, check: Callable[[dict[str, Any], str], None]
) -> bool:
    """Check a stream around its choices, each of which `check` gets with its event.

    Say whether it is to be looked at as a whole: it is, unless it ended in an error event.
    """
    report = stream.report
    failed = ended = False
    payloads = frames(data, report)
    done = [n for n, payload in enumerate(payloads) if payload == b"[DONE]"]
    for n, payload in enumerate(payloads):
        if payload == b"[DONE]":
            continue
        at = f"event {n}"
        if failed:
            report.add("12.done", at, "after the error event")
        chunk = load_object(payload, report, at)
        if chunk is None:
            stream.broken = True
        elif "error" in chunk:
            check_error_object(chunk, report, at)
            report.check(not ended, "1.early", at, "an error behind a finish_reason")
            failed = True
        else:
            choices = chunk.get("choices")
            ended = ended or (isinstance(choices, list) and any(map(_has_reason, choices)))
            _chunk(chunk, n, form, stream, check)
    if failed:
        report.check(not done, "12.done", "stream", "[DONE] after an error")
        return False
    report.check(done == [len(payloads) - 1], "11.done", "stream", f"[DONE] at {done}")
    if stream.request.include_usage:
        report.check(stream.usage_at is not None, "10.last", "stream", "no usage chunk")
    return True


def _has_reason(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("finish_reason") is not None


def _chunk(
    chunk: dict[str, Any],
    n: int,
    form: Chunk,
    stream: Stream,
    check: Callable[[dict[str, Any], str], None],
) -> None:
    """Check one chunk: envelope, usage, choices."""
    report, at = stream.report, f"event {n}"
    check_keys(chunk, form.keys, stream.request, report, at)
    check_envelope(chunk, form.kind, stream.request, stream.facts, report)
    for key in form.constant:
        value = chunk.get(key)
        same = stream.constant.setdefault(key, value) == value if value is not None else True
        report.check(same, "6.constant", at, f"{key} {value!r}")
    choices: Any = chunk.get("choices")
    if not report.check(isinstance(choices, list), "types", at, "choices"):
        stream.broken = True
        return
    _usage(chunk, choices, n, stream)
    for choice in choices:
        if report.check(isinstance(choice, dict), "types", at, "choice is not an object"):
            check(choice, at)
        else:
            stream.broken = True


def _usage(chunk: dict[str, Any], choices: list[Any], n: int, stream: Stream) -> None:
    """Check where usage is: nowhere, or null and then on a last chunk of its own."""
    report, at = stream.report, f"event {n}"
    if stream.usage_at is not None:
        report.add("10.last", at, "a chunk after the usage chunk")
    if not stream.request.include_usage:
        report.check("usage" not in chunk, "10.unasked", at, chunk.get("usage"))
        report.check(bool(choices), "10.unasked", at, "a chunk without choices")
        return
    usage = chunk.get("usage")
    if usage is None:
        report.check("usage" in chunk, "10.null", at, "no usage key")
        report.check(bool(choices), "10.last", at, "no choices and no usage")
    elif choices:
        report.add("10.last", at, "usage beside choices")
    else:
        stream.usage_at = n
        check_usage(usage, stream.request, stream.facts, report, at)
