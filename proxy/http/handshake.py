"""A client's TLS handshake: how it ends in order, and why it fails."""

from __future__ import annotations

import ssl
from typing import Final

NO_LIMIT: Final = 3600.0
"""Seconds that a client gets to take leave of TLS where it may read as slowly as it likes."""
BUFFER: Final = 65_536
"""Bytes that wait to be written until a writer is paused, as without TLS."""


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
