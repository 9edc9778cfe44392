"""What types cannot say of a configuration: addresses, clashing names, keys that exclude others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec import UNSET

from wellspoken.proxy.config.auth_rules import auth_rules
from wellspoken.proxy.config.backend_headers import header_rules
from wellspoken.proxy.config.engine_keys import engine_rules
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem
from wellspoken.proxy.config.rules.backend_rules import backend_rules, caps_rules
from wellspoken.proxy.config.rules.pool_rules import pool_rules
from wellspoken.proxy.config.tables import Auth, Config, Server, Store, Tls
from wellspoken.proxy.config.values import ConfigError, is_unix, parse_listen, store_url

NO_BACKEND = (
    "no backend. Add a [[backend]] table with its url, or an [engine]; "
    "or run: wellspoken http://localhost:8000"
)

_PATH: Final = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+")
_COUNTS: Final = re.compile(r"/(input|prompt|count)_tokens|/token_count")
_BEYOND_JSON: Final = frozenset(
    {"audio", "batches", "files", "images", "realtime", "uploads", "ws"}
)
_OWN: Final = ("/v1/chat/", "/chat/", "/v1/models", "/models")
_ADMIN: Final = re.compile(
    r"(abort|admin|cancel|clear|close|collective|configure|copy|cors|create|debug|delete|destroy"
    r"|docs|dump|fault|finish|fine|flush|freeze|init|invocations|is|load|loadmodel|lora|metrics"
    r"|models|openapi|pause|ping|profile|props|pull|push|quit|redoc|release|reload|reset|restart"
    r"|resume|save|scale|server|set|shutdown|sleep|slots|start|stop|store|stream|streams|terminate"
    r"|tools|unload|unloadmodel|update|version|wake|weight|weights)([._-].*)?",
    re.IGNORECASE,
)


def check_rules(config: Config) -> Iterator[Problem]:
    """Give everything that is wrong with a configuration whose types are right."""
    try:
        host, _ = parse_listen(config.server.listen)
        yield from auth_rules(config.auth, host)
    except ConfigError as error:
        yield Problem(("server", "listen"), str(error))
    if config.server.admin is not None:
        yield from _admin(config.server)
    yield from _tls(config.tls, config.server.listen)
    yield from _cors(config)
    yield from _store(config.store)
    several = len(config.backend) + (config.engine is not UNSET) > 1
    if config.engine is not UNSET:
        yield from caps_rules(config.engine.caps, ("engine",))
        yield from engine_rules(config.engine)
        yield from header_rules(config.engine, ("engine",))
        if config.server.workers > 1:
            yield Problem(
                ("server", "workers"),
                "server.workers: an engine is started and ended by one process. Set workers to 1; "
                "if that is too little, give the engine's proxy another address (--listen "
                "127.0.0.1:8011), and start a second one with workers in front of it: wellspoken "
                f"http://127.0.0.1:8011 --workers {config.server.workers}",
            )
    elif not config.backend:
        yield Problem((), NO_BACKEND)
    yield from pool_rules(config)
    for at, backend in enumerate(config.backend):
        yield from backend_rules(backend, at, several, config.server.listen)


def _admin(server: Server) -> Iterator[Problem]:
    """Refuse what is no address, the one that clients have, and a socket that none could share."""
    path: Path = ("server", "admin")
    admin = server.admin or ""
    try:
        where = parse_listen(admin)
    except ConfigError as error:
        yield Problem(path, f"server.admin: {str(error).removeprefix('listen: ')}")
        return
    with suppress(ConfigError):  # told elsewhere
        if (where[1] or is_unix(admin)) and where == parse_listen(server.listen):
            text = "this is server.listen. Choose another address, or take it out."
            yield Problem(path, f"server.admin: {text}")
    if is_unix(admin) and server.workers > 1:
        text = "several workers cannot share this one. Write a port: 127.0.0.1:8011"
        yield Problem(path, f"server.admin: {text}")


def _tls(tls: Tls, listen: str) -> Iterator[Problem]:
    """Refuse what says nothing without a certificate, and TLS where the file system guards."""
    for key in ("key", "client_ca"):
        if tls.certificate is None and getattr(tls, key) is not None:
            text = f"tls.{key}: without a certificate nothing is secured. Set tls.certificate, too."
            yield Problem(("tls", key), text, at_key=True)
    with suppress(ConfigError):  # told elsewhere
        if tls.certificate is not None and is_unix(listen):
            text = "tls.certificate: a unix socket has no TLS. Take this out, or listen on a port."
            yield Problem(("tls", "certificate"), text, at_key=True)


_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


def _cors(config: Config) -> Iterator[Problem]:
    """Refuse what no browser sends as an origin, and every page where a key is needed."""
    origins = config.server.cors
    if "*" in origins and isinstance(config.auth, Auth) and config.auth.needs_key:
        yield Problem(
            ("server", "cors"),
            'server.cors: "*" is for a proxy that needs no key, and this one has keys. List the '
            'origins of the web pages that may use it: cors = ["https://chat.example"].',
        )
    if isinstance(origins, str):
        if origins != "*":
            text = f'server.cors: {origins!r} is no list. Write a list: cors = ["{origins}"]'
            yield Problem(("server", "cors"), text)
        return
    for at, given in enumerate(origins):
        # What a browser sends has no path, no default port and no capitals.
        origin = re.sub(
            r"(?<=^http:)(//[^/]+?):80$|(?<=^https:)(//[^/]+?):443$",
            r"\1\2",
            "/".join(given.strip().lower().split("/")[:3]),
        )
        if given == "*" or (given == origin and _ORIGIN.fullmatch(origin)):
            continue
        if given == "null":
            yield Problem(
                ("server", "cors", at),
                f'server.cors[{at}]: "null" is sent for every page without an address, a file or a '
                "sandboxed frame, so it names none. Serve the page from an address, and list that.",
            )
            continue
        near = f"Write {origin}" if _ORIGIN.fullmatch(origin) else "Write it like https://a.example"
        yield Problem(
            ("server", "cors", at),
            f"server.cors[{at}]: a browser sends no origin {given!r}. {near}.",
        )


def _store(store: Store) -> Iterator[Problem]:
    """Refuse two databases, and settings that need a database or one of the other kind."""
    path, url = store.path, store.url
    if path is not None and url is not None:
        text = "store: path and url exclude each other. Keep one of them."
        yield Problem(("store", "url"), text, at_key=True)
    if path is not None and not path.strip():
        text = "store.path: it is empty. Name a file, or leave it out."
        yield Problem(("store", "path"), text)
    if path is not None and path.strip().startswith(("postgresql:", "postgres:")):
        text = "store.path: this is a URL, so write url instead of path."
        yield Problem(("store", "path"), text)
    if url is not None and not url.strip().startswith(("env:", "file:")):
        try:
            store_url(store)
        except ConfigError as error:
            yield Problem(("store", "url"), str(error))
    if store.spool is not None and url is None:
        text = "store.spool: only PostgreSQL (store.url) has a spool. Take it out."
        yield Problem(("store", "spool"), text, at_key=True)


def counts_tokens(path: str) -> bool:
    """Say whether a path is one that counts a request's tokens, by its last part.

    llama.cpp, vLLM and SGLang have them below other endpoints; some answer GET, too.
    """
    return _COUNTS.fullmatch(path, path.rfind("/")) is not None


def refuse_endpoints(paths: Sequence[str], taken: Collection[str]) -> None:
    """Raise ConfigError for a path that may not pass through; `taken` are the proxy's own.

    What administers a server (weights, adapters, caches, slots, sleep) is refused by its name: a
    proxy that clients reach is no place for it.
    """
    for path in paths:
        segments = path.split("/")[1:]
        why = ""
        if not _PATH.fullmatch(path):
            why = "is no full path. Write it as the server spells it, beginning with /: /v1/rerank"
        elif path in taken or (path.startswith(_OWN) and not counts_tokens(path)):
            why = "is an endpoint of the proxy's own. Take it out; it is served anyway"
        elif not _BEYOND_JSON.isdisjoint(segments):
            why = "takes more than JSON, which does not pass through. Ask the server itself for it"
        elif any(_ADMIN.fullmatch(segment) for segment in segments):
            why = "administers the server. Ask the server itself for it"
        if why:
            raise ConfigError(f"endpoints: {path!r} {why}.")
