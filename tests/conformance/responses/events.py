"""The framing of a response's stream, and each event by itself: its type, its keys, its number."""

from __future__ import annotations

from typing import Any

from tests.conformance.model import Report
from tests.conformance.shape import is_int
from tests.conformance.wire import load_object

Json = dict[str, Any]

_PART = frozenset({"item_id", "output_index", "content_index"})
_CALL = frozenset({"item_id", "output_index"})

EVENTS: dict[str, frozenset[str]] = {
    "response.created": frozenset({"response"}),
    "response.in_progress": frozenset({"response"}),
    "response.completed": frozenset({"response"}),
    "response.incomplete": frozenset({"response"}),
    "response.failed": frozenset({"response"}),
    "response.output_item.added": frozenset({"output_index", "item"}),
    "response.output_item.done": frozenset({"output_index", "item"}),
    "response.content_part.added": _PART | {"part"},
    "response.content_part.done": _PART | {"part"},
    "response.output_text.delta": _PART | {"delta", "logprobs"},
    "response.output_text.done": _PART | {"text", "logprobs"},
    "response.refusal.delta": _PART | {"delta"},
    "response.refusal.done": _PART | {"refusal"},
    "response.reasoning_text.delta": _PART | {"delta"},
    "response.reasoning_text.done": _PART | {"text"},
    "response.function_call_arguments.delta": _CALL | {"delta"},
    "response.function_call_arguments.done": _CALL | {"arguments"},
    "response.custom_tool_call_input.delta": _CALL | {"delta"},
    "response.custom_tool_call_input.done": _CALL | {"input"},
    "error": frozenset({"code", "message", "param", "error"}),
}
"""Type -> its keys beside type and sequence_number."""
TYPES: dict[str, type] = {
    "response": dict,
    "item": dict,
    "part": dict,
    "item_id": str,
    "delta": str,
    "text": str,
    "refusal": str,
    "arguments": str,
    "input": str,
    "logprobs": list,
}


def read_events(data: bytes, report: Report) -> list[tuple[str, Json]]:
    """Return where each event is and its JSON; note what is wrong with events by themselves."""
    found: list[tuple[str, Json]] = []
    for n, (name, payload) in enumerate(_frames(data, report)):
        at = f"event {n}"
        if payload.strip() == b"[DONE]":
            report.add("S.done", at)
            continue
        event = load_object(payload, report, at)
        if event is None:
            continue
        kind = event.get("type")
        report.check(name == str(kind).encode(), "S.event", at, f"{name!r}, {kind!r}")
        number = event.get("sequence_number")
        counted = is_int(number) and number == len(found)
        report.check(counted, "S.sequence", at, f"{number!r}, not {len(found)}")
        found.append((at, event))
    return [(at, event) for at, event in found if _check_keys(event, report, at)]


def _check_keys(event: Json, report: Report, at: str) -> bool:
    """Check type and keys; say whether the event can be looked at."""
    kind = event.get("type")
    if not report.check(isinstance(kind, str) and kind in EVENTS, "S.type", at, kind):
        return False
    keys = EVENTS[str(kind)] | {"type", "sequence_number"}
    may = {"obfuscation"} if str(kind).endswith(".delta") else set()
    if kind == "response.function_call_arguments.done":
        may = {"name"}  # which some versions of the type have
    wrong = (keys - event.keys()) | (event.keys() - keys - may)
    if not report.check(not wrong, "S.keys", at, f"{kind}: {sorted(wrong)}"):
        return False
    typed = [key for key in event if key in TYPES and not isinstance(event[key], TYPES[key])]
    typed += [k for k in ("output_index", "content_index") if k in event and not is_int(event[k])]
    return report.check(not typed, "S.keys", at, f"{kind}: types of {typed}")


def _frames(data: bytes, report: Report) -> list[tuple[bytes, bytes]]:
    """Return each event's name and data; note what is not framed as it should be."""
    if data.startswith(b"\xef\xbb\xbf"):
        report.add("S.framing", "stream", "BOM")
    if b"\r" in data:
        report.add("S.framing", "stream", "CR")
    if data and not data.endswith(b"\n"):
        report.add("S.framing", "stream", "no newline at the end")
    found: list[tuple[bytes, bytes]] = []
    name: bytes | None = None
    before = b""  # what the line before was: nothing, e(vent), d(ata), c(omment)
    for number, line in enumerate(data.split(b"\n"), 1):
        kind = _kind(line)
        fine = kind in {b"": b"ec", b"c": b"ec", b"e": b"d", b"d": b""}[before] or not kind
        if not kind:
            last = number == data.count(b"\n") + 1
            fine = before == b"" and last if last else before in (b"d", b"c")
        report.check(fine and kind != b"?", "S.framing", f"line {number}", line[:60])
        if kind == b"e":
            name = line[7:]
        elif kind == b"d":
            found.append((name or b"", line[6:]))
            name = None
        before = b"" if kind == b"?" else kind
    return found


def _kind(line: bytes) -> bytes:
    """Say what a line is: nothing, e(vent), d(ata), c(omment) or, for others, a question mark."""
    if not line:
        return b""
    if line.startswith(b":"):
        return b"c"
    return b"e" if line.startswith(b"event: ") else b"d" if line.startswith(b"data: ") else b"?"
