"""The document's request for a response: the Struct's fields, with the bounds that are checked.

As in requests.py a schema may be looser than the check, and never stricter.
"""

from __future__ import annotations

from typing import Final

from tests.openapi.requests import (
    NULL,
    OBJECT,
    STREAM_OPTIONS,
    STRING,
    Schema,
    body_of,
    bounds_of,
    component,
    logit_bias,
    metadata,
    object_with,
    or_null,
    stop,
    tool_name,
)
from tests.openapi.text import MOVED_HERE, REFUSED_HERE, RESPONSE_FIELDS
from wellspoken.adapters.requests import chat_bounds
from wellspoken.adapters.requests.responses import (
    input_items,
    response_bounds,
    response_request,
    response_tools,
)
from wellspoken.adapters.requests.responses.response_request import MOVED, REFUSED, ResponseRequest

NAMED: Schema = {"type": "string", "minLength": 1}
FLAG: Schema = {"type": ["boolean", "null"]}
TEXT: Schema = {"type": ["string", "null"]}
LONGEST: Final = {"maxLength": input_items.MAX_ID}


def schemas() -> dict[str, Schema]:
    """Return the request body and its items, by component name."""
    forms = {kind: component(_item_name(kind)) for kind in input_items.CHECKS}
    items = {_item_name(kind): made for kind, made in _items().items()}
    return {
        "ResponseRequest": _request(),
        "InputItem": {
            "description": "One item of the conversation.",
            "anyOf": list(forms.values()),
        },
        **items,
    }


def refused() -> dict[str, Schema]:
    """Return the parameters that are refused, each with what to do."""
    told = {name: MOVED_HERE.format(MOVED[name]) for name in MOVED}
    told |= {name: f"{REFUSED_HERE} {text}" for name, text in REFUSED.items()}
    return {name: {"description": text, **NULL} for name, text in told.items()}


def _item_name(kind: str) -> str:
    return "Input" + "".join(word.capitalize() for word in kind.split("_"))


def _request() -> Schema:
    more: dict[str, Schema] = {
        "model": NAMED,
        "input": or_null(STRING, {"type": "array", "items": component("InputItem")}),
        "include": {"type": ["array", "null"], "items": {"enum": [*response_request.INCLUDED]}},
        "logit_bias": logit_bias(),
        "metadata": metadata("object", "null"),
        "previous_response_id": {"type": ["string", "null"], "minLength": 1},
        "reasoning": _reasoning(),
        "safety_identifier": {"type": ["string", "null"], "maxLength": chat_bounds.MAX_KEY},
        "stop": stop(),
        "stream_options": _options({"include_obfuscation": FLAG}),
        "text": _text(),
        "tool_choice": _tool_choice(),
        "tools": {"type": ["array", "null"], "items": _tool(), "maxItems": chat_bounds.MAX_TOOLS},
        "truncation": {"enum": [*response_bounds.TRUNCATIONS, None]},
        **bounds_of(response_bounds.SEED, response_bounds.INTEGERS, chat_bounds.DECIMALS),
        **refused(),
    }
    said = ("input", {"type": ["string", "array"]}), ("previous_response_id", STRING)
    made = body_of(ResponseRequest, more, ["model"], [STREAM_OPTIONS], RESPONSE_FIELDS)
    made["properties"] |= {name: more[name] for name in refused()}
    made["anyOf"] = [{"required": [name], "properties": {name: schema}} for name, schema in said]
    return made


def _options(properties: dict[str, Schema]) -> Schema:
    """Return an object that may hold these keys and no others, or null."""
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _reasoning() -> Schema:
    words = {
        "effort": response_bounds.EFFORTS,
        "summary": response_bounds.SUMMARIES,
        "generate_summary": response_bounds.SUMMARIES,
        "context": response_bounds.CONTEXTS,
        "mode": response_bounds.MODES,
    }
    return _options({name: {"enum": [*known, None]} for name, known in words.items()})


def _text() -> Schema:
    plain = [name for name in chat_bounds.FORMATS if name != "json_schema"]
    keys = ("type", "name", "description", "schema", "strict")
    schema = {"type": {"const": "json_schema"}, "name": tool_name(), "description": TEXT,
              "schema": OBJECT, "strict": FLAG}  # fmt: skip
    forms = [
        object_with({"type": {"enum": plain}}, "type"),
        object_with(schema, "type", "name", "schema"),
    ]
    closed = [
        {**form, "properties": {key: form["properties"].get(key, {}) for key in keys},
         "additionalProperties": False}
        for form in forms
    ]  # fmt: skip
    for key, kind in (("name", TEXT), ("description", TEXT), ("strict", FLAG)):
        closed[0]["properties"][key] = kind
    verbosity = {"enum": [*response_bounds.VERBOSITIES, None]}
    return _options({"format": or_null(*closed), "verbosity": verbosity})


