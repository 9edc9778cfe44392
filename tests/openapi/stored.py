"""The stored completions' paths of proxy/endpoints/openapi.json, and what they send and answer."""

from __future__ import annotations

from typing import Any, Final

from tests.openapi import stored_schema
from tests.openapi.parts import ANYWHERE, WITH_BODY, answered, got, operation, shaped
from tests.openapi.requests import Schema, metadata
from wellspoken.adapters.requests import stored as stored_requests

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
    stored = answered("The stored completion.", shaped("StoredChatCompletion"))
    one = got("getChatCompletion", "openai", "Return a stored completion.", stored, *_ERRORS)
    one["post"] = operation(
        "updateChatCompletion",
        "openai",
        "Replace a stored completion's metadata.",
        stored,
        (*ANYWHERE, *WITH_BODY, "503"),
        requestBody={"required": True, "content": shaped("UpdateChatCompletionRequest")},
    )
    gone = answered("It is deleted.", shaped("ChatCompletionDeleted"))
    one["delete"] = operation(
        "deleteChatCompletion",
        "openai",
        "Delete a stored completion.",
        gone,
        (*ANYWHERE, *_ERRORS),
    )
    for each in one.values():
        each["parameters"] = [_id()]
    said = answered("A page of the messages.", shaped("ChatCompletionMessageList"))
    name = "getChatCompletionMessages"
    messages = got(name, "openai", "List a stored request's messages.", said, *_ERRORS)
    messages["get"]["parameters"] = [_id(), *_paging()]
    below = f"{root}/{{completion_id}}"
    return {root: _listed(), below: one, f"{below}/messages": messages}


def _listed() -> dict[str, Any]:
    """Return the operation that lists stored completions."""
    found = answered("A page of stored completions.", shaped("ChatCompletionList"))
    summary = "List stored completions."
    made: dict[str, Any] = got("listChatCompletions", "openai", summary, found, *_ERRORS)
    model = _asked("model", "Those of this model.", {"type": "string"})
    filters = _asked("metadata", "Those that have all these pairs.", metadata("object"))
    filters |= {"style": "deepObject", "explode": True}
    made["get"]["parameters"] = [model, filters, *_paging()]
    return made


def _paging() -> list[dict[str, Any]]:
    limit = {
        "type": "integer",
        "minimum": 1,
        "maximum": stored_requests.MOST,
        "default": stored_requests.DEFAULT,
    }
    order = {"enum": [*stored_requests.ORDERS], "default": stored_requests.ORDERS[0]}
    return [
        _asked("after", "The id of the last item of the page before.", {"type": "string"}),
        _asked("limit", "The most items of the page.", limit),
        _asked("order", "Oldest first (asc) or newest first (desc).", order),
    ]


def _asked(name: str, text: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _id() -> dict[str, Any]:
    return {
        "name": "completion_id",
        "in": "path",
        "required": True,
        "description": "The id of the answer that was stored.",
        "schema": {"type": "string", "minLength": 1},
    }
