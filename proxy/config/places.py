"""Where in a TOML file each key and each value stands: `tomllib` does not say.

Only for text that `tomllib` has taken: what is no TOML is not looked for here a second time. The
grammar is TOML 1.0's (https://toml.io/en/v1.0.0).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from itertools import count
from typing import Final, NamedTuple

Path = tuple[str | int, ...]
"""A key path: ("backend", 0, "url") is `url` of the first [[backend]]."""

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE: Final = re.compile(r"[ \t]*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SCALAR: Final = re.compile(r"[^,\]}#\r\n]*")
# Closing quotes: up to two more of them may be the text's own, so the last three of a run close.
_QUOTED: Final = (
    re.compile(r'"""(?:[^\\]|\\.)*?"""(?:""|"|)(?!")', re.DOTALL),
    re.compile(r"'''.*?'''(?:''|'|)(?!')", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


class Place(NamedTuple):
    """Where a key and its value stand, as offsets of characters; an array's item has no key.

    Of a table or a [[table]] `key` is the name in its header, and `value` and `end` are that too.
    """

    key: int
    value: int
    end: int


def places(text: str) -> dict[Path, Place]:
    """Return the place of every key, table and item of the TOML in `text`.

    A table that only other tables' headers name stands where the first of them names it. Raises
    ValueError where the text is no TOML that is known here, as a later version's may be.
    """
    try:
        return _Scanner(text).document()
    except IndexError:
        raise ValueError("the text ends too early") from None
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None


def position(text: str, offset: int) -> tuple[int, int]:
    """Return the line and the column, both from 1, of the character at `offset`."""
    start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - start + 1


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._found: dict[Path, Place] = {}
        self._lengths: dict[Path, int] = {}  # of the arrays that [[headers]] make

    def document(self) -> dict[Path, Place]:
        """Return the places of the whole text."""
        table: Path = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._pair(table)
            self._skip(_BLANK)
        return self._found

    def _header(self) -> Path:
        """Read [a.b] or [[a.b]]; return the path of the table that it begins."""
        several = self._text.startswith("[[", self._at)
        self._at += 2 if several else 1
        *outer, (name, begin, end) = self._names()
        self._skip(_SPACE)
        self._expect("]]" if several else "]")
        path: Path = ()
        for part, *span in outer:
            path = self._last((*path, part), Place(span[0], *span))
        path = (*path, name)
        place = Place(begin, begin, end)
        if not several:
            self._found[path] = place  # also where a header before it has named it
            return path
        self._found.setdefault(path, place)
        at = self._lengths.get(path, 0)
        self._lengths[path] = at + 1
        self._found[(*path, at)] = place
        return (*path, at)

    def _last(self, path: Path, place: Place) -> Path:
        """Return the path of the table that a name within a longer one means."""
        self._found.setdefault(path, place)
        length = self._lengths.get(path)
        return path if length is None else (*path, length - 1)

    def _pair(self, table: Path) -> None:
        """Read a key, which dots may part, and its value."""
        *outer, (name, begin, _) = self._names()
        for part, *span in outer:
            table = (*table, part)
            self._found.setdefault(table, Place(span[0], *span))
        self._skip(_SPACE)
        self._expect("=")
        self._skip(_SPACE)
        self._value((*table, name), begin)

    def _names(self) -> list[tuple[str, int, int]]:
        """Read a dotted key; return each part with where it begins and ends."""
        names: list[tuple[str, int, int]] = []
        while True:
            self._skip(_SPACE)
            begin = self._at
            if self._text[begin] in "\"'":
                self._string()
                said = self._text[begin : self._at]
                name = tomllib.loads(f"x = {said}")["x"]
            else:
                self._skip(_BARE)
                name = self._text[begin : self._at]
            names.append((name, begin, self._at))
            self._skip(_SPACE)
            if not self._text.startswith(".", self._at):
                return names
            self._at += 1

    def _value(self, path: Path, key: int) -> None:
        """Read the value of what stands at `path`."""
        begin = self._at
        self._found[path] = Place(key, begin, begin)
        first = self._text[begin]
        if first == "[":
            for number in self._items("]"):
                self._value((*path, number), self._at)
        elif first == "{":
            for _ in self._items("}"):
                self._pair(path)
        elif first in "\"'":
            self._string()
        else:  # a number, a time, true or false; a blank may part a date from its time
            found = _SCALAR.match(self._text, begin)
            assert found is not None
            self._at = begin + len(found[0].rstrip())
        self._found[path] = Place(key, begin, self._at)

    def _items(self, closing: str) -> Iterator[int]:
        """Go to each item of an array or an inline table, and past its end; give their numbers."""
        self._at += 1
        for number in count():
            self._skip(_BLANK)
            if self._text[self._at] == closing:
                self._at += 1
                return
            yield number
            self._skip(_BLANK)
            if self._text[self._at] != closing:
                self._expect(",")

    def _string(self) -> None:
        for form in _QUOTED:
            if found := form.match(self._text, self._at):
                self._at = found.end()
                return
        raise ValueError(f"no string of TOML at {self._at}")

    def _expect(self, what: str) -> None:
        """Go past what must stand here. So every round of every loop comes further."""
        if not self._text.startswith(what, self._at):
            raise ValueError(f"no {what} at {self._at}")
        self._at += len(what)

    def _skip(self, what: re.Pattern[str]) -> None:
        if found := what.match(self._text, self._at):
            self._at = found.end()
