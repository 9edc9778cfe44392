"""The commands `wellspoken check` and `wellspoken config`: a configuration, looked at."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from wellspoken.proxy.cli.options import (
    Parser,
    add_options,
    bare_parser,
    nearest_command,
    package_folder,
)
from wellspoken.proxy.cli.serve import flags_of, serve_options, split_arguments
from wellspoken.proxy.terminal.colour import Colour

if TYPE_CHECKING:  # loaded when a configuration is looked at, so that --help is quick
    from wellspoken.proxy.config import Examined

_CHECK: Final = """\
examples:
  wellspoken check wellspoken.toml              what would keep it from starting
  wellspoken check --file-only wellspoken.toml  in CI: not keys, models, ports
  wellspoken check --json wellspoken.toml
  wellspoken check                              WELLSPOKEN_* variables alone

Says of a configuration all that is wrong with it, each with its line and
column, and starts nothing. Servers that share a model are asked whether they
fit each other (models, context, vocabulary). Variables and flags count as they
do for wellspoken serve.
Exit code: 0, 1 if something is wrong, 2 if the file cannot be read or for wrong
usage.
"""
_CONFIG: Final = """\
examples:
  wellspoken config example > wellspoken.toml      a file to start from
  wellspoken config show wellspoken.toml           each value, and what gave it
  wellspoken config show --json wellspoken.toml
  wellspoken config show --listen 0.0.0.0:8010 --auth none wellspoken.toml
  wellspoken config schema > wellspoken.schema.json

show prints the configuration in force as a file, without secrets; a comment
says what gave each value: a flag, a variable, a line of the file, or the
default. schema prints the JSON Schema of such a file; example prints
config.example.toml, which explains every key. What is wrong with a
configuration, wellspoken check says.
Exit code: 0, 1 if the configuration cannot be used, 2 for wrong usage.
"""
_FILE_ONLY: Final = {
    "--file-only": "not whether keys, tokenizers, models, the database and the port are there, and "
    "whether servers of one model fit each other"
}


def main(arguments: Sequence[str]) -> int:
    """Run `check` or `config`, the first argument; return the exit code."""
    if arguments[0] == "check":
        return _check(arguments[1:])
    word = next((each for each in arguments[1:] if not each.startswith("-")), "")
    if word == "show":
        rest = list(arguments[1:])
        rest.remove("show")
        return _show(rest)
    parser = parser_of("config")
    if word in PRINTED:
        parser.add_argument("word", help=argparse.SUPPRESS)
        parser.parse_args(arguments[1:])
        return PRINTED[word]()
    if not word:
        parser.parse_args(arguments[1:])
        parser.print_help()
        return 2
    near = nearest_command(word, ("show", *PRINTED))
    parser.error(f"{word} is no command of config. " + (f"Did you mean {near}?" if near else ""))


def _examine(parser: Parser, arguments: Sequence[str]) -> tuple[Any, Examined | None]:
    """Return the options and what they, the file and the environment say.

    None for a file that cannot be read, which is told.
    """
    ours, theirs = split_arguments(arguments)
    options = parser.parse_args(ours)
    if options.file is not None and options.config is not None:
        parser.error("FILE and --config FILE mean the same. Give one of them.")
    from pathlib import Path

    from wellspoken.proxy.config import examine
    from wellspoken.proxy.config.values import ConfigError

    file = options.file if options.file is not None else options.config
    try:
        found = examine(Path(file) if file is not None else None, flags_of(options, theirs))
    except ConfigError as error:
        said = str(error).replace("Give --config the path", "Give the path")
        print(f"wellspoken: {said}", file=sys.stderr)
        return options, None
    return options, found


def parser_of(command: str) -> Parser:
    """Return the parser of `check`, of `config show`, or of `config`'s other words."""
    prog = f"wellspoken {command}"
    if command == "config":
        return bare_parser(prog, f"{prog} show|schema|example ...", _CONFIG)
    text = _CHECK if command == "check" else _CONFIG
    parser = serve_options(prog, f"{prog} [options] [FILE]", text)
    add_options(parser, {"[FILE]": "a TOML file, as --config", "--json": "for programs"})
    if command == "check":
        add_options(parser, _FILE_ONLY)
    return parser


def _check(arguments: Sequence[str]) -> int:
    options, examined = _examine(parser_of("check"), arguments)
    if examined is None:
        return 2
    from wellspoken.proxy.lifecycle.findings import findings, in_json, in_words

    outside = not options.file_only
    found = findings(examined, outside=outside, servers=outside)
    wrong = any(finding.severity == "error" for finding in found)
    if options.json:
        print(in_json(examined, found))
    else:
        print(in_words(examined, found, Colour.of(sys.stdout)))
    return 1 if wrong else 0


def _show(arguments: Sequence[str]) -> int:
    options, examined = _examine(parser_of("config show"), arguments)
    if examined is None:
        return 2
    if examined.problems:
        first, *more = examined.problems
        origin = examined.origin(first)
        where = "" if origin.kind == "default" else f"{origin}: "
        print(f"wellspoken: {where}{first.text}", file=sys.stderr)
        if more:
            said = f"and {len(more)} more: wellspoken check {examined.layers.file or ''}".rstrip()
            print(f"wellspoken: {said}", file=sys.stderr)
        return 1
    from wellspoken.proxy.config.show import as_json, as_toml

    print(as_json(examined) if options.json else as_toml(examined).rstrip("\n"))
    return 0


def _schema() -> int:
    import json

    from wellspoken.proxy.config.json_schema import schema

    print(json.dumps(schema(), indent=1, ensure_ascii=False))
    return 0


def _print_example() -> int:
    print((package_folder() / "config.example.toml").read_text("utf-8"), end="")
    return 0


PRINTED: Final = {"schema": _schema, "example": _print_example}
"""What `config` prints without looking at a configuration."""
