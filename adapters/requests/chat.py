"""OpenAI's own shapes: the chat request, decoded strictly; models; and the `Exchange` of a request.

The decode is two passes of C over the body: one into typed Structs, which is what the proxy reads,
and one into `fields`, every top-level value as the client sent it, which is what is forwarded, so
no vendor's key is lost or reformatted. Types are checked by the Structs, values by `openai_bounds`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from msgspec import Raw, Struct, field, json

from wellspoken.adapters.exchange import Exchange, Extensions
from wellspoken.adapters.requests import chat_bounds as openai_bounds
from wellspoken.adapters.requests.errors import RequestError, error_json
from wellspoken.adapters.requests.parsing import parse

if TYPE_CHECKING:
    from wellspoken.adapters.tokens.table import TokenTable

__all__ = [
    "ChatRequest",
    "Message",
    "Model",
    "ModelList",
    "RequestError",
    "decode_chat",
    "error_json",
    "exchange_for",
]

Bounds = Literal["openai", "backend"]

ALL_ALTERNATIVES: Final = 1 << 20
"""`k` of a request whose top_logprobs is negative (vLLM: the whole vocabulary)."""


class Part(Struct, gc=False):
    """One part of a message's content; what is not text stays as the client sent it."""

    type: str | None = None
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None


class FunctionCall(Struct, gc=False):
    """The function a past answer called; `arguments` is JSON text where the client is exact."""

    name: str | None = None
    arguments: Any = None


class ToolCall(Struct, gc=False):
    """One call of a past answer."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall | None = None
    custom: Any = None


class Message(Struct, gc=False):
    """One message of the conversation."""

    role: str | None = None
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    audio: Any = None


class Function(Struct, gc=False):
    """A function the model may call; `parameters` is a JSON schema, unread."""

    name: str | None = None
    description: str | None = None
    parameters: dict[str, Raw] | None = None
    strict: bool | None = None


class Tool(Struct, gc=False):
    """A tool the model may call."""

    type: str | None = None
    function: Function | None = None
    custom: Any = None


class ToolChoice(Struct, gc=False):
    """A tool choice that names its tool or tools."""

    type: str | None = None
    function: FunctionCall | None = None
    custom: FunctionCall | None = None
    allowed_tools: Any = None


class JsonSchema(Struct, gc=False):
    """The schema of `response_format`; `schema` is unread."""

    name: str | None = None
    description: str | None = None
    schema: Raw = Raw()
    strict: bool | None = None


class ResponseFormat(Struct, gc=False):
    """What form the answer's text has to have."""

    type: str | None = None
    json_schema: JsonSchema | None = None


class StreamOptions(Struct, gc=False):
    """What a stream holds beside the answer."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Struct, kw_only=True):
    """The body of POST /v1/chat/completions: the typed parameters, None where absent or null.

    `fields` is every top-level key as sent, in the client's order, typed ones included; the decoder
    always sets it (a client's own key of its wire name is overwritten).
    """

    model: str = ""
    messages: list[Message] = []
    audio: dict[str, Raw] | None = None
    frequency_penalty: float | None = None
    function_call: str | FunctionCall | None = None
    functions: list[Function] | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    logprobs: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    metadata: dict[str, Any] | None = None
    modalities: list[str] | None = None
    moderation: dict[str, Raw] | None = None
    n: int | None = None
    parallel_tool_calls: bool | None = None
    prediction: dict[str, Raw] | None = None
    presence_penalty: float | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Raw] | None = None
    prompt_cache_retention: str | None = None
    reasoning_effort: str | None = None
    response_format: ResponseFormat | None = None
    safety_identifier: str | None = None
    seed: int | None = None
    service_tier: str | None = None
    stop: str | list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    tool_choice: str | ToolChoice | None = None
    tools: list[Tool] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    user: str | None = None
    verbosity: str | None = None
    web_search_options: dict[str, Raw] | None = None
    oai_compat: bool | None = True  # our own key; False: this answer passes through untouched
    fields: dict[str, Raw] = field(name="wellspoken.fields", default_factory=dict)


OUR_KEYS: Final = frozenset({"oai_compat"})
"""Keys that speak to the proxy and never reach a backend."""

OFF: Final = (b"null", b"false")
"""Values of a key by which nothing is asked for."""

OPENAI_KEYS: Final = frozenset(ChatRequest.__struct_fields__) - OUR_KEYS - {"fields"}
"""The top-level keys of OpenAI's request; every other one is a vendor's."""


class Model(Struct, kw_only=True):
    """One model of GET /v1/models; `created` in epoch seconds."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "wellspoken"


class ModelList(Struct, kw_only=True):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model] = []


