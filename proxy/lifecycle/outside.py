"""What a configuration needs that does not stand in it: keys, tokenizers, models, a free port.

Each is asked the way the proxy itself asks it when it starts, so that what is said is the same.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec import UNSET

from wellspoken.adapters.servers import registry
from wellspoken.engine.failure import EngineError
from wellspoken.proxy.config.auth_rules import doubtful_clients, reference_lists
from wellspoken.proxy.config.backend_headers import read_headers
from wellspoken.proxy.config.checks import refuse_endpoints
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Problem, path_text
from wellspoken.proxy.config.tables import Auth, Backend, Config, Engine, Store
from wellspoken.proxy.config.values import (
    UNIX,
    ConfigError,
    normal_url,
    parse_listen,
    read_key,
    store_url,
)
from wellspoken.proxy.http.auth import Keys
from wellspoken.proxy.http.sockets import refuse_taken
from wellspoken.proxy.lifecycle.build import open_counters
from wellspoken.proxy.lifecycle.hosted import kind_of
from wellspoken.proxy.routes import OWN_PATHS
from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.tls.certificates import client_context, expiries, server_contexts
from wellspoken.proxy.upstream.tokenizer import Tokenizer


def misnamed(config: Config) -> Iterator[Problem]:
    """Give the names in a configuration that there are not, for which nothing has to be asked."""
    for number, backend in enumerate(config.backend):
        path: Path = ("backend", number)
        yield from _failing((*path, "adapter"), partial(registry.find, backend.adapter))
        yield from _of_endpoints(path, backend)
    if config.engine is not UNSET:
        yield from _of_endpoints(("engine",), config.engine)


def _of_endpoints(path: Path, part: Backend | Engine) -> Iterator[Problem]:
    for at, endpoint in enumerate(part.endpoints or ()):
        yield from _failing(
            (*path, "endpoints", at), partial(refuse_endpoints, (endpoint,), OWN_PATHS)
        )


def missing(config: Config) -> Iterator[Problem]:
    """Give what would keep the proxy from starting although the configuration itself is right."""
    if isinstance(config.auth, Auth):
        yield from _of_keys(config, config.auth)
    yield from _of_tls(("tls",), partial(server_contexts, config.tls))
    for number, backend in enumerate(config.backend):
        yield from _of_backend(("backend", number), backend)
    if config.engine is not UNSET:
        yield from _of_engine(config.engine)
    yield from _of_store(config.store)
    if config.traces.enabled:
        yield from _of_traces()


def _of_keys(config: Config, auth: Auth) -> Iterator[Problem]:
    found: list[Problem] = []
    for path, references in reference_lists(auth):
        for at, reference in enumerate(references):
            found += _failing((*path, at), partial(Keys, (reference,)))
    yield from found or _failing(("auth", "client"), partial(Keys.of, config))
    if auth.counters is not None:
        yield from _failing(("auth", "counters"), partial(open_counters, auth))


def doubts(config: Config) -> Iterator[Problem]:
    """Give what may be meant as it is: a port that somebody has, an engine's warnings."""
    with suppress(ConfigError):  # a problem, see `missing`
        yield from expiries(config)
    try:
        why = _why_taken(*parse_listen(config.server.listen))
    except ConfigError:
        why = ""  # no address, so a problem already
    if why:
        path: Path = ("server", "listen")
        yield Problem(path, f"server.listen: {why}")
    yield from doubtful_clients(config, datetime.now(UTC))
    if config.engine is not UNSET:
        try:
            for warning in kind_of(config.engine).check():
                yield Problem(("engine",), f"engine: {warning}")
        except (ConfigError, EngineError):
            return  # a problem, see `missing`


def _failing(path: Path, work: Callable[[], Any]) -> Iterator[Problem]:
    """Do what the proxy does with the value at `path`; give the problem that this shows."""
    try:
        work()
    except (ConfigError, EngineError, StoreError, ValueError) as error:
        text = str(error)
        name = next(part for part in reversed(path) if isinstance(part, str))
        inner = path_text(path[2:])
        here = path_text(path)
        for known in (f"{here}: ", f"{inner}: ", f"{path[0]}.keys: ", f"{name}: ", f"{here} "):
            text = text.removeprefix(known)
        text = text if text.endswith(".") else f"{text}."
        yield Problem(path, f"{path_text(path)}: {text}")


