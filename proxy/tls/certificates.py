"""Certificates and keys, read from their files: for clients, for a backend, and until when.

A context is made anew from its files each time: what is loaded into one that is in use stays by
half where the second file is bad. Reading blocks, so a running loop has it done in a thread.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path as File
from typing import Final, NamedTuple, NoReturn

from msgspec import structs

from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text
from wellspoken.proxy.config.tables import BackendTls, Config, Tls
from wellspoken.proxy.config.values import ConfigError

ALPN: Final = ["http/1.1"]
_LARGEST: Final = 16 * 1024 * 1024
_CERTIFICATE: Final = re.compile(rb"-----BEGIN (TRUSTED |X509 )?CERTIFICATE-----")
_KEY: Final = re.compile(rb"-----BEGIN ([A-Z ]+ )?PRIVATE KEY-----")
_EXPIRED, _EARLY = 10, 9  # X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID


class ClientContext(NamedTuple):
    """How connections to one backend are secured.

    `server_name`: what its certificate has to be for, None: the URL's host. `digest`: of the files,
    so that another one means that connections are to be made anew.
    """

    context: ssl.SSLContext
    server_name: str | None = None
    digest: bytes = b""


class ServerContexts(NamedTuple):
    """What secures connections at `server.listen` and at `server.admin`; None: plain HTTP.

    `digest`: of the files.
    """

    clients: ssl.SSLContext | None = None
    admin: ssl.SSLContext | None = None
    digest: bytes = b""


def server_contexts(tls: Tls) -> ServerContexts:
    """Return what secures the connections of clients. Raises ConfigError: `tls.certificate: ...`.

    `server.admin` asks for no client certificate: the kubelet's probes have none.
    """
    if tls.certificate is None:
        return ServerContexts()
    try:
        admin = _server_context(structs.replace(tls, client_ca=None), tls.certificate)
        return ServerContexts(_server_context(tls, tls.certificate), admin, _digest(tls))
    except ConfigError as error:
        raise ConfigError(f"tls.{error}") from error


def _server_context(tls: Tls, certificate: str) -> ssl.SSLContext:
    """Return what one address is secured with. Raises ConfigError: `certificate: ...`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    _load_pair(context, certificate, tls.key)
    if tls.client_ca is not None:
        _load_authorities(context, tls.client_ca, "client_ca")
        optional = tls.client_certificates == "optional"
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context


def client_context(url: str, tls: BackendTls) -> ClientContext | None:
    """Return how connections to a normal URL are secured, None where they are not.

    Raises ConfigError: `tls.ca: ...`.
    """
    if not url.startswith("https:"):
        return None
    try:
        return _client_context(tls)
    except ConfigError as error:
        raise ConfigError(f"tls.{error}") from error


def _client_context(tls: BackendTls) -> ClientContext:
    if tls.ca is None:
        context = ssl.create_default_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _load_authorities(context, tls.ca, "ca")
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(ALPN)
    if tls.certificate is not None:
        _load_pair(context, tls.certificate, tls.key)
    return ClientContext(context, tls.server_name, _digest(tls))


def _digest(tls: Tls | BackendTls) -> bytes:
    read = [_read(file, name) for name, file in named_files(tls)]
    return hashlib.sha256(b"\0".join(read)).digest()


def named_files(tls: Tls | BackendTls) -> Iterator[tuple[str, str]]:
    """Give the files that are named, each with its key: `certificate`, `/run/tls/tls.crt`."""
    authority = "client_ca" if isinstance(tls, Tls) else "ca"
    for name in ("certificate", "key", authority):
        if (file := getattr(tls, name)) is not None:
            yield name, file


def _load_pair(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Have a context prove itself by a certificate and its key. Raises ConfigError."""
    chain, secret = _read(certificate, "certificate"), certificate if key is None else key
    if not _CERTIFICATE.search(chain):
        raise ConfigError(f"certificate: {certificate} holds no PEM certificate. {_PEM}")
    if not _KEY.search(chain if key is None else _read(secret, "key")):
        what = "key: it is not set, and" if key is None else "key:"
        raise ConfigError(f"{what} {secret} holds no PEM private key. {_PEM}")
    try:
        context.load_cert_chain(_path(certificate), _path(secret), password=_refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"key: {secret} is not the key of the certificate in {certificate}. Name both of "
                "one pair, the server's own certificate first in its file."
            ) from error
        why = error.reason or "unreadable"
        raise ConfigError(f"certificate: {certificate} with {secret}: {why}. {_PEM}") from error
    except OSError as error:  # one was taken away in between
        raise ConfigError(f"certificate: {error.strerror}. Check its path and rights.") from error


_PEM: Final = "Write the path of a PEM file (-----BEGIN ...-----)."


def _refuse_password() -> NoReturn:
    """Refuse to ask a terminal, as OpenSSL would by itself."""
    raise ConfigError("key: it is encrypted. Write it without a password: openssl pkey -in FILE")


def _load_authorities(context: ssl.SSLContext, file: str, name: str) -> None:
    """Have a context trust the authorities in a file, and those alone. Raises ConfigError."""
    if not _CERTIFICATE.search(_read(file, name)):
        raise ConfigError(f"{name}: {file} holds no PEM certificate. {_PEM}")
    try:
        context.load_verify_locations(_path(file))
    except (ssl.SSLError, OSError) as error:
        why = getattr(error, "reason", None) or error.strerror
        raise ConfigError(f"{name}: {file}: {why}. {_PEM}") from error


def _read(file: str, name: str) -> bytes:
    try:
        with _path(file).open("rb") as opened:
            return opened.read(_LARGEST)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL; no such home (~name)
        why = getattr(error, "strerror", None) or error
        said = f"{name}: cannot read {file}: {why}. Check its path and rights."
        raise ConfigError(said) from error


def _path(file: str) -> File:
    return File(file).expanduser()


def expiries(config: Config) -> Iterator[Problem]:
    """Give the certificates that peers will refuse by their dates.

    Raises ConfigError where one cannot be used at all.
    """
    tables: list[tuple[Path, Tls | BackendTls]] = [(("tls",), config.tls)]
    tables += [(("backend", at, "tls"), each.tls) for at, each in enumerate(config.backend)]
    for path, tls in tables:
        if tls.certificate is not None and (why := why_doubtful(tls.certificate, tls.key)):
            here = (*path, "certificate")
            yield Problem(here, f"{path_text(here)}: {why}.")


def why_doubtful(certificate: str, key: str | None) -> str:
    """Return why peers will refuse a certificate by its dates, "" if they will not.

    A client that trusts this certificate alone is answered with it, in memory: OpenSSL says then
    what it says of it anywhere. Raises ConfigError where it cannot be used at all.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_pair(server, certificate, key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the first in the file is trusted itself
    client.load_verify_locations(_path(certificate))
    try:
        _shake_hands(client, server)
    except ssl.SSLCertVerificationError as error:
        said = {_EXPIRED: "has expired", _EARLY: "is not valid yet (is the clock right?)"}
        if (why := said.get(error.verify_code)) is not None:
            return f"{certificate} {why}. Whoever is shown it refuses it, so renew it"
    return ""


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """Carry a handshake out in memory. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    for _ in range(10):  # three are enough
        for side in tuple(sides):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            sides.remove(side)
