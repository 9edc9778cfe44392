"""The document's request bodies: the Structs' fields, with the bounds that are checked.

The Structs say the types; what `chat_bounds` and `completions_bounds` check is added from their
own tables, since a bound in a Struct would answer msgspec's text and not OpenAI's. A schema here
may be looser than the check (a named tool has to be among the tools) and never stricter.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import msgspec
from msgspec import Struct

from tests.openapi.text import FIELDS
from wellspoken.adapters.requests import chat_bounds, completions_bounds, embeddings
from wellspoken.adapters.requests.embeddings import EmbeddingRequest
from wellspoken.adapters.requests.shapes import (
    ChatRequest,
    CompletionRequest,
    FunctionCall,
    Message,
    StreamOptions,
    ToolCall,
)

Schema = dict[str, Any]
REF = "#/components/schemas/{name}"
NULL: Schema = {"type": "null"}
STRING: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}
OWN = frozenset({"fields", "native", "unlimited", "items", "references", "offer"})
"""Fields of the Structs that no client sends."""


def schemas() -> dict[str, Schema]:
    """Return the request bodies and what they refer to, by component name."""
    plain = msgspec.json.schema_components([StreamOptions], ref_template=REF)[1]
    found = {name: simple(schema) for name, schema in plain.items()}
    called = {"name": STRING, "arguments": STRING}
    found["FunctionCall"] = object_with(called, *called, description=FunctionCall.__doc__ or "")
    found["ToolCall"] = _call()
    found |= {_role_name(role): _message(role) for role in chat_bounds.ROLES}
    roles = [component(_role_name(role)) for role in chat_bounds.ROLES]
    found["Message"] = {"description": "One message of the conversation.", "anyOf": roles}
    found["Function"] = _function()
    found["ChatRequest"] = _chat()
    found["CompletionRequest"] = _completion()
    found["EmbeddingRequest"] = _embedding()
    return found


def simple(schema: Any) -> Any:
    """Return a schema of msgspec's without defaults, and `X | None` as one list of types."""
    if isinstance(schema, list):
        return [simple(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: {name: simple(item) for name, item in value.items()}
        if key in ("properties", "$defs")
        else simple(value)
        for key, value in schema.items()
        if key not in ("default", "title")
    }
    if isinstance(text := made.get("description"), str):  # indented before Python 3.13
        made["description"] = cleandoc(text)
    options = made.get("anyOf")
    if options and NULL in options and len(options) == 2:
        (other,) = (option for option in options if option != NULL)
        if isinstance(other.get("type"), str) and "enum" not in other:
            del made["anyOf"]
            return other | made | {"type": [other["type"], "null"]}
    return made


def component(name: str) -> Schema:
    """Return a reference to a schema."""
    return {"$ref": REF.format(name=name)}


def or_null(*schemas: Schema) -> Schema:
    """Return what is one of these, or null."""
    return {"anyOf": [*schemas, NULL]}


def object_with(properties: Schema, *required: str, description: str = "") -> Schema:
    """Return an object with these properties, of which some are required, and any others."""
    made: Schema = {"type": "object", "properties": properties}
    if required:
        made["required"] = list(required)
    return {"description": description, **made} if description else made


def _field_types(
    kind: type[Struct], more: dict[str, Schema], texts: Mapping[str, str]
) -> dict[str, Schema]:
    """Return the properties of a Struct: `more` where it has them, else what the types say."""
    properties: dict[str, Schema] = {}
    for field in msgspec.structs.fields(kind):
        if field.name in OWN:
            continue
        schema = more.get(field.name)
        if schema is None:
            schema = simple(msgspec.json.schema_components([field.type], ref_template=REF)[0][0])
        properties[field.name] = {"description": texts[field.name], **schema}
    return properties


def bounds_of(*tables: tuple[tuple[str, int, int | None], ...]) -> dict[str, Schema]:
    """Return the schemas of numbers that the tables bound, decimals where the last says so."""
    made: dict[str, Schema] = {}
    for table in tables:
        kind = "number" if table is chat_bounds.DECIMALS else "integer"
        for name, low, high in table:
            made[name] = {"type": [kind, "null"], "minimum": low}
            if high is not None:
                made[name]["maximum"] = high
    return made


def needs(name: str, given: Schema, other: str, need: Schema) -> Schema:
    """Return the rule that `name`, where it is as `given`, needs `other` to be as `need` says."""
    return {
        "if": {"required": [name], "properties": {name: given}},
        "then": {"required": [other], "properties": {other: need}},
    }


STREAM_OPTIONS = needs("stream_options", OBJECT, "stream", {"const": True})


def stop() -> Schema:
    """Return the schema of stop."""
    texts = {"type": "array", "items": STRING, "maxItems": chat_bounds.MAX_STOPS}
    return or_null(STRING, texts)


def logit_bias() -> Schema:
    """Return the schema of logit_bias."""
    return {
        "type": ["object", "null"],
        "propertyNames": {"pattern": f"^{chat_bounds.TOKEN_ID.pattern}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    }


def metadata(*types: str) -> Schema:
    """Return the schema of metadata."""
    return {
        "type": [*types],
        "maxProperties": chat_bounds.MAX_PAIRS,
        "propertyNames": {"maxLength": chat_bounds.MAX_KEY},
        "additionalProperties": {"type": "string", "maxLength": chat_bounds.MAX_VALUE},
    }


def _chat() -> Schema:
    named = {"type": "string", "minLength": 1}
    tools = {"type": ["array", "null"], "items": _tool(), "maxItems": chat_bounds.MAX_TOOLS}
    functions = {
        "type": ["array", "null"],
        "items": component("Function"),
        "minItems": 1,
        "maxItems": chat_bounds.MAX_TOOLS,
    }
    more: dict[str, Schema] = {
        "model": named,
        "messages": {"type": "array", "items": component("Message"), "minItems": 1},
        "function_call": or_null({"enum": ["none", "auto"]}, object_with({"name": named}, "name")),
        "functions": functions,
        "logit_bias": logit_bias(),
        "metadata": metadata("object", "null"),
        "response_format": _response_format(),
        "safety_identifier": {"type": ["string", "null"], "maxLength": chat_bounds.MAX_KEY},
        "stop": stop(),
        "stream_options": or_null(component("StreamOptions")),
        "tool_choice": _tool_choice(),
        "tools": tools,
        **bounds_of(chat_bounds.GUARDS, chat_bounds.INTEGERS, chat_bounds.DECIMALS),
    }
    forced = {"not": {"enum": ["none", "auto", None]}}
    return body_of(
        ChatRequest,
        more,
        ["model", "messages"],
        [
            needs("top_logprobs", {"type": "integer"}, "logprobs", {"const": True}),
            STREAM_OPTIONS,
            needs("tool_choice", forced, "tools", {"type": "array", "minItems": 1}),
        ],
    )


def body_of(
    kind: type[Struct],
    more: dict[str, Schema],
    required: list[str],
    rules: list[Schema],
    texts: Mapping[str, str] = FIELDS,
) -> Schema:
    """Return a whole request body; keys that it does not name are a vendor's.

    `texts`: what its parameters are, by name.
    """
    description = " ".join((kind.__doc__ or "").partition("\n")[0].split()).partition(":")[0]
    properties = _field_types(kind, more, texts)
    order = (*required, *sorted(properties.keys() - set(required)))
    made: Schema = {
        "description": f"{description.rstrip('.')}. Other keys are the backend's own.",
        "type": "object",
        "required": required,
        "properties": {name: properties[name] for name in order},
        "additionalProperties": True,
    }
    return made | ({"allOf": rules} if rules else {})


def _completion() -> Schema:
    ids = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": completions_bounds.MAX_TOKEN_ID},
        "minItems": 1,
    }
    most = completions_bounds.MAX_CHOICES
    several = {"type": "array", "minItems": 1, "maxItems": most}
    prompts = [STRING, several | {"items": STRING}, ids, several | {"items": ids}]
    bounds = (
        ("best_of", 1, completions_bounds.MAX_BEST_OF),
        ("logprobs", 0, completions_bounds.MAX_LOGPROBS),
        ("max_tokens", 0, None),
    )
    more: dict[str, Schema] = {
        "model": {"type": "string", "minLength": 1},
        "prompt": {"anyOf": prompts},
        "logit_bias": logit_bias(),
        "stop": stop(),
        "stream_options": or_null(component("StreamOptions")),
        **bounds_of(chat_bounds.GUARDS, bounds, chat_bounds.DECIMALS),
    }
    return body_of(CompletionRequest, more, ["model", "prompt"], [STREAM_OPTIONS])


def _embedding() -> Schema:
    text = {"type": "string", "minLength": 1}
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    most: Schema = {"type": "array", "minItems": 1, "maxItems": embeddings.MOST_INPUTS}
    more: dict[str, Schema] = {
        "model": text,
        "input": {"anyOf": [text, most | {"items": text}, most | ids, most | {"items": ids}]},
        "dimensions": {"type": ["integer", "null"], "minimum": 1},
        "encoding_format": {"enum": [*embeddings.FORMATS, None]},
    }
    return body_of(EmbeddingRequest, more, ["model", "input"], [])


def tool_name() -> Schema:
    """Return the schema of the name of a tool, or of a JSON schema."""
    pattern = f"^{chat_bounds.NAME.pattern}$"
    return {"type": "string", "maxLength": chat_bounds.MAX_KEY, "pattern": pattern}


def _function() -> Schema:
    properties: Schema = {
        "name": tool_name(),
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"], "description": "A JSON schema."},
        "strict": {"type": ["boolean", "null"]},
    }
    return object_with(properties, "name", description="A function the model may call.")


def _tool() -> Schema:
    function = object_with(
        {"type": {"const": "function"}, "function": component("Function")}, "type", "function"
    )
    custom = object_with({"type": {"const": "custom"}, "custom": OBJECT}, "type", "custom")
    return {"anyOf": [function, custom]}


def _call() -> Schema:
    """Return a call of a past answer."""
    kinds = {"function": component("FunctionCall"), "custom": {"not": NULL}}
    forms = [
        object_with({"id": STRING, "type": {"const": kind}, kind: value}, "id", "type", kind)
        for kind, value in kinds.items()
    ]
    return {"description": ToolCall.__doc__, "anyOf": forms}


def _tool_choice() -> Schema:
    called = object_with({"name": {"type": "string", "minLength": 1}}, "name")
    function = object_with({"type": {"const": "function"}, "function": called}, "type", "function")
    other = object_with({"type": {"enum": ["custom", "allowed_tools"]}}, "type")
    return or_null({"enum": ["none", "auto", "required"]}, function, other)


def _response_format() -> Schema:
    others = [name for name in chat_bounds.FORMATS if name != "json_schema"]
    plain = {"enum": others + sorted(chat_bounds.VENDOR_FORMATS)}
    schema = object_with(
        {
            "name": tool_name(),
            "description": {"type": ["string", "null"]},
            "schema": {"description": "A JSON schema."},
            "strict": {"type": ["boolean", "null"]},
        },
        "name",
    )
    named = {"type": {"const": "json_schema"}, "json_schema": schema}
    return or_null(object_with({"type": plain}, "type"), object_with(named, "type", "json_schema"))


def _role_name(role: str) -> str:
    return f"{role.capitalize()}Message"


def _message(role: str) -> Schema:
    """Return what a message of this role may hold."""
    kinds = chat_bounds.PARTS.get(role, ())
    parts = {"type": "array", "minItems": 1, "items": {"anyOf": [*map(_part, kinds), _vendor()]}}
    content = {"anyOf": [STRING, parts]} if kinds else {"type": ["string", "null"]}
    required = ["role", "content"]
    if role == "assistant":
        content, required = or_null(STRING, parts), ["role"]
    elif role == "function":
        required = ["role", "name"]
    properties: dict[str, Schema] = {}
    for field in msgspec.structs.fields(Message):
        own: Schema = {"role": {"const": role}, "content": content}
        if role == "tool":
            own["tool_call_id"] = STRING
            required = ["role", "content", "tool_call_id"]
        elif role == "function":
            own["name"] = {"type": "string", "minLength": 1}
        schema = own.get(field.name)
        if schema is None:
            schema = simple(msgspec.json.schema_components([field.type], ref_template=REF)[0][0])
        properties[field.name] = schema
    made = object_with(properties, *required, description=f"What the {role} says.")
    return made | {"anyOf": _text_messages()} if role == "assistant" else made


def _text_messages() -> list[Schema]:
    """Return what an assistant's message may hold, of which it holds one at least."""
    calls = {"type": "array", "minItems": 1}
    some = {"content": {"type": ["string", "array"]}, "tool_calls": calls, "function_call": OBJECT,
            "refusal": STRING, "audio": {"not": NULL}}  # fmt: skip
    return [{"required": [key], "properties": {key: schema}} for key, schema in some.items()]


def _part(kind: str) -> Schema:
    """Return a content part of OpenAI's."""
    value = {
        "image_url": object_with({"url": STRING}, "url"),
        "input_audio": object_with({"data": STRING, "format": STRING}, "data", "format"),
        "file": OBJECT,
    }.get(kind, STRING)
    return object_with({"type": {"const": kind}, kind: value}, "type", kind)


def _vendor() -> Schema:
    kinds = sorted(chat_bounds.VENDOR_PARTS)
    return object_with(
        {"type": {"enum": kinds}}, "type", description="Kinds that vLLM and SGLang added."
    )
