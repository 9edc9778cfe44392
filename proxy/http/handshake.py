"""A client's TLS handshake, before which there is no HTTP connection and after which there is."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Final, Protocol, cast

NO_LIMIT: Final = 3600.0
"""Seconds that a client gets to take leave of TLS where it may read as slowly as it likes."""
BUFFER: Final = 65_536
"""Bytes that wait to be written until a writer is paused, as without TLS."""


class HandshakeOwner(Protocol):
    """What a handshake is part of. None of it may await."""

    handshakes: set[asyncio.Task[None]]

    def note_failure(self, error: OSError) -> None:
        """Take note that a client's handshake came to nothing."""


class Handshake(asyncio.Protocol):
    """A connection that becomes `connection` when the client has shaken hands.

    asyncio would do this by itself (`create_server(ssl=...)`), but with one context for as long as
    it listens, without saying what fails, and with a deadline that no reload changes. Its start_tls
    is for who has not read yet, and uvloop reads before it can be called. So the socket is given
    to a new transport, which begins with TLS.

    The leave of TLS comes behind all that is still to be sent, and what is not sent when its time,
    `leave` seconds, is over is lost, however well the client reads. 0.0: no limit.

    One task waits for the handshake; `owner.handshakes` has it, and whoever stops cancels it.
    """

    def __init__(
        self,
        connection: asyncio.Protocol,
        context: ssl.SSLContext,
        seconds: float,
        leave: float,
        owner: HandshakeOwner,
    ) -> None:
        self._connection = connection
        self._context = context
        self._seconds = seconds
        self._leave = leave or NO_LIMIT
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket over before anything was read of it."""
        plain = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        mine = socket.socket(fileno=os.dup(plain.get_extra_info("socket").fileno()))
        plain.abort()  # closes its own descriptor, which is not the last
        task = asyncio.get_running_loop().create_task(self._shake_hands(mine))
        self._owner.handshakes.add(task)
        task.add_done_callback(self._owner.handshakes.discard)

    async def _shake_hands(self, mine: socket.socket) -> None:
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._connection,
                mine,
                ssl=self._context,
                ssl_handshake_timeout=self._seconds,
                ssl_shutdown_timeout=self._leave,
            )
            transport.set_write_buffer_limits(high=BUFFER)
        except OSError as error:  # ssl.SSLError and TimeoutError are some
            mine.close()
            self._owner.note_failure(error)
        except BaseException:
            mine.close()
            raise


def explain_handshake(error: OSError) -> str:
    """Return why a handshake failed and what to do, "" where a client only came and left."""
    if isinstance(error, TimeoutError) or "SSL handshake is taking longer" in str(error):
        return "it was not complete in time (timeouts.client_header)"
    if not isinstance(error, ssl.SSLError):
        return ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate was refused: {error.verify_message}. It has to be valid, and of an "
            "authority in tls.client_ca"
        )
    if isinstance(error, ssl.SSLEOFError):
        return ""
    reason = error.reason or str(error)
    return _REASONS.get(reason, reason)


_TRUST: Final = (
    "it does not trust tls.certificate, or the name in it is another. Have it trust the authority "
    "of the certificate, and use a name that stands in it"
)
_REASONS: Final = {
    "HTTP_REQUEST": "it spoke plain http. Use https:// in its base URL",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, which tls.client_ca asks for. "
    'Give it one, or set tls.client_certificates = "optional"',
    "TLSV1_ALERT_UNKNOWN_CA": _TRUST,
    "SSLV3_ALERT_BAD_CERTIFICATE": _TRUST,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _TRUST,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "tls.certificate has expired. Renew it",
    "UNSUPPORTED_PROTOCOL": "it speaks nothing newer than TLS 1.1. Let it use TLS 1.2 or 1.3",
    "WRONG_VERSION_NUMBER": "it did not speak TLS",
}
