"""Calls as JSON objects, and the arguments that any markup's calls have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from json import JSONDecodeError, JSONDecoder
from typing import Any

import msgspec
from msgspec import Raw

Schemas = Mapping[str, Mapping[str, Raw]]
"""The offered tools: name -> its parameters' JSON schema."""
Calls = list[tuple[str, str]]
"""Names, each with its arguments as JSON text."""


class Unfinished(Exception):
    """What looked like a markup's end stands within a text of its JSON."""


_decode = JSONDecoder().raw_decode
_BETWEEN = re.compile(r"[\s;,]*")
_FENCE = re.compile(r"\s*```(?:json)?\s*")
FENCE = "```"
ENDS = (
    "<|eom_id|>",
    "<|eot_id|>",
    "<|im_end|>",
    "</s>",
    "<|end|>",
    "<|/tool_call|>",
    "[/TOOL_CALLS]",
    "<｜end▁of▁sentence｜>",
    "<|endoftext|>",
    "<|return|>",
    "<|END_RESPONSE|>",
)
"""What ends a turn or its calls, which a server that keeps special tokens leaves behind them."""
KEYS = frozenset(("name", "arguments", "parameters", "type", "function", "id"))
"""What an object that is a call, by whose mark nothing tells so, may have."""
TOLD = frozenset(("name", "arguments"))
"""What one has where an offered tool's own object may stand, which has `parameters` as well."""
_WORDS = {"True": True, "False": False, "None": None}


def find_value(text: str, at: int) -> int:
    """Return the end of the JSON value at a place; `Unfinished` if the text ends within it.

    Raises ValueError where there is none.
    """
    try:
        return int(_decode(text, at)[1])
    except JSONDecodeError as error:
        if error.msg.startswith("Unterminated"):
            raise Unfinished from error
        raise


def read_arguments(name: str, given: bytes | str, schemas: Schemas) -> Calls:
    """Return the call of a tool with these arguments, an object or a text that holds one.

    Raises ValueError if the tool is not offered or they are something else.
    """
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


def read_values(name: str, values: Mapping[str, Any], schemas: Schemas) -> Calls:
    """Return the call of a tool with these arguments; ValueError if it is not offered."""
    if name not in schemas:
        raise ValueError
    return [(name, msgspec.json.encode(values).decode())]


def read_value(text: str, schema: object) -> object:
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


def read_object(given: bytes | str, schemas: Schemas, keys: frozenset[str] = frozenset()) -> Calls:
    """Return the call of one JSON object; `keys`: arguments among them, and no others."""
    found = msgspec.json.decode(given, type=dict[str, Raw])
    if bytes(found.get("function", b"")).startswith(b"{"):
        found = msgspec.json.decode(found["function"], type=dict[str, Raw])
    arguments = found.get("arguments", found.get("parameters"))
    name = found.get("name", found.get("function", found.get("tool_name")))
    if name is None or (keys and (arguments is None or not found.keys() <= keys)):
        raise ValueError
    text = b"{}" if arguments is None else bytes(arguments)
    return read_arguments(msgspec.json.decode(name, type=str), text, schemas)


def read_objects(text: str, schemas: Schemas, *, keys: frozenset[str] = frozenset()) -> Calls:
    """Return the calls of JSON objects, or lists of them, one after the other; nothing else."""
    calls: Calls = []
    for value in _values(without_end(text)):
        items = msgspec.json.decode(value, type=list[Raw]) if value.startswith("[") else [value]
        for item in items:
            calls += read_object(item if isinstance(item, str) else bytes(item), schemas, keys)
    return calls


def read_fenced(text: str, schemas: Schemas) -> Calls:
    """Return the calls in one code fence after the other; nothing else."""
    calls: Calls = []
    text = without_end(text)
    at = 0
    while at < len(text):
        head = _FENCE.match(text, at)
        if head is None:
            raise ValueError
        at = head.end()
        while not text.startswith(FENCE, at):
            at = _BETWEEN.match(text, find_value(text, at)).end()  # type: ignore[union-attr]
        calls += read_objects(text[head.end() : at], schemas, keys=TOLD)
        at += len(FENCE)
    return calls


def without_fence(text: str) -> str:
    """Return a text without the mark that opens a code fence at its beginning."""
    return _FENCE.sub("", text, count=1)


def read_named_objects(text: str, schemas: Schemas) -> Calls:
    """Return the calls of a list of objects whose only key is the tool's name (Apertus)."""
    calls: Calls = []
    for item in msgspec.json.decode(text, type=list[dict[str, Raw]]):
        for name, arguments in item.items():
            calls += read_arguments(name, bytes(arguments), schemas)
    return calls


def _values(text: str) -> list[str]:
    found = []
    at = 0
    while at < len(text):
        begin = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        at = find_value(text, begin)
        found.append(text[begin:at])
    return found


def without_end(text: str) -> str:
    """Return a text without what ends a turn."""
    text = text.rstrip()
    for end in ENDS:
        text = text.removesuffix(end)
    return text.rstrip()
