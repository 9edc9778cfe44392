"""What a chat request may hold: OpenAI's bounds, and the few that protect any backend.

Source: OpenAI's published OpenAPI document (API 2.3.0) and what api.openai.com answers. `strict` is
a route's `bounds = "openai"`; without it a value passes that only OpenAI itself would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.errors import short, type_of
from wellspoken.adapters.requests.shapes import (
    ChatRequest,
    FunctionCall,
    GenerationRequest,
    Message,
    Part,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolChoice,
)

MAX_N: Final = 128
MAX_STOPS: Final = 4
MAX_STOPS_ANY: Final = 1024  # what a backend has to search for at every token
MAX_TOOLS: Final = 128
MAX_PAIRS: Final = 16
MAX_PAIRS_ANY: Final = 1024  # what a database has to list for one row
MAX_KEY: Final = 64
MAX_VALUE: Final = 512
INT64: Final = 2**63

GUARDS: Final = (("n", 1, MAX_N), ("seed", -INT64, INT64 - 1))
INTEGERS: Final[tuple[tuple[str, int, int | None], ...]] = (
    ("top_logprobs", 0, 20),
    ("max_tokens", 1, None),
    ("max_completion_tokens", 1, None),
)
DECIMALS: Final = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
)

ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_PLAIN_ROLES: Final = frozenset({"system", "developer", "user"})
PARTS: Final = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
VENDOR_PARTS: Final = frozenset(
    {"video_url", "audio_url", "image_embeds", "audio_embeds", "image", "video", "audio"}
)
"""Kinds that open servers (vLLM, SGLang) added; forwarded, as vendors' keys are."""

TOOLS: Final = ("function", "custom")
CHOICES: Final = (*TOOLS, "allowed_tools")
MODES: Final = ("none", "auto", "required")
FORMATS: Final = ("text", "json_object", "json_schema")
VENDOR_FORMATS: Final = frozenset({"structural_tag", "grammar", "regex"})
NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
TOKEN_ID: Final = re.compile(r"[0-9]{1,10}")


def check(request: ChatRequest, strict: bool) -> None:
    """Raise `RequestError` for the first value out of bounds."""
    if strict and not request.model:
        raise errors.no_model()
    if "messages" not in request.fields:
        raise errors.missing("messages", "Send an array of message objects.")
    numbers(request, "integer", GUARDS)
    if strict or request.store:  # else nobody reads it: no backend is sent it
        metadata(request.metadata, strict=strict)
    stop(request, MAX_STOPS if strict else MAX_STOPS_ANY)
    if strict:
        _openai(request)


def _openai(request: ChatRequest) -> None:
    numbers(request, "integer", INTEGERS)
    numbers(request, "decimal", DECIMALS)
    if request.top_logprobs is not None and not request.logprobs:
        raise errors.not_allowed("top_logprobs", "'logprobs' is true")
    if request.stream_options is not None and not request.stream:
        raise errors.not_allowed("stream_options", "'stream' is true")
    if request.logit_bias is not None:
        logit_bias(request.logit_bias)
    if request.response_format is not None:
        _response_format(request.response_format)
    if request.safety_identifier is not None and len(request.safety_identifier) > MAX_KEY:
        raise errors.too_long(
            "safety_identifier", "string", MAX_KEY, len(request.safety_identifier)
        )
    if request.tools or request.tool_choice is not None:
        _tools(request)
    if request.functions is not None or request.function_call is not None:
        _functions(request)
    if not request.messages:
        raise errors.empty("messages", "array")
    for index, message in enumerate(request.messages):
        plain = message.role in _PLAIN_ROLES and type(message.content) is str
        if not plain or message.tool_calls or message.function_call is not None:
            _message(message, f"messages[{index}]")


def numbers(
    request: GenerationRequest, kind: str, rows: Iterable[tuple[str, int, int | None]]
) -> None:
    """Raise `RequestError` for the first of these numbers that is out of bounds."""
    for name, low, high in rows:
        if getattr(request, name) is not None:
            number(request, name, kind, low, high)


def number(
    request: GenerationRequest,
    name: str,
    kind: str,
    low: int,
    high: int | None,
    sent_as: str | None = None,
) -> None:
    """Raise `RequestError` for a number out of bounds; `sent_as` is the client's key for it."""
    value = getattr(request, name)
    if value is not None and (value < low or (high is not None and value > high)):
        param = sent_as or name
        raise errors.out_of_range(param, kind, bytes(request.fields[param]).decode(), low, high)


def seed_of_choice(seed: int, choice: int) -> int:
    """Return the seed of one of several choices: one more for each, within 64 bits."""
    further = seed + choice
    return further if further < INT64 else further - INT64


