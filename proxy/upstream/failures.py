"""What a failure to reach or to read a backend is called, and what a client is told about it."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Final, Literal, NamedTuple

from wellspoken.adapters.events import Fault
from wellspoken.proxy.limits.descriptors import NONE_LEFT, explain_shortage, find_shortage
from wellspoken.proxy.limits.pace import Overdue

Reason = Literal[
    "dns", "refused", "unreachable", "tls", "connect_timeout", "first_byte_timeout",
    "chunk_timeout", "first_token_timeout", "token_timeout", "total_timeout", "cut", "protocol",
    "too_large", "encoding", "descriptors", "stuck",
]  # fmt: skip

OUR_FAULT: Final = Fault(500, "The proxy failed; this is a bug in it. Its log has the details.")

UNREACHABLE: frozenset[Reason] = frozenset(
    {"dns", "refused", "unreachable", "tls", "connect_timeout", "cut"}
)
"""After these another server may stand in the backend's place."""

HARMLESS: frozenset[Reason] = frozenset(
    {"descriptors", "too_large", "encoding", "total_timeout", "stuck"}
)
"""What says nothing of a server's health, or was said already."""

LASTING: frozenset[Reason] = frozenset({"tls", "too_large", "encoding"})
"""What the same request meets again, however often it is sent."""


class ConnectionCut(Exception):
    """A connection ended before the answer on it was complete."""


class Stuck(Exception):
    """A server answers nothing at all any more, not even whether it is well."""


class NotHttp(Exception):
    """What came on a connection is no answer in HTTP/1."""


class UpstreamError(Exception):
    """The backend could not be asked, or broke off; `reason` is a metric label.

    `unanswered`: the request was sent, and no byte of an answer had come.
    """

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason
        self.unanswered = False
        late = reason.endswith("timeout")
        code = "backend_timeout" if late else "backend_error"
        if reason in ("dns", "refused", "unreachable", "tls"):
            code = "backend_unavailable"
        status = 504 if late else 502
        if reason == "descriptors":
            status, code = 503, "proxy_unavailable"
        retry = False if reason in LASTING else None
        self.fault = Fault(status, message, code=code, retry=retry)


class Peer(NamedTuple):
    """Whom a message is about: `name` follows the word "the" in it.

    An address is of a server somewhere, a socket of one on this machine; an engine is run, and
    started again when it ends, by the proxy itself. `secure`: it is spoken to over TLS.
    """

    name: str
    kind: Literal["address", "socket", "engine"]
    secure: bool = False

    @classmethod
    def of(cls, url: str, title: str = "", alias: str = "") -> Peer:
        """Return the peer at `url`; `title` is the name of an engine that the proxy runs.

        `alias`: what is said instead of where it is.
        """
        if title:
            return cls(f"engine ({title})", "engine")
        name = f"backend {alias}" if alias else f"backend at {url}"
        kind: Literal["address", "socket"] = "socket" if url.startswith("unix:") else "address"
        return cls(name, kind, url.startswith("https:"))


_AGAIN = "Where it ended, the proxy starts it again: send the request again."
_CHECK = "Start it, or check the path that the proxy was given."


def not_connected(peer: Peer, error: OSError, seconds: float) -> UpstreamError:
    """Return why no connection to `peer` came about within `seconds`."""
    who = peer.name
    # A name that cannot be looked up for want of one is a gaierror; several addresses have none.
    vague = error.errno is None or isinstance(error, socket.gaierror)
    lacking = explain_shortage(error) if error.errno in NONE_LEFT else vague and find_shortage()
    if lacking:
        return UpstreamError(
            "descriptors",
            f"The proxy could not connect to the {who}, which is not to blame: {lacking}.",
        )
    if peer.kind != "address":
        return _no_socket(peer, error, seconds)
    if isinstance(error, TimeoutError):
        return UpstreamError(
            "connect_timeout",
            f"The {who} could not be reached within {seconds:g} s. Check that it runs, "
            "its address, and the network and firewall between.",
        )
    if isinstance(error, socket.gaierror):
        return UpstreamError(
            "dns",
            f"The host name of the {who} is not known. Check its spelling in the URL, "
            "and the name service of this machine.",
        )
    # Several servers (asyncio's) end a handshake that they refuse without saying why.
    if isinstance(error, ssl.SSLError) or (peer.secure and isinstance(error, _ENDED)):
        return _not_secured(peer, error)
    # Several addresses that all refuse are one OSError without errno, which quotes each.
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return UpstreamError(
            "refused",
            f"The {who} refused the connection. Start it, or check the host and port "
            "that the proxy was given.",
        )
    return UpstreamError(
        "unreachable",
        f"The {who} cannot be reached ({_say(error) or 'no route'}). Check the "
        "address, and the network between.",
    )


