"""Reading a client's request: what is refused before any handler, its body, its own headers."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection
from functools import lru_cache
from itertools import chain
from os import urandom
from typing import Final, NamedTuple
from urllib.parse import parse_qsl

from aiohttp.web_request import BaseRequest
from multidict import CIMultiDictProxy

from wellspoken.adapters.exchange import Extensions
from wellspoken.adapters.requests.errors import RequestError

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
TRACE: Final = (TRACE_PARENT, TRACE_STATE)
JSON: Final = "application/json"
EXTENSIONS: tuple[Extensions, ...] = ("none", "known", "all")

WISHES: Final = ("x-wellspoken-extensions", "x-wellspoken-keep")
"""Headers of ours that change an answer."""

NOTABLE: Final = (
    *("Content-Encoding", "Expect", "Origin", "Transfer-Encoding", "x-request-id"),
    *(*WISHES, *TRACE),
)
"""Headers that change how a request is answered; the usual one has none of them."""

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_DOTS = re.compile(r"/\.{1,2}(?:/|$)|%2e", re.IGNORECASE)
_VERSIONS: Final = frozenset(((1, 1), (1, 0)))
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


def is_notable(headers: CIMultiDictProxy[str]) -> bool:
    """Say whether any of the `NOTABLE` headers came."""
    return not headers.keys().isdisjoint(NOTABLE)


def request_id(headers: CIMultiDictProxy[str]) -> str:
    """Return the client's x-request-id if it is sane, else a new one."""
    given = headers.get("x-request-id")
    if given is not None and _SANE_ID.fullmatch(given):
        return given
    return fresh_id()


def fresh_id() -> str:
    """Return the id of a request that brought none, in OpenAI's form."""
    return f"req_{urandom(12).hex()}"


def refuse(request: BaseRequest, notable: bool, hosts: frozenset[str] | None) -> None:
    """Raise RequestError for a request that aiohttp accepts and a proxy must not act on.

    `notable`: it has one of `NOTABLE`. `hosts`: names that the Host header may hold beside
    local ones; None: any. On a loopback bind this stops DNS rebinding, by which a web page reaches
    the proxy under the page's own name.
    """
    target = request.raw_path
    if request.version not in _VERSIONS:
        raise RequestError("This server speaks HTTP/1.1. Use that version.", status=505)
    method = request.method
    if method == "TRACE" or method == "CONNECT":
        raise RequestError(
            f"{method} is not allowed. Use GET or POST.",
            status=405,
            code="method_not_supported",
            headers={"Allow": "GET, HEAD, POST"},
        )
    if not target.startswith("/"):
        raise RequestError(
            "The request's target has to be a path, like /v1/chat/completions: this is a reverse "
            "proxy. Use its address as base URL, not as HTTP proxy."
        )
    if _has_dots(target.partition("?")[0]):
        raise RequestError("The path holds dot segments. Write it without them.")
    lines = request.raw_headers
    for name, value in () if b"".join(chain.from_iterable(lines)).isascii() else lines:
        if not value.isascii():
            shown = name.decode("ascii", "replace")
            raise RequestError(f"The header {shown} holds bytes that are not ASCII. Remove them.")
    if notable:
        _check_framing(request.headers)
        if request.version < (1, 1) and "Transfer-Encoding" in request.headers:
            raise RequestError(
                "HTTP/1.0 has no Transfer-Encoding. Send a Content-Length, or speak HTTP/1.1."
            )
    if hosts is not None and not _is_local(request.headers.get("Host", ""), hosts):
        raise RequestError(
            "The Host header names no address of this server. Use http://localhost, or add the "
            "name to server.hosts in the configuration.",
            status=403,
        )


@lru_cache(maxsize=256)
def _has_dots(path: str) -> bool:
    """Say whether a path, of which few are asked for again and again, holds dot segments."""
    return _DOTS.search(path) is not None


def _check_framing(headers: CIMultiDictProxy[str]) -> None:
    """Refuse every body framing but one Content-Length or plain chunks, and compressed bodies."""
    codings = [value.strip().lower() for value in headers.getall("Transfer-Encoding", ())]
    if codings and ("Content-Length" in headers or codings != ["chunked"]):
        raise RequestError(
            "The request's body has to be sent with one Content-Length, or with "
            "Transfer-Encoding: chunked and nothing else."
        )
    if headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
        raise RequestError(
            "Compressed request bodies are not accepted. Send the JSON as it is, without "
            "Content-Encoding.",
            status=415,
        )


@lru_cache(maxsize=256)
def _is_local(header: str, hosts: frozenset[str]) -> bool:
    """Say whether a Host header is an address or a name that the public DNS cannot hold."""
    name = header.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    if "." not in name or name.endswith(_LOCAL_SUFFIXES) or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class BodyPace(NamedTuple):
    """How a client has to send a body.

    After `idle` seconds, which is also how long it may send nothing, it has to have sent `rate`
    bytes a second (0: any number), and within `total` all of it (0.0: no limit).
    """

    idle: float
    rate: int
    total: float


