"""Entries as the completions endpoint's arrays (contract, "Legacy /v1/completions").

OpenAI's spelling: a part of a character is `bytes:` and its escapes (`bytes:\\xe2\\x80`), an
alternative is a key of its position's object, and an offset counts characters from the start of
the prompt.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence
from operator import itemgetter

from msgspec import Raw, Struct, json

from wellspoken.adapters.events import UNKNOWN, Alternative, Entry, Logprobs
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.tokens.table import NULL, token_id

_ids = json.Decoder(list[int]).decode
_NUMBER = itemgetter(1)
MOST_PARTS = 4  # tokens that a character may be in


class LogprobArrays(Struct, gc=False):
    """The four arrays, in the order of OpenAI's API reference; one item a token in each."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ArrayWriter:
    """The arrays of one choice, made piece by piece: a call goes on where the last one ended.

    `offset`: where the last entry's text ended; `said`: where the last text did, which is the same
    if the entries are the text.
    """

    __slots__ = ("k", "leading", "notes", "offset", "pending", "said", "table")

    def __init__(self, exchange: Exchange, choice: int) -> None:
        self.table = exchange.tokens
        self.notes = exchange.notes
        self.k = exchange.k
        self.leading = exchange.echo  # the next token is a prompt's first: nothing precedes it
        self.offset = self.said = 0 if exchange.echo else len(exchange.prompt_of(choice) or "")
        self.pending = b""  # the beginning of a character, which `offset` does not count yet

    def write(self, text: str, lp: Logprobs | None) -> LogprobArrays | None:
        """Return the arrays of the choice's next text, None if it came without entries."""
        before, begin, self.said = self.offset, self.said, self.said + len(text)
        if lp is None:
            return None
        arrays = self(lp.entries)
        if before != begin or self.offset > self.said:
            self._move(arrays, lp.entries, before, begin)
        return arrays

    def _move(self, arrays: LogprobArrays, entries: list[Entry], before: int, begin: int) -> None:
        """Let the offsets be in a text that begins there, though the last entry ended `before`.

        What stands between came without entries. If these are longer than their text, they are of
        that, too, and end where it does; if they are no part of it at all, none is behind its end.
        """
        end, shift = self.said, 0
        if not any(each.bytes == NULL and token_id(each.token) is not None for each in entries):
            shift = max(min(begin, end - (self.offset - before)) - before, 0)
        arrays.text_offset = [min(offset + shift, end) for offset in arrays.text_offset]
        self.offset += shift
        if self.offset > end:
            self.offset, self.pending = end, b""

    def write_all(
        self, texts: Sequence[str], scores: Sequence[Logprobs | None]
    ) -> LogprobArrays | None:
        """Return the arrays of all of a choice's texts, None if none had entries."""
        parts = [part for part in map(self.write, texts, scores) if part is not None]
        if not parts:
            return None
        whole = parts[0]
        for part in parts[1:]:
            whole.tokens += part.tokens
            whole.token_logprobs += part.token_logprobs
            whole.top_logprobs += part.top_logprobs
            whole.text_offset += part.text_offset
        return whole

    def __call__(self, entries: list[Entry]) -> LogprobArrays:
        """Return the arrays of the choice's next entries. Hot: plain tokens cost a look-up."""
        table = self.table
        tokens: list[str] = []
        numbers: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for entry in entries:
            token, plain = entry.token, table[entry.token]
            if plain is NULL or entry.bytes != plain:
                token = self._odd(entry, offsets, entries)
            else:
                if self.pending:
                    self._replace()
                offsets.append(self.offset)
                self.offset += len(token)
            tokens.append(token)
            first, self.leading = self.leading, False
            if first and entry.logprob == UNKNOWN and not entry.top_logprobs:
                numbers.append(None)
                tops.append(None)
                continue
            numbers.append(entry.logprob)
            tops.append(self._top(entry, token))
        return LogprobArrays(tokens, numbers, tops, offsets)

    def _odd(self, entry: Entry, offsets: list[int], entries: list[Entry]) -> str:
        """Add the offset of an entry that is not plain text, and return its spelling."""
        data = _bytes_of(entry.bytes)
        if not data:
            near = entries[len(offsets) : len(offsets) + MOST_PARTS]
            if self.pending and not any(_bytes_of(each.bytes) for each in near):
                self._replace()  # nothing completes it: U+FFFD has gone out
            offsets.append(self.offset)
            return entry.token
        # Pending bytes alone are one U+FFFD, so more than one says that this byte breaks them off.
        if self.pending and _count_characters(self.pending + data[:1]) > 1:
            self._replace()
        offsets.append(self.offset)
        data = self.pending + data
        text, used = utf_8_decode(data, "replace", False)
        self.offset += len(text)
        self.pending = data[used:]
        if _count_characters(self.pending) > 1:  # half a surrogate, which the decoder keeps back
            self.offset += _count_characters(self.pending)
            self.pending = b""
        return _spell(entry)

    def _replace(self) -> None:
        """Count a character that was never completed as the U+FFFD that stands for it."""
        self.offset += 1
        self.pending = b""

    def _top(self, entry: Entry, token: str) -> dict[str, float]:
        """Return the best alternatives and the sampled token, in descending order.

        Counts `logprobs_alternative_merged` where tokens read alike, so that one key cannot hold
        each one's value: the best stays, but the sampled token's own before all.
        """
        table, rows, number = self.table, entry.top_logprobs, entry.logprob
        if len(rows) > self.k:
            rows = rows[: self.k]
        top: dict[str, float] = {}
        for row in rows:
            key = row.token
            if row.bytes != table[key]:
                key = _spell(row)
            if key not in top:
                top[key] = row.logprob
        own = top.get(token)
        if own is None and rows:
            top = _with_own_name(top, rows, entry, token)
            own = top.get(token)
        if len(top) < len(rows) or (own is not None and own != number):
            self.notes.add("logprobs_alternative_merged")
        if own == number:
            return top
        top[token] = number
        if own is None and (not rows or number <= rows[-1].logprob):
            return top
        return dict(sorted(top.items(), key=_NUMBER, reverse=True))


def _with_own_name(
    top: dict[str, float], rows: list[Alternative], entry: Entry, token: str
) -> dict[str, float]:
    """Return the map with the sampled token under its name, where it stands there under another.

    The entry of a merged character (llama.cpp) or of a clipped token has more or fewer bytes than
    the alternative that it is: the one with its number whose bytes hold its own or are in them.
    """
    data = _bytes_of(entry.bytes)
    for row in rows:
        if row.logprob == entry.logprob and data and _alike(data, _bytes_of(row.bytes)):
            name = _spell(row)
            return {token if key == name else key: value for key, value in top.items()}
    return top


def _alike(one: bytes, other: bytes | None) -> bool:
    return other is not None and other != b"" and (one in other or other in one)


def _count_characters(data: bytes) -> int:
    """Return the number of characters of bytes whose undecodable ones are replaced."""
    return len(data.decode(errors="replace"))


def _bytes_of(value: Raw) -> bytes | None:
    data = bytes(value)
    return None if data in (b"", b"null") else bytes(_ids(data))


def _spell(row: Entry | Alternative) -> str:
    """Return a row's token as the arrays have it.

    A placeholder that the client asked for (vLLM's `return_tokens_as_token_ids`) stays one.
    """
    token, data = row.token, _bytes_of(row.bytes)
    if data is None or data == token.encode() or token_id(token) is not None:
        return token
    return "bytes:" + token
