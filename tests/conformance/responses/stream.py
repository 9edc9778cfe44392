"""The check of a response's stream: the order of its events, and what they amount to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.model import Facts, Report, Violation
from tests.conformance.responses.body import check_head, check_response
from tests.conformance.responses.errors import check_names
from tests.conformance.responses.events import read_events
from tests.conformance.responses.items import PARTS, check_item, check_part, check_rows
from tests.conformance.responses.rules import RESPONSE_RULES
from tests.conformance.shape import SWITCHED, check_error_object

Json = dict[str, Any]

VARYING = frozenset(
    {
        "status",
        "output",
        "usage",
        "error",
        "incomplete_details",
        "completed_at",
        "service_tier",
    }
)
CODES = frozenset(
    {
        "server_error",
        "rate_limit_exceeded",
        "invalid_prompt",
        "context_length_exceeded",
        "insufficient_quota",
    }
)
"""Codes of a failed response that clients act upon; another may be told as one of these."""
TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})
PART_OF = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
}
CALL_OF = {
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}


@dataclass
class Part:
    """A content part in progress, with what its deltas amount to."""

    added: Json
    text: str = ""
    rows: list[Any] = field(default_factory=list)
    done: bool = False  # its text is

    @property
    def whole(self) -> Json:
        """The part as it is when it is done."""
        kind = str(self.added.get("type"))
        said = {PARTS[kind][2]: self.text} if kind in PARTS else {}
        return {**self.added, **said, **({"logprobs": self.rows} if kind == "output_text" else {})}


@dataclass
class Item:
    """An item in progress."""

    added: Json
    parts: list[Json] = field(default_factory=list)
    part: Part | None = None
    text: str = ""  # of a call
    done: bool = False  # a call's text is


@dataclass
class State:
    """What has come of one stream."""

    request: Json
    report: Report
    number: int = 0
    first: Json | None = None
    count: int = 0  # of the items
    item: Item | None = None
    done: list[Json] = field(default_factory=list)
    error: Json | None = None
    ended: bool = False
    last: Json | None = None


def check_response_stream(
    data: bytes, request: Json, facts: Facts | None = None
) -> list[Violation]:
    """Check a whole stream against every rule that one can break."""
    report = Report(RESPONSE_RULES)
    state = State(request, report)
    for at, event in read_events(data, report):
        if state.ended:
            report.add("S.terminal", at, f"{event['type']} behind the end")
        _check_order(event, state, at)
        HANDLERS.get(event["type"], _check_said)(event, state, at)
        state.number += 1
    report.check(state.ended, "S.terminal", "stream", "no last event")
    report.check(state.number > 1, "S.opening", "stream", "no event")
    if state.last is not None:
        report.found += check_response(state.last, request, facts)
        _check_final(state.last, state)
    return report.found


def _check_order(event: Json, state: State, at: str) -> None:
    """Check that the opening events come first and once, and where an error may stand."""
    report, kind = state.report, event["type"]
    opening = {0: "response.created", 1: "response.in_progress"}.get(state.number)
    if opening is not None:
        report.check(kind == opening, "S.opening", at, kind)
    else:
        known = kind not in ("response.created", "response.in_progress")
        report.check(known, "S.opening", at, kind)
    if state.error is not None and not state.ended:
        report.check(kind == "response.failed", "S.failed", at, f"{kind} behind an error")
    if kind == "response.failed":
        report.check(state.error is not None, "S.failed", at, "no error event before it")


# --- snapshots and the end --------------------------------------------------------------------


def _check_snapshot(event: Json, state: State, at: str) -> None:
    """Check a response in progress."""
    response, report = event["response"], state.report
    check_head(response, state.request, report)
    blank: Json = {"status": "in_progress", "output": [], "usage": None, "error": None,
                   "incomplete_details": None, "completed_at": None}  # fmt: skip
    for key, value in blank.items():
        found = response.get(key, value)
        report.check(found == value, "S.empty", at, f"{key}: {found!r}")
    _check_constant(response, state, at)


def _check_constant(response: Json, state: State, at: str) -> None:
    """Check that a snapshot says the same as the first."""
    if state.first is None:
        state.first = response
    for key in (state.first.keys() | response.keys()) - VARYING - SWITCHED.keys():
        same = response.get(key) == state.first.get(key)
        state.report.check(same, "S.constant", at, f"{key}: {response.get(key)!r}")


def _check_terminal(event: Json, state: State, at: str) -> None:
    """Check the last event."""
    response, report = event["response"], state.report
    status = event["type"].removeprefix("response.")
    same = response.get("status") == status
    report.check(same, "S.status", at, f"{status}: {response.get('status')!r}")
    _check_constant(response, state, at)
    if state.error is not None and isinstance(response.get("error"), dict):
        said, told = state.error, response["error"]
        report.check(said["message"] == told.get("message"), "S.failed", at, f"{said}, {told}")
        broad = said["code"] not in CODES and told.get("code") in CODES
        same = broad or said["code"] in (None, told.get("code"))
        report.check(same, "S.failed", at, f"code {said['code']!r}, then {told.get('code')!r}")
    if status != "failed":
        report.check(state.item is None, "S.order", at, "an item is not done")
    state.ended, state.last = True, response


def _check_final(response: Json, state: State) -> None:
    """Check that the output is the items that were done; a failure may leave one in progress."""
    output: Any = response.get("output")
    if not isinstance(output, list):
        return
    report = state.report
    if response.get("status") != "failed":
        report.check(output == state.done, "S.final", "output", f"{output}, not {state.done}")
        return
    most = len(state.done) + (state.item is not None)
    same = output[: len(state.done)] == state.done[: len(output)]
    report.check(same and len(output) <= most, "S.final", "output", output)


def _check_error(event: Json, state: State, at: str) -> None:
    """Check an error event, which says the same in both of its forms."""
    report = state.report
    own = Report()
    check_error_object({"error": event["error"]}, own, at)
    for each in own.found:
        report.add(each.rule, each.where, each.detail)
    if isinstance(event["error"], dict):
        same = all(event[key] == event["error"].get(key) for key in ("code", "message", "param"))
        report.check(same, "S.failed", at, event)
        check_names(event["error"], report, at)
    report.check(state.error is None, "S.failed", at, "a second error")
    state.error = event


# --- items ------------------------------------------------------------------------------------


def _check_added(event: Json, state: State, at: str) -> None:
    """Check an item's beginning."""
    report, item = state.report, event["item"]
    index = event["output_index"]
    report.check(index == state.count, "S.index", at, f"{index}, not {state.count}")
    report.check(state.item is None, "S.one", at, "the one before is not done")
    check_item(item, state.request, report, f"{at} item")
    kind = str(item.get("type"))
    begun = item.get("status", "in_progress" if kind == "reasoning" else None)
    report.check(begun == "in_progress", "S.added", at, f"status {begun!r}")
    full = [key for key in ("content", "summary", "arguments", "input") if item.get(key)]
    report.check(not full, "S.added", at, full)
    state.count += 1
    state.item = Item(item)


