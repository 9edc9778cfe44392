"""The command `wellspoken version`: what runs here, as a bug report needs it."""

from __future__ import annotations

import argparse
import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

from wellspoken.proxy.cli.options import add_options, bare_parser, package_folder

_HELP: Final = """\
examples:
  wellspoken version
  wellspoken version --json

Prints the versions of wellspoken, of Python and of what both use here, the
extras that are installed included, and the folder that has the guides, deploy/
and config.example.toml.
"""
_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:.*extra == ['\"]([\w-]+)['\"])?")
_DEVELOPMENT: Final = frozenset({"demo", "dev", "test"})  # extras that nothing of the proxy uses


def main(arguments: Sequence[str]) -> int:
    """Run `version`, the first argument; return the exit code."""
    options = parser_of("version").parse_args(arguments[1:])
    facts = dict(_facts())
    if options.json:
        import json

        print(json.dumps(facts, indent=1))
        return 0
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        print(f"{name.ljust(width)}{value}")
    return 0


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of `version`."""
    parser = bare_parser(f"wellspoken {command}", f"wellspoken {command} [--json]", _HELP)
    add_options(parser, {"--json": "for programs"})
    return parser


def _facts() -> Iterator[tuple[str, str]]:
    """Yield what runs here by its name; of an extra that is not installed nothing."""
    yield "wellspoken", version("wellspoken")
    yield "Python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "platform", platform.platform()
    for requirement in requires("wellspoken") or ():
        found = _REQUIREMENT.match(requirement)
        if found is None or found[2] in _DEVELOPMENT:
            continue
        try:
            yield found[1], version(found[1])
        except PackageNotFoundError:
            continue
    yield "folder", str(package_folder())
