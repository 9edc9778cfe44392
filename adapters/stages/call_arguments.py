"""The arguments of one tool call as they come in pieces, and what those are together."""

from __future__ import annotations

import re

from msgspec import DecodeError, Raw, Struct, json

from wellspoken.adapters.nesting import is_text_too_deep

LONG = 1000  # characters of a piece that are parsed at once before they are looked at
_MARK = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)  # with what a backslash escapes
_decode = json.Decoder(Raw).decode
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|[^\s"]', re.DOTALL)  # the last text may be cut
_SPACE = re.compile(r"\s*")
_WIDEST = 4  # times as long as a text that is the same, with its white space
_BETWEEN = " \t\r\n,;"


def _is_json(text: str) -> bool:
    try:
        _decode(text)
    except (DecodeError, ValueError, RecursionError):
        return False
    return text.lstrip()[0] in '{["'


def _squeezed_in(said: str, text: str) -> int:
    """Return the size of a text's beginning that is the same JSON but for white space, else 0."""
    at = 0
    for token in _TOKEN.finditer(said):
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if not text.startswith(token[0], at):
            return 0
        at += len(token[0])
    return at


def is_whole(text: str) -> bool:
    """Say whether a text is a whole JSON object, array or text."""
    arguments = CallArguments()
    arguments.add(text)
    return arguments.complete()


class CallArguments(Struct, eq=False):
    """Arguments as they come, of which each piece is looked at once.

    `end`: where they are a whole value; `odd`: they are none, or another one is behind it.
    """

    pieces: list[str] = []
    size: int = 0
    looked: int = 0
    began: bool = False
    depth: int = 0
    quoted: bool = False
    slash: bool = False
    end: int = 0
    odd: bool = False

    def add(self, piece: str) -> str:
        """Take what comes next; return what of it is of the arguments.

        Behind a whole value nothing is but white space. What may be another value stays: that is
        for the caller to tell.
        """
        self.pieces.append(piece)
        self.size += len(piece)
        if self.size == len(piece) > LONG and _is_json(piece):
            self.end, self.looked = len(piece.rstrip()), len(self.pieces)
        if not self.complete():
            return piece
        extra = piece[max(len(piece) - (self.size - self.end), 0) :].lstrip(_BETWEEN)
        self.odd = self.odd or extra.startswith(("{", "["))
        if self.odd or not extra:
            return piece
        self.size -= len(extra)
        self.pieces[-1] = piece[: len(piece) - len(extra)]
        return self.pieces[-1]

    def said_in(self, text: str) -> int:
        """Return how much of a text the object's beginning that came takes; 0 if it is not in it.

        It may have other white space: a server's parser writes what the model wrote, and its end
        what it made of that.
        """
        if not self.size or text[:1] != "{" or self.size > _WIDEST * len(text):
            return 0
        said = "".join(self.pieces)
        if not text.startswith(said):
            return _squeezed_in(said, text) if not self.end and is_whole(text) else 0
        if text == said:  # no object goes on so, but where a value within it begins
            self.complete()
            return self.size if self.quoted or said.rstrip()[-1] not in ":[," else 0
        # Else it closes what came before: a value of that.
        return self.size if CallArguments().add(text) == text else 0

    def complete(self) -> bool:
        """Say whether what came is a whole JSON object, array or text."""
        at = self.size - sum(map(len, self.pieces[self.looked :]))
        for piece in self.pieces[self.looked :]:
            if not self.end:
                self._look(piece, at)
            at += len(piece)
        self.looked = len(self.pieces)
        return self.end > 0 or (self.began and self.depth <= 0 and not self.quoted)

    def equals(self, text: str) -> bool:
        """Say whether a text is the same JSON."""
        said = "".join(self.pieces)
        if is_text_too_deep(said) or is_text_too_deep(text):
            return said == text
        try:
            return bool(json.decode(said) == json.decode(text))
        except DecodeError:
            return False

    def _look(self, piece: str, at: int) -> None:
        begin = int(self.slash)
        self.slash = self.slash and not piece
        if not self.began and piece[begin:].lstrip()[:1] not in ("", "{", "[", '"'):
            self.odd = True
        for found in _MARK.finditer(piece, begin):
            mark = found[0]
            if mark[0] == "\\":
                self.slash = self.quoted and mark == "\\"
            elif mark == '"':
                self.quoted = not self.quoted
                self.began = True
            elif self.quoted:
                continue
            elif mark in "{[":
                self.began = True
                self.depth += 1
            else:
                self.depth -= 1
                self.odd = self.odd or self.depth < 0
            if mark in '"}]' and not (self.depth or self.quoted or self.odd):
                self.end = at + found.end()
                return
