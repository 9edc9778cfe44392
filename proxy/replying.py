"""The ends of an answer: what its headers explain, and how a failure leaves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.request_error import error_json
from wellspoken.proxy.replies import EventStream, Reply

if TYPE_CHECKING:
    from wellspoken.proxy.server import Call
    from wellspoken.proxy.upstream import Answer

DONE = b"data: [DONE]\n\n"
NO_RETRY = b"x-should-retry: false\r\n"
RETRY_AFTER = ("retry-after", "retry-after-ms")  # what the SDKs look at, besides x-should-retry
_DELAY = re.compile(r"[A-Za-z0-9 ,:.+-]{1,40}")  # seconds, or a date


def explained(exchange: Exchange, retry: bool | None, answer: Answer | None) -> bytes:
    """Return the header lines that say what was repaired, and whether and when to try again.

    `answer` is the one that failed, if any did.
    """
    counts = exchange.notes.counts
    lines = f"x-wellspoken-repairs: {', '.join(counts)}\r\n".encode() if counts else b""
    if answer is not None and answer.status >= 400:
        for name, value in delays(answer).items():
            lines += f"{name}: {value}\r\n".encode()
    return lines + NO_RETRY if retry is False else lines


def delays(answer: Answer) -> dict[str, str]:
    """Return the headers that say when to try again."""
    given = ((name, answer.headers.get(name, "")) for name in RETRY_AFTER)
    return {name: value for name, value in given if _DELAY.fullmatch(value)}


def with_repairs(out: bytes, exchange: Exchange) -> bytes:
    """Put the comment that names the repairs before the end of a stream."""
    listed = ", ".join(f"{name}={times}" for name, times in exchange.notes.counts.items())
    comment = f": repairs {listed or 'none'}\n\n".encode()
    return out.removesuffix(DONE) + comment + (DONE if out.endswith(DONE) else b"")


async def broken(
    call: Call, stream: EventStream, fault: Fault, lines: bytes = b""
) -> Reply | EventStream:
    """Answer a failure: with its status while that is possible, else as the stream's last event.

    `lines` are header lines for the former.
    """
    if not stream.left:
        stream.stop()
        return call.fault(fault, lines)
    body = error_json(fault.message, fault.type, fault.param, fault.code)
    await stream.end(b"data: " + body + b"\n\n")
    return stream
