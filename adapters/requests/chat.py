"""OpenAI's chat request: decoded strictly, and the `Exchange` of its answer.

Types are checked by the Structs (`shapes.py`), values by `chat_bounds.py`.
"""

from __future__ import annotations

from typing import Unpack

from msgspec import DecodeError, Raw, json

from wellspoken.adapters.exchange import Exchange, Extensions, Surroundings
from wellspoken.adapters.requests import chat_bounds
from wellspoken.adapters.requests.parsing import parse
from wellspoken.adapters.requests.shapes import (
    ALL_ALTERNATIVES,
    OFF,
    OPENAI_KEYS,
    OUR_KEYS,
    Bounds,
    ChatRequest,
    Function,
    FunctionCall,
    Message,
    StreamOptions,
    TextMessage,
    ToolChoice,
    Variable,
)

_decode_typed = json.Decoder(ChatRequest).decode
_decode_texts = json.Decoder(list[TextMessage]).decode


def decode_chat(body: bytes, *, bounds: Bounds = "openai") -> ChatRequest:
    """Return the request in `body`; raise `RequestError` 400 for what OpenAI would refuse.

    `bounds="backend"` checks types and what protects a backend (n, sizes) and leaves it the rest:
    five stop sequences, max_tokens -1, unknown roles and parts, a missing model.
    """
    request = parse_chat(body)
    chat_bounds.check(request, strict=bounds == "openai")
    return request


def parse_chat(body: bytes) -> ChatRequest:
    """Return the request in `body`, its types checked, not its values; raise `RequestError` 400."""
    request, fields = parse(body, _decode_typed, '{"model": ..., "messages": [...]}')
    request.fields = fields
    if request.oai_compat is None:
        request.oai_compat = True
    return request


def find_variable(request: ChatRequest) -> Variable | None:
    """Return the messages, where all are texts, the system's the first, followed by the user's."""
    raw = bytes(request.fields.get("messages", b""))
    try:
        messages = _decode_texts(raw)
    except (DecodeError, UnicodeDecodeError):
        return None
    kind, size = "", 0
    for place, message in enumerate(messages):
        size += len(message.content.encode())
        if message.role == "system":
            kind = "system"
            if place or len(messages) == 1 or messages[1].role != "user":
                return None  # which a template may refuse, so that the server is asked first
    return Variable("messages", raw, kind, {"prompt_size": size}) if messages else None


def exchange_for(request: ChatRequest, **given: Unpack[Surroundings]) -> Exchange:
    """Return what the answer's readers, stages and writers have to know of the request."""
    k = request.top_logprobs or 0
    limit = request.max_completion_tokens
    if limit is None:
        limit = request.max_tokens
    functions = bool(request.functions) and not request.tools
    return Exchange(
        model=request.model,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None
        and bool(request.stream_options.include_usage),
        running_usage=request.stream_options is not None
        and runs_usage(request.stream_options, given.get("extensions", "known")),
        logprobs=bool(request.logprobs),
        k=k if k >= 0 else ALL_ALTERNATIVES,
        n=request.n if request.n is not None else 1,
        max_tokens=limit if limit is not None and limit > 0 else None,
        tools=_tool_names(request) if request.tools or request.functions else (),
        schemas=_schemas(request) if "tool_calls" in given.get("recover", ()) else {},
        forced_tool=_forces_tool(request),
        functions=functions,
        parallel_calls=request.parallel_tool_calls is not False and not functions,
        parts=_parts(request.messages),
        stops=stops_of(request.stop),
        service_tier=request.service_tier is not None,
        switches=switches_of(request.fields, OPENAI_KEYS),
        prompt_size=prompt_size(request.messages),
        **given,
    )


def runs_usage(options: StreamOptions, extensions: Extensions) -> bool:
    """Say whether each chunk tells the counts so far, which OpenAI's contract has not.

    vLLM and SGLang do so beside `include_usage` alone. LangChain would add the counts up, so that
    a client asks for it is not enough.
    """
    asked = options.include_usage and options.continuous_usage_stats
    return bool(asked) and extensions == "all"


def _parts(messages: list[Message]) -> dict[str, str]:
    """Return the kinds of content parts that are no text, each with the place of its first."""
    found: dict[str, str] = {}
    for place, message in enumerate(messages):
        if isinstance(message.content, list):
            for at, part in enumerate(message.content):
                if part.type is not None and part.type != "text":
                    found.setdefault(part.type, f"messages[{place}].content[{at}]")
    return found


def _functions(request: ChatRequest) -> list[Function]:
    if request.tools:
        return [tool.function for tool in request.tools if tool.function is not None]
    return request.functions or []


def _tool_names(request: ChatRequest) -> tuple[str, ...]:
    return tuple(function.name for function in _functions(request) if function.name)


def _schemas(request: ChatRequest) -> dict[str, dict[str, Raw]]:
    """Return the parameters' schemas of the tools that may be called."""
    if "none" in (request.tool_choice, request.function_call):
        return {}
    return {x.name: x.parameters or {} for x in _functions(request) if x.name}


def _forces_tool(request: ChatRequest) -> bool:
    """Say whether one named tool has to be called."""
    choice = request.tool_choice if request.tools else request.function_call
    if isinstance(choice, ToolChoice):
        named = choice.function or choice.custom
        return named is not None and bool(named.name)
    return isinstance(choice, FunctionCall) and bool(choice.name)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings that can be found: all but the empty one."""
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop or ()))


def switches_of(fields: dict[str, Raw], known: frozenset[str]) -> frozenset[str]:
    """Return the vendors' keys, those not `known`, that have a value other than null or false."""
    vendors = fields.keys() - known - OUR_KEYS
    return frozenset([key for key in vendors if bytes(fields[key]) not in OFF] if vendors else ())


def prompt_size(messages: list[Message]) -> int:
    """Return the UTF-8 length of the messages' text, for estimating tokens nobody counted."""
    size = 0
    for message in messages:
        content = message.content
        if isinstance(content, str):
            size += len(content) if content.isascii() else len(content.encode())
        elif content:
            size += sum(len(part.text.encode()) for part in content if part.text)
    return size
