"""The stored completions' paths of proxy/endpoints/openapi.json, and what they send and answer."""

from __future__ import annotations

from typing import Any, Final

from tests.openapi import stored_schema
from tests.openapi.parts import (
    ANYWHERE,
    WITH_BODY,
    get_operation,
    json_content,
    operation,
    response,
)
from tests.openapi.requests import Schema, metadata
from wellspoken.adapters.requests import stored as stored_shapes

ANSWERS: Final = (
    stored_schema.ChatCompletionDeleted,
    stored_schema.ChatCompletionList,
    stored_schema.ChatCompletionMessageList,
)
_ERRORS: Final = ("400", "401", "404", "429", "4XX", "503")


def schemas() -> dict[str, Schema]:
    """Return the bodies of the requests, by component name."""
    update = {
        "description": "The new metadata of a stored completion, in place of the old.",
        "type": "object",
        "required": ["metadata"],
        "properties": {"metadata": metadata("object", "null")},
        "additionalProperties": False,
    }
    return {"UpdateChatCompletionRequest": update}


def paths() -> dict[str, Any]:
    """Return the operations by path; POST of the first is the chat endpoint, and not here."""
    root = "/v1/chat/completions"
    stored = response("The stored completion.", json_content("StoredChatCompletion"))
    one = get_operation(
        "getChatCompletion", "openai", "Return a stored completion.", stored, *_ERRORS
    )
    one["post"] = operation(
        "updateChatCompletion",
        "openai",
        "Replace a stored completion's metadata.",
        stored,
        (*ANYWHERE, *WITH_BODY, "503"),
        requestBody={"required": True, "content": json_content("UpdateChatCompletionRequest")},
    )
    gone = response("It is deleted.", json_content("ChatCompletionDeleted"))
    one["delete"] = operation(
        "deleteChatCompletion",
        "openai",
        "Delete a stored completion.",
        gone,
        (*ANYWHERE, *_ERRORS),
    )
    for each in one.values():
        each["parameters"] = [_id()]
    said = response("A page of the messages.", json_content("ChatCompletionMessageList"))
    name = "getChatCompletionMessages"
    messages = get_operation(name, "openai", "List a stored request's messages.", said, *_ERRORS)
    messages["get"]["parameters"] = [_id(), *_paging()]
    below = f"{root}/{{completion_id}}"
    return {root: _list_parameters(), below: one, f"{below}/messages": messages}


def _list_parameters() -> dict[str, Any]:
    """Return the operation that lists stored completions."""
    found = response("A page of stored completions.", json_content("ChatCompletionList"))
    summary = "List stored completions."
    made: dict[str, Any] = get_operation("listChatCompletions", "openai", summary, found, *_ERRORS)
    model = _query_parameter("model", "Those of this model.", {"type": "string"})
    filters = _query_parameter("metadata", "Those that have all these pairs.", metadata("object"))
    filters |= {"style": "deepObject", "explode": True}
    made["get"]["parameters"] = [model, filters, *_paging()]
    return made


def _paging() -> list[dict[str, Any]]:
    limit = {
        "type": "integer",
        "minimum": 1,
        "maximum": stored_shapes.MOST,
        "default": stored_shapes.DEFAULT,
    }
    order = {"enum": [*stored_shapes.ORDERS], "default": stored_shapes.ORDERS[0]}
    return [
        _query_parameter(
            "after", "The id of the last item of the page before.", {"type": "string"}
        ),
        _query_parameter("limit", "The most items of the page.", limit),
        _query_parameter("order", "Oldest first (asc) or newest first (desc).", order),
    ]


def _query_parameter(name: str, text: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _id() -> dict[str, Any]:
    return {
        "name": "completion_id",
        "in": "path",
        "required": True,
        "description": "The id of the answer that was stored.",
        "schema": {"type": "string", "minLength": 1},
    }