_decode_typed = json.Decoder(ChatRequest).decode


def decode_chat(body: bytes, *, bounds: Bounds = "openai") -> ChatRequest:
    """Return the request in `body`; raise `RequestError` 400 for what OpenAI would refuse.

    `bounds="backend"` checks types and what protects a backend (n, sizes) and leaves it the rest:
    five stop sequences, max_tokens -1, unknown roles and parts, a missing model.
    """
    request, fields = parse(body, _decode_typed, '{"model": ..., "messages": [...]}')
    request.fields = fields
    if request.oai_compat is None:
        request.oai_compat = True
    openai_bounds.check(request, strict=bounds == "openai")
    return request


def exchange_for(
    request: ChatRequest,
    *,
    now: int,
    new_id: Callable[[], str],
    tokens: TokenTable | None = None,
    extensions: Extensions = "known",
    keep: frozenset[str] = frozenset(),
) -> Exchange:
    """Return what the answer's readers, stages and writers have to know of the request."""
    k = request.top_logprobs or 0
    limit = request.max_completion_tokens
    if limit is None:
        limit = request.max_tokens
    exchange = Exchange(
        model=request.model,
        now=now,
        new_id=new_id,
        tokens=tokens,
        stream=bool(request.stream),
        include_usage=request.stream_options is not None
        and bool(request.stream_options.include_usage),
        logprobs=bool(request.logprobs),
        k=k if k >= 0 else ALL_ALTERNATIVES,
        n=request.n if request.n is not None else 1,
        max_tokens=limit if limit is not None and limit > 0 else None,
        tools=_tool_names(request),
        forced_tool=_forces_tool(request),
        functions=bool(request.functions) and not request.tools,
        stops=stops_of(request.stop),
        service_tier=request.service_tier is not None,
        extensions=extensions,
        keep=keep,
        switches=switches_of(request.fields, OPENAI_KEYS),
        prompt_size=prompt_size(request.messages),
    )
    one = request.parallel_tool_calls is False or exchange.functions  # a function_call is one
    exchange.parallel_calls = not one
    exchange.parts = _parts(request.messages)
    return exchange


def _parts(messages: list[Message]) -> dict[str, str]:
    """Return the kinds of content parts that are no text, each with the place of its first."""
    found: dict[str, str] = {}
    for place, message in enumerate(messages):
        if isinstance(message.content, list):
            for at, part in enumerate(message.content):
                if part.type is not None and part.type != "text":
                    found.setdefault(part.type, f"messages[{place}].content[{at}]")
    return found


def _tool_names(request: ChatRequest) -> tuple[str, ...]:
    functions = (
        [tool.function for tool in request.tools if tool.function is not None]
        if request.tools
        else request.functions or []
    )
    return tuple(function.name for function in functions if function.name)


def _forces_tool(request: ChatRequest) -> bool:
    """Say whether one named tool has to be called."""
    choice = request.tool_choice if request.tools else request.function_call
    if isinstance(choice, ToolChoice):
        named = choice.function or choice.custom
        return named is not None and bool(named.name)
    return isinstance(choice, FunctionCall) and bool(choice.name)


def stops_of(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings that can be found: all but the empty one."""
    stops = [stop] if isinstance(stop, str) else stop or []
    return tuple(stop for stop in stops if stop)


def switches_of(fields: dict[str, Raw], known: frozenset[str]) -> frozenset[str]:
    """Return the vendors' keys, those not `known`, that have a value other than null or false."""
    return frozenset(
        key
        for key, value in fields.items()
        if key not in known and key not in OUR_KEYS and bytes(value) not in OFF
    )


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
