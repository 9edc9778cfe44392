"""What tells what a stream says again from what is new: its entries, and its closing message.

MiniMax ends its streams with the whole answer, as an object "chat.completion"; Perplexity puts the
whole message so far beside each delta.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

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


class Written(Struct, eq=False):
    """The pieces of one choice that came as deltas, by what they are."""

    thoughts: list[str] = []
    texts: list[str] = []
    refusals: list[str] = []
    called: bool = False

    def add(self, said: Said) -> None:
        """Take note of what one delta held."""
        reasoning, text, refusal, rows = said
        if text:
            self.texts.append(text)
        if reasoning:
            self.thoughts.append(reasoning)
        if refusal:
            self.refusals.append(refusal)
        self.called = self.called or bool(rows)

    def take_new(self, said: Said, *, whole: bool) -> Said:
        """Return what a message adds to the deltas; `whole`: it is known to be all of an answer."""
        reasoning, text, refusal, rows = said
        if whole and reasoning and not self.thoughts:
            told = _squeeze("".join(self.texts))
            if _squeeze(reasoning) in told and told != _squeeze(text):
                reasoning = ""  # which the deltas told within their text
        return (
            _new(self.thoughts, reasoning, whole=whole),
            _new(self.texts, text, whole=whole),
            _new(self.refusals, refusal, whole=whole),
            rows,
        )


def _new(pieces: list[str], given: str, *, whole: bool) -> str:
    """Return what a text adds to the pieces that came before it.

    That is all of it where none came, and where it is another text and may be one more piece, since
    some servers call a delta a message.
    """
    said = "".join(pieces)
    if not said or not given:
        return given
    if given.startswith(said):
        return given[len(said) :]
    return "" if whole or _squeeze(given) == _squeeze(said) else given


def _is_one_of(text: str, told: Iterable[str]) -> bool:
    """Say whether a text is one of those told, but for control tokens that end them."""
    return any(x.startswith(text) and _CONTROLS.fullmatch(x, len(text)) for x in told)


def _squeeze(text: str) -> str:
    return "".join(text.split())
