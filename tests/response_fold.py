"""An independent accumulator: a response's event stream -> the response that its pieces amount to.

It knows nothing of the translation. The response is built from the deltas alone; whatever an event
says of the whole (a part, an item, the response) has to be what its pieces made, and an event that
does not fit where it stands is an AssertionError.
"""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

LASTS = ("response.completed", "response.incomplete", "response.failed")
PARTS = {
    "output_text": ("response.output_text", "text"),
    "refusal": ("response.refusal", "refusal"),
    "reasoning_text": ("response.reasoning_text", "text"),
}
CALLS = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}


def response_events(stream: bytes) -> list[Json]:
    """Return the events' JSON; each is its name's line and one of data, numbered from 0."""
    events = []
    for number, frame in enumerate(stream.split(b"\n\n")[:-1]):
        name, data = frame.split(b"\n")
        assert name.startswith(b"event: ") and data.startswith(b"data: "), frame
        event = json.loads(data[6:])
        assert list(event)[:2] == ["type", "sequence_number"]
        assert event["type"] == name[7:].decode()
        assert event["sequence_number"] == number
        events.append(event)
    assert stream.endswith(b"\n\n") or not stream
    return events


class ResponsePieces:
    """The items as far as they have come."""

    def __init__(self) -> None:
        self.output: list[Json] = []
        self.item: Json | None = None
        self.part: Json | None = None
        self.whole = False  # what is open was told as a whole

    def add(self, event: Json) -> None:
        """Take an event of an item or a part."""
        if event["type"] == "response.output_item.added":
            assert self.item is None and event["output_index"] == len(self.output)
            self._begin(event["item"])
            return
        assert self.item is not None, event
        assert event["output_index"] == len(self.output) - 1
        assert event.get("item_id", self.item["id"]) == self.item["id"]
        if event["type"] == "response.output_item.done":
            self._end(event["item"])
        elif self.item["type"] in CALLS:
            self._call(event, self.item)
        else:
            assert event["content_index"] == len(self.item["content"]) - (self.part is not None)
            self._content(event, self.item)

    def _begin(self, item: Json) -> None:
        assert item["status"] == "in_progress"
        key = CALLS.get(item["type"], ("", "content"))[1]
        assert item[key] == ("" if item["type"] in CALLS else [])
        self.output.append(item)
        self.item, self.part, self.whole = item, None, False

    def _end(self, item: Json) -> None:
        assert self.item is not None and self.part is None
        assert self.whole or item["type"] not in CALLS
        assert item["status"] in ("completed", "incomplete")
        self.item["status"] = item["status"]
        assert item == self.item
        self.item = None

    def _call(self, event: Json, item: Json) -> None:
        name, key = CALLS[item["type"]]
        assert not self.whole
        if event["type"] == name + ".done":
            self.whole = True
            assert event[key] == item[key]
            assert event.get("name", item["name"]) == item["name"]
        else:
            assert event["type"] == name + ".delta", event
            item[key] += event["delta"]

    def _content(self, event: Json, item: Json) -> None:
        if event["type"] == "response.content_part.added":
            assert self.part is None
            item["content"].append(event["part"])
            self.part, self.whole = event["part"], False
            assert event["part"].get("logprobs", []) == []
            return
        part = self.part
        assert part is not None
        if event["type"] == "response.content_part.done":
            assert self.whole and event["part"] == part
            self.part = None
            return
        name, key = PARTS[part["type"]]
        assert not self.whole
        if event["type"] == name + ".done":
            self.whole = True
            assert event[key] == part[key]
            assert event.get("logprobs") == part.get("logprobs")
        else:
            assert event["type"] == name + ".delta", event
            part[key] += event["delta"]
            if "logprobs" in part:
                part["logprobs"] += event["logprobs"]


def fold_response(stream: bytes) -> Json:
    """Return the response that the stream amounts to.

    An answer that failed leaves the last item open, which is incomplete then.
    """
    events = response_events(stream)
    created, working, *middle, last = events
    assert (created["type"], working["type"]) == ("response.created", "response.in_progress")
    assert created["response"] == working["response"]
    response: Json = created["response"]
    assert (response["status"], response["output"]) == ("in_progress", [])
    assert last["type"] in LASTS and last["type"] == "response." + last["response"]["status"]
    error = None
    if last["type"] == "response.failed":
        error = middle.pop()
        assert error["type"] == "error" and error["error"]["message"] == error["message"]
        assert last["response"]["error"]["message"] == error["message"]
    pieces = ResponsePieces()
    for event in middle:
        pieces.add(event)
    if error is None:
        assert pieces.item is None
    elif pieces.item is not None:
        pieces.item["status"] = "incomplete"
    told: Json = last["response"]
    assert told["output"] == pieces.output
    changing = {"status", "completed_at", "error", "incomplete_details", "usage", "output"}
    for key, value in response.items():
        assert key in changing or told[key] == value, key
    return {**told, "output": pieces.output}
