"""The responses' answers, events and paths of proxy/endpoints/openapi.json."""

from __future__ import annotations

from typing import Any, Final, Literal

from tests.openapi.parts import (
    ANYWHERE,
    WITH_BODY,
    get_operation,
    json_content,
    operation,
    response,
)
from tests.openapi.requests import STRING, Schema, component, or_null
from wellspoken.adapters.answer_schema import Strict, Text
from wellspoken.adapters.requests import stored as stored_shapes
from wellspoken.proxy.doctor.responses import response_shapes as shapes

Json = dict[str, Any]


class ResponseItem(Strict, kw_only=True):
    """An item that a kept response answers, as the client sent it, or as an answer had it."""

    id: Text
    type: Text


class ResponseItemList(Strict, kw_only=True):
    """One page of the items; `after` with `last_id` gives the next."""

    object: Literal["list"]
    data: list[ResponseItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Strict, kw_only=True):
    """The answer of DELETE /v1/responses/{response_id}."""

    id: Text
    object: Literal["response"]
    deleted: Literal[True]


ANSWERS: Final = (
    shapes.ModelResponse,
    ResponseItemList,
    ResponseDeleted,
    *shapes.ITEMS.values(),
    *shapes.PARTS.values(),
)
OPEN: Final = ("InputTokensDetails", "ModelResponse", "OutputTokensDetails", "ResponseItem")
"""Answers that extensions, backends or clients may add keys to."""

_ERRORS: Final = ("400", "401", "404", "429", "4XX", "503")
_KEYS: Final[dict[str, Schema]] = {
    "response": component("ModelResponse"),
    "item": {"anyOf": [component(shape.__name__) for shape in shapes.ITEMS.values()]},
    "part": {
        "anyOf": [
            *[component(shape.__name__) for shape in shapes.PARTS.values()],
            component(shapes.ReasoningTextContent.__name__),
        ]
    },
    "logprobs": {"type": "array", "items": component("ItemLogprob")},
    "output_index": {"type": "integer", "minimum": 0},
    "content_index": {"type": "integer", "minimum": 0},
    "param": or_null(STRING),
    "error": component("ErrorBody"),
}
"""What is under a key of an event; under any other one there is a text."""


def name_kinds(found: dict[str, Schema]) -> None:
    """Say in the schemas of the answers what items and parts there may be."""
    for name, key, kinds in (
        ("ModelResponse", "output", shapes.ITEMS),
        ("MessageItem", "content", shapes.PARTS),
    ):
        kept = [component(shape.__name__) for shape in kinds.values()]
        found[name]["properties"][key]["items"] = {"anyOf": kept}


def schemas() -> dict[str, Schema]:
    """Return the events of a stream, as one component."""
    events = [_event(name, keys) for name, keys in shapes.EVENTS.items()]
    return {"ResponseStreamEvent": {"description": "The data of one event.", "anyOf": events}}


def _event(name: str, keys: tuple[str, ...]) -> Schema:
    number = {"type": "integer", "minimum": 0}
    own = {key: _KEYS.get(key, STRING) for key in keys}
    properties = {"type": {"const": name}, "sequence_number": number, **own}
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


def content() -> Json:
    """Return what a response comes as: a body, or a stream of named events."""
    held = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": component("ResponseStreamEvent"),
    }
    event = {
        "description": "One event; the last has the whole response.",
        "type": "object",
        "properties": {"event": {"enum": [*shapes.EVENTS]}, "data": held},
        "required": ["event", "data"],
        "additionalProperties": False,
    }
    return json_content("ModelResponse") | {"text/event-stream": {"schema": event}}


def paths() -> Json:
    """Return the operations below /v1/responses, by path."""
    below = "/v1/responses/{response_id}"
    items = response("A page of the items.", json_content("ResponseItemList"))
    name, title = "listInputItems", "List the items that a kept response answers."
    listed: Json = get_operation(name, "openai", title, items, *_ERRORS)
    listed["get"]["parameters"] = [_id(), *_paging()]
    return {
        below: _one(),
        f"{below}/input_items": listed,
        f"{below}/cancel": {"post": _refusal("cancelResponse", "Refused: each is over.", _id())},
        "/v1/responses/compact": {
            "post": _refusal("compactResponse", "A 404: no conversation is compacted here.")
        },
    }


def _one() -> Json:
    found = response("The response; with stream=true the events that it was.", content())
    one: Json = get_operation("getResponse", "openai", "Return a kept response.", found, *_ERRORS)
    one["get"]["parameters"] = [_id(), *_retrieval()]
    gone = response("It is deleted.", json_content("ResponseDeleted"))
    errors = (*ANYWHERE, *_ERRORS)
    one["delete"] = operation(
        "deleteResponse", "openai", "Delete a kept response.", gone, errors, parameters=[_id()]
    )
    return one


def _refusal(name: str, summary: str, *parameters: Json) -> Json:
    """Return an operation that is an error whatever is asked."""
    made = operation(name, "openai", summary, {}, (*ANYWHERE, *WITH_BODY, "503"))
    del made["responses"]["200"]
    return made | ({"parameters": [*parameters]} if parameters else {})


def _retrieval() -> list[Json]:
    flag, number = {"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 10**9 - 1}
    include = {"type": "array", "items": STRING}
    return [
        _query("stream", "The response as the events that it was.", flag),
        _query("starting_after", "Only with stream: the last event that is known.", number),
        _query("include_obfuscation", "Accepted; no stream is padded.", flag),
        _query("include", "Accepted: all that is kept is in the answer.", include),
    ]


def _paging() -> list[Json]:
    most, usual = stored_shapes.MOST, stored_shapes.DEFAULT
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    order = {"enum": ["asc", "desc"], "default": "desc"}
    return [
        _query("after", "The id of the last item of the page before.", STRING),
        _query("limit", "The most items of the page.", limit),
        _query("order", "Oldest first (asc) or newest first (desc).", order),
        _query("include", "Accepted: all that is kept is in the answer.", {
            "type": "array", "items": STRING
        }),
    ]  # fmt: skip


def _query(name: str, text: str, schema: Schema) -> Json:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _id() -> Json:
    return {
        "name": "response_id",
        "in": "path",
        "required": True,
        "description": "The id of the response that was kept.",
        "schema": {"type": "string", "minLength": 1},
    }
