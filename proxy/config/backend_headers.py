"""Headers that a backend is sent beside the proxy's own: a client's, and those of `headers`.

Neither may be one that frames a message, belongs to one connection (RFC 9110, 7.6.1), or is the
proxy's to say. A client's credentials go on by `auth = "pass"` alone; those that a backend wants of
the proxy stand in its `key`, or in `headers` as env:NAME or file:PATH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text
from wellspoken.proxy.config.tables import Backend, Engine
from wellspoken.proxy.config.values import is_reference, resolve_references

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, a token
_CONNECTION: Final = re.compile(
    r"connection|keep-alive|proxy-.*|te|trailers?|transfer-encoding|upgrade|http2-settings|expect"
)
_OURS: Final = re.compile(
    r"host|content-.*|accept|accept-encoding|user-agent|x-request-id|x-wellspoken-.*"
    r"|traceparent|tracestate|anthropic-(version|beta)"
)
_KEYS: Final = re.compile(r"authorization|(set-)?cookie2?|www-authenticate")
_SECRET: Final = re.compile(
    r"(.*[-_])?(auth|authorization|authentication|credentials?|jwt|assertion|passw(or)?d|secret"
    r"|token|api[-_]?key|key|cookie|signature)([-_].*)?"
)
"""What a header is called whose value only its sender and its reader may know."""


class StaticHeaders(NamedTuple):
    """What `headers` of a backend sends: whole header lines, and those values that are secret."""

    lines: bytes = b""
    secrets: tuple[str, ...] = ()


def read_headers(headers: Mapping[str, str]) -> StaticHeaders:
    """Return what is sent, read from where it stands. Raises ConfigError, without the values."""
    found = resolve_references(headers, "headers")
    lines = "".join(f"{name}: {value}\r\n" for name, value in found.items())
    secrets = tuple(value for name, value in found.items() if is_reference(headers[name]))
    return StaticHeaders(lines.encode("ascii"), secrets)


def client_headers(part: Backend | Engine) -> tuple[str, ...]:
    """Return the names of a client's headers that go on, in lower case.

    What `headers` sets is the backend's own, and no client says it otherwise.
    """
    own = {name.lower() for name in part.headers} if isinstance(part, Backend) else set()
    return tuple(dict.fromkeys(x.lower() for x in part.forward_headers if x.lower() not in own))


def header_rules(part: Backend | Engine, path: Path) -> Iterator[Problem]:
    """Give what is wrong with the headers of a backend, or of an engine."""
    where = path_text(path)
    for at, name in enumerate(part.forward_headers):
        why = _why_not(name) or (_SECRET.fullmatch(name.lower()) and _CREDENTIAL)
        if why:
            here = (*path, "forward_headers", at)
            yield Problem(here, f"{where}.forward_headers[{at}]: {name!r} {why}")
    if isinstance(part, Backend):
        yield from _static_rules(part, path)


def _static_rules(backend: Backend, path: Path) -> Iterator[Problem]:
    where, taken = path_text(path), set[str]()
    for name, value in backend.headers.items():
        why, low = _why_not(name), name.lower()
        if low in taken:
            why = "stands there twice, but for the case of its letters. Remove one."
        elif low == "x-api-key" and backend.auth == "pass":
            why = 'is the client\'s with auth = "pass". Keep one of the two.'
        elif not why and not is_reference(value):
            why = _why_no_literal(low, value)
        taken.add(low)
        if why:
            yield Problem((*path, "headers", name), f"{where}.headers: {name!r} {why}")


def _why_not(name: str) -> str:
    """Return why a header of this name may not be sent, "" where it may."""
    low = name.lower()
    if not _NAME.fullmatch(name):
        return "is no header's name. Name each header in full, like x-session-id."
    if _KEYS.fullmatch(low):
        return (
            "holds a credential. A backend's key is set with key, and the client's goes on with "
            'auth = "pass". Take it out.'
        )
    if _CONNECTION.fullmatch(low):
        return "belongs to one connection, and is never sent on. Take it out."
    if _OURS.fullmatch(low):
        return "is the proxy's own to send. Take it out."
    return ""


_CREDENTIAL: Final = (
    "is called like a credential, and a client's are not sent on. Take it out; what the backend "
    "wants of the proxy is set with headers."
)


def _why_no_literal(low: str, value: str) -> str:
    """Return why a header may not have this value as it stands there; it is not repeated."""
    if _SECRET.fullmatch(low):
        return "is called like a credential: write env:NAME or file:PATH, not the value itself."
    if not value.strip() or value != value.strip() or not (value.isascii() and value.isprintable()):
        return "has a value that no header can have. Write printable ASCII, no space at its ends."
    return ""
