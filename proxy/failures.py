"""What a failure to reach or to read a backend is called, and what a client is told about it."""

from __future__ import annotations

import socket
import ssl
from typing import Literal

from aiohttp import ClientError, EofStream
from aiohttp.http_exceptions import HttpProcessingError

from wellspoken.adapters.events import Fault

Reason = Literal[
    "dns", "refused", "unreachable", "tls", "connect_timeout", "first_byte_timeout",
    "chunk_timeout", "cut", "protocol", "too_large", "encoding",
]  # fmt: skip

LASTING: frozenset[Reason] = frozenset({"tls", "too_large", "encoding"})
"""What the same request meets again, however often it is sent."""


class UpstreamError(Exception):
    """The backend could not be asked, or broke off; `reason` is a metric label."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        late = reason.endswith("timeout")
        code = "backend_timeout" if late else "backend_error"
        if reason in ("dns", "refused", "unreachable", "tls"):
            code = "backend_unavailable"
        retry = False if reason in LASTING else None
        self.fault = Fault(504 if late else 502, message, code=code, retry=retry)


def not_connected(url: str, error: OSError, seconds: float) -> UpstreamError:
    """Return why no connection to `url` came about within `seconds`."""
    if isinstance(error, TimeoutError):
        return UpstreamError(
            "connect_timeout",
            f"The backend at {url} could not be reached within {seconds:g} s. Check that it runs, "
            "its address, and the network and firewall between.",
        )
    if isinstance(error, socket.gaierror):
        return UpstreamError(
            "dns",
            f"The host name of the backend at {url} is not known. Check its spelling in the URL, "
            "and the name service of this machine.",
        )
    if isinstance(error, ssl.SSLError):
        return UpstreamError(
            "tls",
            f"No TLS connection to the backend at {url}: {error.reason}. Check its certificate, "
            "and whether it speaks https or plain http.",
        )
    # Several addresses that all refuse are one OSError without errno, which quotes each.
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return UpstreamError(
            "refused",
            f"The backend at {url} refused the connection. Start it, or check the host and port "
            "that the proxy was given.",
        )
    return UpstreamError(
        "unreachable",
        f"The backend at {url} cannot be reached ({error.strerror or 'no route'}). Check the "
        "address, and the network between.",
    )


def not_read(url: str, error: BaseException, first: bool, seconds: float) -> UpstreamError | None:
    """Return why an answer could not be read, None if that is no failure of the backend.

    `first`: nothing of the body had come; `seconds`: how long it was waited for.
    """
    if isinstance(error, TimeoutError) and first:
        return UpstreamError(
            "first_byte_timeout",
            f"The backend at {url} did not begin its answer within {seconds:g} s. Ask for less, or "
            "raise timeouts.first_token_body (for streams first_token_stream).",
        )
    if isinstance(error, TimeoutError):
        return UpstreamError(
            "chunk_timeout",
            f"The backend at {url} sent nothing more of its answer for {seconds:g} s. Look at its "
            "log; if it is only slow, raise timeouts.between_chunks.",
        )
    if isinstance(error, HttpProcessingError):
        return UpstreamError(
            "protocol",
            f"The backend at {url} answered something that is not HTTP. Check that the URL is that "
            "of an LLM server, and its scheme (http or https).",
        )
    if isinstance(error, (ClientError, EofStream, OSError)):
        return UpstreamError(
            "cut",
            f"The backend at {url} closed the connection before its answer was complete. Its own "
            "log says why; if it was restarted, send the request again.",
        )
    return None


def too_large(url: str, limit: int) -> UpstreamError:
    """Return the error for an answer of more than `limit` bytes."""
    return UpstreamError(
        "too_large",
        f"The backend at {url} answered more than {limit} bytes. Ask for less (fewer alternatives "
        "or tokens), or raise limits.response.",
    )


def encoded(url: str, coding: str) -> UpstreamError:
    """Return the error for an answer in a coding that was not accepted."""
    return UpstreamError(
        "encoding",
        f"The backend at {url} answered with the content encoding {coding[:40]!r} although none "
        "was accepted. Turn compression off in it, or in the server between.",
    )
