"""Forms of requests: what a parameter's value becomes for servers that want it otherwise.

Each changes what is sent in place; rows of the request tables (`parameters.py`) name them.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import DecodeError, Raw, ValidationError, json

from wellspoken.adapters.requests import errors
from wellspoken.adapters.requests.errors import short

BANNED: Final = -100
"""The bias at which OpenAI bans a token; llama.cpp's word for it is false."""

_encode = json.Encoder().encode
_NULL: Final = b"null"
_TEXT: Final = b'"text"'

Messages = list[dict[str, Raw]]


def decode_value(sent: dict[str, Any], key: str) -> Any:
    """Return the value of a key as Python's, None where there is none; it is replaced by that."""
    value = sent.get(key)
    if isinstance(value, Raw):
        value = sent[key] = json.decode(value)
    return value


def fields_of(value: Any) -> dict[str, Any]:
    """Return what an object holds, each value as it was sent; {} for what is no object.

    Nothing is decoded that need not be: a schema may hold numbers that no float can.
    """
    try:
        return json.decode(_encode(value), type=dict[str, Raw])
    except ValidationError:
        return {}


def object_in(sent: dict[str, Any], key: str) -> dict[str, Any]:
    """Return what the object of a key holds, as `fields_of`, {} where it is absent or null.

    Raises `RequestError` 400 for what is no object.
    """
    value = _encode(sent.get(key))
    if not value.lstrip().startswith((b"{", _NULL)):
        raise errors.wrong_type(key, "an object", "something else")
    return fields_of(Raw(value))


