"""Reading a client's request: what is refused before any handler, its body, its own headers."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Collection
from itertools import chain
from typing import Final

from aiohttp.web_request import BaseRequest
from multidict import CIMultiDictProxy

from wellspoken.adapters.exchange import Extensions
from wellspoken.adapters.requests.errors import RequestError

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
TRACE: Final = (TRACE_PARENT, TRACE_STATE)
JSON: Final = "application/json"
EXTENSIONS: tuple[Extensions, ...] = ("none", "known", "all")

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_DOTS = re.compile(r"/\.{1,2}(?:/|$)|%2e", re.IGNORECASE)
_LOCAL_SUFFIXES = (".localhost", ".local", ".internal")


def request_id(request: BaseRequest) -> str:
    """Return the client's x-request-id if it is sane, else a new one."""
    given = request.headers.get("x-request-id")
    if given is not None and _SANE_ID.fullmatch(given):
        return given
    return fresh_id()


def fresh_id() -> str:
    """Return the id of a request that brought none, in OpenAI's form."""
    return f"req_{secrets.token_hex(12)}"


def refuse(request: BaseRequest, hosts: Collection[str] | None) -> None:
    """Raise RequestError for a request that aiohttp accepts and a proxy must not act on.

    `hosts`: names that the Host header may hold beside local ones; None: any. On a loopback bind
    this stops DNS rebinding, by which a web page reaches the proxy under the page's own name.
    """
    target = request.raw_path
    if request.version not in ((1, 1), (1, 0)):
        raise RequestError("This server speaks HTTP/1.1. Use that version.", status=505)
    if request.method in ("TRACE", "CONNECT"):
        raise RequestError(
            f"{request.method} is not allowed. Use GET or POST.",
            status=405,
            code="method_not_supported",
            headers={"Allow": "GET, HEAD, POST"},
        )
    if not target.startswith("/"):
        raise RequestError(
            "The request's target has to be a path, like /v1/chat/completions: this is a reverse "
            "proxy. Use its address as base URL, not as HTTP proxy."
        )
    if _DOTS.search(target.partition("?")[0]):
        raise RequestError("The path holds dot segments. Write it without them.")
    ascii_alone = b"".join(chain.from_iterable(request.raw_headers)).isascii()
    for name, value in () if ascii_alone else request.raw_headers:
        if not value.isascii():
            shown = name.decode("ascii", "replace")
            raise RequestError(f"The header {shown} holds bytes that are not ASCII. Remove them.")
    if "Transfer-Encoding" in request.headers or "Content-Encoding" in request.headers:
        _check_framing(request)
    if hosts is not None and not _local(request.headers.get("Host", ""), hosts):
        raise RequestError(
            "The Host header names no address of this server. Use http://localhost, or add the "
            "name to server.hosts in the configuration.",
            status=403,
        )


def _check_framing(request: BaseRequest) -> None:
    """Refuse every body framing but one Content-Length or plain chunks, and compressed bodies."""
    headers = request.headers
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


def _local(header: str, hosts: Collection[str]) -> bool:
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


async def read_body(request: BaseRequest, limit: int, idle: float) -> bytes:
    """Return the body of a JSON request.

    Raises RequestError: 415 for another content type, 413 above `limit` bytes, 408 when the client
    sends nothing for `idle` seconds.
    """
    kind = request.headers.get("Content-Type", "" if "Origin" in request.headers else None)
    # A page of another site may send a request without a type unasked, a program may leave it out.
    if kind is not None and kind != JSON and kind.partition(";")[0].strip().lower() != JSON:
        raise RequestError(
            f"The content type {kind.partition(';')[0].strip()[:80]!r} is not accepted. Send JSON "
            "with the header Content-Type: application/json.",
            status=415,
        )
    announced = request.headers.get("Content-Length")
    if announced is not None and int(announced) > limit:
        raise _too_large(limit)
    expected = request.headers["Expect"] if "Expect" in request.headers else ""
    if expected and expected.lower() == "100-continue" and request.transport:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    content = request.content
    if content.is_eof() and announced is not None:
        return content.read_nowait()
    return await _read_slowly(request, limit, idle)


async def _read_slowly(request: BaseRequest, limit: int, idle: float) -> bytes:
    content = request.content
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(idle):
                part = await content.readany()
        except TimeoutError as error:
            raise RequestError(
                f"The request's body stopped for {idle:g} s. Send the request again.",
                status=408,
                code="request_timeout",
            ) from error
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
        if size > limit:
            raise _too_large(limit)


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