def _of_tls(path: Path, work: Callable[[], Any]) -> Iterator[Problem]:
    """Read certificates as the proxy does; give what is wrong, at the key that names the file."""
    try:
        work()
    except ConfigError as error:
        key, _, why = str(error).removeprefix("tls.").partition(": ")
        yield Problem((*path, key), f"{path_text((*path, key))}: {why}")


def _of_backend(path: Path, backend: Backend) -> Iterator[Problem]:
    if backend.key is not None:
        yield from _failing((*path, "key"), partial(read_key, backend.key))
    for name, value in backend.headers.items():
        one = {name: value}
        yield from _failing((*path, "headers", name), partial(read_headers, one))
    with suppress(ConfigError):  # of the URL, told already
        urls = [normal_url(url) for url in backend.urls]
        url = next((url for url in urls if url.startswith("https:")), urls[0])
        yield from _of_tls((*path, "tls"), partial(client_context, url, backend.tls))
    yield from _of_model(path, backend)


def _of_model(path: Path, part: Backend | Engine) -> Iterator[Problem]:
    if part.tokenizer is not None:
        made = partial(Tokenizer, part.tokenizer, download=part.tokenizer_download)
        yield from _failing((*path, "tokenizer"), made)


def _of_engine(engine: Engine) -> Iterator[Problem]:
    for name, value in engine.environment.items():
        if value.startswith(("env:", "file:")):
            yield from _failing(("engine", "environment", name), partial(read_key, value))
    yield from _of_model(("engine",), engine)
    try:
        kind = kind_of(engine)
    except ConfigError:
        return  # a reference in its environment, told above
    key = "executable" if engine.kind == "vllm" and engine.executable != "vllm" else "model"
    yield from _failing(("engine", key), kind.check)


def _of_store(store: Store) -> Iterator[Problem]:
    """Look whether the database can be had, without opening it."""
    if not store.configured:
        return
    from wellspoken.proxy.store.completions import database_of

    if store.url is not None:
        found = list(_failing(("store", "url"), partial(store_url, store)))
        yield from found or _failing(("store", "url"), partial(database_of, store))
    if store.path is not None:
        yield from _failing(("store", "path"), partial(database_of, store))
        yield from _writable(("store", "path"), store.path)
    if store.spool is not None:
        yield from _writable(("store", "spool"), store.spool)


def _writable(path: Path, file: str) -> Iterator[Problem]:
    """Look whether a file can be written, or made in the nearest folder above that there is."""
    here = whole = os.path.abspath(os.path.expanduser(file))
    while not os.path.exists(here):
        here = os.path.dirname(here)
    if here != whole and not os.path.isdir(here):
        text = f"{here} is a file, so nothing can be in it. Name another place."
        yield Problem(path, f"{path_text(path)}: {text}")
    elif not os.access(here, os.W_OK):
        who = f"user {os.geteuid()}"
        text = f"{here} may not be written by {who}. Name another place, or change its rights."
        yield Problem(path, f"{path_text(path)}: {text}")


def _of_traces() -> Iterator[Problem]:
    from wellspoken.proxy.tracing import MISSING, wrong_variables

    for wrong in wrong_variables(os.environ):
        yield Problem(("traces", "enabled"), wrong if wrong.endswith(".") else f"{wrong}.")
    try:
        import wellspoken.proxy.tracing.exporter  # noqa: F401
    except ImportError as error:
        yield Problem(("traces", "enabled"), MISSING.format(error=error))


def _why_taken(host: str, port: int) -> str:
    """Return why nothing can listen there, "" if something can; binds for a moment."""
    if host.startswith(UNIX):
        return _why_no_socket(host.removeprefix(UNIX))
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return f"{host} is no address ({error.strerror}). Correct it."
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(address)
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    return f"port {port} is taken. That is as it should be if this proxy runs."
                return f"nothing can listen on {host}:{port} here ({error.strerror})."
    return ""


def _why_no_socket(file: str) -> str:
    """Return why nothing can listen at a path, "" if something can."""
    try:
        refuse_taken(file)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"{file} is taken. That is as it should be if this proxy runs."
        return f"nothing can listen at {file} here ({error.strerror})."
    folder = os.path.dirname(file)
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"no socket can be made in {folder} by user {os.geteuid()}."
    return ""
