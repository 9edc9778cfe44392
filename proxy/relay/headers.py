"""What the headers and the end of an answer explain: repairs, and whether and when to retry."""

from __future__ import annotations

import re

from msgspec import DecodeError, Struct, json

from wellspoken.adapters.events import Fault
from wellspoken.adapters.exchange import Exchange
from wellspoken.proxy.upstream.client import UpstreamResponse

DONE = b"data: [DONE]\n\n"
NO_RETRY = b"x-should-retry: false\r\n"
_ENVELOPE = 65_536  # bytes: a larger body is no error of ours
_SECONDS = r"[0-9]{1,9}(\.[0-9]{1,9})?"
_DATE = r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}(:[0-9]{2}){2} GMT"
TOLD = {
    "retry-after": re.compile(f"{_SECONDS}|{_DATE}"),
    "retry-after-ms": re.compile(_SECONDS),
    "x-should-retry": re.compile("true|false"),
}
"""What the SDKs look at, and the values of a backend's that they can use."""

WAIT = {429: 1, 503: 2}
"""Status -> seconds to wait where nobody told; the SDKs' own first wait is half a second."""

LASTING = frozenset({501, 505})
LASTING_CODES = frozenset(
    {
        "backend_auth_failed",
        "insufficient_quota",
        "tokenizer_unusable",
        "upstream_event_too_large",
        "upstream_not_a_completion",
        "upstream_not_a_prompt",
    }
)
"""Errors that the same request meets again: they last until somebody changes a configuration."""


class _Error(Struct):
    code: str | None = None


class _Envelope(Struct):
    error: _Error


_ADVICE = re.compile(rb"^(?:retry-after|retry-after-ms|x-should-retry):[^\r]*\r\n", re.I | re.M)
_envelope_of = json.Decoder(_Envelope).decode


def explain_headers(
    exchange: Exchange, retry: bool | None, answer: UpstreamResponse | None
) -> bytes:
    """Return the header lines that say what was repaired, and whether and when to try again.

    `answer` is the one that failed, if any did.
    """
    counts = exchange.notes.counts
    lines = f"x-wellspoken-repairs: {', '.join(counts)}\r\n".encode() if counts else b""
    if answer is not None and answer.status >= 400:
        for name, value in delays(answer).items():
            lines += f"{name}: {value}\r\n".encode()
    return lines + NO_RETRY if retry is False and NO_RETRY not in lines else lines


def delays(answer: UpstreamResponse) -> dict[str, str]:
    """Return a backend's headers that say whether and when to try again."""
    given = ((name, answer.headers.get(name, "")) for name in TOLD)
    return {name: value for name, value in given if TOLD[name].fullmatch(value)}


def retry_headers(status: int, body: bytes, lines: bytes) -> bytes:
    """Return an error's header lines with what they lack to say whether and when to try again.

    The SDKs retry 408, 409, 429 and every status from 500, twice by default, so an error that comes
    again by all means would cost three times what it has to. Every error's lines come through here,
    whoever set them, so that none says when to try again where it says not to.
    """
    given = lines.lower()
    final = b"x-should-retry: false" in given
    if not final and b"x-should-retry:" not in given and (status >= 500 or status in WAIT):
        final = status in LASTING or _code(body) in LASTING_CODES
    if final:
        return _ADVICE.sub(b"", lines) + NO_RETRY
    if status in WAIT and b"retry-after:" not in given:
        lines += b"Retry-After: %d\r\n" % WAIT[status]
    return lines


def _code(body: bytes) -> str | None:
    """Return the code of an error in OpenAI's envelope."""
    try:
        return _envelope_of(body).error.code
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None


def fault_in(status: int, body: bytes) -> Fault:
    """Return what a client is told of a failure by this body; its code alone is looked at."""
    return Fault(status, "", code=_code(body) if len(body) < _ENVELOPE else None)


def with_repairs(out: bytes, exchange: Exchange) -> bytes:
    """Put the comment that names the repairs before the end of a stream."""
    listed = ", ".join(f"{name}={times}" for name, times in exchange.notes.counts.items())
    comment = f": repairs {listed or 'none'}\n\n".encode()
    return out.removesuffix(DONE) + comment + (DONE if out.endswith(DONE) else b"")
