"""A response's request as a chat request, and what of it the answer has to know.

Everything that is done with a chat request is done with this one: admission, caps, routing, the
backend's form of it. `renamed.py` brings what is said of it back to the client's names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Unpack

from msgspec import Raw, json, structs

from wellspoken.adapters.exchange import Exchange, ResponseFacts, Surroundings
from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.chat import exchange_for, find_variable
from wellspoken.adapters.requests.errors import RequestError
from wellspoken.adapters.requests.responses.echo_keys import echo_request
from wellspoken.adapters.requests.responses.input_items import Item, kind_of, refuse_doubles
from wellspoken.adapters.requests.responses.response_bounds import check_response, find_refusal
from wellspoken.adapters.requests.responses.response_request import (
    REFUSED,
    ReasoningOptions,
    ResponseRequest,
    TextOptions,
)
from wellspoken.adapters.requests.responses.turns import Conversation, Placed
from wellspoken.adapters.requests.shapes import ChatRequest, Variable


class ResponseChat(ChatRequest, kw_only=True):
    """The chat request that a response is asked for by.

    `own`: its input's items as they are kept, a JSON list. `left_out`: what of it leads nowhere
    here and was left out ("tools[8]"). `refusal`: what OpenAI would refuse it for, though a backend
    may not.
    """

    facts: ResponseFacts
    own: bytes
    left_out: tuple[str, ...] = ()
    refusal: RequestError | None = None


SAME: Final = frozenset(
    "model parallel_tool_calls temperature top_p presence_penalty frequency_penalty "
    "metadata service_tier user safety_identifier prompt_cache_key prompt_cache_retention "
    "prompt_cache_options moderation stream stop seed logit_bias".split()
)
"""Parameters that a chat request has by the same name."""

ELSEWHERE: Final = frozenset((*ResponseRequest.__struct_encode_fields__, *REFUSED)) - SAME
"""Parameters that become others of a chat's, or none."""

PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
"""The type of an item -> how its id begins."""

_NULL: Final = b"null"
_TRUE: Final = Raw(b"true")
_encode = json.Encoder().encode
_decode_chat = json.Decoder(ChatRequest).decode
_decode_item = json.Decoder(dict[str, Any]).decode


def make_chat(
    request: ResponseRequest,
    history: Sequence[Raw],
    found: Mapping[str, Raw],
    *,
    suffix: str,
    clock: Callable[[], int],
    stored: bool,
) -> ResponseChat:
    """Return the chat request; raise `RequestError` 400 where calls and outputs do not meet.

    Likewise for what any backend is spared, and for an item whose id comes again.

    `history`: the items of past turns, in order. `found`: the items that references name, by id.
    `suffix`, `clock`: as in `ResponseFacts`. `stored`: whether the response is kept.
    """
    refusal = find_refusal(request)
    if refusal is not None:
        check_response(request, strict=False)
    own = [_resolve(item, found) for item in request.items]
    plain = isinstance(request.input, str)
    placed = [Placed(_decode_item(raw), "") for raw in history]
    refuse_doubles(own, {each.item["id"] for each in placed if each.item.get("id") is not None})
    placed += [Placed(x, "input" if plain else f"input[{n}]") for n, x in enumerate(own)]
    conversation = Conversation(placed, request.instructions)
    messages, paths = conversation.messages, conversation.paths
    if not messages:
        raise errors.empty("input", "array")
    facts = ResponseFacts(
        suffix=suffix,
        echo=echo_request(request, stored),
        clock=clock,
        tools=request.offer.renamed(),
        paths=tuple(paths),
        tool_paths=tuple(tool.place for tool in request.offer.tools),
    )
    fields = _chat_fields(request, messages)
    chat = _decode_chat(_encode(fields))
    chat.fields = fields
    return ResponseChat(
        **structs.asdict(chat),
        facts=facts,
        own=_encode([_keep(item, facts, place) for place, item in enumerate(own)]),
        left_out=request.offer.left_out,
        refusal=refusal,
    )


def _resolve(item: Item, found: Mapping[str, Raw]) -> Item:
    return _decode_item(found[item["id"]]) if kind_of(item) == "item_reference" else item


