"""Calls whose parts have marks or tags of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from wellspoken.adapters.markup.call_json import (
    Calls,
    Schemas,
    Unfinished,
    find_value,
    read_arguments,
    read_objects,
    read_value,
    read_values,
    without_end,
)
from wellspoken.adapters.markup.pythonic import read_pythonic

_SPACE = re.compile(r"\s*")
_PLAIN_NAME = re.compile(r"\s*([\w.:/-]+)")
_MISTRAL = re.compile(r"(?:\[TOOL_CALLS\])?\s*([\w.:/-]+)(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?\s*")
_TOOL_CALL = re.compile("<tool_call>")
_DEEPSEEK = re.compile("<｜tool▁call▁begin｜>")
_ASCII = re.compile("<｜tool_(calls?)_(begin|end)｜>|<｜tool_(sep)｜>")
_HARMONY = re.compile(
    r"([\w.-]+)(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*(?:json)?\s*<\|message\|>"
)
_BARE_KEY = re.compile(r"[\w.-]+(?=\s*:)")


class Tags(Struct, frozen=True):
    """The tags around a call, whose first group is its name, and around each parameter.

    A parameter's second group, where there is one, says whether its value is a text.
    """

    call: re.Pattern[str]
    call_end: str
    parameter: re.Pattern[str]
    parameter_end: str


def _invoke(prefix: str) -> Tags:
    """Return the tags `invoke` and `parameter` under a prefix of their own."""
    return Tags(
        re.compile(rf'<{prefix}invoke name="([^">]*)">'),
        f"</{prefix}invoke>",
        re.compile(rf'<{prefix}parameter name="([^">]*)"(?: string="(true|false)")?>'),
        f"</{prefix}parameter>",
    )


QWEN = Tags(
    re.compile(r"<function=([^>]*)>"), "</function>", re.compile(r"<parameter=([^>\s]+)>()"),
    "</parameter>",
)  # fmt: skip
INVOKE, STEP, DSML, ATEM = map(_invoke, ("", "steptml:", "｜DSML｜", "atem:"))
_GLM = Tags(
    _PLAIN_NAME, "", re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>()"), "</arg_value>"
)

Block = tuple[re.Match[str], str]
"""What opens it, and what stands between that and its end."""


def _read_blocks(text: str, head: re.Pattern[str], end: str) -> list[Block]:
    """Return the blocks between heads and ends; ValueError if there is anything else."""
    found = []
    text = text.strip()
    at = 0
    while at < len(text):
        begin = head.match(text, at)
        close = text.find(end, begin.end()) if begin is not None else -1
        if begin is None or close < 0:
            raise ValueError
        found.append((begin, text[begin.end() : close]))
        at = close + len(end)
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    return found


def _read_parameters(name: str, inner: str, tags: Tags, schemas: Schemas) -> Calls:
    """Return the call whose parameters have tags of their own, or that has JSON in their place."""
    if inner.lstrip().startswith("{"):
        return read_arguments(name, inner.strip(), schemas)
    given = schemas[name].get("properties") if name in schemas else None
    properties = {} if given is None else msgspec.json.decode(given, type=dict[str, Any])
    values = {}
    for head, value in _read_blocks(inner, tags.parameter, tags.parameter_end):
        schema = properties.get(head[1].strip())
        if head[2]:
            schema = {"type": "string"} if head[2] == "true" else schema or {}
        values[head[1].strip()] = read_value(value, schema)
    return read_values(name, values, schemas)


def read_tags(tags: Tags) -> Callable[[str, Schemas], Calls]:
    """Return what reads calls in such tags, one after the other."""

    def read(text: str, schemas: Schemas) -> Calls:
        calls: Calls = []
        for head, inner in _read_blocks(text, tags.call, tags.call_end):
            calls += _read_parameters(head[1].strip(), inner, tags, schemas)
        return calls

    return read


def read_heads(head: str, end: str) -> Callable[[str, Schemas], Calls]:
    """Return what reads blocks of JSON arguments, in whose head, a pattern, a group is the name."""
    pattern = re.compile(head)

    def read(text: str, schemas: Schemas) -> Calls:
        calls: Calls = []
        for begin, inner in _read_blocks(without_end(text), pattern, end):
            calls += read_arguments(begin[1].strip(), inner.strip() or "{}", schemas)
        return calls

    return read


def read_function(text: str, schemas: Schemas) -> Calls:
    """Return the call behind `<function=`."""
    name, _, inner = text.partition(">")
    return _read_parameters(name, inner, QWEN, schemas)


def read_tagged(text: str, schemas: Schemas) -> Calls:
    """Return the calls of a `<tool_call>`: JSON, Qwen3-Coder's tags or GLM's."""
    if text.lstrip().startswith("<function="):
        return read_tags(QWEN)(text, schemas)
    name = _PLAIN_NAME.match(text)
    if name is not None:
        return _read_parameters(name[1], text[name.end() :], _GLM, schemas)
    return read_objects(text, schemas)


def read_invoke(text: str, schemas: Schemas) -> Calls:
    """Return the call behind `<invoke name="`; `Unfinished` where that ends in a parameter."""
    if len(INVOKE.parameter.findall(text)) > text.count(INVOKE.parameter_end):
        raise Unfinished
    name, _, inner = text.partition('">')
    return _read_parameters(name.strip(), inner, INVOKE, schemas)


def read_several(text: str, schemas: Schemas) -> Calls:
    """Return the calls of a `<tool_calls>`: JSON, or a `<tool_call>` for each."""
    if not text.lstrip().startswith("<tool_call>"):
        return read_objects(text, schemas)
    blocks = _read_blocks(text, _TOOL_CALL, "</tool_call>")
    return [call for _, inner in blocks for call in read_tagged(inner, schemas)]


def read_function_calls(text: str, schemas: Schemas) -> Calls:
    """Return the calls of a `<function_calls>`: `<invoke>`s, or Python's, one a line (Olmo 3)."""
    found = read_tags(INVOKE) if text.lstrip().startswith("<") else read_pythonic
    return found(text, schemas)