def _tool() -> Schema:
    about = {"name": tool_name(), "description": TEXT}
    function = object_with(
        {"type": {"const": "function"}, **about, "parameters": {"type": ["object", "null"]},
         "strict": FLAG},
        "type", "name",
    )  # fmt: skip
    free = object_with({"type": {"const": "text"}}, "type")
    custom = object_with(
        {"type": {"const": "custom"}, **about, "format": or_null(free)}, "type", "name"
    )
    inner = {"type": "array", "items": {"anyOf": [function, custom]}}
    space = object_with(
        {"type": {"const": "namespace"}, **about, "tools": inner}, "type", "name", "tools"
    )
    kinds = sorted(kind for kind in response_tools.SERVER_SIDE if kind.startswith("web_search"))
    search = object_with(
        {"type": {"enum": kinds}, "external_web_access": {"type": "boolean"}},
        "type", "external_web_access",
        description="Left out where it is false, or beside functions.",
    )  # fmt: skip
    return {"anyOf": [function, custom, space, search]}


def _tool_choice() -> Schema:
    kinds = [kind for kind in response_tools.CHOICES if kind != "allowed_tools"]
    one = object_with({"type": {"enum": kinds}, "name": NAMED}, "type", "name")
    several = object_with(
        {"type": {"const": "allowed_tools"}, "mode": {"enum": ["auto", "required"]},
         "tools": {"type": "array", "items": one, "minItems": 1}},
        "type", "mode", "tools",
    )  # fmt: skip
    return or_null({"enum": [*chat_bounds.MODES]}, one, several)


def _items() -> dict[str, Schema]:
    """Return what each type of item may hold."""
    call_id = {"type": "string", "minLength": 1, **LONGEST}
    name = {"call_id": call_id, "name": NAMED, "namespace": {**NAMED, "type": ["string", "null"]}}
    output = {"call_id": call_id, "output": _content(input_items.OUTPUT_PARTS)}
    texts = {"summary": _texts("summary_text"), "content": or_null(_texts("reasoning_text"))}
    made = {
        "function_call": ({**name, "arguments": STRING}, ("call_id", "name", "arguments")),
        "custom_tool_call": ({**name, "input": STRING}, ("call_id", "name", "input")),
        "function_call_output": (output, tuple(output)),
        "custom_tool_call_output": (output, tuple(output)),
        "reasoning": ({**texts, "encrypted_content": TEXT}, ("summary",)),
    }
    found = {kind: _item(kind, keys, "type", *needed) for kind, (keys, needed) in made.items()}
    reference = {"id": {"type": "string", "minLength": 1, **LONGEST}}
    found["item_reference"] = _item("item_reference", reference, "type", "id")
    found["message"] = {
        "description": "What one of them says; the type may be left out.",
        "anyOf": [_message(role) for role in input_items.ROLES],
    }
    return found


def _item(kind: str, keys: dict[str, Schema], *needed: str) -> Schema:
    own: dict[str, Schema] = {
        "id": {"type": ["string", "null"], "minLength": 1, **LONGEST},
        "type": {"const": kind},
        "status": {"enum": [*input_items.STATUSES, None]},
    }
    return object_with(own | keys, *needed)


def _message(role: str) -> Schema:
    content = _content(input_items.MESSAGE_PARTS[role], empty=role == "assistant")
    made = _item("message", {"role": {"const": role}, "content": content}, "role", "content")
    made["properties"]["type"] = {"enum": ["message", None]}
    return made


def _content(kinds: tuple[str, ...], *, empty: bool = False) -> Schema:
    parts: Schema = {"type": "array", "items": {"anyOf": [_part(kind) for kind in kinds]}}
    if not empty:
        parts["minItems"] = 1
    return {"anyOf": [STRING, parts]}


def _texts(kind: str) -> Schema:
    return {"type": "array", "items": _part(kind)}


_AUDIO = object_with({"data": STRING, "format": STRING}, "data", "format")
_PARTS: Final[dict[str, tuple[dict[str, Schema], tuple[str, ...]]]] = {
    **{
        kind: ({"text": STRING}, ("text",))
        for kind in ("input_text", "output_text", "summary_text", "reasoning_text")
    },
    "refusal": ({"refusal": STRING}, ("refusal",)),
    "input_image": (
        {"image_url": NAMED, "detail": {"enum": [*input_items.DETAILS, None]}},
        ("image_url",),
    ),
    "input_file": ({"file_data": NAMED, "filename": TEXT}, ("file_data",)),
    "input_audio": ({"input_audio": _AUDIO}, ("input_audio",)),
}
"""The type of a part -> its keys, and those that it needs."""


def _part(kind: str) -> Schema:
    keys, needed = _PARTS[kind]
    return object_with({"type": {"const": kind}, **keys}, "type", *needed)
