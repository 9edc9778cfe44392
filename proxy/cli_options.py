"""What the commands that serve have in common: options, and what they turn into."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def bare_parser(prog: str, usage: str, description: str) -> argparse.ArgumentParser:
    """Return a parser without options, whose help shows the description as it is written."""
    return argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def serving_parser(prog: str, usage: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of whatever listens."""
    parser = bare_parser(prog, usage, description)
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen (default 127.0.0.1:8010)"
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--key",
        metavar="env:NAME",
        action="append",
        help="the key that clients need: env:NAME, or file:PATH with one a line; repeat for more",
    )
    who.add_argument(
        "--auth", metavar="none", help="none: clients need no key, also from other machines"
    )
    return parser


def serving_flags(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `serving_parser`'s options say, shaped like a configuration file."""
    flags: dict[str, Any] = {"server": {}}
    if options.listen is not None:
        flags["server"]["listen"] = options.listen
    if options.key is not None:
        flags["auth"] = {"keys": options.key}
    elif options.auth is not None:
        flags["auth"] = options.auth
    return flags


def start(file: str | None, flags: dict[str, Any]) -> int:
    """Load the configuration and serve; return the exit code (2: it cannot be used)."""
    from pathlib import Path

    from wellspoken.proxy.config import load
    from wellspoken.proxy.config_values import ConfigError

    try:
        config = load(Path(file) if file is not None else None, flags)
    except ConfigError as error:
        print(f"wellspoken: {error}", file=sys.stderr)
        return 2
    from wellspoken.proxy.run import run

    return run(config)