_TRUST: Final = (
    "its certificate is of an authority that this machine does not trust. Name the authority's "
    "certificate: ca under [backend.tls], or --upstream-ca FILE."
)
_DISTRUSTED: Final = {
    9: "its certificate is not valid yet. Check the clocks of both machines.",
    10: "its certificate has expired. Renew it on the server.",
    18: _TRUST,  # signed by itself
    19: _TRUST,  # the end of the chain is
    20: _TRUST,
    21: _TRUST,
    23: "its certificate was revoked. Give the server a new one.",
    62: "its certificate is for another name than the URL's. Write a name that stands in it, or "
    "say which one it is for: server_name under [backend.tls], or --upstream-server-name NAME.",
}
"""What to do, by X509_V_ERR_..."""
_DISTRUSTED_IP: Final = 64  # the same as 62, where the URL has an address
_WANTED: Final = (
    "it wants a certificate of its clients. Name one that it trusts, with its key: certificate and "
    "key under [backend.tls], or --upstream-certificate FILE."
)
_REFUSED: Final = (
    "it refused the proxy's own certificate. Name a valid one that it trusts: certificate and key "
    "under [backend.tls], or --upstream-certificate FILE."
)
_ALERTS: Final = {
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": _WANTED,
    "SSLV3_ALERT_HANDSHAKE_FAILURE": _WANTED,  # as TLS 1.2 has it
    "TLSV1_ALERT_UNKNOWN_CA": _REFUSED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _REFUSED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": _REFUSED,
    "SSLV3_ALERT_CERTIFICATE_REVOKED": _REFUSED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _REFUSED,
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": _REFUSED,
    "TLSV1_ALERT_ACCESS_DENIED": _REFUSED,
    "TLSV1_ALERT_DECRYPT_ERROR": _REFUSED,
    "WRONG_VERSION_NUMBER": "it does not speak TLS there. Write http:// in its URL, or the port of "
    "its https.",
    "UNSUPPORTED_PROTOCOL": "it speaks nothing newer than TLS 1.1. Turn TLS 1.2 or 1.3 on in it.",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it speaks nothing newer than TLS 1.1. Turn TLS 1.2 or 1.3 on "
    "in it.",
}
"""What to do, by what OpenSSL calls what the server said, or did."""


_ENDED: Final = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
_MAYBE: Final = (
    "Its log says why; if it wants a certificate of its clients, name one: certificate and key "
    "under [backend.tls], or --upstream-certificate FILE."
)


def _not_secured(peer: Peer, error: OSError) -> UpstreamError:
    """Return why TLS with `peer` failed, at once or, as TLS 1.3 has it, after the handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        code = 62 if error.verify_code == _DISTRUSTED_IP else error.verify_code
        why = _DISTRUSTED.get(
            code, f"its certificate was refused ({error.verify_message}). Give it another."
        )
    elif not isinstance(error, ssl.SSLError):
        why = f"it ended the handshake. {_MAYBE}"
    else:
        why = _ALERTS.get(
            error.reason or "",
            f"{error.reason or error}. Check its certificate, and whether it speaks https.",
        )
    return UpstreamError("tls", f"No TLS connection to the {peer.name}: {why}")


def _say(error: OSError) -> str:
    """Return the system's words, "" where it has none; asyncio puts the address in their place."""
    return os.strerror(error.errno) if error.errno else ""


def _no_socket(peer: Peer, error: OSError, seconds: float) -> UpstreamError:
    """Return why no connection to a unix socket came about.

    A file without a server behind it refuses; a server that accepts none in time is too busy.
    """
    reason: Reason = "unreachable"
    what = f"cannot be reached ({_say(error) or error})."
    advice = "Check the path that the proxy was given."
    if isinstance(error, TimeoutError):
        reason = "connect_timeout"
        what = f"accepted no connection within {seconds:g} s."
        advice = "It is too busy, or stuck: look at its log, and send the request again."
    elif isinstance(error, FileNotFoundError):
        reason, what, advice = "refused", "does not run: its socket is not there.", _CHECK
    elif isinstance(error, ConnectionRefusedError):
        reason, advice = "refused", _CHECK
        what = "refused the connection: the socket is there, but no server listens on it."
    elif isinstance(error, PermissionError):
        what = "may not be reached: permission denied."
        advice = (
            "Give the proxy's user write access to the socket and search access to its folders, "
            "or run both as one user."
        )
    if peer.kind == "engine" and reason != "connect_timeout":
        advice = _AGAIN
    return UpstreamError(reason, f"The {peer.name} {what} {advice}")


