"""What types cannot say of a configuration: addresses, clashing names, keys that exclude others."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from msgspec import UNSET

from wellspoken.adapters.requests.caps import DANGEROUS, Caps
from wellspoken.proxy.config.auth_rules import auth_rules
from wellspoken.proxy.config.backend_headers import header_rules
from wellspoken.proxy.config.engine_keys import engine_rules, names_of_models
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text, suggestion
from wellspoken.proxy.config.tables import Auth, Backend, BackendTls, Config, Server, Store, Tls
from wellspoken.proxy.config.values import (
    UNIX,
    ConfigError,
    check_reference,
    find_endpoint,
    is_unix,
    normal_url,
    parse_listen,
    store_url,
)

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
        yield from _caps(config.engine.caps, ("engine",))
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
    yield from _names(config)
    for at, backend in enumerate(config.backend):
        yield from _backend(backend, at, several, config.server.listen)
    yield from _models(config)


def _names(config: Config) -> Iterator[Problem]:
    """Give what only one backend may be or be called."""
    pages = [at for at, backend in enumerate(config.backend) if backend.ui]
    if len(pages) > 1:
        text = "backend: two have ui = true, but one page fits at /. Leave one."
        yield Problem(("backend", pages[1], "ui"), text)
    taken = {config.engine.name} if config.engine is not UNSET else set()
    for at, backend in enumerate(config.backend):
        if backend.name in taken:
            text = f"backend: two are named {backend.name!r}. Give each its own name."
            yield Problem(("backend", at, "name"), text)
        taken.add(backend.name)


def _models(config: Config) -> Iterator[Problem]:
    """Give the models that two backends have."""
    taken: dict[str, tuple[int, str]] = {}
    for at, backend in enumerate(config.backend):
        for key, names in (("models", backend.models), ("aliases", backend.aliases)):
            for model in names:
                home, other = taken.setdefault(model, (at, backend.name))
                if home != at:
                    yield Problem(
                        ("backend", at, key),
                        f"backend[{at}]: {other!r} has the model {model!r} too. "
                        "Remove one, or add an alias under another name.",
                    )
    if config.engine is not UNSET:
        for model in names_of_models(config.engine):
            if model in taken:
                yield Problem(
                    ("engine", "alias" if config.engine.alias is not None else "model"),
                    f"engine: {taken[model][1]!r} has the model {model!r} too. "
                    "Give the engine's another name with alias.",
                )


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


def _backend_tls(backend: Backend, path: Path) -> Iterator[Problem]:
    """Refuse TLS for a backend that is not asked over it, and half a pair."""
    where = path_text(path)
    if backend.tls.key is not None and backend.tls.certificate is None:
        text = f"{where}.tls.key: it is the key of a certificate. Set certificate, too."
        yield Problem((*path, "tls", "key"), text, at_key=True)
    with suppress(ConfigError):
        if backend.tls != BackendTls() and not normal_url(backend.url).startswith("https:"):
            text = f"{where}.tls: the url is no https:// one, so this would do nothing. "
            text += "Write https://, or take it out."
            yield Problem((*path, "tls"), text, at_key=True)


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


def _caps(caps: Caps, path: Path) -> Iterator[Problem]:
    for at, name in enumerate(caps.allow):
        if name not in DANGEROUS:
            yield Problem(
                (*path, "caps", "allow", at),
                f"{path_text(path)}.caps.allow: {name!r} is none of the keys that are kept back, "
                f"so take it out.{suggestion(name, DANGEROUS)}",
            )


def _is_here(url: str, listen: str) -> bool:
    """Say whether a backend's URL is certainly the address on which clients connect."""
    try:
        host, port = parse_listen(listen)
    except ConfigError:
        return False
    if host.startswith(UNIX):
        return url == host
    there = urlsplit(url)
    if there.scheme != "http" or (there.port or 80) != port:
        return False
    if host == "0.0.0.0":  # noqa: S104  compared, not bound
        return there.hostname in ("localhost", "127.0.0.1")
    own = ("localhost", "127.0.0.1") if host in ("localhost", "127.0.0.1") else (host.lower(),)
    return there.hostname in own


def _backend(backend: Backend, at: int, several: bool, listen: str) -> Iterator[Problem]:
    path: Path = ("backend", at)
    where = path_text(path)
    yield from _caps(backend.caps, path)
    yield from header_rules(backend, path)
    if backend.ui and backend.vendor != "pass":
        yield Problem(
            (*path, "vendor"),
            f'{where}: ui = true needs vendor = "pass": llama.cpp\'s page sends keys of its own.',
        )
    try:
        if _is_here(normal_url(backend.url), listen):
            yield Problem(
                (*path, "url"),
                f"{where}: url: this is where the proxy itself listens, so it would ask itself. "
                "Write the server's address, or give the proxy another one with listen (--listen).",
            )
    except ConfigError as error:
        yield Problem((*path, "url"), f"{where}: {error}")
    yield from _backend_tls(backend, path)
    if backend.key is not None:
        try:
            check_reference(backend.key)
        except ConfigError as error:
            yield Problem((*path, "key"), f"{where}: {error}")
        if backend.auth == "pass":
            yield Problem(
                (*path, "key"),
                f'{where}: key and auth = "pass" exclude each other. '
                "Keep the one whose key the backend should see.",
                at_key=True,
            )
    if several and not backend.models and not backend.aliases:
        yield Problem(
            (*path, "models"),
            f"{where}: with several backends each needs models = [...] or aliases, "
            "since requests find their backend by the model's name.",
        )


def doubtful_urls(backends: Sequence[Backend]) -> Iterator[Problem]:
    """Give the URLs of which an endpoint is taken off, since they may be meant otherwise."""
    for at, backend in enumerate(backends):
        endpoint = find_endpoint(backend.url)
        if endpoint:
            yield Problem(
                ("backend", at, "url"),
                f"backend[{at}]: url: {endpoint} is an endpoint and was taken off, since a backend "
                f"is named by its base. Write it like {normal_url(backend.url)}",
            )


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
