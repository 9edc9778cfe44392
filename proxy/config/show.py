"""The configuration as it is in force: each value, and what gave it, without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from msgspec import UNSET, Struct, structs

from wellspoken.proxy.config import Examined
from wellspoken.proxy.config.engine_keys import LLAMACPP, VLLM
from wellspoken.proxy.config.places import Path
from wellspoken.proxy.config.problems import Origin, path_text
from wellspoken.proxy.config.secrets import HIDDEN
from wellspoken.proxy.config.tables import Engine
from wellspoken.proxy.config.values import is_reference

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_SECRET: Final = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_FLAG: Final = re.compile(
    r"(?<![a-z])(api)?(keys?|token|secret|passw(or)?d|credentials?)(?![a-z])", re.IGNORECASE
)
"""What a flag is called that takes a secret; --tokenizer and --max-num-batched-tokens take none."""

_PAIR: Final = re.compile(_FLAG.pattern + r"[\"']?\s*[:=]", re.IGNORECASE)


class Setting(NamedTuple):
    """One value, None where nothing is set, and what gave it."""

    path: Path
    value: Any
    origin: Origin


def rows(examined: Examined) -> Iterator[Setting]:
    """Give every value of a configuration in the order of its tables, secrets hidden."""
    yield from _rows(examined, (), examined.config)


def _rows(examined: Examined, path: Path, table: Struct) -> Iterator[Setting]:
    inner: list[tuple[Path, Struct]] = []
    # What the other kind of engine has would be refused if it stood in a file.
    alien: Mapping[str, str] = {}
    if isinstance(table, Engine):
        alien = VLLM if table.kind == "llamacpp" else LLAMACPP
    for key, value in structs.asdict(table).items():
        here = (*path, key)
        if key in alien:
            continue
        if isinstance(value, Struct):
            inner.append((here, value))
        elif here in (("backend",), ("auth", "client")):
            inner += [((*here, at), each) for at, each in enumerate(value)]
        elif value is not UNSET:
            stands = examined.layers.stands(here)
            origin = examined.layers.origin(here) if stands else Origin("default")
            yield Setting(here, visible(here, value), origin)
    for here, part in inner:
        yield from _rows(examined, here, part)


def as_toml(examined: Examined) -> str:
    """Return the configuration as a file that could be loaded, each line saying what gave it."""
    lines: list[tuple[str, str]] = []
    table: Path = ()
    for row in rows(examined):
        if row.path[:-1] != table:
            table = row.path[:-1]
            names = ".".join(part for part in table if isinstance(part, str))
            lines += [
                ("", ""),
                (f"[[{names}]]" if isinstance(table[-1], int) else f"[{names}]", ""),
            ]
        if row.value is None:
            lines.append((f"# {row.path[-1]} is not set", ""))
        else:
            lines.append((f"{row.path[-1]} = {toml(row.value)}", _origin_text(row.origin)))
    width = min(40, max(len(text) for text, said in lines if said))
    shown = (f"{text:<{width}} # {said}\n" if said else f"{text}\n" for text, said in lines)
    return "".join(shown).lstrip("\n")


def as_json(examined: Examined) -> str:
    """Return the configuration as JSON: a list of objects, one for each value."""
    found = [
        {"key": path_text(row.path), "value": row.value, **row.origin.as_json()}
        for row in rows(examined)
    ]
    return json.dumps(found, indent=1, ensure_ascii=False, default=_to_json)


def _to_json(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else list(value)


def _origin_text(origin: Origin) -> str:
    return f"{origin.name}:{origin.line}" if origin.line else str(origin)


def toml(value: Any) -> str:
    """Return a value as TOML writes it, on one line."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {toml(each)}" for name, each in value.items())
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    return repr(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml(name)


def visible(path: Path, value: Any) -> Any:
    """Return the value without what only the proxy may know.

    References (env:NAME, file:PATH) are shown: they are where a secret is, not the secret.
    """
    if path == ("engine", "environment") or path[-1] == "headers":
        return {name: text if is_reference(text) else HIDDEN for name, text in value.items()}
    if path == ("engine", "arguments"):
        return _arguments(value)
    if path in (("store", "url"), ("auth", "counters")) and value is not None:
        return value if is_reference(value.strip()) else _url(value)
    return value


def _arguments(given: tuple[str, ...]) -> list[str]:
    """Hide what a flag like --hf-token is given, and a text that names a secret inside."""
    found = []
    secret = False
    for word in given:
        flag, equals, _ = word.partition("=")
        if word.startswith("-"):
            named = _FLAG.search(flag) is not None
            secret = named and not equals
            hidden = equals and (named or _PAIR.search(word))
            found.append(f"{flag}={HIDDEN}" if hidden else word)
        else:
            found.append(HIDDEN if secret or _PAIR.search(word) else word)
            secret = False
    return found


def _url(text: str) -> str:
    """Hide a password and what a query says of a key."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return HIDDEN
    user, at, host = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    query = [
        f"{key}={HIDDEN}"
        if _SECRET.search(key) or "@" in unquote(value)  # a URL with a password
        else f"{key}{equals}{value}"
        for key, equals, value in (pair.partition("=") for pair in parts.query.split("&"))
    ]
    netloc = f"{name}{f':{HIDDEN}' if colon else ''}{at}{host}"
    return urlunsplit(parts._replace(netloc=netloc, query="&".join(query)))
