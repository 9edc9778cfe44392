"""The configuration: typed, checked as a whole, and loaded from flags, environment and file.

Flags win over `WELLSPOKEN_*` environment variables, these over the TOML file, the file over the
defaults in config_tables.py. config.example.toml explains every key for people.
"""

from __future__ import annotations

import difflib
import os
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Struct

from wellspoken.adapters.caps import DANGEROUS, Caps
from wellspoken.proxy.config_engine import DURATIONS, check_engine, checked_table, served_names
from wellspoken.proxy.config_tables import (
    Auth,
    Backend,
    Config,
    Endpoints,
    Engine,
    Limits,
    Server,
    Store,
    Streams,
    Timeouts,
)
from wellspoken.proxy.config_values import (
    ConfigError,
    check_reference,
    is_loopback,
    normal_url,
    parse_listen,
    read_key,
)
from wellspoken.proxy.durations import seconds

__all__ = [
    "Auth",
    "Backend",
    "Config",
    "Endpoints",
    "Engine",
    "Limits",
    "Server",
    "Store",
    "Streams",
    "Timeouts",
    "load",
    "store_url",
]

ENV_PREFIX = "WELLSPOKEN_"
_SECTIONS: dict[str, type[Struct]] = {
    "server": Server,
    "timeouts": Timeouts,
    "limits": Limits,
    "store": Store,
    "engine": Engine,
}
_TABLES = frozenset({"caps", "environment"})  # keys that no variable can hold
_WITH_COMMAS = frozenset({"hosts", "inherit", "keep", "endpoints"})


