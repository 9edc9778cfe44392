"""The contract of a response, a body and a stream, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from wellspoken.proxy.doctor import contract
from wellspoken.proxy.doctor.probe import Lacks, ProbeContext, ProbeResponse, Wrong, quote
from wellspoken.proxy.doctor.responses.response_shapes import (
    EVENTS,
    ITEMS,
    PARTS,
    ModelResponse,
    ResponseTokens,
)

ABSENT: Final = frozenset({404, 405, 501})
"""What a server answers at a path that it has not."""
LAST: Final = ("response.completed", "response.incomplete", "response.failed")
_TELLING: Final = ("output", "usage", "created_at")  # have their own rules
Json = dict[str, Any]


def require_response(response: ProbeResponse) -> ProbeResponse:
    """Return an answer of status 200. Raises Wrong, and Lacks where there is no such endpoint."""
    if not response.failure and response.status in ABSENT:
        raise Lacks(f"the server has no /v1/responses (status {response.status})")
    return contract.require_success(response)


def read_response(response: ProbeResponse) -> Json:
    """Return the response that is a body. Raises Wrong and Lacks."""
    return contract.parse_object(require_response(response).body)


def list_items(body: Mapping[str, Any], kind: str | None = None) -> list[Json]:
    """Return the items of a response, or those of one type. Raises Wrong."""
    output = body.get("output")
    if not isinstance(output, list):
        raise Wrong(f"output is {quote(output)}, no list")
    for item in output:
        if not isinstance(item, dict):
            raise Wrong(f"an item is {quote(item)}, no object")
    return [item for item in output if kind is None or item.get("type") == kind]


def list_texts(body: Mapping[str, Any]) -> list[Json]:
    """Return the parts that are a text. Raises Wrong."""
    found = []
    for item in list_items(body, "message"):
        content = item.get("content")
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
            raise Wrong(f"content is {quote(content)}, no list of parts")
        found += [one for one in content if one.get("type") == "output_text"]
    for part in found:
        if not isinstance(part.get("text"), str):
            raise Wrong(f"text is {quote(part.get('text'))}, no text")
    return found


def text_of(body: Mapping[str, Any]) -> str:
    """Return what a response says. Raises Wrong."""
    return "".join(part["text"] for part in list_texts(body))


def check_response(body: Json, context: ProbeContext) -> Iterator[str]:
    """Check the keys of a response, those of its items and parts, and its counts."""
    unjudged = frozenset(_TELLING)
    yield from contract.find_faults(body, ModelResponse, "the response", unjudged=unjudged)
    yield from contract.check_model(body, context)
    yield from contract.check_created(body, context, "created_at")
    for item in list_items(body):
        yield from _check_kind(item, ITEMS, "an item")
        content = item.get("content")
        if item.get("type") == "message" and isinstance(content, list):
            for part in content:
                yield from _check_kind(part, PARTS, "a part")
    yield from check_tokens(body.get("usage"))


def _check_kind(value: Any, kinds: Mapping[str, Any], what: str) -> Iterator[str]:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        yield f"the type of {what} is {quote(kind)}, none of {', '.join(kinds)}"
    else:
        yield from contract.find_faults(value, kinds[kind], f"the {kind}")


def check_tokens(usage: Any) -> Iterator[str]:
    """Check that the counts are there and add up."""
    faults = list(contract.find_faults(usage, ResponseTokens, "usage"))
    yield from faults
    if not faults:
        given, made, total = (usage[f"{name}_tokens"] for name in ("input", "output", "total"))
        if given < 1 or given + made != total:
            yield f"usage does not add up: {given} + {made} = {total}"


def count_of(body: Mapping[str, Any], name: str) -> int | None:
    """Return one of a response's counts, None where there is none."""
    usage = body.get("usage")
    found = usage.get(name) if isinstance(usage, dict) else None
    return found if isinstance(found, int) and contract.is_int(found) else None


def check_status(body: Mapping[str, Any], wanted: str) -> Iterator[str]:
    """Check how a response says that it ended."""
    if body.get("status") != wanted:
        yield f"status is {quote(body.get('status'))}, not {wanted}"