def stop(request: GenerationRequest, most: int) -> None:
    """Raise `RequestError` for more than `most` stop strings."""
    if isinstance(request.stop, list) and len(request.stop) > most:
        raise errors.too_long("stop", "array", most, len(request.stop))


def metadata(pairs: dict[str, Any] | None, *, strict: bool) -> None:
    """Raise `RequestError` unless every value is a text, and for more than OpenAI takes.

    Not `strict`: for more than a database should have to take.
    """
    if pairs is None:
        return
    most = MAX_PAIRS if strict else MAX_PAIRS_ANY
    if len(pairs) > most:
        raise errors.too_many("metadata", most, len(pairs))
    for key, value in pairs.items():
        param = f"metadata.{short(key)}"
        if not isinstance(value, str):
            raise errors.wrong_type(param, "a string", type_of(value))
        if strict and len(key) > MAX_KEY:
            raise errors.invalid(
                "metadata",
                f"Invalid property name in 'metadata': '{short(key)}' is too long. Expected a "
                f"string with maximum length {MAX_KEY}, but got a string with length {len(key)} "
                "instead.",
                "property_name_above_max_length",
            )
        if strict and len(value) > MAX_VALUE:
            raise errors.too_long(param, "string", MAX_VALUE, len(value))


def logit_bias(bias: dict[str, Any] | list[Any]) -> None:
    """Raise `RequestError` unless `bias` gives token ids numbers from -100 to 100."""
    if isinstance(bias, list):
        raise errors.wrong_type("logit_bias", "an object of token ids and numbers", "an array")
    for key, value in bias.items():
        if not TOKEN_ID.fullmatch(key):
            raise errors.invalid(
                "logit_bias",
                f"Invalid key in 'logit_bias': '{short(key)}'. Keys have to be token ids: "
                'non-negative integers written as strings, as in {"50256": -100}.',
            )
        param = f"logit_bias.{key}"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise errors.wrong_type(param, "a number", type_of(value))
        if not -100 <= value <= 100:
            kind = "integer" if isinstance(value, int) else "decimal"
            raise errors.out_of_range(param, kind, str(value), -100, 100)


def _kind(
    kind: str | None, place: str, known: Sequence[str], also: Container[str] = (), need: str = ""
) -> None:
    """Check the `type` of what stands at a place: one of `known`, or `also` one of the vendors."""
    if kind is None:
        raise errors.missing(f"{place}.type", need or f"It is one of {', '.join(known)}.")
    if kind not in known and kind not in also:
        raise errors.wrong_value(f"{place}.type", kind, known)


def _response_format(wanted: ResponseFormat) -> None:
    _kind(wanted.type, "response_format", FORMATS, VENDOR_FORMATS)
    if wanted.type == "json_schema":
        if wanted.json_schema is None:
            raise errors.missing(
                "response_format.json_schema", "Send an object with name and schema."
            )
        check_name(wanted.json_schema.name, "response_format.json_schema.name")


def check_name(name: str | None, param: str) -> None:
    """Raise `RequestError` for what is no name of a function or a schema."""
    if name is None:
        raise errors.missing(param, "It may hold a-z, A-Z, 0-9, underscores and dashes.")
    if not name:
        raise errors.empty(param, "string")
    if len(name) > MAX_KEY:
        raise errors.too_long(param, "string", MAX_KEY, len(name))
    if not NAME.fullmatch(name):
        raise errors.invalid(
            param,
            f"Invalid '{param}': string does not match pattern. Expected a string that matches "
            f"the pattern '^{NAME.pattern}$'.",
        )


def _tools(request: ChatRequest) -> None:
    tools = request.tools or []
    if len(tools) > MAX_TOOLS:
        raise errors.too_long("tools", "array", MAX_TOOLS, len(tools))
    for index, tool in enumerate(tools):
        _tool(tool, f"tools[{index}]")
    if request.tool_choice is not None:
        _tool_choice(request.tool_choice, tools)


def _tool(tool: Tool, param: str) -> None:
    _kind(tool.type, param, TOOLS, need="It is 'function' or 'custom'.")
    if tool.type == "function":
        if tool.function is None:
            raise errors.missing(f"{param}.function", "Send an object with name and parameters.")
        check_name(tool.function.name, f"{param}.function.name")
    elif not isinstance(tool.custom, dict):
        raise errors.missing(f"{param}.custom", "Send an object with name.")


def _tool_choice(choice: str | ToolChoice, tools: list[Tool]) -> None:
    if isinstance(choice, str):
        if choice not in MODES:
            raise errors.wrong_value("tool_choice", choice, MODES)
        if choice == "required" and not tools:
            raise errors.not_allowed("tool_choice", "'tools' are specified")
        return
    need = "It is 'function', 'custom' or 'allowed_tools'."
    _kind(choice.type, "tool_choice", CHOICES, need=need)
    if not tools:
        raise errors.not_allowed("tool_choice", "'tools' are specified")
    if choice.type != "function":
        return
    name = choice.function.name if choice.function is not None else None
    if not name:
        raise errors.missing("tool_choice.function.name", "Name one of the functions in 'tools'.")
    if not any(tool.function is not None and tool.function.name == name for tool in tools):
        raise errors.invalid(
            "tool_choice",
            f"Tool choice '{short(name)}' not found in 'tools'. Name one of the offered functions.",
        )


