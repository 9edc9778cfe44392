"""Forms of requests for servers that read narrowly.

llama-cpp-python refuses every null and every array of parts that its types do not know; cortex
reads of an array the first text alone, and stops as a list alone; Furiosa-LLM answers 400 for a
forced call beside a response_format; llama.cpp parses what past calls were given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec import DecodeError, Raw, json

from wellspoken.adapters.nesting import is_text_too_deep
from wellspoken.adapters.requests.errors import short, unsupported
from wellspoken.adapters.servers.forms import (
    LEAST_TOP_P,
    Messages,
    decode_value,
    describe_tools,
    effort_for_template,
    fields_of,
    messages_in,
    text_in,
    tools_in,
)

_encode = json.Encoder().encode
_NULL: Final = b"null"
_TEXTS: Final = ("text", "refusal")
LARGEST_INT: Final = 2**31 - 1


def with_arguments(sent: dict[str, Any], change: Callable[[str], str]) -> None:
    """`messages`: the arguments of past calls, changed; nothing else is touched."""
    messages: list[dict[str, Any]] = [dict(message) for message in messages_in(sent)]
    for message in messages:
        calls = json.decode(message.get("tool_calls", _NULL), type=list[Raw] | None) or []
        changed = [_with_arguments(call, change) for call in calls]
        if any(new is not old for new, old in zip(changed, calls, strict=True)):
            message["tool_calls"] = changed
    sent["messages"] = messages


def _with_arguments(call: Raw, change: Callable[[str], str]) -> Any:
    fields = fields_of(call)
    function = fields_of(fields.get("function"))
    text = text_in(function, "arguments")
    if text is None or change(text) == text:
        return call
    return fields | {"function": function | {"arguments": change(text)}}


def json_arguments(sent: dict[str, Any]) -> None:
    """`messages`: JSON alone as arguments of past calls, what is none as a JSON string of it.

    A call that the limit cut is repeated as it was; llama.cpp parses it (b11549), and answers 500.
    """
    if b'"tool_calls"' in _encode(sent["messages"]):
        with_arguments(sent, _as_json)


def _as_json(text: str) -> str:
    if is_text_too_deep(text):  # for a server's parser as well, whose stack is unknown here
        return _encode(text).decode()
    try:
        json.decode(text, type=Raw)
    except DecodeError:
        return _encode(text).decode()
    return text


def join_texts(sent: dict[str, Any]) -> None:
    """`messages`: an array of texts as one text, a line each, as vLLM and llama.cpp join them."""
    sent["messages"] = _join(messages_in(sent))


def plain_messages(sent: dict[str, Any]) -> None:
    """`messages`: joined texts, and an assistant's content, which may not be null."""
    messages = sent["messages"] = _join(messages_in(sent))
    for message in messages:
        content = bytes(message.get("content", _NULL))
        if content == _NULL and json.decode(message.get("role", _NULL)) == "assistant":
            message["content"] = Raw(b'""')


def _join(messages: Messages) -> Messages:
    for message in messages:
        content = bytes(message.get("content", _NULL))
        if content.lstrip().startswith(b"["):
            parts = json.decode(content, type=list[dict[str, Raw]])
            texts = [_text_of(part) for part in parts]
            if None not in texts:
                message["content"] = Raw(_encode("\n".join(text for text in texts if text)))
    return messages


def _text_of(part: dict[str, Raw]) -> str | None:
    """Return the text of a part that is one, None for any other."""
    kind = text_in(part, "type")
    return text_in(part, kind) if kind in _TEXTS else None


def texts_to_stop(sent: dict[str, Any]) -> None:
    """`stop`: a list, also of one; without "", at which these servers end at once."""
    given = decode_value(sent, "stop")
    stops = [stop for stop in ([given] if isinstance(given, str) else given) if stop]
    if stops:
        sent["stop"] = stops
    else:
        del sent["stop"]


def auto_tools(sent: dict[str, Any]) -> None:
    """`tools`: described, and a choice beside them: one chat format leaves them out without."""
    describe_tools(sent)
    sent.setdefault("tool_choice", "auto")


def only_tool_named(sent: dict[str, Any]) -> None:
    """`tool_choice: "required"`: the only tool by its name.

    Raises `RequestError` 400 where there are several.
    """
    tools = tools_in(sent)
    if len(tools) != 1:
        raise unsupported(
            "tool_choice",
            "The value 'required' of 'tool_choice' is not supported by llama-cpp-python for "
            "several tools. Name the one to call, or offer it alone.",
        )
    name = text_in(fields_of(tools[0].get("function")), "name")
    sent["tool_choice"] = {"type": "function", "function": {"name": name}}


def small_seed(sent: dict[str, Any]) -> None:
    """`seed`: one that fits into 31 bits, since cortex fails at others and takes -1 for none."""
    sent["seed"] = decode_value(sent, "seed") & LARGEST_INT


def ask_usage(sent: dict[str, Any]) -> None:
    """`stream`: with its usage, which alone tells whether the limit ended it."""
    sent["stream_options"] = {"include_usage": True}


def bias_by_id(sent: dict[str, Any]) -> None:
    """`logit_bias`: numbers by token id, for servers that read no pairs and fail at texts.

    Raises `RequestError` 400 for what is no token id.
    """
    given = decode_value(sent, "logit_bias")
    pairs = list(given.items()) if isinstance(given, dict) else given
    biases = {}
    for pair in pairs:
        token, bias = pair if isinstance(pair, list | tuple) and len(pair) == 2 else ("", 0)
        name = str(token)
        if not name.isascii() or not name.isdigit():
            raise unsupported(
                "logit_bias",
                f"Invalid 'logit_bias': {short(str(pair))} names no token id, and this server "
                "takes no texts. Name token ids.",
            )
        biases[name] = -100 if bias is False else bias
    sent["logit_bias"] = biases


def call_without_format(sent: dict[str, Any]) -> None:
    """`tool_choice` that forces a call: no `response_format`, which is about texts alone."""
    sent.pop("response_format", None)


NEAREST_EFFORTS: Final = {
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
}


def nearest_effort(sent: dict[str, Any]) -> None:
    """`reasoning_effort`: the nearest of three for gpt-oss, for other models by their template."""
    effort = decode_value(sent, "reasoning_effort")
    effort_for_template(sent)
    if effort in NEAREST_EFFORTS:
        sent["reasoning_effort"] = NEAREST_EFFORTS[effort]


def above_zero(sent: dict[str, Any]) -> None:
    """`top_p`: above 0, at which the best token alone is left too."""
    if decode_value(sent, "top_p") <= 0:
        sent["top_p"] = LEAST_TOP_P


def verbose_ids(sent: dict[str, Any]) -> None:
    """`return_token_ids`: llama.cpp's own answer beside OpenAI's, with its tokens."""
    del sent["return_token_ids"]
    sent["return_tokens"] = True
    sent["verbose"] = True


def sampled_ids(sent: dict[str, Any]) -> None:
    """`return_token_ids`: entries without alternatives, which are those of the sampled tokens.

    Raises `RequestError` 400 beside logprobs, whose entries are those of the best tokens.
    """
    del sent["return_token_ids"]
    if "logprobs" in sent and decode_value(sent, "logprobs"):
        raise unsupported(
            "return_token_ids",
            "mlx-lm tells token ids in the place of logprobs. Send 'return_token_ids' or "
            "'logprobs', not both.",
        )
    sent["logprobs"] = True
