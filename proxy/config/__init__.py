"""The configuration: typed, checked as a whole, and loaded from flags, environment and file.

Flags win over `WELLSPOKEN_*` environment variables, these over the TOML file, the file over the
defaults in config/tables.py. config.example.toml explains every key for people.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wellspoken.proxy.config.checks import NO_BACKEND, check_rules
from wellspoken.proxy.config.layers import Layers
from wellspoken.proxy.config.problems import Origin, Problem, is_covered
from wellspoken.proxy.config.tables import Config, Store
from wellspoken.proxy.config.types import convert_all
from wellspoken.proxy.config.values import ConfigError, store_url

__all__ = ["Config", "ConfigSource", "Examined", "Store", "check", "examine", "load", "store_url"]


class Examined(NamedTuple):
    """What a configuration says, and all that is wrong with it.

    Where there are problems, `config` is what is left without what is wrong.
    """

    config: Config
    problems: list[Problem]
    layers: Layers

    def origin(self, problem: Problem) -> Origin:
        """Return what has to be corrected."""
        if problem.origin is not None:
            return problem.origin
        return self.layers.origin(problem.path, at_key=problem.at_key)

    def describe(self, problem: Problem) -> str:
        """Return what is wrong, behind its place unless the text names that itself."""
        origin = self.origin(problem)
        named = origin.kind in ("flag", "default") or origin.is_named_in(problem.text)
        return problem.text if named else f"{origin}: {problem.text}"


def load(
    file: Path | None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Return the configuration of `file`, overridden by `environ`, overridden by `flags`.

    `flags` is shaped like the file, `{"server": {"listen": ...}, "backend": [...]}`; lists replace.
    Raises ConfigError for the first problem; its message says where it is (file:line:column, or the
    variable), names the key and says what to do. Of others it says how many there are.
    """
    examined = examine(file, flags, environ)
    if examined.problems:
        first, *others = map(examined.describe, examined.problems)
        more = f" And {len(others)} more: wellspoken check {file or ''}".rstrip() if others else ""
        raise ConfigError(first + more)
    return examined.config


def examine(
    file: Path | None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Examined:
    """Return what `load` would, and everything that is wrong with it.

    Raises ConfigError for a file that cannot be read.
    """
    layers = Layers(file, flags or {}, os.environ if environ is None else environ)
    if not layers.readable:
        return Examined(Config(), layers.problems, layers)
    config, mistyped = convert_all(layers.raw)
    problems = [*layers.problems, *mistyped]
    given = any(problem.path[:1] in (("backend",), ("engine",)) for problem in problems)
    for problem in check_rules(config):
        if not (given if problem.text == NO_BACKEND else is_covered(problem, mistyped)):
            problems.append(problem)
    return Examined(config, problems, layers)


class ConfigSource(NamedTuple):
    """A configuration file, flags and environment: what a configuration is made of.

    `file` None: there are flags and environment alone. `environ` None: the process's own, which
    nobody changes from outside, so what a reload finds anew is in files.
    """

    file: Path | None
    flags: Mapping[str, Any] | None = None
    environ: Mapping[str, str] | None = None

    def load(self) -> Config:
        """Return the configuration as it is now; it reads a file. Raises ConfigError."""
        return load(self.file, self.flags, self.environ)

    @property
    def advice(self) -> str:
        """What to do about a configuration that cannot be used, "" where it is no file."""
        if self.file is None:
            return ""
        return f"to look again without starting anything: wellspoken check {self.file}"

    def examine(self) -> Examined:
        """Return what `load` would, and everything that is wrong with it. Raises ConfigError."""
        return examine(self.file, self.flags, self.environ)


def check(config: Config) -> None:
    """Raise ConfigError for what types cannot say: addresses, clashes, keys that exclude others."""
    for problem in check_rules(config):
        raise ConfigError(problem.text)
