"""What single values of a configuration mean: URLs, addresses to listen on, references to keys."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from wellspoken.proxy.config.tables import Backend, Engine, Store

UNIX = "unix:"
"""What the address of a unix socket begins with."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and what to do."""


def normal_url(text: str) -> str:
    """Return a backend's base URL: with scheme, without /v1 and without a final slash.

    `localhost:8000`, `http://host:8000/` and `http://host:8000/v1` all name a server's root, and so
    does the URL of an endpoint below it (`find_endpoint`). A unix socket is `unix:/path` (or
    `unix:///path`), whose path is taken as it is. Raises ConfigError for what is neither that nor
    an http(s) URL, and for one that carries credentials, a query or a fragment.
    """
    url = text.strip()
    if url[:5].lower() == "unix:":
        return "unix:" + _socket(url[5:])
    if "@" in url:
        raise ConfigError(
            "url: it holds credentials, which would end up in logs. Take them out and set "
            'key = "env:NAME" (or --upstream-key env:NAME).'
        )
    if "?" in url or "#" in url:  # not repeated: some servers take a key there
        raise ConfigError(f"url: it has more than host, port and path. {_URL_HINT}")
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url: {text!r} is no URL ({error}). {_URL_HINT}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.netloc[-1] == ":":
        raise ConfigError(f"url: {text!r} is no http(s) URL. {_URL_HINT}")
    if any(c.isspace() or not c.isprintable() for c in url):
        raise ConfigError(f"url: {text!r} has more than host, port and path. {_URL_HINT}")
    try:
        parts.hostname.encode("idna")  # as whoever connects does
    except UnicodeError as error:
        raise ConfigError(f"url: {text!r} has no possible host name. {_URL_HINT}") from error
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = _ENDPOINT.sub("", parts.path.rstrip("/")).removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}{path}"


def find_endpoint(text: str) -> str:
    """Return the endpoint that a backend's URL ends in, as `/v1/chat/completions`, or "".

    Whoever copies a URL from a server's documentation often has one, and every request below it
    would be a 404, so `normal_url` takes it off.
    """
    url = text.strip()
    if url[:5].lower() == "unix:":
        return ""
    found = _ENDPOINT.search(url.rstrip("/"))
    return found[0] if found else ""


# Without /v1 only chat's is no possible name of a folder that a gateway serves a backend below.
_ENDPOINT = re.compile(
    r"(?:/v1/(?:completions|embeddings|models|responses|messages)|(?:/v1)?/chat/completions)$"
)
_URL_HINT = "Write it like http://localhost:8000, or unix:/path/api.sock for a unix socket."


def _socket(text: str) -> str:
    """Return the path of a unix socket, after `unix:`. Raises ConfigError for what cannot be one.

    A path that is not whole would mean another file in each folder the proxy is started in.
    """
    path = text.removeprefix("//").rstrip("/")
    if not path.startswith("/"):
        whole = os.path.abspath(os.path.expanduser(path or "api.sock"))
        raise ConfigError(f"url: 'unix:{text}' has no whole path. Write it like unix:{whole}.")
    if not path.isprintable():
        raise ConfigError("url: the socket's path holds what cannot be shown. Choose another.")
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET:
        raise ConfigError(
            f"url: the socket's path has {size} bytes, but the system takes {LONGEST_SOCKET} at "
            f"most. Let the server listen at a shorter one, like unix:/tmp/llm.sock: {path}"
        )
    return path


LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
"""Bytes of a unix socket's path: sun_path without its final zero."""


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port`, `:port` (every interface) or `port`.

    Of a unix socket, `unix:/path`, that is the host, and the port is 0. Raises ConfigError for
    anything else.
    """
    if text.strip()[:5].lower() == UNIX:
        try:
            return UNIX + _socket(text.strip()[5:]), 0
        except ConfigError as error:
            raise ConfigError(f"listen: {str(error).removeprefix('url: ')}") from None
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(
            f"listen: {text!r} is no address. Write it like 127.0.0.1:8010, or 0.0.0.0:8010 "
            "to be reachable from other machines, or unix:/run/wellspoken/api.sock."
        )
    if ":" not in text:
        host = "127.0.0.1"
    return host or "0.0.0.0", int(port)  # noqa: S104  as ":8010" says; without keys it is refused


def is_loopback(host: str) -> bool:
    """Say whether a bind to `host`, as `parse_listen` gives it, is for this machine alone."""
    if host.startswith(UNIX):
        return True
    return host.lower() in ("localhost", "::1") or _LOOPBACK.fullmatch(host) is not None


def is_unix(listen: str) -> bool:
    """Say whether an address to listen on is a unix socket's. Raises ConfigError."""
    return parse_listen(listen)[0].startswith(UNIX)


def is_reached_from_elsewhere(listen: str) -> bool:
    """Say whether other machines reach a proxy that listens there. Raises ConfigError."""
    return not is_loopback(parse_listen(listen)[0])


def find_places(part: Backend | Engine) -> list[str]:
    """Return where a backend or an engine's model is, as texts that errors may hold, longest first.

    A host without a domain, and a model by its name on Hugging Face, tell a stranger nothing.
    """
    if isinstance(part, Backend):
        places = [place for url in part.urls for place in _places_of(normal_url(url))]
    else:
        files = [part.mmproj, part.chat_template, part.executable, part.model]
        named = [file for file in files if file and len(file) < LONGEST_PATH and _PATH.match(file)]
        places = [*named, *(os.path.abspath(os.path.expanduser(file)) for file in named)]
    return sorted({place for place in places if len(place) > 3}, key=len, reverse=True)


def _places_of(url: str) -> Iterator[str]:
    """Give what a normal URL tells of where a server is, in all forms that a text may have."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    yield from (url, url.removeprefix("unix:"), parts.netloc)
    if ("." in host or ":" in host) and not is_loopback(host):
        yield host


LONGEST_PATH = 4096
_PATH = re.compile(r"[~./]|.*\.gguf$")
_LOOPBACK = re.compile(r"127(\.\d{1,3}){1,3}", re.ASCII)


def check_reference(text: str) -> None:
    """Raise ConfigError unless `text` is `env:NAME` or `file:PATH`; never repeats it.

    Someone who puts the key itself here must not find it again in an error message.
    """
    kind, _, rest = text.partition(":")
    if kind not in ("env", "file") or not rest:
        raise ConfigError(
            "key: write env:NAME or file:PATH, not the key itself, so that it stays out of "
            "files and process lists."
        )


def read_key(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Return the secret that `env:NAME` or `file:PATH` refers to, without surrounding whitespace.

    Raises ConfigError where the variable is not set, the file cannot be read, or what it holds
    cannot be sent in a header.
    """
    check_reference(text)
    kind, _, rest = text.partition(":")
    if kind == "env":
        found = (os.environ if environ is None else environ).get(rest)
        if found is None:
            raise ConfigError(f"key: the variable {rest} is not set. Set it, or change key.")
    else:
        try:
            found = Path(rest).expanduser().read_text("utf-8")
        except (OSError, ValueError, RuntimeError) as error:  # not UTF-8; no such home (~name)
            raise ConfigError(f"key: cannot read {rest}. Check its path and rights.") from error
    secret = found.strip()
    if not secret or not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"key: {text} is empty or not plain ASCII text. Put the bare key there.")
    return secret


def is_reference(text: str) -> bool:
    """Say whether a value is not the value itself, but where it stands."""
    return text.startswith(("env:", "file:"))


def resolve_references(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Return the values of a table, read from where they stand; raise ConfigError as `read_key`.

    `where`: the table, as messages name it.
    """
    found = {}
    for name, value in given.items():
        try:
            found[name] = read_key(value) if is_reference(value) else value
        except ConfigError as error:
            text = str(error).removeprefix("key: ").replace("change key", "change this")
            raise ConfigError(f"{where}.{name}: {text}") from None
    return found


def _read_url(text: str, where: str) -> str:
    """Return a URL that may hold a password, from where it stands. Raises ConfigError."""
    text = text.strip()
    if not is_reference(text):
        return text
    try:
        return read_key(text)
    except ConfigError as error:
        problem = str(error).removeprefix("key: ").replace("change key", f"change {where}")
        raise ConfigError(f"{where}: {problem}") from None


def counters_url(text: str) -> str:
    """Return the URL of `auth.counters`. Raises ConfigError, which never repeats it."""
    text = _read_url(text, "auth.counters")
    if not text.startswith(("redis://", "rediss://", "valkey://", "valkeys://", "unix://")):
        raise ConfigError(
            "auth.counters: write redis://host:6379 (rediss:// for TLS), or env:NAME or file:PATH "
            "of where that stands."
        )
    return text


def store_url(store: Store) -> str:
    """Return the URL of the store's PostgreSQL, read from where `store.url` says it is.

    Raises ConfigError, which never repeats it, since it may hold a password.
    """
    text = _read_url(store.url or "", "store.url")
    if not text.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "store.url: write postgresql://user@host/database, or env:NAME or file:PATH of where "
            "that stands. For a file of this machine set store.path instead."
        )
    return text