def _open_item(event: Json, state: State, at: str) -> Item | None:
    """Return the item in progress, None (and a violation) if the event is not of it."""
    item, report = state.item, state.report
    if not report.check(item is not None, "S.item", at, "no item is in progress") or item is None:
        return None
    index = event["output_index"]
    report.check(index == state.count - 1, "S.item", at, f"output_index {index}")
    id = event["item"].get("id") if "item" in event else event["item_id"]
    report.check(id == item.added.get("id"), "S.item", at, f"{id!r}, not {item.added.get('id')!r}")
    return item


def _check_done(event: Json, state: State, at: str) -> None:
    """Check an item's end: it is what its events amount to."""
    item = _open_item(event, state, at)
    if item is None:
        return
    report, kind, done = state.report, str(item.added.get("type")), event["item"]
    check_item(done, state.request, report, f"{at} item")
    report.check(item.part is None, "S.order", at, "a part is not done")
    want = dict(item.added)
    for call, key in CALL_OF.values():
        if kind == call:
            report.check(item.done, "S.order", at, "the call is not done")
            want[key] = item.text
    if kind in ("message", "reasoning") and (item.parts or "content" in want):
        want["content"] = item.parts
    ended = done.get("status", "completed")
    report.check(ended != "in_progress", "item.status", at, ended)
    free = {"status", "phase", "encrypted_content"}
    wrong = [k for k in (want.keys() | done.keys()) - free if want.get(k) != done.get(k)]
    report.check(not wrong, "S.item_done", at, [(k, done.get(k), want.get(k)) for k in wrong])
    state.done.append(done)
    state.item = None


