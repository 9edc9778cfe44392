"""Which of several servers gave a response that a later request continues.

A server that keeps responses (OpenAI's /v1/responses with `previous_response_id`: vLLM, SGLang, LM
Studio) knows its own alone. So the request that names one goes to the server that gave it, as far
as this process remembers that, and to no other: there it would only be told that there is no such
response.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import DecodeError, Raw, json

RESPONSES: Final = ("/v1/responses", "/responses")
"""Paths whose answers are continued."""
MOST: Final = 10_000
"""Responses that are remembered, the latest; a few MB."""
READ: Final = 65_536
"""Bytes of an answer in which its id stands, if it has one: near its beginning everywhere."""
_ID: Final = re.compile(rb'"id"\s*:\s*"(resp_[\w-]{1,200})"')
_LONGEST: Final = 256
"""Bytes of the id with its key, of which a piece may bring a part."""

_text_of = json.Decoder(str).decode


class Continued:
    """Response's id -> the name of the server that gave it: the latest MOST, in memory."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._servers: dict[str, str] = {}

    def note(self, response: str, server: str) -> None:
        """Remember who gave a response."""
        self._servers.pop(response, None)  # the latest stands last
        self._servers[response] = server
        if len(self._servers) > self._most:
            del self._servers[next(iter(self._servers))]

    def find(self, fields: Mapping[str, Raw]) -> str:
        """Return who gave the response that a request continues, "" where that is not known."""
        given = fields.get("previous_response_id")
        try:
            return self._servers.get(_text_of(given), "") if given is not None else ""
        except (DecodeError, UnicodeDecodeError):  # what it is, the server says
            return ""


class IdReader:
    """Finds the id of an answer, or of a stream's first event, that passes in pieces.

    `note` is called with it once it has come, since a stream may be continued before its end.
    """

    __slots__ = ("_begun", "_left", "_note")

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._begun = b""
        self._left = READ

    def feed(self, data: bytes) -> None:
        """Read on, until the id has come or READ bytes have."""
        if self._left <= 0:
            return
        piece = data[: self._left]
        self._left -= len(piece)
        found = _ID.search(self._begun + piece)
        self._begun = (self._begun + piece)[-_LONGEST:]
        if found is not None:
            self._left = 0
            self._note(found[1].decode())
