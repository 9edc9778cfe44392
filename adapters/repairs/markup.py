"""The markups in which models write tool calls, and the calls that a piece of text in one says.

Servers read them for some models and leave them in the text for others: without the right
--tool-call-parser (vLLM, SGLang), with a template that they do not know (llama.cpp), or always.

    <tool_call>{"name": ..., "arguments": {...}}</tool_call>           Hermes 2 Pro, Qwen 2.5 and 3
    <tool_call><function=NAME><parameter=KEY>...</parameter>...        Qwen3-Coder
    <tool_call>NAME<arg_key>KEY</arg_key><arg_value>...</arg_value>    GLM 4.5
    <function=NAME>{...}</function>                                    Llama 3.1, Functionary
    [TOOL_CALLS][{"name": ..., "arguments": {...}}]                    Mistral to tokenizer v7
    [TOOL_CALLS]NAME[ARGS]{...}  or  [TOOL_CALLS]NAME{...}             Mistral from v11, Devstral
    <|python_tag|>{"name": ..., "parameters": {...}}                   Llama 3.1 to 3.3
    {"name": ..., "parameters": {...}}, by itself or in a list         Llama 3.2; Mistral's without
                                                                       its special token
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>...                       DeepSeek V3, R1 and V3.1

Sources: the models' chat templates on Hugging Face; vLLM 0.32, vllm/tool_parsers/ (and issue #30651
for Devstral's); llama.cpp b11549, common/chat.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from json import JSONDecodeError, JSONDecoder
from typing import Any

import msgspec
from msgspec import Raw, Struct

Schemas = Mapping[str, Mapping[str, Raw]]
"""The offered tools: name -> its parameters' JSON schema."""
Calls = list[tuple[str, str]]
"""Names, each with its arguments as JSON text."""


class Unfinished(Exception):
    """What looked like a markup's end stands within a text of its JSON."""


class Markup(Struct, frozen=True):
    """How a markup begins and ends ("": with the answer), and how its text is read.

    `read` returns the calls, none where it is not whole, known, or names a tool that is not
    offered; it raises `Unfinished`, or ValueError for what is no call at all.
    """

    opening: str
    closing: str
    read: Callable[[str, Schemas], Calls]


_decode = JSONDecoder().raw_decode
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>")
_ARGUMENT = re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>")
_PLAIN_NAME = re.compile(r"\s*([\w.:/-]+)")
_MISTRAL = re.compile(r"(?:\[TOOL_CALLS\])?\s*([\w.:/-]+)(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?\s*")
_DEEPSEEK = re.compile("<｜tool▁call▁begin｜>()")
_ASCII = re.compile("<｜tool_(calls?)_(begin|end)｜>|<｜tool_(sep)｜>")
_BETWEEN = re.compile(r"[\s;,]*")
_SPACE = re.compile(r"\s*")
_ENDS = ("<|eom_id|>", "<|eot_id|>", "<|im_end|>", "</s>")
_KEYS = ("name", "arguments", "parameters", "type", "function", "id")
_WORDS = {"True": True, "False": False, "None": None}


def _find_value(text: str, at: int) -> int:
    """Return the end of the JSON value at a place. Raises as `Markup.read` does."""
    try:
        return int(_decode(text, at)[1])
    except JSONDecodeError as error:
        if error.msg.startswith("Unterminated"):
            raise Unfinished from error
        raise


def _read_arguments(name: str, given: bytes | str, schemas: Schemas) -> Calls:
    """Return the call of a tool with these arguments, an object or a text that holds one."""
    if name not in schemas:
        raise ValueError
    value = msgspec.json.decode(given)
    if isinstance(value, str):
        given, value = value, msgspec.json.decode(value or "{}")
    if value is None:
        return [(name, "{}")]
    if not isinstance(value, dict):
        raise ValueError
    return [(name, (given if isinstance(given, str) else given.decode()) or "{}")]


def _read_object(given: bytes | str, schemas: Schemas, bare: bool) -> Calls:
    """Return the call of one JSON object; `bare`: with no other keys."""
    found = msgspec.json.decode(given, type=dict[str, Raw])
    if bytes(found.get("function", b"")).startswith(b"{"):
        found = msgspec.json.decode(found["function"], type=dict[str, Raw])
    arguments = found.get("arguments", found.get("parameters"))
    name = found.get("name", found.get("function"))
    if name is None or (bare and (arguments is None or not found.keys() <= {*_KEYS})):
        raise ValueError
    text = b"{}" if arguments is None else bytes(arguments)
    return _read_arguments(msgspec.json.decode(name, type=str), text, schemas)


def _read_objects(text: str, schemas: Schemas, *, bare: bool = False) -> Calls:
    """Return the calls of JSON objects, or lists of them, one after the other; nothing else."""
    calls: Calls = []
    text = _without_end(text)
    at = 0
    while at < len(text):
        begin = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        at = _find_value(text, begin)
        value = text[begin:at]
        items = msgspec.json.decode(value, type=list[Raw]) if value.startswith("[") else [value]
        for item in items:
            calls += _read_object(item if isinstance(item, str) else bytes(item), schemas, bare)
    return calls


def _without_end(text: str) -> str:
    """Return a text without what ends a turn."""
    text = text.rstrip()
    for end in _ENDS:
        text = text.removesuffix(end)
    return text.rstrip()


