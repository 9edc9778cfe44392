"""Conforming responses and their streams, written by hand after OpenAI's reference.

A stream is a list of events without their numbers, which `sse_events` gives them.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from typing import Any

from tests.conformance import ChoiceFacts, Facts
from tests.conforming import FACTS, TEXT, entries

Json = dict[str, Any]
Events = list[Json]

ID = "resp_67ccd3a9da748190baa7f1570fe91ac604becb25c45c1d41"
CREATED = 1_741_476_777
MODEL = "gpt-4o-2024-08-06"
FUNCTION: Json = {
    "type": "function",
    "name": "get_weather",
    "description": None,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CUSTOM: Json = {"type": "custom", "name": "apply_patch", "description": "Change files."}
SPACE: Json = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [FUNCTION]}
ASKED: Json = {"model": MODEL, "input": "Say hi."}


@dataclass(frozen=True)
class Sample:
    """A response, its stream, what was asked, and what the backend gave."""

    request: Json
    body: Json
    events: Events
    facts: Facts | None = None


def usage(given: int = 19, made: int = 6, reasoning: int = 0) -> Json:
    """Return usage."""
    return {
        "input_tokens": given,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": given + made,
    }


def response(*items: Json, **more: Any) -> Json:
    """Return a completed response of a request that says nothing but model and input."""
    return {
        "id": ID,
        "object": "response",
        "created_at": CREATED,
        "completed_at": CREATED + 1,
        "status": "completed",
        "incomplete_details": None,
        "model": MODEL,
        "previous_response_id": None,
        "instructions": None,
        "output": list(items),
        "error": None,
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "parallel_tool_calls": True,
        "text": {"format": {"type": "text"}},
        "top_p": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "top_logprobs": 0,
        "temperature": 1.0,
        "reasoning": {"effort": None, "summary": None},
        "usage": usage(),
        "max_output_tokens": None,
        "max_tool_calls": None,
        "store": True,
        "background": False,
        "service_tier": "default",
        "metadata": {},
        "safety_identifier": None,
        "prompt_cache_key": None,
        **more,
    }


def text(said: str = TEXT, rows: list[Json] | None = None) -> Json:
    """Return a part of text."""
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": rows or []}


def refusal(said: str = "I can't.") -> Json:
    """Return a part of a refusal."""
    return {"type": "refusal", "refusal": said}


def message(*parts: Json, **more: Any) -> Json:
    """Return a message."""
    head: Json = {"id": "msg_67ccd3acc8d48190a77525dc", "type": "message", "status": "completed"}
    return {**head, "role": "assistant", "content": list(parts), **more}


def reasoning(said: str = "Greet.", **more: Any) -> Json:
    """Return reasoning."""
    content = [{"type": "reasoning_text", "text": said}]
    head: Json = {"id": "rs_67ccd3acc8d48190a77525dc", "type": "reasoning", "summary": []}
    return {**head, "content": content, **more}


def call(n: int = 1, arguments: str = '{"city":"Rome"}', **more: Any) -> Json:
    """Return a function's call."""
    head: Json = {"id": f"fc_67ccd3acc8d48190a775252{n}", "type": "function_call"}
    head |= {"status": "completed", "call_id": f"call_{n}", "name": "get_weather"}
    return {**head, "arguments": arguments, **more}


def custom(said: str = "*** Begin\n", **more: Any) -> Json:
    """Return a custom tool's call."""
    head: Json = {"id": "ctc_67ccd3acc8d48190a7752", "type": "custom_tool_call"}
    head |= {"status": "completed", "call_id": "call_9", "name": "apply_patch"}
    return {**head, "input": said, **more}


# --- streams ----------------------------------------------------------------------------------


def opening(body: Json) -> Events:
    """Return the two events that open the stream of a response."""
    blank = {**body, "status": "in_progress", "output": [], "usage": None, "error": None}
    blank |= {"completed_at": None, "incomplete_details": None}
    kinds = ("response.created", "response.in_progress")
    return [{"type": kind, "response": copy.deepcopy(blank)} for kind in kinds]


def ending(body: Json) -> Events:
    """Return the last event, after an error where the response failed."""
    last: Json = {"type": f"response.{body['status']}", "response": copy.deepcopy(body)}
    if body["error"] is None:
        return [last]
    error = {"type": "server_error", **body["error"], "param": None}
    said = {key: error[key] for key in ("code", "message", "param")}
    return [{"type": "error", **said, "error": error}, last]


def halves(said: str) -> list[str]:
    """Cut a text into two, or leave it where it is too short."""
    return [piece for piece in (said[:2], said[2:]) if piece]


def part_events(part: Json, at: Json) -> Events:
    """Return the events of one part, in two deltas; logprobs go with the texts they tile."""
    kind = part["type"]
    key = "refusal" if kind == "refusal" else "text"
    empty = {**part, key: "", **({"logprobs": []} if kind == "output_text" else {})}
    deltas: Events = [{"delta": piece} for piece in halves(part[key])]
    done: Json = {key: part[key]}
    if kind == "output_text":
        rows = part["logprobs"]
        for delta, own in zip(deltas, (rows[:1], rows[1:]), strict=False):
            delta["logprobs"] = own
        done["logprobs"] = rows
    return [
        {"type": "response.content_part.added", **at, "part": empty},
        *({"type": f"response.{kind}.delta", **at, **delta} for delta in deltas),
        {"type": f"response.{kind}.done", **at, **done},
        {"type": "response.content_part.done", **at, "part": part},
    ]


