"""The body of POST /v1/responses, read: its types and its structure are checked.

What only OpenAI's own servers can do, and chat's names for what has another here, are refused;
values are checked by `response_bounds.py`. `max_tool_calls` is about tools that OpenAI runs, and
`truncation`, `client_metadata`, `reasoning.summary` and `stream_options.include_obfuscation` change
nothing in an answer: a context that is too long is refused, reasoning is told whole, and no stream
is padded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Raw, Struct, field, json

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.errors import RequestError, type_of
from wellspoken.adapters.requests.parsing import parse
from wellspoken.adapters.requests.responses.input_items import Item, check_items
from wellspoken.adapters.requests.responses.response_tools import ToolOffer, read_tools
from wellspoken.adapters.requests.shapes import OFF, GenerationRequest

_NULL: Final = b"null"


class FormatOptions(Struct):
    """`text.format`: what form the answer's text has to have; what `schema` holds is unread."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    schema: dict[str, Raw] | None = None
    strict: bool | None = None


class TextOptions(Struct):
    """`text`: the form of the answer's text, and how long it is to be."""

    format: FormatOptions | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct):
    """`reasoning`: how much of it there is to be, and what is told of it."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: str | None = None
    mode: str | None = None


class ResponseRequest(GenerationRequest, kw_only=True):
    """What a client asks for.

    `fields`: every top-level value as sent. `items`: the request's own input, a text as one
    message. `references`: the ids that its item references name. `offer`: its tools.
    """

    input: str | list[Any] | None = None
    instructions: str | None = None
    include: list[Any] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, Any] | None = None
    moderation: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    reasoning: ReasoningOptions | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    text: TextOptions | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[Any] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    client_metadata: dict[str, Any] | None = None
    items: list[Item] = field(name="wellspoken.items", default_factory=list)
    references: tuple[str, ...] = field(name="wellspoken.references", default=())
    offer: ToolOffer = field(name="wellspoken.offer", default_factory=ToolOffer)

    @property
    def wants_logprobs(self) -> bool:
        """Whether the text's logprobs are asked for, by name or by a number of alternatives."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)


MOST_ITEMS: Final = 50_000
"""Items of one request: of a million small ones each takes a hundred times its bytes."""

LOGPROBS: Final = "message.output_text.logprobs"

MOVED: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "functions": "tools",
    "function_call": "tool_choice",
}
"""Chat's name of a parameter -> its name here."""

REFUSED: Final = {
    "logprobs": f"Name '{LOGPROBS}' in 'include' in its place.",
    "n": "A response is one answer: leave it out, and send the request several times.",
    "n_cmpl": "A response is one answer: leave it out, and send the request several times.",
    "modalities": "A response is text: leave it out.",
    "audio": "A response is text: leave it out.",
    "prediction": "It is of chat completions: leave it out, or POST to /v1/chat/completions.",
    "web_search_options": "Offer a function that searches, and run it when it is called.",
    "background": "This proxy runs nothing in the background: leave it out, and send "
    "'stream': true for an answer that comes as it is made.",
    "background_options": "This proxy runs nothing in the background: leave it out.",
    "conversation": "This proxy keeps no conversations: continue a response by "
    "'previous_response_id', or send its items in 'input'.",
    "prompt": "This proxy keeps no prompt templates: send their text in 'instructions' and "
    "'input'.",
    "context_management": "This proxy compacts no context: leave it out, and send fewer items.",
    "image": "It is about tools that OpenAI runs: leave it out.",
    "access_programs": "It is about access to OpenAI's models: leave it out.",
}
"""What is refused whatever its value is, save null and false; and what to do."""

_decode = json.Decoder(ResponseRequest).decode


def parse_response(body: bytes) -> ResponseRequest:
    """Return the request in `body`; raise `RequestError` 400 for what is malformed or not done.

    With `"oai_compat": false` the types alone are checked: the rest is the backend's affair.
    """
    request, fields = parse(body, _decode, '{"model": ..., "input": ...}')
    request.fields = fields
    if request.oai_compat is None:
        request.oai_compat = True
    request.items, request.references, request.offer = [], (), ToolOffer()
    if request.oai_compat:
        _refuse(fields)
        _check_parts(request)
        _read_input(request)
        request.offer = read_tools(fields.get("tools"), request.tool_choice)
    return request


def _refuse(fields: Mapping[str, Raw]) -> None:
    """Refuse what is chat's, and what only OpenAI does."""
    for key, value in fields.items():
        if bytes(value) == _NULL:
            continue
        if key in MOVED:
            raise errors.unsupported(
                key,
                f"Unsupported parameter: '{key}'. In the Responses API, this parameter has moved "
                f"to '{MOVED[key]}'. Try again with the new parameter.",
            )
        if key in REFUSED and bytes(value) not in OFF:
            raise errors.unsupported(key, f"Unsupported parameter: '{key}'. {REFUSED[key]}")


def _check_parts(request: ResponseRequest) -> None:
    """Refuse what objects hold that has no effect, and what `include` may not name."""
    known = {
        "text": TextOptions.__struct_fields__,
        "text.format": FormatOptions.__struct_fields__,
        "reasoning": ReasoningOptions.__struct_fields__,
        "stream_options": ("include_obfuscation",),
    }
    for param, names in known.items():
        for key in _keys_of(request.fields, param):
            if key not in names:
                listed = ", ".join(names)
                raise errors.unknown(f"{param}.{key}", f"'{param}' may hold {listed}.")
    for index, name in enumerate(request.include or ()):
        if not isinstance(name, str):
            raise errors.wrong_type(f"include[{index}]", "a string", type_of(name))
        if name not in INCLUDED:
            raise errors.wrong_value(f"include[{index}]", name, INCLUDED)


INCLUDED: Final = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    LOGPROBS,
)
"""What `include` may name. Of tools that OpenAI runs there is nothing to include here, nor is
reasoning encrypted: it is told as it is."""


def _keys_of(fields: Mapping[str, Raw], param: str) -> Mapping[str, Raw]:
    found: Mapping[str, Raw] | None = fields
    for key in param.split("."):
        raw = (found or {}).get(key)
        found = json.decode(raw, type=dict[str, Raw] | None) if raw is not None else None
    return found or {}


def _read_input(request: ResponseRequest) -> None:
    given = request.input
    if given is None:
        if request.previous_response_id is None:
            raise _nothing_given()
    elif isinstance(given, str):
        request.items = [{"type": "message", "role": "user", "content": given}]
    else:
        if not given and not request.instructions and request.previous_response_id is None:
            raise errors.empty("input", "array")
        if len(given) > MOST_ITEMS:
            raise errors.too_long("input", "array", MOST_ITEMS, len(given))
        request.references = check_items(given)
        request.items = given
    if request.previous_response_id == "":
        raise errors.empty("previous_response_id", "string")


def _nothing_given() -> RequestError:
    return errors.missing(
        "input", "Send a string or an array of items, or 'previous_response_id' to continue one."
    )
