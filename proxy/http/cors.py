"""Which web pages of other origins may use the proxy from a browser (`server.cors`).

A browser lets a page read another origin's answer only where the answer names the page's origin,
and asks first, by OPTIONS, for what a page could not send before there was CORS: JSON, keys.
Source: the Fetch standard, "CORS protocol".
"""

from __future__ import annotations

import re
from typing import Final

from multidict import CIMultiDictProxy

from wellspoken.adapters.requests.errors import RequestError
from wellspoken.proxy.limits.quota import RATE_HEADERS

ANY: Final = "*"
METHODS: Final = "GET, HEAD, POST, DELETE"
SECONDS: Final = 7200  # for which a browser need not ask again; Chromium allows no more
EXPOSED: Final = (
    *("x-request-id", "openai-processing-ms", "openai-version", "retry-after", "retry-after-ms"),
    *("x-should-retry", "x-wellspoken-repairs", "x-wellspoken-stripped", "x-wellspoken-warning"),
    *RATE_HEADERS,
)
"""Headers of an answer that a page may read, beside those that every page may."""
_ASKED: Final = "Access-Control-Request-Method"
_NAMES: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2048}")


class Origins:
    """The origins that may use the proxy; `ANY` among them: each may."""

    def __init__(self, origins: tuple[str, ...] | str) -> None:
        self._any = ANY in origins
        self._known = frozenset(origins)
        self._exposed = f"Access-Control-Expose-Headers: {', '.join(EXPOSED)}\r\n"

    def lines(self, headers: CIMultiDictProxy[str]) -> bytes:
        """Return the header lines that let the page which sent these headers read the answer."""
        if self._any:
            return f"Access-Control-Allow-Origin: *\r\n{self._exposed}".encode("ascii")
        origin = headers.get("Origin")
        # A cache in between must not give one page what was allowed to another.
        if origin is None or origin not in self._known:
            return b"Vary: Origin\r\n"
        allowed = f"Vary: Origin\r\nAccess-Control-Allow-Origin: {origin}\r\n"
        return (allowed + self._exposed).encode("ascii")

    def allow(self, headers: CIMultiDictProxy[str]) -> bytes:
        """Return the header lines that answer a preflight, beside `lines`.

        Raises RequestError 403 for a page that is not allowed here. The names of headers that it
        wants to send are all allowed: what the proxy does not know it overlooks.
        """
        origin = headers.get("Origin", "")
        if not self._any and origin not in self._known:
            raise RequestError(
                f"Web pages of {origin[:200]!r} may not use this proxy. Add that origin to "
                "server.cors in its configuration.",
                status=403,
                code="origin_not_allowed",
            )
        found = f"Access-Control-Allow-Methods: {METHODS}\r\n"
        found += f"Access-Control-Max-Age: {SECONDS}\r\n"
        names = headers.get("Access-Control-Request-Headers", "")
        if _NAMES.fullmatch(names):
            found += f"Access-Control-Allow-Headers: {names}\r\n"
        # Chromium asks so before a page of the internet reaches a machine of the local network.
        if "Access-Control-Request-Private-Network" in headers:
            found += "Access-Control-Allow-Private-Network: true\r\n"
        return found.encode("ascii")


def is_preflight(headers: CIMultiDictProxy[str]) -> bool:
    """Say whether a browser asks what a page may send, if these are an OPTIONS request's."""
    return "Origin" in headers and _ASKED in headers