def _check_part_added(event: Json, state: State, at: str) -> None:
    """Check a part's beginning."""
    item = _open_item(event, state, at)
    if item is None:
        return
    report, part = state.report, event["part"]
    index = event["content_index"]
    report.check(index == len(item.parts), "S.content_index", at, f"{index}, {len(item.parts)}")
    report.check(item.part is None, "S.part", at, "the one before is not done")
    check_part(part, str(item.added.get("type")), state.request, report, f"{at} part")
    empty = all(not part.get(key) for key in part.keys() - {"type"})
    report.check(empty, "S.part", at, f"not empty: {part}")
    item.part = Part(part)


def _open_part(event: Json, state: State, at: str) -> tuple[Item, Part] | None:
    """Return the part in progress, None (and a violation) if the event is not of it."""
    item = _open_item(event, state, at)
    if item is None:
        return None
    if not state.report.check(item.part is not None, "S.part", at, "none is in progress"):
        return None
    assert item.part is not None
    index = event["content_index"]
    state.report.check(index == len(item.parts), "S.content_index", at, index)
    return item, item.part


def _check_part_done(event: Json, state: State, at: str) -> None:
    """Check a part's end."""
    found = _open_part(event, state, at)
    if found is None:
        return
    item, part = found
    state.report.check(part.done, "S.order", at, "its text is not done")
    _compare(event["part"], part.whole, state.report, at)
    item.parts.append(event["part"])
    item.part = None


def _compare(said: Json, whole: Json, report: Report, at: str) -> None:
    """Check what a done event says against what the deltas amount to."""
    rows = said.get("logprobs", []), whole.get("logprobs", [])
    report.check(rows[0] == rows[1], "S.rows", at, rows)
    rest = [{k: v for k, v in each.items() if k != "logprobs"} for each in (said, whole)]
    report.check(rest[0] == rest[1], "S.whole", at, rest)


def _check_said(event: Json, state: State, at: str) -> None:
    """Check a delta, or the done event of a text or a call."""
    subject, _, ending = event["type"].rpartition(".")
    if subject in CALL_OF:
        _check_call(event, CALL_OF[subject], ending, state, at)
        return
    found = _open_part(event, state, at)
    if found is None:
        return
    _, part = found
    report, kind = state.report, PART_OF[subject]
    report.check(part.added.get("type") == kind, "S.kind", at, part.added.get("type"))
    if ending == "done":
        report.check(not part.done, "S.order", at, "done before")
        key = PARTS[kind][2]
        said = {key: event[key], "logprobs": event.get("logprobs", [])}
        _compare(said, {key: part.text, "logprobs": part.rows}, report, at)
        part.done = True
        return
    report.check(not part.done, "S.order", at, "a delta of a text that is done")
    rows = event.get("logprobs", [])
    report.check(bool(event["delta"] or rows), "S.delta", at, "says nothing")
    own = Report(RESPONSE_RULES)
    check_rows(rows, event["delta"], state.request, own, at)
    for each in own.found:
        rule = "7.chunk" if each.rule == "7.tiling" else each.rule
        report.add(rule, each.where, each.detail)
    part.text += event["delta"]
    part.rows += rows


def _check_call(event: Json, call: tuple[str, str], ending: str, state: State, at: str) -> None:
    """Check a call's delta or its done event."""
    item = _open_item(event, state, at)
    if item is None:
        return
    report, (kind, key) = state.report, call
    report.check(item.added.get("type") == kind, "S.kind", at, item.added.get("type"))
    report.check(not item.done, "S.order", at, "the call is done")
    if ending == "done":
        report.check(event[key] == item.text, "S.whole", at, f"{event[key]!r}, not {item.text!r}")
        name = event.get("name", item.added.get("name"))
        report.check(name == item.added.get("name"), "S.whole", at, name)
        item.done = True
    else:
        report.check(event["delta"] != "", "S.delta", at, "says nothing")
        item.text += event["delta"]


HANDLERS: dict[str, Callable[[Json, State, str], None]] = {
    "response.created": _check_snapshot,
    "response.in_progress": _check_snapshot,
    **dict.fromkeys(TERMINAL, _check_terminal),
    "response.output_item.added": _check_added,
    "response.output_item.done": _check_done,
    "response.content_part.added": _check_part_added,
    "response.content_part.done": _check_part_done,
    "error": _check_error,
}
