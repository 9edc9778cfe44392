"""The items of a response's output, by themselves."""

from __future__ import annotations

import re
from typing import Any

from tests.conformance.logprobs import check_logprobs
from tests.conformance.model import Report, Request
from tests.conformance.shape import is_text

Json = dict[str, Any]

ITEM_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "message": (
        frozenset({"id", "type", "status", "role", "content"}),
        frozenset({"phase"}),
    ),
    "function_call": (
        frozenset({"id", "type", "status", "call_id", "name", "arguments"}),
        frozenset({"namespace"}),
    ),
    "custom_tool_call": (
        frozenset({"id", "type", "status", "call_id", "name", "input"}),
        frozenset({"namespace"}),
    ),
    "reasoning": (
        frozenset({"id", "type", "summary"}),
        frozenset({"content", "encrypted_content", "status"}),
    ),
}
"""Type -> the keys that it has, and those that it may have."""
PREFIXES = {"message": "msg", "function_call": "fc", "custom_tool_call": "ctc", "reasoning": "rs"}
PARTS: dict[str, tuple[str, frozenset[str], str]] = {
    "output_text": ("message", frozenset({"type", "text", "annotations", "logprobs"}), "text"),
    "refusal": ("message", frozenset({"type", "refusal"}), "refusal"),
    "reasoning_text": ("reasoning", frozenset({"type", "text"}), "text"),
}
"""Type -> the item that it stands in, its keys, and which of them is the text."""
INCLUDED = "message.output_text.logprobs"


def url_safe(prefix: str, id: object) -> bool:
    """Say whether an id has the form of those that begin so."""
    return isinstance(id, str) and bool(re.fullmatch(rf"{prefix}_[A-Za-z0-9_-]{{8,}}", id))


def asks_logprobs(request: Json) -> bool:
    """Say whether a request asks for logprobs, by name or by a number of alternatives."""
    return INCLUDED in (request.get("include") or ()) or bool(request.get("top_logprobs"))


def check_item(item: Any, request: Json, report: Report, at: str) -> None:
    """Check one item, done or not."""
    kind = item.get("type") if isinstance(item, dict) else None
    if not report.check(isinstance(kind, str) and kind in ITEM_KEYS, "item.type", at, kind):
        return
    required, optional = ITEM_KEYS[str(kind)]
    wrong = (required - item.keys()) | (item.keys() - required - optional)
    report.check(not wrong, "item.keys", at, sorted(wrong))
    report.check(url_safe(PREFIXES[str(kind)], item.get("id")), "item.id", at, item.get("id"))
    status = item.get("status", "completed")
    fine = status in ("in_progress", "completed", "incomplete")
    report.check(fine, "item.types", f"{at}.status", status)
    if kind == "message":
        report.check(item.get("role") == "assistant", "item.types", f"{at}.role", item.get("role"))
        _check_content(item, request, report, at)
        done = item.get("content") != [] or status != "completed"
        report.check(done, "part.none", at, "no part")
    elif kind == "reasoning":
        _check_content(item, request, report, at)
        report.check(item.get("summary", []) == [], "summary", at, item.get("summary"))
        sealed = item.get("encrypted_content", "")
        report.check(isinstance(sealed, str), "item.types", f"{at}.encrypted_content", sealed)
    else:
        _check_call(item, request, report, at)


def _check_call(item: Json, request: Json, report: Report, at: str) -> None:
    """Check a call: its name, its id, and whether the tool is of its kind."""
    said = "input" if item["type"] == "custom_tool_call" else "arguments"
    for key, test in (("name", is_text(item.get("name"))), (said, isinstance(item.get(said), str))):
        report.check(test or key not in item, "item.types", f"{at}.{key}", item.get(key))
    report.check(is_text(item.get("call_id")), "call.id", at, item.get("call_id"))
    space = item.get("namespace", "x")
    report.check(is_text(space), "item.types", f"{at}.namespace", space)
    kinds = {
        tool.get("type")
        for space, tool in _tools_of(request)
        if (space, tool.get("name")) == (item.get("namespace"), item.get("name"))
    }
    wanted = "custom" if said == "input" else "function"
    report.check(not kinds or wanted in kinds, "call.kind", at, f"{item['type']}, of {kinds}")


def _tools_of(request: Json) -> list[tuple[str | None, Json]]:
    """Return the tools that a request offers, each with its namespace."""
    found: list[tuple[str | None, Json]] = []
    for tool in request.get("tools") or ():
        if tool.get("type") == "namespace":
            found += [(tool.get("name"), each) for each in tool.get("tools") or ()]
        else:
            found.append((None, tool))
    return found


def _check_content(item: Json, request: Json, report: Report, at: str) -> None:
    """Check the parts of a message or of reasoning."""
    content = item.get("content", [])
    if not report.check(isinstance(content, list), "item.types", f"{at}.content", content):
        return
    for n, part in enumerate(content):
        check_part(part, str(item["type"]), request, report, f"{at}.content[{n}]")


def check_part(part: Any, inside: str, request: Json, report: Report, at: str) -> None:
    """Check one content part of an item of the type `inside`."""
    kind = part.get("type") if isinstance(part, dict) else None
    known = isinstance(kind, str) and kind in PARTS and PARTS[kind][0] == inside
    if not report.check(known, "part.type", at, kind):
        return
    _, keys, said = PARTS[str(kind)]
    report.check(part.keys() == keys, "part.keys", at, sorted(part))
    text = part.get(said, "")
    report.check(isinstance(text, str), "part.types", f"{at}.{said}", text)
    if kind == "output_text" and isinstance(text, str):
        notes = part.get("annotations", [])
        fine = isinstance(notes, list) and all(isinstance(note, dict) for note in notes)
        report.check(fine, "part.types", f"{at}.annotations", notes)
        check_rows(part.get("logprobs", []), text, request, report, f"{at}.logprobs")


def check_rows(rows: Any, text: str, request: Json, report: Report, at: str) -> None:
    """Check the logprobs of a text, of which an empty list says that there are none."""
    if not report.check(isinstance(rows, list), "part.types", at, rows):
        return
    if not asks_logprobs(request):
        report.check(rows == [], "logprobs.unasked", at, rows)
        return
    if not rows:
        return
    sound = [_check_bytes(row, report, f"{at}[{n}]") for n, row in enumerate(rows)]
    if all(sound):
        asked = Request(logprobs=True, k=request.get("top_logprobs") or 0)
        given = {"content": [chat_row(row) for row in rows], "refusal": None}
        own = Report()
        check_logprobs(given, text, None, asked, own, at)
        for each in own.found:
            report.add(each.rule, each.where, each.detail)


def _check_bytes(row: Any, report: Report, at: str) -> bool:
    """Check that bytes are a list; the rest of a row is as in a chat's."""
    if not isinstance(row, dict):
        return True  # which is said there
    items = [row, *(row["top_logprobs"] if isinstance(row.get("top_logprobs"), list) else ())]
    found = [item.get("bytes", []) for item in items if isinstance(item, dict)]
    fine = all(
        isinstance(each, list) and all(type(b) is int and 0 <= b <= 255 for b in each)
        for each in found
    )
    return report.check(fine, "logprobs.bytes", at, found)


def chat_row(row: Any) -> Any:
    """Return a row as a chat's entry, whose bytes are null where they are not known."""
    if not isinstance(row, dict):
        return row
    out = {**row, "bytes": row.get("bytes") or None} if "bytes" in row else dict(row)
    if isinstance(row.get("top_logprobs"), list):
        out["top_logprobs"] = [chat_row(each) for each in row["top_logprobs"]]
    return out