def item_events(item: Json, index: int, *, whole: bool = True) -> Events:
    """Return the events of one item; not `whole`: those before its part or call is done."""
    kind, at = item["type"], {"item_id": item["id"], "output_index": index}
    first = {**item, **({} if kind == "reasoning" else {"status": "in_progress"})}
    for key, empty in (("content", []), ("arguments", ""), ("input", "")):
        first |= {key: empty} if key in item else {}
    middle: Events = []
    for n, part in enumerate(item.get("content", ())):
        middle += part_events(part, {**at, "content_index": n})
    names = {
        "function_call": "function_call_arguments",
        "custom_tool_call": "custom_tool_call_input",
    }
    if kind in names:
        key, name = ("arguments" if kind == "function_call" else "input"), names[kind]
        pieces = halves(item[key])
        middle += [{"type": f"response.{name}.delta", **at, "delta": piece} for piece in pieces]
        middle.append({"type": f"response.{name}.done", **at, key: item[key]})
    begun = [{"type": "response.output_item.added", "output_index": index, "item": first}, *middle]
    if not whole:
        return begun[:-2]
    return [*begun, {"type": "response.output_item.done", "output_index": index, "item": item}]


def events_of(body: Json, *, broken: Json | None = None) -> Events:
    """Return the stream of a response; `broken` is an item during which it failed."""
    items = [e for n, item in enumerate(body["output"]) for e in item_events(item, n)]
    if broken is not None:
        items += item_events(broken, len(body["output"]), whole=False)
    whole: Events = json.loads(json.dumps([*opening(body), *items, *ending(body)]))
    return whole  # of which no two share a part, as copies do


def sse_events(events: Events) -> bytes:
    """Return a stream as bytes, its events numbered unless they have a number."""
    out = b""
    for n, event in enumerate(events):
        numbered = {"type": event["type"], "sequence_number": n, **event}
        name = str(event["type"]).encode()
        out += b"event: " + name + b"\ndata: " + json.dumps(numbered).encode() + b"\n\n"
    return out


def sample(*items: Json, request: Json | None = None, facts: Any = None, **more: Any) -> Sample:
    """Return a sample of these items; `kept` are in progress when it fails, and in the body."""
    broken, kept = more.pop("broken", None), more.pop("kept", ())
    body = response(*items, **more)
    asked = {**ASKED, **(request or {})}
    events = events_of(body, broken=broken)
    if kept:
        body = response(*items, *kept, **more)
        events[-1]["response"] = copy.deepcopy(body)
    return Sample(asked, copy.deepcopy(body), events, facts)


SCHEMA: Json = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}
SAID: Json = {
    "instructions": "Be brief.",
    "metadata": {"run": "7"},
    "temperature": 0.5,
    "top_p": 0.9,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "max_output_tokens": 100,
    "max_tool_calls": 3,
    "parallel_tool_calls": False,
    "previous_response_id": "resp_0123456789",
    "store": False,
    "truncation": "auto",
    "safety_identifier": "someone",
    "prompt_cache_key": "key",
    "user": "someone",
    "tool_choice": {"type": "function", "name": "get_weather"},
}
TOLD = replace(FACTS.choices[0], drops={})
SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
CUT: Json = {"status": "incomplete", "completed_at": None}
LIMIT: Json = {"incomplete_details": {"reason": "max_output_tokens"}}
FILTER: Json = {"incomplete_details": {"reason": "content_filter"}}
FAILED: Json = {
    "status": "failed",
    "completed_at": None,
    "error": {"code": "server_error", "message": "The server went away."},
    "usage": None,
}

SAMPLES: dict[str, Sample] = {
    "text": sample(message(text()), facts=Facts({0: ChoiceFacts(text=TEXT)}, usage=(19, 6))),
    "scored": sample(
        message(text(TEXT, entries())),
        request=SCORED,
        top_logprobs=2,
        facts=Facts({0: TOLD}, usage=(19, 6)),
    ),
    "refusal": sample(message(refusal())),
    "text and refusal": sample(message(text("Well."), refusal())),
    "reasoning": sample(reasoning(), message(text()), usage=usage(reasoning=3)),
    "calls": sample(
        message(text("Wait.")),
        call(1),
        call(2, "{}"),
        request={"tools": [FUNCTION]},
        tools=[FUNCTION],
    ),
    "namespace": sample(
        call(1, namespace="crm"), request={"tools": [{"type": "web_search"}, SPACE]}, tools=[SPACE]
    ),
    "custom": sample(
        custom(),
        request={"tools": [FUNCTION, CUSTOM]},
        tools=[FUNCTION, {**CUSTOM, "format": None}],
    ),
    "said": sample(
        call(),
        request={
            **SAID,
            "tools": [FUNCTION],
            "text": {"format": SCHEMA, "verbosity": "low"},
            "reasoning": {"effort": "low"},
        },
        **SAID,
        tools=[FUNCTION],
        text={"format": {**SCHEMA, "description": None}, "verbosity": "low"},
        reasoning={"effort": "low", "summary": None},
    ),
    "cut": sample(reasoning(), message(text("Hi"), status="incomplete"), **CUT, **LIMIT),
    "cut call": sample(call(1, '{"ci', status="incomplete"), **CUT, **LIMIT),
    "filtered": sample(**CUT, **FILTER),
    "failed": sample(**FAILED, broken=message(text())),
    "failed behind": sample(reasoning(), **FAILED, broken=call()),
    "failed, half kept": sample(
        **FAILED, broken=call(), kept=(call(1, '{"', status="incomplete"),)
    ),
    "empty": sample(message(text(""))),
}
