"""The check of a chat.completion body, and of a choice as a whole."""

from __future__ import annotations

from typing import Any

from tests.conformance.logprobs import check_facts, check_logprobs
from tests.conformance.model import ChoiceFacts, Facts, Report, Request, Violation
from tests.conformance.shape import (
    check_envelope,
    check_keys,
    check_message,
    check_reason,
    check_usage,
    is_int,
)
from tests.conformance.wire import load_object

TOP = frozenset(
    {"id", "object", "created", "model", "choices", "usage", "system_fingerprint", "service_tier"}
)
CHOICE = frozenset({"index", "message", "logprobs", "finish_reason"})


def check_body(data: bytes, request: Request, facts: Facts | None = None) -> list[Violation]:
    """Check a chat.completion body against every rule that a body can break."""
    report = Report()
    body = load_object(data, report, "body")
    if body is None:
        return report.found
    check_keys(body, TOP, request, report, "answer")
    check_envelope(body, "chat.completion", request, facts, report)
    if report.check(body.get("usage") is not None, "10.present", "answer", "no usage"):
        check_usage(body["usage"], request, facts, report, "usage")
    choices: Any = body.get("choices")
    if not report.check(isinstance(choices, list), "types", "answer", "choices"):
        return report.found
    report.check(len(choices) == request.n, "5.count", "answer", f"{len(choices)}, {request.n}")
    for place, choice in enumerate(choices):
        at = f"choices[{place}]"
        if not report.check(isinstance(choice, dict), "types", at, "not an object"):
            continue
        index = choice.get("index")
        report.check(is_int(index), "5.index", at, index)
        report.check(not is_int(index) or index == place, "5.order", at, index)
        check_keys(choice, CHOICE, request, report, at)
        report.check("logprobs" in choice, "7.present", at, "logprobs")
        report.check("finish_reason" in choice, "1.present", at, "finish_reason")
        message = choice.get("message")
        if report.check(isinstance(message, dict), "types", at, "message"):
            check_message(message, request, report, f"{at}.message")
            known = None if facts is None else facts.choices.get(place)
            check_choice(choice, request, known, report, at)
    return report.found


def check_choice(
    choice: dict[str, Any], request: Request, facts: ChoiceFacts | None, report: Report, at: str
) -> None:
    """Check what a whole choice means: reason, text, logprobs. Its message is an object."""
    message = choice["message"]
    called = bool(message.get("tool_calls") or message.get("function_call"))
    if "finish_reason" in choice:
        check_reason(choice["finish_reason"], called, request, report, at)
    content = message.get("content") or ""
    if not isinstance(content, str):
        return
    for stop in request.stops:
        report.check(stop not in content, "stop", at, repr(stop))
    logprobs = choice.get("logprobs")
    refusal = message.get("refusal")
    check_logprobs(logprobs, content, refusal, request, report, f"{at}.logprobs")
    if facts is None:
        return
    if facts.text is not None:
        report.check(content == facts.text, "8.text", at, f"{content!r}, not {facts.text!r}")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if request.logprobs and (entries is None or all(isinstance(e, dict) for e in entries)):
        place = f"{at}.logprobs.content"
        check_facts(entries, facts, request.k, report, place, empty=not content)
