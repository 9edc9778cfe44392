"""The stream of a response that is over: the events that make it, one delta for each part.

They are numbered anew, since how the answer came in pieces is not kept.
"""

from __future__ import annotations

from typing import Final

from msgspec import Raw, json

from wellspoken.adapters.events import Fault
from wellspoken.adapters.writers.base_writers import encode
from wellspoken.adapters.writers.response_events import (
    REASONING,
    REFUSAL,
    TEXT,
    PartKind,
    ResponseEvents,
)
from wellspoken.adapters.writers.response_objects import ResponseFailure

KINDS: Final = {kind.type: kind for kind in (TEXT, REFUSAL, REASONING)}
BEGIN: Final = {
    "status": Raw(b'"in_progress"'),
    "completed_at": Raw(b"null"),
    "error": Raw(b"null"),
    "incomplete_details": Raw(b"null"),
    "output": Raw(b"[]"),
    "usage": Raw(b"null"),
}
"""Keys that were otherwise when the response began."""

JsonObject = dict[str, Raw]
_object = json.Decoder(JsonObject).decode
_objects = json.Decoder(list[JsonObject]).decode
_text = json.Decoder(str).decode


def replay_response(stored: bytes, starting_after: int | None = None) -> bytes:
    """Return the stream of a response, whose JSON as it was given is `stored`.

    `starting_after`: the number of the last event that the client does not want again.
    """
    response = _object(stored)
    opening = encode({key: BEGIN.get(key, value) for key, value in response.items()})
    events = ResponseEvents(lambda: opening)
    events.begin()
    status = _text(response["status"])
    items = _objects(response["output"])
    for place, item in enumerate(items):
        is_open = status == "failed" and place + 1 == len(items)
        _write_item(place, item, events, ends=not is_open)
    if status == "failed":
        failure = json.decode(response["error"], type=ResponseFailure)
        events.write_error(Fault(500, failure.message, code=failure.code), failure)
    events.write_response(b"response." + status.encode(), stored)
    frames = events.take().split(b"\n\n")
    return b"\n\n".join(frames[starting_after + 1 :] if starting_after is not None else frames)


def _write_item(place: int, item: JsonObject, events: ResponseEvents, *, ends: bool) -> None:
    """Write an item; of one that the response's failure left open not its end."""
    type = _text(item["type"])
    key = {"function_call": "arguments", "custom_tool_call": "input"}.get(type)
    changed: JsonObject = {"status": Raw(b'"in_progress"')}
    changed[key or "content"] = Raw(b'""' if key else b"[]")
    begun = {name: changed.get(name, value) for name, value in item.items()}
    events.add_item(_text(item["id"]), place, encode(begun))
    if key == "arguments":
        events.add_call()
        said = bytes(item[key])
        if said != b'""':
            events.delta(said)
        if ends:
            events.end_call(bytes(item["name"]), said)
    elif key:
        events.give_input(bytes(item[key]))
        if ends:
            events.end_custom_call(bytes(item[key]))
    parts = _objects(item["content"]) if not key else []
    for index, part in enumerate(parts):
        _write_part(index, part, events, ends=ends or index + 1 < len(parts))
    if ends:
        events.end_item(encode(item))


def _write_part(index: int, part: JsonObject, events: ResponseEvents, *, ends: bool) -> None:
    kind: PartKind = KINDS[_text(part["type"])]
    key = kind.key.decode()
    empty = {key: Raw(b'""')} | ({"logprobs": Raw(b"[]")} if kind.scored else {})
    begun = {name: empty.get(name, value) for name, value in part.items()}
    events.add_part(kind, index, encode(begun))
    text, scores = bytes(part[key]), bytes(part.get("logprobs", b"[]"))
    if scores != b"[]":
        events.delta_scored(text, scores)
    elif text != b'""':
        events.delta(text)
    if ends:
        events.end_part(kind, text, scores, encode(part))
