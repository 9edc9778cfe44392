"""The command `wellspoken completion`: what a shell reads to complete the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from wellspoken.proxy.cli import config as config_command
from wellspoken.proxy.cli.options import COMMANDS, bare_parser

SHELLS: Final = ("bash", "zsh", "fish")

_HELP: Final = """\
examples:
  wellspoken completion fish | source        in config.fish
  source <(wellspoken completion bash)       in ~/.bashrc
  eval "$(wellspoken completion zsh)"        in ~/.zshrc, after compinit

Prints what the shell reads to complete commands, options and files. It is made
by shtab: pip install "shtab>=1.13".
"""
_PATHS: Final = ("FILE", "MODEL", "NAME_OR_FILE", "PATH_OR_URL")
"""Values, as the help calls them, that are a file or may be."""

PURPOSE: Final = {
    "serve": "serve what a file says, or an engine of its own",
    "check": "what is wrong with a configuration",
    "config": "show a configuration, print its schema or an example",
    "doctor": "what a server gets wrong, and what is mended",
    "convert": "stored answers made to conform",
    "export": "stored completions as JSON lines",
    "import": "JSON lines as stored completions",
    "version": "what runs here",
    "completion": "what a shell reads to complete this",
}
"""Each command, as it is shown beside the others."""


def main(arguments: Sequence[str]) -> int:
    """Run `completion`, the first argument; return the exit code."""
    options = parser_of("completion").parse_args(arguments[1:])
    try:
        import shtab
    except ImportError:
        say = 'completion needs shtab: pip install "shtab>=1.13"'
        print(f"wellspoken: {say}", file=sys.stderr)
        return 1
    print(shtab.complete(_whole_parser(shtab.FILE), options.shell))
    return 0


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of `completion`."""
    usage = f"wellspoken {command} {'|'.join(SHELLS)}"
    parser = bare_parser(f"wellspoken {command}", usage, _HELP)
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads it")
    return parser


def _whole_parser(file: Any) -> argparse.ArgumentParser:
    """Return one parser of all commands, and of the options of a URL.

    Each command's own is made when it runs, so that each is quick. `file`: what shtab takes for a
    value that is a file.
    """
    from wellspoken.proxy.cli.main import url_parser

    whole = argparse.ArgumentParser("wellspoken", parents=[url_parser()], add_help=False)
    # A URL cannot be completed, and the commands stand in its place.
    whole._actions[:] = [action for action in whole._actions if action.option_strings]
    commands = whole.add_subparsers()
    for name, module in COMMANDS.items():
        parser = import_module(f"wellspoken.proxy.cli.{module}").parser_of(name)
        command = commands.add_parser(name, parents=[parser], add_help=False, help=PURPOSE[name])
        if name == "config":
            _add_words(command, file)
        _mark_files(command, file)
    words = commands.add_parser("help", help="how a command is used")
    words.add_argument("command", choices=tuple(COMMANDS))
    _mark_files(whole, file)
    return whole


def _add_words(config: argparse.ArgumentParser, file: Any) -> None:
    """Add the words of `config`, of which one has options."""
    words = config.add_subparsers()
    show = config_command.parser_of("config show")
    _mark_files(words.add_parser("show", parents=[show], add_help=False, help="what is set"), file)
    for name in config_command.PRINTED:
        words.add_parser(name, help=f"print the {name}")


def _mark_files(parser: argparse.ArgumentParser, file: Any) -> None:
    for action in parser._actions:
        if action.metavar in _PATHS:
            action.complete = file  # type: ignore[attr-defined]