def load(
    file: Path | None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration of `file`, overridden by `environ`, overridden by `flags`.

    `flags` is shaped like the file, `{"server": {"listen": ...}, "backend": [...]}`; lists replace.
    Raises ConfigError, whose message names the file or variable, the key and what to do.
    """
    raw: dict[str, Any] = _read(file) if file is not None else {}
    _known(raw, Config, "")
    _from_environ(raw, os.environ if environ is None else environ)
    _auth_from_environ(raw, os.environ if environ is None else environ)
    for section, value in (flags or {}).items():
        if isinstance(value, Mapping) and section != "auth":  # which is a table or "none", as given
            _table(raw, section).update(value)
        else:
            raw[section] = value
    _refuse_bare_key(raw.get("auth"))
    if isinstance(raw.get("engine"), dict):
        raw["engine"] = checked_table(raw["engine"])
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(_readable(error)) from error
    _check(config)
    return config


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {file}: {error.strerror}. Give --config the path of a TOML file; "
            "config.example.toml is one to start from."
        ) from error
    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is not TOML: {error}. Correct that line.") from error


def _table(raw: dict[str, Any], section: str) -> dict[str, Any]:
    table = raw.setdefault(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{section}: expected a table, so write [{section}] above its keys.")
    return table


def _from_environ(raw: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Put WELLSPOKEN_LISTEN, WELLSPOKEN_ENGINE_MODEL, ... into their sections.

    Only the names of real keys are read: Kubernetes sets variables like WELLSPOKEN_PORT and
    WELLSPOKEN_SERVICE_HOST by itself for a service of that name.
    """
    for section, kind in _SECTIONS.items():
        middle = "" if section == "server" else section.upper() + "_"
        for key, hint in get_type_hints(kind, include_extras=True).items():
            variable = ENV_PREFIX + middle + key.upper()
            text = environ.get(variable)
            if text is None or key in _TABLES:
                continue
            try:
                value = _given(section, key, text)
                _table(raw, section)[key] = msgspec.convert(value, hint, strict=False)
            except (msgspec.ValidationError, ValueError) as error:
                said = str(error).rstrip(".")
                raise ConfigError(f"{variable}={text!r}: {said}. Set or unset it.") from error


def _given(section: str, key: str, text: str) -> Any:
    """Return what a variable's text means for this key. Raises ValueError."""
    if key in _WITH_COMMAS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if section == "engine" and key == "arguments":
        return shlex.split(text)
    return seconds(text) if section == "engine" and key in DURATIONS else text


def _auth_from_environ(raw: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Let WELLSPOKEN_AUTH=none or WELLSPOKEN_AUTH_KEYS=env:A,file:B replace what the file says."""
    keys, whole = environ.get(f"{ENV_PREFIX}AUTH_KEYS"), environ.get(f"{ENV_PREFIX}AUTH")
    if keys is not None and whole is not None:
        raise ConfigError(f"{ENV_PREFIX}AUTH and {ENV_PREFIX}AUTH_KEYS are both set. Unset one.")
    if whole is not None:
        raw["auth"] = whole
    if keys is not None:
        references = [part.strip() for part in keys.split(",") if part.strip()]
        if not references:  # an empty value must not open what the file has closed
            raise ConfigError(f"{ENV_PREFIX}AUTH_KEYS is empty. Write env:NAME or file:PATH.")
        raw["auth"] = {"keys": references}


def _refuse_bare_key(auth: Any) -> None:
    """Raise ConfigError for a text that is not "none", unquoted: it may be somebody's key."""
    if isinstance(auth, str) and auth != "none":
        raise ConfigError(
            'auth: this text can only be "none". Keys are named in keys = ["env:NAME"] under '
            f"[auth], with --key env:NAME, or in {ENV_PREFIX}AUTH_KEYS."
        )


def _known(raw: Any, kind: Any, path: str) -> None:
    """Refuse keys that no Struct has, with their path and the nearest name."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        if not isinstance(raw, dict):
            return  # the conversion says what was expected here
        hints = get_type_hints(kind)
        for key, value in raw.items():
            if key not in hints:
                raise ConfigError(f"{path}{key}: unknown key.{_suggest(key, list(hints))}")
            _known(value, hints[key], f"{path}{key}.")
        return
    for inner in get_args(kind):
        if not (isinstance(inner, type) and issubclass(inner, Struct)):
            continue
        if isinstance(raw, list):
            for at, item in enumerate(raw):
                _known(item, inner, f"{path.removesuffix('.')}[{at}].")
        else:
            _known(raw, inner, path)


def _suggest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" Did you mean {near[0]}?"
    return f" Known here: {', '.join(sorted(known))}."


def _readable(error: msgspec.ValidationError) -> str:
    text, _, place = str(error).partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    return f"{path}: {text}." if path else f"{text}."


def _check(config: Config) -> None:
    """Check what types cannot say: addresses, names that clash, keys that exclude each other."""
    host, _ = parse_listen(config.server.listen)
    _check_auth(config.auth, host)
    _check_store(config.store)
    names = [backend.name for backend in config.backend]
    if config.engine is not UNSET:
        names.append(config.engine.name)
        _check_caps(config.engine.caps, "engine")
        check_engine(config.engine)
    if not names:
        raise ConfigError(
            "no backend. Add a [[backend]] table with its url, or an [engine]; "
            "or run: wellspoken http://localhost:8000"
        )
    if sum(backend.ui for backend in config.backend) > 1:
        raise ConfigError("backend: two have ui = true, but one page fits at /. Leave one.")
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"backend: two are named {name!r}. Give each its own name.")
    taken: dict[str, str] = {}
    for at, backend in enumerate(config.backend):
        _check_backend(backend, f"backend[{at}]", len(names) > 1)
        for model in (*backend.models, *backend.aliases):
            if taken.setdefault(model, backend.name) != backend.name:
                raise ConfigError(
                    f"backend[{at}]: {taken[model]!r} has the model {model!r} too. "
                    "Remove one, or add an alias under another name."
                )
    if config.engine is not UNSET:
        for model in served_names(config.engine):
            if model in taken:
                raise ConfigError(
                    f"engine: {taken[model]!r} has the model {model!r} too. "
                    "Give the engine's another name with alias."
                )


def _check_auth(auth: Auth | Literal["none"], host: str) -> None:
    """Refuse a proxy that other machines reach and nobody needs a key for, unless that is said."""
    keys = auth.keys if isinstance(auth, Auth) else ()
    for at, reference in enumerate(keys):
        try:
            check_reference(reference)
        except ConfigError as error:
            text = str(error).removeprefix("key: ")
            raise ConfigError(f"auth.keys[{at}]: {text}") from None
    if not keys and auth != "none" and not is_loopback(host):
        raise ConfigError(
            f"listen: {host} is reached from other machines, and no keys say who may use the "
            "proxy. Name keys (--key env:NAME, or keys under [auth]), or listen on 127.0.0.1, or "
            'let everybody in (--auth none, or auth = "none" at the top of the file).'
        )


def _check_store(store: Store) -> None:
    """Refuse two databases, and settings that need a database or one of the other kind."""
    if store.path is not None and store.url is not None:
        raise ConfigError("store: path and url exclude each other. Keep one of them.")
    if store.path is not None and not store.path.strip():
        raise ConfigError("store.path: it is empty. Name a file, or leave it out.")
    if store.url is not None and not store.url.strip().startswith(("env:", "file:")):
        store_url(store)
    if store.path is not None and store.path.strip().startswith(("postgresql:", "postgres:")):
        raise ConfigError("store.path: this is a URL, so write url instead of path.")
    if store.spool is not None and store.url is None:
        raise ConfigError("store.spool: only PostgreSQL (store.url) has a spool. Take it out.")


def _check_caps(caps: Caps, path: str) -> None:
    for name in caps.allow:
        if name not in DANGEROUS:
            raise ConfigError(
                f"{path}.caps.allow: {name!r} is none of the keys that are kept back, so take it "
                f"out.{_suggest(name, list(DANGEROUS))}"
            )


def _check_backend(backend: Backend, path: str, several: bool) -> None:
    _check_caps(backend.caps, path)
    if backend.ui and backend.vendor != "pass":
        raise ConfigError(
            f'{path}: ui = true needs vendor = "pass": llama.cpp\'s page sends keys of its own.'
        )
    try:
        normal_url(backend.url)
        for key in (backend.key,):
            if key is not None:
                check_reference(key)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if backend.key is not None and backend.auth == "pass":
        raise ConfigError(
            f'{path}: key and auth = "pass" exclude each other. '
            "Keep the one whose key the backend should see."
        )
    if several and not backend.models and not backend.aliases:
        raise ConfigError(
            f"{path}: with several backends each needs models = [...] or aliases, "
            "since requests find their backend by the model's name."
        )


def store_url(store: Store) -> str:
    """Return the URL of the store's PostgreSQL, read from where `store.url` says it is.

    Raises ConfigError, which never repeats it, since it may hold a password.
    """
    text = (store.url or "").strip()
    if text.startswith(("env:", "file:")):
        try:
            text = read_key(text)
        except ConfigError as error:
            problem = str(error).removeprefix("key: ").replace("change key", "change store.url")
            raise ConfigError(f"store.url: {problem}") from None
    if not text.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "store.url: write postgresql://user@host/database, or env:NAME or file:PATH of where "
            "that stands. For a file of this machine set store.path instead."
        )
    return text