def _keep(item: Item, facts: ResponseFacts, place: int) -> Item:
    """Return an item as it is kept: with an id, its type, and its content as parts."""
    kind = kind_of(item)
    id = item.get("id") or facts.item_id(PREFIXES[kind], place, given=True)
    kept: Item = {"id": id, "type": kind} | item | {"id": id, "type": kind}
    if kind != "reasoning" and item.get("status") is None:
        kept["status"] = "completed"
    if kind == "message":
        content = item["content"]
        text = "output_text" if item["role"] == "assistant" else "input_text"
        parts = [{"type": text, "text": content}] if isinstance(content, str) else content
        kept["content"] = list(map(_keep_part, parts))
    elif isinstance(item.get("output"), list):
        kept["output"] = list(map(_keep_part, item["output"]))
    return kept


def _keep_part(part: Item) -> Item:
    defaults = _DEFAULTS.get(part["type"], {})
    return part | {key: value for key, value in defaults.items() if part.get(key) is None}


_DEFAULTS: Final[Mapping[str, dict[str, Any]]] = {
    "output_text": {"annotations": []},
    "input_image": {"detail": "auto"},
}


def _chat_fields(request: ResponseRequest, messages: list[dict[str, Any]]) -> dict[str, Raw]:
    """Return the values of the chat request, in the order in which the client sent its own."""
    fields: dict[str, Raw] = {}
    text = Raw(_encode(messages))
    for key, value in request.fields.items():
        if key in ("input", "instructions"):
            fields["messages"] = text
        elif bytes(value) == _NULL:
            continue
        elif key in _FORMS:
            fields.update(_FORMS[key](request))
        elif key not in ELSEWHERE:
            fields[key] = value.copy()  # which would keep the whole body
    fields.setdefault("messages", text)
    if request.wants_logprobs:
        fields["logprobs"] = _TRUE
    if request.stream:
        fields["stream_options"] = Raw(b'{"include_usage":true}')
    return fields


Pairs = Iterable[tuple[str, Raw]]


def _limit(request: ResponseRequest) -> Pairs:
    yield "max_completion_tokens", request.fields["max_output_tokens"].copy()


def _alternatives(request: ResponseRequest) -> Pairs:
    if request.wants_logprobs:  # a chat's number is refused without them
        yield "top_logprobs", request.fields["top_logprobs"].copy()


def _text(request: ResponseRequest) -> Pairs:
    given = request.text or TextOptions()
    wanted = given.format
    if given.verbosity is not None:
        yield "verbosity", Raw(_encode(given.verbosity))
    if wanted is None or wanted.type == "text":
        return
    form: dict[str, Any] = {"type": wanted.type}
    if wanted.type == "json_schema":
        names = ("name", "description", "schema", "strict")
        values = {name: getattr(wanted, name) for name in names}
        form["json_schema"] = {key: x for key, x in values.items() if x is not None}
    yield "response_format", Raw(_encode(form))


def _reasoning(request: ResponseRequest) -> Pairs:
    given = request.reasoning or ReasoningOptions()
    if given.effort is not None:
        yield "reasoning_effort", Raw(_encode(given.effort))


def _tools(request: ResponseRequest) -> Pairs:
    tools = [{"type": "function", "function": tool.function} for tool in request.offer.tools]
    if tools:
        yield "tools", Raw(_encode(tools))


def _tool_choice(request: ResponseRequest) -> Pairs:
    choice = request.offer.choice
    yield "tool_choice", Raw(_encode(request.tool_choice if choice is None else choice))


_FORMS: Final[Mapping[str, Callable[[ResponseRequest], Pairs]]] = {
    "max_output_tokens": _limit,
    "top_logprobs": _alternatives,
    "text": _text,
    "reasoning": _reasoning,
    "tools": _tools,
    "tool_choice": _tool_choice,
}
"""Parameters whose values have another name, or another form, in a chat request."""


def find_response_variable(wanted: ResponseChat) -> Variable | None:
    """Return the text of the request, as `find_variable` does; its facts are others each time.

    None for one of which something was left out, or may be refused: that a like one, which does not
    hold it, was planned says nothing of it.
    """
    if wanted.left_out or wanted.refusal is not None:
        return None
    variable = find_variable(wanted)
    if variable is None:
        return None
    return structs.replace(variable, facts=variable.facts | {"response": wanted.facts})


def exchange_for_response(wanted: ResponseChat, **given: Unpack[Surroundings]) -> Exchange:
    """Return what the answer's readers, stages and writers have to know of the request."""
    return structs.replace(exchange_for(wanted, **given), response=wanted.facts)