def _read_blocks(text: str, head: re.Pattern[str], end: str) -> list[tuple[str, str]]:
    """Return what stands between heads, with what each names, and ends, and nothing else."""
    found = []
    text = text.strip()
    at = 0
    while at < len(text):
        begin = head.match(text, at)
        close = text.find(end, begin.end()) if begin is not None else -1
        if begin is None or close < 0:
            raise ValueError
        found.append((begin[1].strip(), text[begin.end() : close]))
        at = close + len(end)
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    return found


def _read_value(text: str, schema: object) -> object:
    """Return a parameter's value, which only its schema tells from a text that looks like it."""
    text = text.removeprefix("\n").removesuffix("\n")
    kind = schema.get("type") if isinstance(schema, dict) else "string"
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    if text.strip() in _WORDS:
        return _WORDS[text.strip()]
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _read_pairs(name: str, pairs: list[tuple[str, str]], schemas: Schemas) -> Calls:
    """Return the call whose parameters have tags of their own."""
    if name not in schemas:
        raise ValueError
    given = schemas[name].get("properties")
    properties = {} if given is None else msgspec.json.decode(given, type=dict[str, Any])
    values = {key: _read_value(value, properties.get(key)) for key, value in pairs}
    return [(name, msgspec.json.encode(values).decode())]


def _read_function(text: str, schemas: Schemas) -> Calls:
    text = text.strip()
    name, _, inner = text.removeprefix("<function=").partition(">")
    if not text.endswith("</function>"):
        raise ValueError
    inner = inner.removesuffix("</function>")
    if inner.lstrip().startswith("{"):
        return _read_arguments(name, inner.strip(), schemas)
    return _read_pairs(name, _read_blocks(inner, _PARAMETER, "</parameter>"), schemas)


def _read_tagged(text: str, schemas: Schemas) -> Calls:
    inner = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
    if inner.lstrip().startswith("<function="):
        return _read_function(inner, schemas)
    name = _PLAIN_NAME.match(inner)
    if name is not None and text.endswith("</tool_call>"):
        pairs = _read_blocks(inner[name.end() :], _ARGUMENT, "</arg_value>")
        return _read_pairs(name[1], pairs, schemas)
    return _read_objects(inner, schemas)


def _read_mistral(text: str, schemas: Schemas) -> Calls:
    text = text.removeprefix("[TOOL_CALLS]")
    if text.lstrip().startswith(("[{", "{", "[ {", "[\n")):
        return _read_objects(text, schemas)
    calls: Calls = []
    text = _without_end(text)
    at = 0
    while at < len(text):
        head = _MISTRAL.match(text, at)
        if head is None:
            raise ValueError
        at = _find_value(text, head.end())
        calls += _read_arguments(head[1], text[head.end() : at], schemas)
    return calls


def _read_python_tag(text: str, schemas: Schemas) -> Calls:
    return _read_objects(text.removeprefix("<|python_tag|>"), schemas)


def _read_deepseek(text: str, schemas: Schemas) -> Calls:
    calls: Calls = []
    text = _ASCII.sub(lambda mark: mark[0].replace("_", "▁"), text).strip()
    text = text.removeprefix("<｜tool▁calls▁begin｜>").removesuffix("<｜tool▁calls▁end｜>")
    for _, inner in _read_blocks(text, _DEEPSEEK, "<｜tool▁call▁end｜>"):
        name, _, given = inner.partition("<｜tool▁sep｜>")
        if name.strip() == "function" and "```" in given:
            name, _, given = given.partition("```")
            given = given.removeprefix("json").rstrip().removesuffix("```")
        calls += _read_arguments(name.strip(), given.strip(), schemas)
    return calls


def _read_bare(text: str, schemas: Schemas) -> Calls:
    return _read_objects(text, schemas, bare=True)


MARKUPS = (
    Markup("<tool_call>", "</tool_call>", _read_tagged),
    Markup("<function=", "</function>", _read_function),
    Markup("[TOOL_CALLS]", "", _read_mistral),
    Markup("<|python_tag|>", "", _read_python_tag),
    Markup("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _read_deepseek),
    Markup("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", _read_deepseek),
    Markup("<｜tool▁call▁begin｜>", "", _read_deepseek),
)
BARE = Markup("", "", _read_bare)
"""Calls as JSON alone, which can only be all of an answer."""


def read_calls(markup: Markup, text: str, schemas: Schemas) -> Calls:
    """Return the calls that a markup's text says; none if it is not one. Raises `Unfinished`."""
    try:
        return markup.read(text, schemas)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return []


def may_be_bare(text: str, names: Collection[str]) -> bool | None:
    """Say whether a text may go on to be calls as JSON alone; None: too little of it came.

    It begins with the name of an offered tool, or with a key that nothing else begins with.
    """
    rest = text.lstrip(" \t\r\n[")
    for key in ("{", '"'):
        if not rest.startswith(key):
            return None if not rest else False
        rest = rest[1:].lstrip()
    key, quote, rest = rest.partition('"')
    known = ("name", "arguments", "parameters", "type", "function")
    if not quote:
        return None if any(x.startswith(key) for x in known) else False
    if key not in ("name", "type"):
        return key in known
    rest = rest.lstrip()
    for mark in (":", '"'):
        if not rest.startswith(mark):
            return None if not rest else False
        rest = rest[1:].lstrip()
    value, quote, _ = rest.partition('"')
    wanted = names if key == "name" else ("function",)
    if quote:
        return value in wanted
    return None if any(x.startswith(value) for x in wanted) else False
