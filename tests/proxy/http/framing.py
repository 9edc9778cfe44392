"""Requests whose framing two servers could read in two ways, and what may come of each.

Each attack is the bytes of one connection, which is to end behind it. Some carry `SECOND` in their
body, and each is also sent with it behind: that one must reach nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator

from tests.conforming import MODEL
from tests.fakes.upstream import Upstream
from tests.proxy.conftest import CHAT, MESSAGES, envelope

BODY = json.dumps({"model": MODEL, "messages": MESSAGES}).encode()
SECOND = (
    "POST /v1/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\nX-Smuggled: 1\r\n\r\n"
).encode() + BODY
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = f"Content-Length: {len(BODY)}".encode()

STATUS_LINE = re.compile(rb"HTTP/1\.1 \d\d\d ")

BEFORE = [
    b" ",
    b"\t",
    b"\x0b",
    b"\x0c",
    b"\x00",
    b"\x01",
    b"\xa0",
    b"\xff",
    b"\xc2\xa0",
    b"-",
    b"_",
]
CODINGS = [
    b"xchunked", b"chunkedx", b"chunked, identity", b"identity, chunked", b"gzip, chunked",
    b"chunked, chunked", b"chunked,", b",chunked", b'"chunked"', b"'chunked'", b"chunked;q=1",
    b"CHUNKED", b"cHuNkEd", b"ch\xc5\xbfnked", b"chun\x00ked", b"chunked\x00", b"\x00chunked",
    b"chunked\x0b", b"\x0bchunked", b"chunked\x0c", b"\tchunked", b"chunked\t", b"", b"identity",
    b"gzip", b"deflate", b"chu nked", b"chunked chunked", b"chunked\xa0", b"\xef\xbb\xbfchunked",
    b"x, chunked", b"chunked, x", b"trailers", b"0", b"\xffchunked",
]  # fmt: skip
LENGTHS = [
    b"+%d", b"-%d", b"0x%x", b"%d,", b",%d", b"%d, %d", b"%d %d", b" %d", b"\t%d", b"%d ", b"0%d",
    b"00000000000000000000%d", b"%d.0", b"%de0", b"%d_0", b"%dL", b'"%d"', b"%d\x00", b"\x00%d",
    b"%d\x0b", b"\x0b%d", b"%d;", b"18446744073709551616", b"-1", b"", b" ", b"1e1", b"NaN",
    b"9" * 400, b"%d\xa0", b"\xd9\xa1\xd9\xa2", b"99999999999", b"%d%%0d%%0a",
]  # fmt: skip
SIZES = [
    b"%x;", b"%x;a", b"%x;a=b", b'%x;a="b\r\nc"', b"%x ; a", b"%x\t", b" %x", b"0x%x", b"+%x",
    b"-%x", b"%x_0", b"0000%x", b"%xg", b"%x,", b"%x\x00", b"\x00%x", b"%x\r", b"%x\n", b"%x\x0b",
    b"FFFFFFFFFFFFFFFF", b"10000000000000000", b"8000000000000000", b"f" * 300, b"", b"-1", b"0x",
    b"0" * 20 + b"%x", b"%x;" + b"a" * 20_000, b'%x;"', b"%x;a=\xff", b"7fffffff", b"%X",
]  # fmt: skip


def post(*lines: bytes, body: bytes = BODY, start: bytes | None = None) -> bytes:
    """Return a POST with these header lines, which asks for the connection's end."""
    top = start or f"POST {CHAT} HTTP/1.1".encode()
    usual = [b"Host: localhost", b"Connection: close", b"Content-Type: application/json"]
    return b"\r\n".join([top, *usual, *lines, b"", b""]) + body


def filled(form: bytes) -> bytes:
    """Return a form with the body's size in it."""
    return form % ((len(BODY),) * (form.count(b"%d") + form.count(b"%x") + form.count(b"%X")))