def take_body(request: BaseRequest, notable: bool, limit: int) -> bytes | None:
    """Return the body of a JSON request, None where not all of it has come.

    `notable`: it has one of `NOTABLE`. Raises RequestError: 415 for another content type, 413
    above `limit` bytes.
    """
    headers = request.headers
    kind = headers.get("Content-Type", "" if notable and "Origin" in headers else None)
    # A page of another site may send a request without a type unasked, a program may leave it out.
    if kind is not None and kind != JSON and kind.partition(";")[0].strip().lower() != JSON:
        raise RequestError(
            f"The content type {kind.partition(';')[0].strip()[:80]!r} is not accepted. Send JSON "
            "with the header Content-Type: application/json.",
            status=415,
        )
    announced = headers.get("Content-Length")
    if announced is not None and int(announced) > limit:
        raise _too_large(limit)
    if notable and headers.get("Expect", "").lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    return content.read_nowait() if announced is not None and content.is_eof() else None


async def read_body(
    request: BaseRequest,
    limit: int,
    pace: BodyPace,
    grow: Callable[[int], Awaitable[None]],
) -> bytes:
    """Return the body of a request that has not come yet; `grow` finds room for each part of it.

    Raises RequestError: 413 above `limit` bytes, 408 when the client sends nothing for a while, or
    too little.
    """
    content, loop = request.content, asyncio.get_running_loop()
    began = loop.time()
    parts: list[bytes] = []
    size = 0
    while True:
        slow = began + max(pace.idle, size / pace.rate) if pace.rate else float("inf")
        late = began + pace.total if pace.total else float("inf")
        silent = loop.time() + pace.idle
        try:
            async with asyncio.timeout_at(min(silent, slow, late)):
                part = await content.readany()
        except TimeoutError as error:
            raise _late_body(pace, size, loop.time() - began, slow < min(silent, late)) from error
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(limit)
        await grow(len(part))


def _late_body(pace: BodyPace, size: int, seconds: float, slow: bool) -> RequestError:
    if slow:
        text = (
            f"Of the request's body {size} bytes came in {seconds:.0f} s, fewer than {pace.rate} "
            "a second. Send the request again over a better connection, or lower limits.body_rate "
            "in the configuration."
        )
    elif seconds >= pace.total > 0:
        text = f"The request's body did not end within {pace.total:g} s. Send a shorter one."
    else:
        text = f"The request's body stopped for {pace.idle:g} s. Send the request again."
    return RequestError(text, status=408, code="request_timeout")


def _too_large(limit: int) -> RequestError:
    return RequestError(
        f"The request's body has more than {limit} bytes. Send a shorter conversation, or raise "
        "limits.body in the configuration.",
        status=413,
        code="request_too_large",
    )


def extensions_of(request: BaseRequest, default: Extensions) -> Extensions:
    """Return x-wellspoken-extensions, or the route's setting. Raises RequestError."""
    given = request.headers.get("x-wellspoken-extensions")
    if given is None:
        return default
    for known in EXTENSIONS:
        if given.strip().lower() == known:
            return known
    raise RequestError(
        "Invalid header x-wellspoken-extensions. Send none, known or all.",
        param="x-wellspoken-extensions",
        code="invalid_value",
    )


def keep_of(request: BaseRequest, default: frozenset[str]) -> frozenset[str]:
    """Return the field names of x-wellspoken-keep, or the route's. Raises RequestError."""
    given = request.headers.get("x-wellspoken-keep")
    if given is None:
        return default
    names = [name.strip() for name in given.split(",") if name.strip()]
    if len(names) > 32 or not all(_FIELD.fullmatch(name) for name in names):
        raise RequestError(
            "Invalid header x-wellspoken-keep. Send field names, at most 32, separated by commas, "
            "like: stop_reason, token_ids",
            param="x-wellspoken-keep",
            code="invalid_value",
        )
    return frozenset(names)


def client_lines(headers: CIMultiDictProxy[str], names: Collection[str]) -> bytes:
    """Return a client's header lines of these names, as many and in the order in which they came.

    Who takes no part in a trace passes it on as it is (W3C Trace Context, "Mutating the tracestate
    Field"); several lines of a state mean what one with commas would. What `Connection` lists is
    for the proxy alone (RFC 9110, 7.6.1). Their values were parsed by aiohttp and are ASCII
    (`refuse`), so no line can be smuggled in.
    """
    if headers.keys().isdisjoint(names):  # the usual request has none
        return b""
    listed = ",".join(headers.getall("Connection", ())).lower().split(",")
    kept = {name for name in names if name in headers}.difference(map(str.strip, listed))
    lines = [f"{name}: {x}\r\n" for name in names if name in kept for x in headers.getall(name)]
    return "".join(lines).encode("ascii")


def query_of(request: BaseRequest) -> list[tuple[str, str]]:
    """Return the names and values of the query; raise RequestError 400 for what is no UTF-8."""
    query = request.raw_path.partition("?")[2]
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        raise RequestError(
            "The query is not UTF-8. Percent-encode the UTF-8 bytes of its values.",
            code="invalid_value",
        ) from None