_NOT_HTTP = {
    "address": "Check that the URL is that of an LLM server, and its scheme (http or https).",
    "socket": "Check that the socket is that of an LLM server.",
    "engine": "Its log says more; send the request again.",
}
_OWN_LOG = "Its own log says why; if it was restarted, send the request again."
_CUT = {
    "address": _OWN_LOG,
    "socket": _OWN_LOG,
    "engine": f"Its log says why. {_AGAIN}",
}


def not_read(peer: Peer, error: Exception, first: bool, seconds: float) -> UpstreamError:
    """Return why an answer could not be read: too late, no HTTP, or else cut.

    `first`: nothing of the body had come; `seconds`: how long it was waited for.
    """
    if isinstance(error, TimeoutError) and first:
        return UpstreamError(
            "first_byte_timeout",
            f"The {peer.name} did not begin its answer within {seconds:g} s. Ask for less, or "
            "raise timeouts.first_token_body (for streams first_token_stream).",
        )
    if isinstance(error, TimeoutError):
        return UpstreamError(
            "chunk_timeout",
            f"The {peer.name} sent nothing more of its answer for {seconds:g} s. Look at its "
            "log; if it is only slow, raise timeouts.between_chunks.",
        )
    if isinstance(error.__cause__, ssl.SSLError):
        return _not_secured(peer, error.__cause__)
    if isinstance(error, Stuck):
        return UpstreamError(
            "stuck",
            f"The {peer.name} does not answer any more, so the proxy gave this request up. Look at "
            "its log, and send the request again.",
        )
    if isinstance(error, NotHttp):
        return UpstreamError(
            "protocol",
            f"The {peer.name} answered something that is not HTTP. {_NOT_HTTP[peer.kind]}",
        )
    # With TLS 1.3 a client is refused behind its handshake.
    advice = _MAYBE if first and peer.secure else _CUT[peer.kind]
    return UpstreamError(
        "cut", f"The {peer.name} closed the connection before its answer was complete. {advice}"
    )


_TOO_LATE: Final = {
    "first_token_timeout": (
        "sent no token within {seconds:g} s, whatever else it sent. Look at its log; if it only "
        "waits for its turn, raise timeouts.first_token_stream."
    ),
    "token_timeout": (
        "sent nothing of its answer for {seconds:g} s but what keeps a connection open. Look at "
        "its log; if it is only slow, raise timeouts.between_tokens."
    ),
    "total_timeout": (
        "did not end its answer within {seconds:g} s of the request. Ask for less (max_tokens), or "
        "raise timeouts.total."
    ),
}


def too_late(peer: Peer, over: Overdue) -> UpstreamError:
    """Return the error for an answer that came on too slowly, though something came."""
    said = _TOO_LATE[over.reason].format(seconds=over.seconds)
    return UpstreamError(over.reason, f"The {peer.name} {said}")


def not_told(peer: Peer, asked: str, reason: Reason, seconds: float, limit: int) -> UpstreamError:
    """Return the error for a question of the proxy's own whose answer is too late or too large."""
    said = f"did not answer {asked} within {seconds:g} s. Look at its log; if it is only slow, "
    said += "raise timeouts.probe."
    if reason == "too_large":
        said = f"answered {asked} with more than {limit} bytes. {_NOT_HTTP[peer.kind]}"
    return UpstreamError(reason, f"The {peer.name} {said}")


def too_large(peer: Peer, limit: int) -> UpstreamError:
    """Return the error for an answer of more than `limit` bytes."""
    return UpstreamError(
        "too_large",
        f"The {peer.name} answered more than {limit} bytes. Ask for less (fewer alternatives "
        "or tokens), or raise limits.response.",
    )


def encoded(peer: Peer, coding: str) -> UpstreamError:
    """Return the error for an answer in a coding that was not accepted."""
    return UpstreamError(
        "encoding",
        f"The {peer.name} answered with the content encoding {coding[:40]!r} although none "
        "was accepted. Turn compression off in it, or in the server between.",
    )