def transfer_encodings() -> Iterator[bytes]:
    """Give every spelling of a coding, and odd spellings of the header, alone and with a length."""
    lines = [b"Transfer-Encoding: " + coding for coding in CODINGS]
    lines += [b"Transfer-Encoding:chunked", b"Transfer-Encoding:\r\n chunked"]
    lines += [b"Transfer-Encoding" + odd + b": chunked" for odd in BEFORE]
    lines += [odd + b"Transfer-Encoding: chunked" for odd in BEFORE]
    lines += [b"Transfer_Encoding: chunked", b"Transfer Encoding: chunked", b"TE: chunked"]
    lines += [b"Transfer-Encoding: chunked\r\nTransfer-Encoding: " + x for x in CODINGS[:6]]
    for line in lines:
        yield post(line, body=CHUNKED)
        yield post(line, LENGTH, body=CHUNKED)
    for line in (b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity, chunked"):
        yield post(LENGTH, line, body=b"0\r\n\r\n" + SECOND)
        yield post(b"Content-Length: 4", line, body=CHUNKED)


def content_lengths() -> Iterator[bytes]:
    """Give every spelling of a length, twice in one head, and under odd names."""
    for form in LENGTHS:
        value = filled(form) if b"%" in form else form
        yield post(b"Content-Length: " + value)
        yield post(b"Content-Length: " + value, LENGTH)
        yield post(LENGTH, b"Content-Length: " + value)
    for odd in BEFORE:
        yield post(b"Content-Length" + odd + b": %d" % len(BODY))
        yield post(odd + LENGTH)
    for less in (0, 1, len(BODY) - 1):
        yield post(b"Content-Length: %d" % less)
    yield post(LENGTH, LENGTH)
    yield post(body=BODY)


def chunks() -> Iterator[bytes]:
    """Give sizes, extensions and trailers of chunks, and ends that are none."""
    line = b"Transfer-Encoding: chunked"
    for form in SIZES:
        size = filled(form) if b"%" in form else form
        yield post(line, body=size + b"\r\n" + BODY + b"\r\n0\r\n\r\n")
    for trailer in (
        LENGTH, line, b"Host: evil", b"X: " + b"x" * 70_000, b" folded", b"bad", b":", b"a\x00: b",
        b"Authorization: Bearer x", b"\r", b"X: a\r\n b", b"GET /v1/smuggled HTTP/1.1",
    ):  # fmt: skip
        yield post(line, body=CHUNKED[:-2] + trailer + b"\r\n\r\n")
    whole = b"%x\r\n%b" % (len(BODY), BODY)
    for end in (
        b"0\r\n\r\n",
        b"x\r\n0\r\n\r\n",
        b"\n0\n\n",
        b"\r0\r\r",
        b"\r\n0\n\r\n",
        b"\r\n0\r\n",
    ):
        yield post(line, body=whole + end)
    yield post(line, body=CHUNKED.replace(b"\r\n", b"\n"))
    yield post(line, body=CHUNKED.replace(b"\r\n", b"\r"))


def lines() -> Iterator[bytes]:
    """Give header lines that are folded, bare, nameless, twice there or not text."""
    for line in (
        b"X: a\r\n b", b"X: a\r\n\tb", b" X: a", b"X: a\nContent-Length: 0", b"X: a\rb",
        b"X: a\r\rTransfer-Encoding: chunked", b"X: a\nTransfer-Encoding: chunked", b"X a", b":a",
        b"X\x00: a", b"X: a\x00b", b"X: \xff", b"X\xff: a", b"X: \x7f", b"X(: a", b"X : a", b": ",
        b"Host: evil", b"Host : evil", b"Host: localhost\x00", b"host: localhost", b"Expect: x",
        b"Connection: Content-Length", b"Connection: Host, Authorization", b"Upgrade: h2c",
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk",
        b"Content-Encoding: gzip", b"X-HTTP-Method-Override: DELETE", b"Keep-Alive: timeout=1",
        b"Proxy-Connection: keep-alive", b"X: " + b"x" * 70_000, b"x" * 70_000 + b": x",
    ):  # fmt: skip
        yield post(line, LENGTH)
        yield post(LENGTH, line)
    yield post(LENGTH).replace(b"\r\n", b"\n")
    yield post(LENGTH).replace(b"\r\n", b"\r")


def starts() -> Iterator[bytes]:
    """Give request lines: versions, targets and methods that are none of ours."""
    path = CHAT.encode()
    for start in (
        *(b"POST " + path + b" HTTP/" + x for x in (
            b"0.9", b"1.0", b"1.2", b"2.0", b"3", b"1.1 ", b"1.10", b"01.1", b"1,1", b"1.1\x00",
        )),
        *(b"POST " + x + b" HTTP/1.1" for x in (
            b"http://localhost" + path, b"http://evil" + path, b"//evil" + path, b"localhost:80",
            b"*", b"?" + path, b"/v1/../v1/chat/completions", b"/v1/%2e%2e" + path, b"/." + path,
            b"/v1/chat/completions/..", b"\\v1\\chat\\completions", path + b"\x00", path + b"%00",
            path + b"%0d%0aX-Smuggled:%201", path + b"#x", path + b"?a=\xff", path + b"\xc3\xa9",
            path + b" x", b"/v1//chat/completions", b"/v1/chat%2fcompletions", path + b";a=b",
            path + b"?" + b"x" * 9000, b"/v1/ch\tat", path + b"\x7f", b"/v1/%zz",
        )),
        b"POST  " + path + b" HTTP/1.1", b"POST\t" + path + b" HTTP/1.1", b"POST " + path, b"POST",
        b" POST " + path + b" HTTP/1.1", b"post " + path + b" HTTP/1.1", b"P\x00ST " + path,
        b"\r\nPOST " + path + b" HTTP/1.1", b"\nPOST " + path + b" HTTP/1.1", b"\x16\x03\x01\x02",
        b"POST " + path + b" http/1.1", b"POST " + path + b" HTTPS/1.1", b"TRACE / HTTP/1.1",
        b"CONNECT localhost:1 HTTP/1.1", b"PRI * HTTP/2.0", b"POST " + path + b" ICY/1.1",
        b"GET " + path + b" HTTP/1.1", b"HEAD /nowhere HTTP/1.1", b"DELETE /livez HTTP/1.1",
    ):  # fmt: skip
        yield post(LENGTH, start=start)


CLASSES = (transfer_encodings, content_lengths, chunks, lines, starts)


async def send(port: int, data: bytes) -> bytes:
    """Send the bytes of one connection; return everything that comes of it.

    With its first answer the client stops sending, so that the proxy awaits nothing more of it.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        writer.write(data)
        answer = await reader.read(65_536)
        with contextlib.suppress(OSError):
            writer.write_eof()
        return answer + await reader.read()
    except ConnectionResetError:  # by what lay unread at the proxy's end
        return answer
    finally:
        writer.close()


def check_rebuilt(upstream: Upstream) -> None:
    """Assert that the backend got nothing, or one chat that the proxy wrote itself."""
    assert len(upstream.requests) <= 1, upstream.received
    for needle in (b"smuggled", b"evil", b"transfer-encoding", b"x-http-method", b"\x00"):
        assert needle not in upstream.received.lower(), upstream.received
    if not upstream.requests:
        assert upstream.received == b""
        return
    (request,) = upstream.requests
    assert (request.method, request.target) == ("POST", CHAT)
    assert request.header("Content-Length") == str(len(request.body))
    assert request.json()["messages"] == MESSAGES
    head, _, body = upstream.received.partition(b"\r\n\r\n")
    assert body == request.body  # and nothing behind it
    assert head.replace(b"\r\n", b"").isascii() and b"\n" not in head.replace(b"\r\n", b"")


def check_answer(data: bytes) -> int:
    """Return the status of the one answer that a client got, whose form is checked."""
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ") and len(STATUS_LINE.findall(data)) == 1, data
    status = int(head.split(b" ")[1])
    assert status < 500 or status == 505, data
    if status >= 400 and body:  # no answer to HEAD has one
        envelope(body)
    return status
