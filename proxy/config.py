"""The configuration: typed, checked as a whole, and loaded from flags, environment and file.

Flags win over `WELLSPOKEN_*` environment variables, these over the TOML file, the file over the
defaults written here. config.example.toml explains every key for people.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from wellspoken.adapters.caps import DANGEROUS, Caps
from wellspoken.adapters.exchange import Extensions
from wellspoken.adapters.vendor import Policy

Seconds = Annotated[float, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
Size = Annotated[int, Meta(ge=1)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]


class ConfigError(Exception):
    """The configuration cannot be used; the message names the key and what to do."""


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the proxy listens and how it stops; times in seconds."""

    listen: str = "127.0.0.1:8010"
    hosts: tuple[str, ...] = ()
    drain_delay: Seconds = 0.0
    drain_timeout: Seconds = 300.0


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what may take, in seconds; 0 means no limit where that is allowed."""

    connect: Positive = 5.0
    client_header: Positive = 10.0
    client_body: Positive = 30.0
    client_keep_alive: Positive = 75.0
    first_token_body: Seconds = 600.0
    first_token_stream: Seconds = 0.0
    between_chunks: Seconds = 120.0
    heartbeat: Positive = 15.0
    # vLLM (uvicorn) and llama.cpp (cpp-httplib) close an idle connection after 5 s; to drop ours
    # first leaves no moment in which a request is sent into a connection that is being closed.
    upstream_keep_alive: Positive = 4.0
    probe: Positive = 2.0


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of what, in bytes or requests."""

    header: Size = 64 * 1024
    body: Size = 32 * 1024 * 1024
    response: Size = 64 * 1024 * 1024
    inflight: Size = 1000
    scored_tokens: Size = 4096
    scoring: Size = 2


Endpoints = Annotated[tuple[Name, ...], Meta(max_length=64)]
Streams = Literal["both", "always", "never"]


class Backend(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One upstream server and how to speak with it."""

    name: Name = "default"
    url: str
    adapter: str = "auto"
    models: tuple[Name, ...] = ()
    aliases: dict[Name, Name] = {}
    upstream_model: Name | None = None
    key: str | None = None
    auth: Literal["none", "pass"] = "none"
    tokenizer: str | None = None
    tokenizer_download: bool = False
    extensions: Extensions = "known"
    keep: tuple[Name, ...] = ()
    bounds: Literal["openai", "backend"] = "openai"
    vendor: Policy = "pass"
    streams: Streams = "both"
    endpoints: Endpoints | None = None
    caps: Caps = Caps()
    ui: bool = False


class Engine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A local inference engine that the proxy starts itself and stands in front of."""

    kind: Literal["llamacpp"]
    model: str
    name: Name = "engine"
    alias: Name | None = None
    context: Annotated[int, Meta(ge=0)] = 0
    parallel: Annotated[int, Meta(ge=1)] = 4
    threads: Annotated[int, Meta(ge=0)] = 0
    gpu_layers: Annotated[int, Meta(ge=-1)] = -1
    start_timeout: Positive = 600.0
    tokenizer: str | None = None
    tokenizer_download: bool = False
    extensions: Extensions = "known"
    keep: tuple[Name, ...] = ()
    bounds: Literal["openai", "backend"] = "openai"
    vendor: Policy = "pass"
    endpoints: Endpoints | None = None
    caps: Caps = Caps()


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration: at least one backend, or an engine."""

    server: Server = Server()
    timeouts: Timeouts = Timeouts()
    limits: Limits = Limits()
    backend: tuple[Backend, ...] = ()
    engine: Engine | UnsetType = UNSET


ENV_PREFIX = "WELLSPOKEN_"
_SECTIONS: dict[str, type[Struct]] = {"server": Server, "timeouts": Timeouts, "limits": Limits}


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
    for section, value in (flags or {}).items():
        if isinstance(value, Mapping):
            _table(raw, section).update(value)
        else:
            raw[section] = value
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
    """Put WELLSPOKEN_LISTEN, WELLSPOKEN_TIMEOUTS_CONNECT, ... into their sections.

    Only the names of real keys are read: Kubernetes sets variables like WELLSPOKEN_PORT and
    WELLSPOKEN_SERVICE_HOST by itself for a service of that name.
    """
    for section, kind in _SECTIONS.items():
        middle = "" if section == "server" else section.upper() + "_"
        for key, hint in get_type_hints(kind, include_extras=True).items():
            variable = ENV_PREFIX + middle + key.upper()
            text = environ.get(variable)
            if text is None:
                continue
            value: Any = (
                [x.strip() for x in text.split(",") if x.strip()] if key == "hosts" else text
            )
            try:
                _table(raw, section)[key] = msgspec.convert(value, hint, strict=False)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{variable}={text!r}: {error}. Set or unset it.") from error


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
    parse_listen(config.server.listen)
    names = [backend.name for backend in config.backend]
    if config.engine is not UNSET:
        names.append(config.engine.name)
        _check_caps(config.engine.caps, "engine")
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


def normal_url(text: str) -> str:
    """Return a backend's base URL: with scheme, without /v1 and without a final slash.

    `localhost:8000`, `http://host:8000/` and `http://host:8000/v1` all name a server's root. Raises
    ConfigError for what is no http(s) URL, and for one that carries credentials, a query or a
    fragment.
    """
    url = text.strip()
    if "://" not in url:
        url = "http://" + url
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url: {text!r} is no URL ({error}). {_URL_HINT}") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.netloc[-1] == ":":
        raise ConfigError(f"url: {text!r} is no http(s) URL. {_URL_HINT}")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "url: it holds credentials, which would end up in logs. Take them out and set "
            'key = "env:NAME" (or --upstream-key env:NAME).'
        )
    if parts.query or parts.fragment or any(c.isspace() or not c.isprintable() for c in url):
        raise ConfigError(f"url: {text!r} has more than host, port and path. {_URL_HINT}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}{path}"


_URL_HINT = "Write it like http://localhost:8000."


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[v6]:port`, `:port` (every interface) or `port`.

    Raises ConfigError for anything else.
    """
    host, _, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ConfigError(
            f"listen: {text!r} is no address. Write it like 127.0.0.1:8010, or 0.0.0.0:8010 "
            "to be reachable from other machines."
        )
    if ":" not in text:
        host = "127.0.0.1"
    return host or "0.0.0.0", int(port)


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
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"key: cannot read {rest}. Check its path and rights.") from error
    secret = found.strip()
    if not secret or not (secret.isascii() and secret.isprintable()):
        raise ConfigError(f"key: {text} is empty or not plain ASCII text. Put the bare key there.")
    return secret