def read_either(text: str, schemas: Schemas) -> Calls:
    """Return the calls of JSON, or of Python."""
    json = text.lstrip("[ \t\r\n").startswith("{")
    return read_objects(text, schemas) if json else read_pythonic(without_end(text), schemas)


def read_mistral(text: str, schemas: Schemas) -> Calls:
    """Return the calls behind `[TOOL_CALLS]`, each with that mark or all behind one."""
    if text.lstrip().startswith(("[{", "{", "[ {", "[\n")):
        return read_objects(text, schemas)
    calls: Calls = []
    text = without_end(text)
    at = 0
    while at < len(text):
        head = _MISTRAL.match(text, at)
        if head is None:
            raise ValueError
        at = find_value(text, head.end())
        calls += read_arguments(head[1], text[head.end() : at], schemas)
    return calls


def read_deepseek(text: str, schemas: Schemas) -> Calls:
    """Return the calls of DeepSeek V3, R1 and V3.1, and of Step3, which has tags in their place."""
    calls: Calls = []
    text = _ASCII.sub(lambda mark: mark[0].replace("_", "▁"), text).strip()
    for _, inner in _read_blocks(text, _DEEPSEEK, "<｜tool▁call▁end｜>"):
        name, _, given = inner.partition("<｜tool▁sep｜>")
        if given.lstrip().startswith("<steptml:"):
            calls += read_tags(STEP)(given, schemas)
            continue
        if name.strip() == "function" and "```" in given:
            name, _, given = given.partition("```")
            given = given.removeprefix("json").rstrip().removesuffix("```")
        calls += read_arguments(name.strip(), given.strip(), schemas)
    return calls


def read_harmony(text: str, schemas: Schemas) -> Calls:
    """Return the call behind gpt-oss's `to=functions.`."""
    head = _HARMONY.match(text)
    if head is None:
        raise ValueError
    end = find_value(text, head.end())
    if text[end:].strip():
        raise ValueError
    return read_arguments(head[1], text[head.end() : end], schemas)


def read_gemma(quote: str) -> Callable[[str, Schemas], Calls]:
    """Return what reads `NAME{key:value}` with such a mark around each text."""

    def read(text: str, schemas: Schemas) -> Calls:
        name, brace, given = text.strip().partition("{")
        found = []
        for at, part in enumerate((brace + given).split(quote)):
            quoted = msgspec.json.encode(part).decode()
            found.append(quoted if at % 2 else _BARE_KEY.sub(r'"\g<0>"', part))
        return read_arguments(name.strip(), "".join(found), schemas)

    return read