def _functions(request: ChatRequest) -> None:
    functions = request.functions
    if functions is not None:
        if request.tools:
            raise errors.not_allowed("functions", "'tools' are not specified")
        if not functions:
            raise errors.empty("functions", "array")
        if len(functions) > MAX_TOOLS:
            raise errors.too_long("functions", "array", MAX_TOOLS, len(functions))
        for index, function in enumerate(functions):
            check_name(function.name, f"functions[{index}].name")
    choice = request.function_call
    if choice is None:
        return
    if isinstance(choice, str):
        if choice not in ("none", "auto"):
            raise errors.wrong_value("function_call", choice, ("none", "auto"))
    elif not choice.name:
        raise errors.missing("function_call.name", "Name one of the functions in 'functions'.")
    elif not any(function.name == choice.name for function in functions or []):
        raise errors.not_allowed("function_call", "it names one of 'functions'")


def _message(message: Message, param: str) -> None:
    role = message.role
    if role is None:
        raise errors.missing(f"{param}.role", f"It is one of {', '.join(ROLES)}.")
    if role not in ROLES:
        raise errors.wrong_value(f"{param}.role", role, ROLES)
    content = message.content
    if content is None:
        if not _may_lack_content(message):
            raise errors.missing(
                f"{param}.content",
                f"A message of role '{role}' needs a string or a non-empty array of parts.",
            )
    elif isinstance(content, list):
        _parts(content, role, f"{param}.content")
    if role == "tool" and message.tool_call_id is None:
        raise errors.missing(
            f"{param}.tool_call_id", "Name the id of the tool call that this answers."
        )
    if role == "function" and not message.name:
        raise errors.missing(f"{param}.name", "Name the function that this answers.")
    for index, call in enumerate(message.tool_calls or []):
        _call(call, f"{param}.tool_calls[{index}]")
    if message.function_call is not None:
        _function_call(message.function_call, f"{param}.function_call")


def _may_lack_content(message: Message) -> bool:
    if message.role == "assistant":
        said = (message.tool_calls, message.function_call, message.refusal, message.audio)
        return any(value is not None and value != [] for value in said)
    return message.role == "function"


def _parts(parts: list[Part], role: str, param: str) -> None:
    if role == "function":
        raise errors.wrong_type(param, "a string", "an array")
    if not parts:
        raise errors.empty(param, "array")
    allowed = PARTS[role]
    for index, part in enumerate(parts):
        _kind(part.type, f"{param}[{index}]", allowed, VENDOR_PARTS)
        if part.type in allowed:
            _part(part, part.type, f"{param}[{index}].{part.type}")


def _part(part: Part, kind: str, param: str) -> None:
    """Check that a part holds what its type says: a string, or an object with its strings."""
    value = getattr(part, kind)
    if value is None:
        raise errors.missing(param, f"A part of type '{kind}' holds it.")
    if kind in ("text", "refusal"):
        return
    if not isinstance(value, dict):
        raise errors.wrong_type(param, "an object", type_of(value))
    for key in {"image_url": ("url",), "input_audio": ("data", "format")}.get(kind, ()):
        if key not in value:
            raise errors.missing(f"{param}.{key}", "It is a string.")
        if not isinstance(value[key], str):
            raise errors.wrong_type(f"{param}.{key}", "a string", type_of(value[key]))


def _call(call: ToolCall, param: str) -> None:
    if call.id is None:
        raise errors.missing(f"{param}.id", "Repeat the id that the answer gave the call.")
    _kind(call.type, param, TOOLS, need="It is 'function' or 'custom'.")
    if call.type == "function":
        if call.function is None:
            raise errors.missing(f"{param}.function", "Repeat the name and arguments of the call.")
        _function_call(call.function, f"{param}.function")
    elif call.custom is None:
        raise errors.missing(f"{param}.custom", "Repeat the name and input of the call.")


def _function_call(function: FunctionCall, param: str) -> None:
    if function.name is None:
        raise errors.missing(f"{param}.name", "Repeat the name that the answer gave.")
    if function.arguments is None:
        raise errors.missing(f"{param}.arguments", "Repeat the JSON text that the answer gave.")
    if not isinstance(function.arguments, str):
        raise errors.wrong_type(
            f"{param}.arguments", "a string of JSON", type_of(function.arguments)
        )
