"""What tells what a stream says again from what is new: its entries, and its closing message.

MiniMax ends its streams with the whole answer, as an object "chat.completion"; Perplexity puts the
whole message so far beside each delta.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from wellspoken.adapters.alignment.candidates import CONTROL
from wellspoken.adapters.alignment.spelling import join_tokens
from wellspoken.adapters.events import Entry
from wellspoken.adapters.repairs.tools import Row

_CONTROLS = re.compile(f"(?:{CONTROL.pattern})*")

Mark = tuple[str, float, Any]
"""What tells one entry from another: token, logprob, id."""


class Streamed(Struct, eq=False):
    """The entries that one choice's chunks brought so far: how many, the first, the last."""

    size: int = 0
    first: Mark | None = None
    last: Mark | None = None

    def again(self, entries: list[Entry], text: str) -> bool:
        """Say whether these begin with all that came so far, and are more than their own `text`."""
        size = self.size
        if not 0 < size <= len(entries) or mark(entries[0]) != self.first:
            return False
        if mark(entries[size - 1]) != self.last:
            return False
        if not text:
            return True
        tokens = [entry.token for entry in entries]
        told = list(join_tokens(tokens))
        if _is_one_of(text, told):
            return False
        # White space alone may be what a server cut off, or what came before.
        new = _is_one_of(text, join_tokens(tokens[size:]))
        return new or not _is_one_of(_squeeze(text), map(_squeeze, told))

    def add(self, entries: list[Entry]) -> None:
        """Count entries that came, which are none of those before."""
        if entries:
            self.first = self.first or mark(entries[0])
            self.last = mark(entries[-1])
            self.size += len(entries)


def mark(entry: Entry) -> Mark:
    """Return what tells an entry from another."""
    return (entry.token, entry.logprob, entry.id)


Said = tuple[str, str, str, list[Row]]
"""Reasoning, text, refusal and calls of one delta or message."""

FRONT = 65_536
"""Characters of a text that are kept: what begins with as many of them says that text again."""


class Growing(Struct, eq=False):
    """A text that comes in `pieces`, of which its front and its size are kept: it may have no end.

    `count` is how many came before `pieces`, `size` their characters, `solid` those of them that
    are no white space.
    """

    pieces: list[str] = []
    front: str = ""
    count: int = 0
    size: int = 0
    solid: int = 0

    def fold(self) -> None:
        """Keep of the pieces what has to be kept."""
        text = "".join(self.pieces)
        self.count += len(self.pieces)
        self.pieces.clear()  # and not another list: a reader holds this one
        self.front += text[: FRONT - len(self.front)]
        self.size += len(text)
        self.solid += len(_squeeze(text))

    def begins(self, given: str) -> bool:
        """Say whether a text begins with this one."""
        self.fold()
        return len(given) >= self.size and given.startswith(self.front)

    def is_same(self, given: str) -> bool:
        """Say whether a text is this one, but for white space."""
        self.fold()
        given = _squeeze(given)
        return len(given) == self.solid and given.startswith(_squeeze(self.front))

    def holds(self, given: str) -> bool:
        """Say whether a text is within this one's front, but for white space."""
        self.fold()
        return _squeeze(given)[: FRONT // 2] in _squeeze(self.front)

    def take_new(self, given: str, *, whole: bool) -> str:
        """Return what a text adds to this one.

        That is all of it where none came, and where it is another text and may be one more piece,
        since some servers call a delta a message.
        """
        if self.begins(given):
            return given[self.size :]
        return "" if whole or self.is_same(given) else given


class Written(Struct, eq=False):
    """The pieces of one choice that came as deltas, by what they are."""

    thoughts: Growing = field(default_factory=Growing)
    texts: Growing = field(default_factory=Growing)
    refusals: Growing = field(default_factory=Growing)
    called: bool = False

    def add(self, said: Said) -> None:
        """Take note of what one delta held."""
        reasoning, text, refusal, rows = said
        if text:
            self.texts.pieces.append(text)
        if reasoning:
            self.thoughts.pieces.append(reasoning)
        if refusal:
            self.refusals.pieces.append(refusal)
        self.called = self.called or bool(rows)

    def fold(self) -> None:
        """Keep of all that came what has to be kept."""
        for text in (self.thoughts, self.texts, self.refusals):
            text.fold()

    def take_new(self, said: Said, *, whole: bool) -> Said:
        """Return what a message adds to the deltas; `whole`: it is known to be all of an answer."""
        reasoning, text, refusal, rows = said
        self.fold()
        if whole and reasoning and not self.thoughts.size:
            if self.texts.holds(reasoning) and not self.texts.is_same(text):
                reasoning = ""  # which the deltas told within their text
        return (
            self.thoughts.take_new(reasoning, whole=whole),
            self.texts.take_new(text, whole=whole),
            self.refusals.take_new(refusal, whole=whole),
            rows,
        )


def _is_one_of(text: str, told: Iterable[str]) -> bool:
    """Say whether a text is one of those told, but for control tokens that end them."""
    return any(x.startswith(text) and _CONTROLS.fullmatch(x, len(text)) for x in told)


def _squeeze(text: str) -> str:
    return "".join(text.split())
