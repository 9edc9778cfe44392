"""An accumulator of its own: a stream of response.* events -> the response that it amounts to.

It is lenient: what is wrong with a stream is the checker's to say. Texts, calls and logprobs come
from the deltas alone, so that what the done events say is not taken on trust.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from tests.fold import payloads

Json = dict[str, Any]

TEXT_OF = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "text",
}
CALL_OF = {
    "response.function_call_arguments.delta": "arguments",
    "response.custom_tool_call_input.delta": "input",
}
MADE = frozenset({"id", "created_at", "completed_at"})


def fold_response_stream(data: bytes) -> Json:
    """Return the response that a stream amounts to: its last snapshot, with the deltas' output.

    Of a failed one the item in progress is left out where the snapshot leaves it out, too.
    """
    response: Json = {}
    items: dict[int, Json] = {}
    for payload in payloads(data):
        event = json.loads(payload)
        if "response" in event:
            response = dict(event["response"])
        elif "output_index" in event:
            _add(items, event)
    output = [items[index] for index in sorted(items)]
    if response.get("status") == "failed":
        output = output[: len(response["output"])]
        for item in output:
            if item.get("status") == "in_progress":
                item["status"] = "incomplete"
    return response | {"output": output}


def _add(items: dict[int, Json], event: Json) -> None:
    """Add one event of an item to what came before."""
    kind, index = event["type"], event["output_index"]
    if kind == "response.output_item.added":
        items[index] = copy.deepcopy(event["item"])
        return
    item = items[index]
    if kind == "response.output_item.done":
        said = event["item"]
        streamed = {key for key in ("content", "arguments", "input") if item.get(key)}
        item.update({key: value for key, value in said.items() if key not in streamed})
    elif kind == "response.content_part.added":
        item.setdefault("content", []).append(copy.deepcopy(event["part"]))
    elif kind in CALL_OF:
        item[CALL_OF[kind]] += event["delta"]
    elif kind in TEXT_OF:
        part = item["content"][event["content_index"]]
        part[TEXT_OF[kind]] += event["delta"]
        if event.get("logprobs"):
            part["logprobs"] = part.get("logprobs", []) + event["logprobs"]


def comparable_response(response: Json, *, usage: bool = True) -> Json:
    """Return what a stream and a body of one answer must agree on.

    Left out: ids, the time, the made-up ids of calls, usage unless `usage`.
    """
    left = MADE if usage else MADE | {"usage"}
    out = {key: value for key, value in response.items() if key not in left}
    out["output"] = [
        {key: value for key, value in item.items() if key not in ("id", "call_id")}
        for item in response.get("output", ())
    ]
    return out
