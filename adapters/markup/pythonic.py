"""Calls as Python writes them, with keywords and literals alone: `[f(city="Paris", days=[1, 2])]`.

Nothing of it is run, nor compiled: what is no call of an offered tool with literals is none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

from wellspoken.adapters.markup.call_json import Calls, Schemas, Unfinished, read_values

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>'''(?:[^\\]|\\.)*?'''|\"""(?:[^\\]|\\.)*?\"""
            |'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
        |(?P<number>[-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)
        |(?P<name>[^\W\d][\w.-]*)
        |(?P<mark>[][(){},:=])
        |(?P<end>$)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = frozenset("\\'\"abfnrtvxuUN0123")  # what Python knows; else a backslash is one
_RAW = str.maketrans({"\n": "\\n", "\r": "\\r"})  # which models write in any string
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CLOSING = {"[": "]", "{": "}"}
DEEPEST = 64  # lists and dicts within each other

Token = tuple[str, str]
"""What it is and what it says; all marks are what they say."""


def read_pythonic(text: str, schemas: Schemas) -> Calls:
    """Return the calls of a list, or of calls one after the other; nothing else.

    Raises ValueError for what is none, `Unfinished` where the text ends within a string.
    """
    reader = _Reader(text)
    listed = reader.take("[")
    calls: Calls = []
    while not reader.take("]" if listed else "end"):
        name, values = reader.read_call()
        if name not in schemas:
            name = name.removesuffix(".call")  # Llama 3.1's of tools that it knows
        calls += read_values(name, values, schemas)
        if not reader.take(",") and listed and reader.token[0] != "]":
            raise ValueError
    if listed and not reader.take("end"):
        raise ValueError
    return calls


def _tokens(text: str) -> Iterator[Token]:
    at, kind = 0, ""
    while kind != "end":
        found = _TOKEN.match(text, at)
        if found is None:
            if text[at:].lstrip().startswith(('"', "'")):
                raise Unfinished
            raise ValueError
        at, kind = found.end(), str(found.lastgroup)
        said = found[kind]
        yield (said if kind == "mark" else kind), said


class _Reader:
    """Reads values off the tokens; `token` is the next one. Its methods raise ValueError."""

    def __init__(self, text: str) -> None:
        self.rest = _tokens(text)
        self.token = next(self.rest)
        self.depth = 0

    def take(self, kind: str) -> str | None:
        """Return what the next token says if it is one of this kind, and go on behind it."""
        if self.token[0] != kind:
            return None
        said = self.token[1]
        self.token = next(self.rest, ("end", ""))
        return said or kind

    def expect(self, kind: str) -> str:
        """Return what the next token says, which is of this kind."""
        said = self.take(kind)
        if said is None:
            raise ValueError
        return said

    def read_call(self) -> tuple[str, dict[str, Any]]:
        """Return a call's name and its keywords."""
        name = self.expect("name")
        self.expect("(")
        values: dict[str, Any] = {}
        while not self.take(")"):
            key = self.expect("name")
            self.expect("=")
            if key in values:
                raise ValueError
            values[key] = self.read_value()
            if not self.take(",") and self.token[0] != ")":
                raise ValueError
        return name, values

    def read_value(self) -> Any:
        """Return a literal's value."""
        kind, said = self.token
        if kind == "text":
            return self._read_text()
        if kind in _CLOSING:
            return self._read_several(kind)
        if self.take("name"):
            if said not in _WORDS:
                raise ValueError
            return _WORDS[said]
        value = ast.literal_eval(self.expect("number"))
        if not isfinite(value):
            raise ValueError
        return value

    def _read_text(self) -> str:
        found = []
        said: str | None = self.expect("text")
        while said is not None:
            known = _ESCAPE.sub(lambda x: x[0] if x[1] in _ESCAPED else "\\" + x[0], said)
            found.append(str(ast.literal_eval(known.translate(_RAW))))
            said = self.take("text")
        return "".join(found)

    def _read_several(self, opening: str) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise ValueError
        self.expect(opening)
        closing, keys, items = _CLOSING[opening], list[str](), list[Any]()
        while not self.take(closing):
            if opening == "{":
                keys.append(self._read_text())
                self.expect(":")
            items.append(self.read_value())
            if not self.take(",") and self.token[0] != closing:
                raise ValueError
        self.depth -= 1
        return dict(zip(keys, items, strict=True)) if opening == "{" else items
