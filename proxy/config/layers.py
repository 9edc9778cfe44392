"""The layers of a configuration put together: defaults, file, WELLSPOKEN_* variables and flags."""

from __future__ import annotations

import re
import shlex
import tomllib
from ast import literal_eval
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path as File
from typing import Any, Final

import msgspec

from wellspoken.proxy.config.places import Path, Place, places, position
from wellspoken.proxy.config.problems import Origin, Problem, nearest
from wellspoken.proxy.config.tables import REMOVED, Config
from wellspoken.proxy.config.types import choice, hints_of, tables_in
from wellspoken.proxy.config.units import unit_of
from wellspoken.proxy.config.values import ConfigError

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a file; what has more, as /dev/zero, is none."""

ENV_PREFIX: Final = "WELLSPOKEN_"
_SECTIONS: Final = (
    *("server", "tls", "timeouts", "limits", "health", "store", "log", "traces", "engine"),
)
"""The tables that variables exist for."""

_TABLES: Final = frozenset({"caps", "environment"})  # keys that no variable can hold
_WITH_COMMAS: Final = frozenset(
    {"cors", "hosts", "inherit", "keep", "endpoints", "forward_headers", "fallback"}
)
# What Kubernetes sets by itself in every pod for a service of this name.
_CLUSTERS: Final = re.compile(r"WELLSPOKEN_(\w+_)?(SERVICE_(HOST|PORT)|PORT)(_\w+)?", re.ASCII)
# A table, as tomllib names it: the tuple of its keys.
_TUPLE: Final = re.compile(r"\(['\"].*['\"],?\)")
_IN_A_VARIABLE: Final = {"bool": "true or false", "int": "a whole number"}
_FLAGS: Final = {
    ("backend", "url"): "URL",
    ("backend", "key"): "--upstream-key",
    ("backend", "tls", "ca"): "--upstream-ca",
    ("backend", "tls", "certificate"): "--upstream-certificate",
    ("backend", "tls", "key"): "--upstream-certificate-key",
    ("backend", "tls", "server_name"): "--upstream-server-name",
    ("tls", "certificate"): "--tls-certificate",
    ("tls", "key"): "--tls-key",
    ("tls", "client_ca"): "--tls-client-ca",
    ("engine", "kind"): "--engine",
    ("engine", "arguments"): "--",
    ("auth",): "--auth",
    ("auth", "keys"): "--key",
    ("log", "format"): "--log-format",
    ("log", "level"): "--log-level",
    ("log", "banner"): "--quiet",
}


class Layers:
    """What file, variables and flags say, and which of them said what.

    `raw` is shaped like the file, with the variables and flags put over it; `problems` are those
    of the variables, or that the file is no TOML (`readable`). Raises ConfigError for a file that
    cannot be read.
    """

    def __init__(
        self, file: File | None, flags: Mapping[str, Any], environ: Mapping[str, str]
    ) -> None:
        self.file = file
        self.raw: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self._text = ""
        self._places: dict[Path, Place] = {}
        self._over: dict[Path, Origin] = {}
        self.readable = file is None or self._read(file)
        self._from_environ(environ)
        self._auth_from_environ(environ)
        for section, value in flags.items():
            if isinstance(value, Mapping) and section != "auth":  # a table or "none", as given
                for key, said in value.items():
                    self._put((section, key), said, Origin("flag", _flag((section, key))))
            else:
                if isinstance(given := self.raw.get(section), dict) and isinstance(value, Mapping):
                    value = {**given, **value}  # other keys, and the same clients with a name
                self.raw[section] = value
                self._over[(section,)] = Origin("flag", _flag((section,)))

    def _read(self, file: File) -> bool:
        """Take what a file says; say whether it is TOML. Raises ConfigError if it is not there."""
        try:
            with file.open("rb") as opened:
                data = opened.read(LARGEST + 1).removeprefix(BOM_UTF8)  # what Notepad begins with
        except (OSError, ValueError) as error:  # a NUL in its name
            why = getattr(error, "strerror", None) or error
            raise ConfigError(
                f"cannot read {file}: {why}. Give --config the path of a TOML file; "
                "wellspoken config example prints one to start from."
            ) from error
        if len(data) > LARGEST:
            text = (
                f"{file} has more than {LARGEST >> 20} MiB. Give --config the path of a TOML file."
            )
            raise ConfigError(text)
        try:
            self._text = data.decode()
            self.raw = tomllib.loads(self._text)
        except UnicodeDecodeError as error:
            before = data[: error.start].decode()
            where, said = position(before, len(before)), "this is no UTF-8 text"
        except RecursionError:
            where, said = (1, 1), "it is nested too deeply"
        except tomllib.TOMLDecodeError as error:
            said, _, place = str(error).rpartition(" (at ")
            said = _TUPLE.sub(_name_table, said)
            numbers = [int(number) for number in re.findall(r"\d+", place)]
            where = (
                (numbers[0], numbers[1])
                if len(numbers) == 2
                else position(self._text, len(self._text.rstrip()))  # at the end of the document
            )
        else:
            return True
        text = f"the file is not TOML: {said}. Correct that line."
        self.problems.append(Problem((), text, origin=Origin("file", str(file), *where)))
        return False

    def origin(self, path: Path, *, at_key: bool = False) -> Origin:
        """Return what gave the value at `path`, or the table around it: the nearest that is known.

        `at_key`: of a file the place of the key, not of the value.
        """
        for size in range(len(path), 0, -1):
            if origin := self._over.get(path[:size]):
                return Origin("flag", _flag(path)) if origin.kind == "flag" else origin
        if self.file is None:
            return Origin("default")
        found = self._where()
        for size in range(len(path), 0, -1):
            if place := found.get(path[:size]):
                # What is missing in a table is told at the table's header.
                offset = place.key if at_key or size < len(path) else place.value
                return Origin("file", str(self.file), *position(self._text, offset))
        return Origin("file", str(self.file))

    def stands(self, path: Path) -> bool:
        """Say whether a file, a variable or a flag gives a value to `path` itself."""
        if not any(path[:size] in self._over for size in range(1, len(path) + 1)):
            return path in self._where()
        here: Any = self.raw
        try:
            for part in path:
                here = here[part]
        except (KeyError, IndexError, TypeError):
            return False
        return True

    def _where(self) -> dict[Path, Place]:
        """Return the places of the file, looked for when first asked."""
        if not self._places and self._text:
            with suppress(ValueError):  # then the file is named without a line
                self._places = places(self._text)
        return self._places

    def _put(self, path: tuple[str, str], value: Any, origin: Origin) -> None:
        section, key = path
        table = self.raw.setdefault(section, {})
        if isinstance(table, dict):  # else its type is a problem already
            table[key] = value
            self._over[path] = origin

    def _from_environ(self, environ: Mapping[str, str]) -> None:
        """Put WELLSPOKEN_LISTEN, WELLSPOKEN_ENGINE_MODEL, ... into their sections."""
        for variable, section, key, hint in _variables():
            text = environ.get(variable)
            if text is None:
                continue
            origin = Origin("variable", variable)
            try:
                value = msgspec.convert(_decode(section, key, text, hint), hint, strict=False)
            except (msgspec.ValidationError, ValueError) as error:
                what = _to_write(str(error), text, hint)
                text = f"{variable}={text!r}: {what} Or unset it."
                self.problems.append(Problem((section, key), text, origin=origin))
            else:
                self._put((section, key), value, origin)
        for path, said in REMOVED.items():
            variable = ENV_PREFIX + "_".join(path).upper()
            if variable in environ:
                origin = Origin("variable", variable)
                self.problems.append(Problem(path, f"{variable}: {said}", origin=origin))

    def _auth_from_environ(self, environ: Mapping[str, str]) -> None:
        """Let WELLSPOKEN_AUTH=none or _AUTH_KEYS=env:A,file:B replace what the file says."""
        names = (f"{ENV_PREFIX}AUTH", f"{ENV_PREFIX}AUTH_KEYS")
        whole, keys = (environ.get(name) for name in names)
        origin = Origin("variable", names[0] if keys is None else names[1])
        if keys is not None and whole is not None:
            text = f"{names[0]} and {names[1]} are both set. Unset one."
            self.problems.append(Problem(("auth",), text, origin=origin))
            return
        if whole is not None:
            self.raw["auth"] = whole
            self._over[("auth",)] = origin
        if keys is not None:
            references = [part.strip() for part in keys.split(",") if part.strip()]
            if not references:  # an empty value must not open what the file has closed
                text = f"{names[1]} is empty. Write env:NAME or file:PATH."
                self.problems.append(Problem(("auth",), text, origin=origin))
            given = self.raw.get("auth")
            self.raw["auth"] = {**(given if isinstance(given, dict) else {}), "keys": references}
            self._over[("auth",)] = origin


def _name_table(keys: re.Match[str]) -> str:
    return f"[{'.'.join(literal_eval(keys[0]))}]"


def doubtful_variables(environ: Mapping[str, str]) -> Iterator[Problem]:
    """Give the variables that nothing reads and whose name is nearly that of one which is read.

    Kubernetes sets WELLSPOKEN_PORT, WELLSPOKEN_SERVICE_HOST and more by itself for a service of
    that name, so a name is not doubted for its beginning alone.
    """
    known = [variable for variable, *_ in _variables()]
    known += [f"{ENV_PREFIX}AUTH", f"{ENV_PREFIX}AUTH_KEYS"]
    for name in environ:
        if not name.upper().startswith(ENV_PREFIX) or name in known or _CLUSTERS.fullmatch(name):
            continue
        short = name.upper().removeprefix(ENV_PREFIX)
        rests = {each.removeprefix(ENV_PREFIX): each for each in known}
        near = rests.get(short.removeprefix("SERVER_")) or rests.get(nearest(short, rests), "")
        if near:
            text = f"{name}: nothing reads this variable. Did you mean {near}?"
            yield Problem((), text, origin=Origin("variable", name))
        elif short == "URL" or short.startswith(("BACKEND_", "UPSTREAM_")):
            text = f"{name}: nothing reads this variable. Backends are named in a file, or as URL."
            yield Problem((), text, origin=Origin("variable", name))


def _variables() -> Iterator[tuple[str, str, str, Any]]:
    """Give every variable with the section, the key and the type that it is for.

    Those alone are read: Kubernetes sets some by itself for a service of this name.
    """
    tables = hints_of(Config)
    for section in _SECTIONS:
        (kind,) = tables_in(tables[section])
        middle = "" if section == "server" else section.upper() + "_"
        for key, hint in hints_of(kind).items():
            if key not in _TABLES:
                yield ENV_PREFIX + middle + key.upper(), section, key, hint


def _decode(section: str, key: str, text: str, hint: Any) -> Any:
    """Return what a variable's text means for this key. Raises ValueError."""
    if key in _WITH_COMMAS:
        return [part.strip() for part in text.split(",") if part.strip()]
    if section == "engine" and key == "arguments":
        return shlex.split(text)
    unit = unit_of(hint)
    return unit.read(text) if unit is not None else text


def _to_write(said: str, text: str, hint: Any) -> str:
    """Return in a sentence what a variable may hold whose text does not fit."""
    for expected, how in _IN_A_VARIABLE.items():
        if said == f"Expected `{expected}`, got `str`":
            return f"Write {how}."
    if " Write " in said:
        return said
    return choice(text, hint) or f"{said.rstrip('.')}. Correct it."


def _flag(path: Path) -> str:
    """Return the flag of the command line that sets a key."""
    names = tuple(part for part in path if isinstance(part, str))
    for size in range(len(names), 0, -1):
        if flag := _FLAGS.get(names[:size]):
            return flag
    return "--" + names[-1].replace("_", "-")