def tools_in(sent: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the tools that are offered, as `fields_of`."""
    return json.decode(_encode(sent.get("tools")), type=list[dict[str, Raw]] | None) or []


def messages_in(sent: dict[str, Any]) -> Messages:
    """Return the messages, the values of each as they were sent."""
    return json.decode(_encode(sent["messages"]), type=Messages)


def leave_out_nulls(sent: dict[str, Any]) -> None:
    """`messages`: no key that is null, but for `content`, which some templates look for.

    llama.cpp b11549 answers 500 for a `name`, `reasoning_content` or `tool_call_id` of null, vLLM
    0.32 400 for a `name`; clients give an answer's message back with all its nulls.
    """
    if _NULL in bytes(sent["messages"]):
        sent["messages"] = [
            {key: value for key, value in message.items() if _has(message, key) or key == "content"}
            for message in messages_in(sent)
        ]


def text_in(fields: dict[str, Any], key: str) -> str | None:
    """Return the text of a key, None where it has none."""
    try:
        return json.decode(_encode(fields.get(key)), type=str | None)
    except DecodeError:
        return None


def _has(fields: dict[str, Any], key: str) -> bool:
    return bytes(fields.get(key, _NULL)) != _NULL


def usage_alone(sent: dict[str, Any]) -> None:
    """`stream_options`: ask for usage alone, since some servers refuse what they do not know."""
    options = object_in(sent, "stream_options")
    if bytes(options.get("include_usage", _NULL)) == b"true":
        sent["stream_options"] = {"include_usage": True}
    else:
        del sent["stream_options"]


def stop_list(sent: dict[str, Any]) -> None:
    """`stop`: a list, also of one."""
    if isinstance(decode_value(sent, "stop"), str):
        sent["stop"] = [sent["stop"]]


def developer_as_system(sent: dict[str, Any]) -> None:
    """`messages`: OpenAI's newer role by its older name, which every template knows."""
    messages = messages_in(sent)
    for message in messages:
        if json.decode(message.get("role", _NULL)) == "developer":
            message["role"] = Raw(b'"system"')
    sent["messages"] = messages


_DESCRIBED: Final = {"description": "", "parameters": {"type": "object", "properties": {}}}


def describe_tools(sent: dict[str, Any]) -> None:
    """`tools`: each function with a description and parameters, if only empty ones."""
    tools = tools_in(sent)
    for tool in tools:
        if _has(tool, "function"):
            function = fields_of(tool["function"])
            lacks = {key: empty for key, empty in _DESCRIBED.items() if not _has(function, key)}
            if lacks:
                tool["function"] = function | lacks
                sent["tools"] = tools


def no_tools(sent: dict[str, Any]) -> None:
    """`tool_choice: "none"`: no tools at all, for servers that would call them all the same."""
    for key in ("tools", "tool_choice", "parallel_tool_calls"):
        sent.pop(key, None)


def only_named_tool(sent: dict[str, Any]) -> None:
    """`tool_choice` that names a function: that one alone, required."""
    _only(sent, [_name_of(object_in(sent, "tool_choice"))], "required")


def offer_allowed(sent: dict[str, Any]) -> None:
    """`tool_choice` of type allowed_tools: those alone, by its mode.

    Raises `RequestError` 400 for a form without mode or tools, and for tools that are not offered.
    """
    given = fields_of(object_in(sent, "tool_choice").get("allowed_tools"))
    mode = text_in(given, "mode")
    try:
        tools = json.decode(given.get("tools", _NULL), type=list[Raw] | None) or []
    except DecodeError:
        tools = []
    names = [_name_of(fields_of(tool)) for tool in tools]
    if mode not in ("auto", "required") or not names or None in names:
        raise errors.missing(
            "tool_choice.allowed_tools",
            "Send an object with mode ('auto' or 'required') and a non-empty array of tools, each "
            'as {"type": "function", "function": {"name": ...}}.',
        )
    _only(sent, names, mode)


def _only(sent: dict[str, Any], names: list[str | None], mode: str) -> None:
    """Offer the tools of these names alone."""
    kept = [tool for tool in tools_in(sent) if _name_of(tool) in names]
    known = {_name_of(tool) for tool in kept}
    for name in names:
        if name not in known:
            raise errors.invalid(
                "tool_choice",
                f"Tool choice '{short(str(name))}' not found in 'tools'. Name offered ones.",
            )
    sent["tools"] = kept
    sent["tool_choice"] = mode


def _name_of(tool: dict[str, Any]) -> str | None:
    """Return the name of a tool, or that of a choice of one."""
    kind = "function" if _has(tool, "function") else "custom"
    return text_in(fields_of(tool.get(kind)), "name")


def bias_pairs(sent: dict[str, Any]) -> None:
    """`logit_bias`: llama.cpp's pairs, in which false bans a token."""
    sent["logit_bias"] = pairs_of(decode_value(sent, "logit_bias"))


def pairs_of(given: dict[str, Any] | list[Any]) -> list[Any]:
    """Return llama.cpp's pairs; a name that is no token id stays a text, which it tokenizes."""
    if isinstance(given, list):
        return given
    pairs = []
    for name, bias in given.items():
        token = int(name) if name.isascii() and name.isdigit() else name
        banned = bias is False or (isinstance(bias, int | float) and bias <= BANNED)
        pairs.append([token, False if banned else bias])
    return pairs


def schema_in_object(sent: dict[str, Any]) -> None:
    """`response_format`: `json_schema` as `json_object` with a schema (llama-cpp-python)."""
    schema = _schema_in(sent)
    sent["response_format"] = {"type": "json_object"}
    if bytes(schema) != _NULL:
        sent["response_format"]["schema"] = schema


def _schema_in(sent: dict[str, Any]) -> Raw:
    """Return the schema of a `response_format`, null where it has none."""
    form: dict[str, Raw] = fields_of(fields_of(sent["response_format"]).get("json_schema"))
    return form.get("schema", Raw(_NULL))


def effort_for_template(sent: dict[str, Any]) -> None:
    """`reasoning_effort`: a variable of the chat template; "none" turns its thinking off.

    llama.cpp's own chat endpoint does just this (b11549); older builds know the variables alone.
    """
    effort = decode_value(sent, "reasoning_effort")
    del sent["reasoning_effort"]
    given = object_in(sent, "chat_template_kwargs")
    own = {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
    sent["chat_template_kwargs"] = own | given


RANDOM: Final = 2**32 - 1
"""The seed by which llama.cpp means a random one; it takes all seeds modulo 2**32."""


def seed_of(seed: int) -> int:
    """Return the seed to send to llama.cpp: the one it would take, and never its random one.

    What stands for that is far from its neighbours, which further choices are asked with.
    """
    taken = seed & RANDOM
    return RANDOM >> 1 if taken == RANDOM else taken


def never_random(sent: dict[str, Any]) -> None:
    """`seed`: one that llama.cpp does not take for none."""
    sent["seed"] = seed_of(decode_value(sent, "seed"))


def natural_seed(sent: dict[str, Any]) -> None:
    """`seed`: not below 0, where TGI and mlx-lm fail; OpenAI takes all of 64 bits."""
    seed = decode_value(sent, "seed")
    if seed < 0:
        sent["seed"] = seed & (2**63 - 1)


def schema_of_object(sent: dict[str, Any]) -> None:
    """`response_format`: an object where no schema says what; llama.cpp b7376 gives any JSON."""
    place = given = fields_of(sent["response_format"])
    if text_in(given, "type") == "json_schema":
        place = given["json_schema"] = fields_of(given.get("json_schema"))
    if bytes(place.get("schema", _NULL)) == _NULL:
        place["schema"] = {"type": "object"}
    sent["response_format"] = given


TAKEN_EFFORTS: Final = ("low", "medium", "high")
"""The values of `reasoning_effort` that every vLLM takes which knows the key."""


def effort_in_both(sent: dict[str, Any]) -> None:
    """`reasoning_effort`: for gpt-oss models by its own key, for all others by their template."""
    given = sent["reasoning_effort"]
    effort_for_template(sent)
    if json.decode(_encode(given)) in TAKEN_EFFORTS:
        sent["reasoning_effort"] = given


def lax_tools(sent: dict[str, Any]) -> None:
    """`tools`: functions without `strict`, for servers that refuse what they do not know."""
    tools = tools_in(sent)
    for tool in tools:
        function = fields_of(tool.get("function"))
        if function.pop("strict", None) is not None:
            tool["function"] = function
            sent["tools"] = tools


def refuse_unnamed_tool(sent: dict[str, Any]) -> None:
    """`tools`: only beside a choice that names one, for servers that do not read calls.

    Raises `RequestError` 400 for any other choice.
    """
    if _name_of(fields_of(sent.get("tool_choice"))) is None:
        raise errors.unsupported(
            "tool_choice",
            "Tools are not supported by this server unless 'tool_choice' names one of them. Name "
            "it, or update the server.",
        )
    lax_tools(sent)


def schema_as_guide(sent: dict[str, Any]) -> None:
    """`response_format`: a JSON schema by the name that vLLM had for it (`guided_json`)."""
    schema = _schema_in(sent)
    del sent["response_format"]
    sent["guided_json"] = {"type": "object"} if bytes(schema) == _NULL else schema


def no_tools_beside_format(sent: dict[str, Any]) -> None:
    """`tool_choice: "none"` beside `response_format`: no tools, so that the format holds.

    llama.cpp b7376 puts its own object of a call or a response around the one that was asked for.
    """
    given = fields_of(sent.get("response_format"))
    if json.decode(given.get("type", _TEXT)) != "text":
        no_tools(sent)


def audio_as_url(sent: dict[str, Any]) -> None:
    """`messages`: input_audio as audio_url with a data URL, the form that every SGLang knows."""
    messages = messages_in(sent)
    for message in messages:
        content = bytes(message.get("content", _NULL))
        if content.lstrip().startswith(b"["):
            parts = json.decode(content, type=list[dict[str, Raw]])
            message["content"] = Raw(_encode([_audio_url(part) for part in parts]))
    sent["messages"] = messages


def _audio_url(part: dict[str, Raw]) -> dict[str, Any]:
    if json.decode(part.get("type", _NULL)) != "input_audio":
        return part
    given = json.decode(part.get("input_audio", _NULL))
    audio = given if isinstance(given, dict) else {}
    kind = {"mp3": "mpeg"}.get(audio.get("format", ""), audio.get("format", "wav"))
    url = f"data:audio/{kind};base64,{audio.get('data', '')}"
    return {"type": "audio_url", "audio_url": {"url": url}}


LEAST_TOP_P: Final = 1e-6
"""What stands for 0 where that is refused: of any tokens, only the best are within it."""


def inner_top_p(sent: dict[str, Any]) -> None:
    """`top_p` without its ends, which TGI refuses: 1 is its default and 0 the best token alone."""
    value = decode_value(sent, "top_p")
    if value >= 1:
        del sent["top_p"]
    elif value <= 0:
        sent["top_p"] = LEAST_TOP_P


def calls_alone(sent: dict[str, Any]) -> None:
    """`messages`: past calls without an empty text beside them, for which TGI drops the calls."""
    if b'"tool_calls"' not in _encode(sent["messages"]):
        return
    messages = messages_in(sent)
    for message in messages:
        calls = bytes(message.get("tool_calls", _NULL))
        if calls != _NULL and json.decode(message.get("content", _NULL)) in ("", []):
            del message["content"]
    sent["messages"] = messages


def schema_as_grammar(sent: dict[str, Any]) -> None:
    """`response_format`: a json_schema as TGI's grammar, which 2.1 knows too.

    TGI's own types stay as they are. Raises `RequestError` 400 where there is no schema.
    """
    if text_in(fields_of(sent["response_format"]), "type") != "json_schema":
        return
    schema = _schema_in(sent)
    if bytes(schema) == _NULL:
        raise errors.missing(
            "response_format.json_schema.schema", "Send an object with 'properties'."
        )
    sent["response_format"] = {"type": "json", "value": schema}


def effort_from_low(sent: dict[str, Any]) -> None:
    """`reasoning_effort`: "minimal" as "low", as Ollama does since 0.32.11; before, it refused."""
    if decode_value(sent, "reasoning_effort") == "minimal":
        sent["reasoning_effort"] = "low"


def offer_allowed_if_auto(sent: dict[str, Any]) -> None:
    """`tool_choice` of type allowed_tools, for servers that cannot be made to call a tool.

    Raises `RequestError` 400 for the mode "required", and as `allowed_tools` does.
    """
    offer_allowed(sent)
    if sent["tool_choice"] != "auto":
        raise errors.wrong_value("tool_choice.allowed_tools.mode", "required", ["auto"])
    del sent["tool_choice"]


def object_by_schema(sent: dict[str, Any]) -> None:
    """`response_format`: json_object as a schema of any object, where schemas alone are known."""
    if text_in(fields_of(sent["response_format"]), "type") == "json_object":
        schema = {"name": "object", "schema": {"type": "object"}}
        sent["response_format"] = {"type": "json_schema", "json_schema": schema}
