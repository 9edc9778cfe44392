"""The check of a response as a whole: its keys, status, usage, and the items in their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.conformance.logprobs import check_facts
from tests.conformance.model import Facts, Report, Violation
from tests.conformance.responses.echo import check_echo
from tests.conformance.responses.items import asks_logprobs, chat_row, check_item, url_safe
from tests.conformance.responses.rules import RESPONSE_RULES
from tests.conformance.shape import SWITCHED, is_int, is_text
from tests.conformance.wire import load_object

Json = dict[str, Any]
Test = Callable[[Any], bool]


def is_number(value: object) -> bool:
    """Say whether a JSON value is a number."""
    return is_int(value) or isinstance(value, float)


def _or_null(test: Test) -> Test:
    return lambda value: value is None or test(value)


def _is(*types: type) -> Test:
    return lambda value: isinstance(value, types)


REQUIRED: dict[str, Test] = {
    "id": _is(str),
    "object": _is(str),
    "created_at": is_int,
    "completed_at": _or_null(is_int),
    "status": _is(str),
    "incomplete_details": _or_null(_is(dict)),
    "model": is_text,
    "previous_response_id": _or_null(is_text),
    "instructions": _or_null(_is(str, list)),
    "output": _is(list),
    "error": _or_null(_is(dict)),
    "tools": _is(list),
    "tool_choice": _is(str, dict),
    "truncation": lambda value: value in ("auto", "disabled"),
    "parallel_tool_calls": _is(bool),
    "text": _is(dict),
    "top_p": is_number,
    "presence_penalty": is_number,
    "frequency_penalty": is_number,
    "top_logprobs": is_int,
    "temperature": is_number,
    "reasoning": _or_null(_is(dict)),
    "usage": _or_null(_is(dict)),
    "max_output_tokens": _or_null(is_int),
    "max_tool_calls": _or_null(is_int),
    "store": _is(bool),
    "background": _is(bool),
    "service_tier": is_text,
    "metadata": _is(dict),
    "safety_identifier": _or_null(_is(str)),
    "prompt_cache_key": _or_null(_is(str)),
}
"""The keys that the Open Responses specification requires, and what they may be."""
OPTIONAL = frozenset(
    {
        "access_programs",
        "conversation",
        "image",
        "input_transformations",
        "moderation",
        "prompt",
        "prompt_cache_diagnostics",
        "prompt_cache_options",
        "prompt_cache_retention",
        "tool_usage",
        "user",
    }
)
"""What openai-python's type has beside them."""
FINISHED = frozenset({"completed", "incomplete", "failed"})
REASONS = frozenset({"max_output_tokens", "content_filter"})


def check_response(
    data: bytes | Json, request: Json, facts: Facts | None = None
) -> list[Violation]:
    """Check a finished response against every rule that one can break."""
    report = Report(RESPONSE_RULES)
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    response = load_object(raw, report, "response")
    if response is not None:
        check_head(response, request, report)
        check_status(response, report)
        check_output(response, request, report)
        check_usage(response, facts, report)
        if facts is not None and 0 in facts.choices:
            check_against_facts(response, request, facts, report)
    return report.found


def check_head(response: Json, request: Json, report: Report) -> None:
    """Check keys, types and what is repeated of the request, whatever the status."""
    for key in REQUIRED.keys() - response.keys():
        report.add("R.keys", key, "missing")
    for key in response.keys() - REQUIRED.keys() - OPTIONAL:
        asked = any(request.get(switch) for switch in SWITCHED.get(key, ()))
        report.check(asked, "R.keys", key, "not documented")
    for key, test in REQUIRED.items():
        if key in response:
            report.check(test(response[key]), "R.types", key, repr(response[key]))
    report.check(url_safe("resp", response.get("id")), "R.id", "id", response.get("id"))
    report.check(response.get("object") == "response", "R.object", "object")
    created = response.get("created_at")
    epoch = isinstance(created, int) and 10**9 <= created <= 10**11
    report.check(epoch, "R.created", "created_at", created)
    check_echo(response, request, report)


