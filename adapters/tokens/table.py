"""Token text -> ready JSON array of its bytes, bounded; what is not clean text never enters it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Raw, json

if TYPE_CHECKING:
    from wellspoken.adapters.tokens.vocabulary import Vocabulary

NULL = Raw(b"null")
CAPACITY = 65_536

_encode = json.Encoder().encode
_ID = re.compile(r"token_id:(\d{1,18})", re.ASCII)
_ESCAPE = re.compile(r"\\x([0-9a-fA-F]{2})")
LONGEST_NUMBER = 18  # digits: an int of 64 bits holds them, and no one counts further


def bytes_json(data: bytes) -> Raw:
    """Return `data` as a JSON array of integers."""
    return Raw(_encode(list(data)))


def spell(data: bytes) -> str:
    """Return the `token` of these bytes: their text, a part of a character as `\\xf0\\x9f`.

    The spelling is OpenAI's: lower-case hex escapes, only for the bytes that are not UTF-8.
    """
    return data.decode("utf-8", "backslashreplace")


def escape(data: bytes) -> str:
    """Return every byte as `\\xNN`: the `token` of an entry whose bytes stand for no known text."""
    return "".join(f"\\x{byte:02x}" for byte in data)


def raw_escapes(token: str) -> bytes | None:
    r"""Return the bytes of `bytes:\xe2\x80` or `\xe2\x80`; None for a text without escapes."""
    text = token.removeprefix("bytes:")
    if not _ESCAPE.search(text):
        return None
    data, at = b"", 0
    for found in _ESCAPE.finditer(text):
        data += text[at : found.start()].encode() + bytes([int(found[1], 16)])
        at = found.end()
    return data + text[at:].encode()


def digits(value: object) -> int | None:
    """Return the number that a text of ASCII digits is, None for any other value or a long one."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value) if len(value) <= LONGEST_NUMBER else None
    return None


def token_id(text: str) -> int | None:
    """Return N of a `token_id:N` placeholder (vLLM, FuriosaLLM), else None."""
    found = _ID.fullmatch(text)
    return int(found[1]) if found else None


def is_plain(text: str) -> bool:
    """Say whether a token's text tells its bytes: not empty, no U+FFFD, no `token_id:N`."""
    return bool(text) and "\ufffd" not in text and not _ID.fullmatch(text)


class TokenTable(dict[str, Raw]):
    """Plain token text -> JSON of its UTF-8; `NULL` for a text that does not tell its bytes.

    Two generations bound it: when the young one is full it becomes the old one, and what is still
    used comes back from there, so it holds at most 2 x `capacity` tokens (about 7 MB at 64k).
    """

    __slots__ = ("capacity", "odd", "old", "vocabulary")

    def __init__(self, vocabulary: Vocabulary | None = None, capacity: int = CAPACITY) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.capacity = capacity
        self.old: dict[str, Raw] = {}
        self.odd = 0  # grows with every look-up that gave `NULL`

    def __missing__(self, text: str) -> Raw:
        value = self.old.get(text)
        if value is None:
            if not is_plain(text):
                self.odd += 1
                return NULL
            value = bytes_json(text.encode())
        if len(self) >= self.capacity:
            self.old = dict(self)
            self.clear()
        self[text] = value
        return value