def scored_choice(body: Mapping[str, Any]) -> Json:
    """Return the entries of a response's texts as a chat's choice has them. Raises Wrong."""
    entries: list[Any] = []
    for part in list_texts(body):
        given = part.get("logprobs")
        if not isinstance(given, list):
            raise Wrong(f"logprobs is {quote(given)}, although they were asked for")
        entries += [_chat_entry(one) for one in given]
    return {"logprobs": {"content": entries, "refusal": None}}


def _chat_entry(entry: Any) -> Any:
    """Return an entry whose bytes are null where they are not known, as a chat's are."""
    if not isinstance(entry, dict):
        return entry
    made = {**entry, "bytes": entry.get("bytes") or None}
    if isinstance(top := entry.get("top_logprobs"), list):
        made["top_logprobs"] = [_chat_entry(one) for one in top]
    return made


def read_events(response: ProbeResponse) -> list[tuple[str, Json]]:
    """Return the events of a stream, each with the name that it bears. Raises Wrong and Lacks."""
    found = []
    blocks = require_response(response).body.replace(b"\r\n", b"\n").split(b"\n\n")
    for block in blocks:
        lines = [line for line in block.split(b"\n") if line and not line.startswith(b":")]
        data = b"".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
        if data and data != b"[DONE]":
            names = [line[6:].strip() for line in lines if line.startswith(b"event:")]
            name = names[0].decode("utf-8", "replace") if names else ""
            found.append((name, contract.parse_object(data, "an event")))
    if not found:
        raise Wrong("the stream holds no event")
    return found


def last_response(events: list[tuple[str, Json]]) -> Json:
    """Return the response that a stream ends with. Raises Wrong."""
    last = events[-1][1]
    body = last.get("response")
    if last.get("type") not in LAST or not isinstance(body, dict):
        raise Wrong(f"the stream ends with {quote(last.get('type'))}, and not with the response")
    return body


def check_events(events: list[tuple[str, Json]]) -> Iterator[str]:
    """Check each event by itself, their numbers, and what begins and ends when."""
    items: dict[str, str] = {}
    counted = True  # so far: one that is left out shifts all behind it
    for number, (name, event) in enumerate(events):
        kind = event.get("type")
        if not isinstance(kind, str) or kind not in EVENTS:
            yield f"an event is of the type {quote(kind)}"
            continue
        if name != kind:
            yield f"the line event: of {kind} says {quote(name)}"
        if counted and event.get("sequence_number") != number:
            counted = False
            given = quote(event.get("sequence_number"))
            yield f"the sequence_number of event {number} is {given}"
        missing = [key for key in EVENTS[kind] if key not in event and key != "name"]
        if missing:
            yield f"{kind} has no {', '.join(missing)}"
        if "output_index" in EVENTS[kind]:
            yield from _follow_item(kind, quote(event.get("output_index")), items)
    begin = [event.get("type") for _, event in events[:2]]
    if begin != ["response.created", "response.in_progress"]:
        yield f"the stream begins with {quote(begin)}, not response.created and in_progress"
    for place, state in items.items():
        if state != "done":
            yield f"the item {place} is not done at the end"


def _follow_item(kind: str, place: str, items: dict[str, str]) -> Iterator[str]:
    """Note the begin and the end of an item, and check what comes in between."""
    state = items.get(place)
    if kind == "response.output_item.added":
        if state is not None:
            yield f"the item {place} is added twice"
        items[place] = "open"
    elif state != "open":
        yield f"{kind} of the item {place} comes {'behind its end' if state else 'before it'}"
    elif kind == "response.output_item.done":
        items[place] = "done"


def join_deltas(events: list[tuple[str, Json]]) -> str:
    """Return the text that the deltas add up to. Raises Wrong."""
    parts = []
    for _, event in events:
        if event.get("type") == "response.output_text.delta":
            if not isinstance(event.get("delta"), str):
                raise Wrong(f"delta is {quote(event.get('delta'))}, no text")
            parts.append(event["delta"])
    return "".join(parts)