def check_status(response: Json, report: Report) -> None:
    """Check a finished response's status against the keys that tell more of it."""
    status = response.get("status")
    report.check(status in FINISHED, "R.status", "status", status)
    ended, created = response.get("completed_at"), response.get("created_at")
    if status == "completed":
        fine = isinstance(ended, int) and isinstance(created, int) and ended >= created
        report.check(fine, "R.completed_at", "completed_at", ended)
    else:
        report.check(ended is None, "R.completed_at", "completed_at", ended)
    details = response.get("incomplete_details")
    if status == "incomplete":
        known = isinstance(details, dict) and details.keys() == {"reason"}
        fine = known and isinstance(details, dict) and details["reason"] in REASONS
        report.check(fine, "R.incomplete", "incomplete_details", details)
    else:
        report.check(details is None, "R.incomplete", "incomplete_details", details)
    error = response.get("error")
    if status == "failed":
        fine = isinstance(error, dict) and error.keys() >= {"code", "message"}
        said = isinstance(error, dict) and is_text(error.get("code"))
        told = isinstance(error, dict) and is_text(error.get("message"))
        extra = isinstance(error, dict) and error.keys() <= {"code", "message", "param", "type"}
        report.check(fine and said and told and extra, "R.error", "error", error)
    else:
        report.check(error is None, "R.error", "error", error)


def check_output(response: Json, request: Json, report: Report) -> None:
    """Check the items, each by itself and all of them together."""
    output: Any = response.get("output")
    if not isinstance(output, list):
        return  # which was said
    for n, item in enumerate(output):
        check_item(item, request, report, f"output[{n}]")
    items = [item for item in output if isinstance(item, dict)]
    ids = [item.get("id") for item in items]
    report.check(len(set(map(str, ids))) == len(ids), "item.unique", "output", ids)
    calls = [item.get("call_id") for item in items if "call_id" in item]
    report.check(len(set(map(str, calls))) == len(calls), "call.id", "output", calls)
    if request.get("parallel_tool_calls") is False:
        report.check(len(calls) <= 1, "call.one", "output", calls)
    ends = ["completed"] if response.get("status") == "completed" else ["completed", "incomplete"]
    for n, item in enumerate(items):
        status = item.get("status", "completed")
        report.check(status in ends, "item.status", f"output[{n}]", status)
    details = response.get("incomplete_details")
    if items and isinstance(details, dict) and details.get("reason") == "max_output_tokens":
        status = items[-1].get("status", "incomplete")
        report.check(status == "incomplete", "item.cut", f"output[{len(items) - 1}]", status)


def check_usage(response: Json, facts: Facts | None, report: Report) -> None:
    """Check the counts, against the backend's if they are known."""
    usage = response.get("usage")
    if not isinstance(usage, dict):
        report.check(response.get("status") == "failed", "R.usage", "usage", usage)
        return
    counts = ("input_tokens", "output_tokens", "total_tokens")
    details = {
        "input_tokens_details": ("cached_tokens", "cache_write_tokens"),
        "output_tokens_details": ("reasoning_tokens",),
    }
    if not report.check(
        usage.keys() == {*counts, *details}, "R.usage_keys", "usage", sorted(usage)
    ):
        return
    parts: list[tuple[Any, Any]] = []
    for (key, names), whole in zip(details.items(), counts, strict=False):
        detail = usage[key]
        full = isinstance(detail, dict) and detail.keys() >= set(names)  # a backend may tell more
        if report.check(full, "R.usage_keys", f"usage.{key}", detail):
            parts += [(detail[name], usage[whole]) for name in names]
    numbers = [usage[key] for key in counts] + [part for part, _ in parts]
    if not report.check(all(is_int(n) and n >= 0 for n in numbers), "R.sum", "usage", usage):
        return
    given, made, total = numbers[:3]
    sound = given + made == total and all(part <= whole for part, whole in parts)
    report.check(sound, "R.sum", "usage", usage)
    if facts is not None and facts.usage is not None:
        report.check((given, made) == facts.usage, "R.numbers", "usage", facts.usage)


def check_against_facts(response: Json, request: Json, facts: Facts, report: Report) -> None:
    """Check the text and its logprobs against what the backend gave."""
    parts = texts_of(response)
    known = facts.choices[0]
    text = "".join(part["text"] for part in parts)
    if known.text is not None:
        report.check(text == known.text, "8.text", "output", f"{text!r}, not {known.text!r}")
    if not asks_logprobs(request) or response.get("status") == "failed":
        return
    rows = [chat_row(row) for part in parts for row in part.get("logprobs") or ()]
    if not all(isinstance(row, dict) for row in rows):
        return
    if not rows and known.rows and text:
        report.add("7.missing", "output", f"{len(known.rows)} rows were given")
    elif rows or text:
        check_facts(rows, known, request.get("top_logprobs") or 0, report, "output", empty=not text)


def texts_of(response: Json) -> list[Json]:
    """Return the output_text parts of a response, in order; what is malformed is left out."""
    output = response.get("output")
    items = [item for item in output if isinstance(item, dict)] if isinstance(output, list) else []
    contents = [item.get("content") for item in items if item.get("type") == "message"]
    return [
        part
        for content in contents
        if isinstance(content, list)
        for part in content
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
