"""What the commands that serve have in common: options, and what they turn into."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn

if TYPE_CHECKING:
    from pathlib import Path
    from socket import socket

    from wellspoken.proxy.config import Config

COMMANDS: Final = {
    "serve": "serve",
    "check": "config",
    "config": "config",
    "doctor": "doctor",
    "convert": "transfer",
    "export": "transfer",
    "import": "transfer",
    "version": "version",
    "completion": "completion",
}
"""Each command's module: its `main` takes it with what stands after it, its `parser_of` parses."""

_SERVING: Final = {
    "--listen HOST:PORT": "where to listen (default 127.0.0.1:8010); or unix:/path",
    "--workers N": "processes that answer (default 1)",
    "--log-format {auto,text,json}": "auto: text on a terminal, else json",
    "--log-level {debug,info,warning,error}": "info",
    "--watch": "read the file again when it changes, as SIGHUP does",
}
_TLS: Final = {
    "--tls-certificate FILE": "speak https, with this certificate (PEM)",
    "--tls-key FILE": "its key, where that stands in another file",
    "--tls-client-ca FILE": "clients need a certificate of this authority",
}
UPSTREAM_TLS: Final = {
    "--upstream-ca FILE": "the authority whose certificate an https server has (PEM)",
    "--upstream-certificate FILE": "the certificate that the server wants of its clients",
    "--upstream-certificate-key FILE": "its key, where that stands in another file",
    "--upstream-server-name NAME": "what the server's certificate is for, if not the URL's host",
}
_HOW_MUCH: Final = {
    "-q, --quiet": "say only what went wrong",
    "-v, --verbose": "on a terminal: all of each request, repairs by name",
}
_WHO: Final = {
    "--key env:NAME...": "the key that clients need: env:NAME, or file:PATH with one a line; "
    "repeat for more",
    "--auth none": "none: clients need no key, also from other machines",
}


class Parser(argparse.ArgumentParser):
    """A parser that says of what it does not know what was probably meant."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        options, unknown = self.parse_known_args(args)
        several = next((each for each in self._actions if each.nargs in ("+", "*")), None)
        if several is not None and not any(word.startswith("-") for word in unknown):
            getattr(options, several.dest).extend(unknown)  # those that stand behind an option
        elif unknown:
            self.error(f"unknown: {' '.join(unknown)}.{self.suggestion(unknown[0])}")
        return options

    def suggestion(self, word: str) -> str:
        """Return a question, with a blank before it, whether a near option was meant; else ""."""
        flag = word.partition("=")[0]
        near = nearest_command(flag, self._option_string_actions) if flag.startswith("-") else ""
        return f" Did you mean {near}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where the help is; exit with 2."""
        end = "" if message.endswith((".", "?")) else "."
        self.exit(2, f"wellspoken: {message}{end} See {self.prog} --help\n")


def nearest_command(word: str, known: Iterable[str]) -> str:
    """Return the one of `known` that `word` probably means, "" if none is near."""
    import difflib

    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)), "")


def bare_parser(prog: str, usage: str, description: str) -> Parser:
    """Return a parser without options, whose help shows the description as it is written."""
    return Parser(
        prog=prog,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


_NARGS: Final = {"[]": "?", "...": "+", "[...]": "*"}


def add_options(
    parser: argparse._ActionsContainer,
    table: Mapping[str, str],
    types: Mapping[str, Callable[[str], object]] = MappingProxyType({"N": int}),
) -> None:
    """Add the options of a table: how each is written, as `-f, --flag VALUE`, and its help.

    A flag alone is a switch, `{a,b}` a choice, `VALUE...` may be repeated, and what has no flag
    stands for itself: `[VALUE]` if it may be left out, `VALUE...` one or more, `[VALUE...]` any
    number. `types`: what reads which VALUE.
    """
    for written, text in table.items():
        names, _, value = written.rpartition(" ")
        shown = value.strip("[.]")
        if value.startswith("-"):
            flags = written.split(", ")
            parser.add_argument(*flags, action="store_true", help=text)
        elif value.startswith("{"):
            parser.add_argument(names, choices=value[1:-1].split(","), help=text)
        elif not names:
            nargs = _NARGS.get(value.replace(shown, ""))
            parser.add_argument(shown.lower(), nargs=nargs, metavar=shown, help=text)
        else:
            action = "append" if value.endswith("...") else "store"
            kind: Any = types.get(shown)
            flags = names.split(", ")
            parser.add_argument(*flags, action=action, type=kind, metavar=shown, help=text)


def serving_parser(prog: str, usage: str, description: str) -> Parser:
    """Return a parser with the options of whatever listens."""
    parser = bare_parser(prog, usage, description)
    add_options(parser, _SERVING)
    add_options(parser, _TLS)
    add_options(parser.add_mutually_exclusive_group(), _HOW_MUCH)
    parser.set_defaults(watch=None, verbose=None)
    add_options(parser.add_mutually_exclusive_group(), _WHO)
    return parser


def serving_flags(options: argparse.Namespace) -> dict[str, Any]:
    """Return what `serving_parser`'s options say, shaped like a configuration file."""
    flags: dict[str, Any] = {"server": {}}
    if options.quiet:
        flags["log"] = {"level": "warning", "banner": False}
    for section, key in (
        ("server", "listen"),
        ("server", "workers"),
        ("server", "watch"),
        ("log", "log_format"),
        ("log", "log_level"),
        ("log", "verbose"),
    ):
        value = getattr(options, key)
        if value is not None:
            flags.setdefault(section, {})[key.removeprefix("log_")] = value
    tls = {key: getattr(options, f"tls_{key}") for key in ("certificate", "key", "client_ca")}
    if given := {key: value for key, value in tls.items() if value is not None}:
        flags["tls"] = given
    if options.key is not None:
        flags["auth"] = {"keys": options.key}
    elif options.auth is not None:
        flags["auth"] = options.auth
    return flags


def upstream_tls(options: argparse.Namespace) -> dict[str, str] | None:
    """Return what the options of `UPSTREAM_TLS` say, as a backend's table has it."""
    names = {
        "ca": options.upstream_ca,
        "certificate": options.upstream_certificate,
        "key": options.upstream_certificate_key,
        "server_name": options.upstream_server_name,
    }
    return {key: value for key, value in names.items() if value is not None} or None


def package_folder() -> Path:
    """Return the folder with the guides, deploy/ and config.example.toml, of a wheel or a checkout.

    Of this file's own place, since the editable install has folders for the namespace that
    importlib.resources does not take.
    """
    from pathlib import Path

    return Path(__file__).parents[2]


def start(file: str | None, flags: dict[str, Any]) -> int:
    """Load the configuration and serve; return the exit code (2: it cannot be used)."""
    from pathlib import Path

    from wellspoken.proxy.config import ConfigSource
    from wellspoken.proxy.config.layers import doubtful_variables
    from wellspoken.proxy.config.rules.backend_rules import doubtful_urls
    from wellspoken.proxy.config.rules.pool_rules import doubtful_pools
    from wellspoken.proxy.config.values import ConfigError

    source = ConfigSource(Path(file) if file is not None else None, flags)
    try:
        examined = source.examine()
    except ConfigError as error:
        print(f"wellspoken: {error}", file=sys.stderr)
        return 2
    if examined.problems:
        from wellspoken.proxy.lifecycle.findings import describe_errors

        for line in describe_errors(examined):
            print(f"wellspoken: {line}", file=sys.stderr)
        if source.advice:
            print(f"wellspoken: {source.advice}", file=sys.stderr)
        return 2
    config = examined.config
    doubts = (*doubtful_urls(config.backend), *doubtful_pools(config))
    for doubt in (*doubtful_variables(os.environ), *doubts):
        print(f"wellspoken: {doubt.text}", file=sys.stderr)
    if config.server.workers > 1:
        from wellspoken.proxy import workers

        return workers.run(config, source)
    sockets = _listening(config)
    with _loading():
        from wellspoken.proxy.lifecycle.run import run
    return run(config, source, sockets)


@contextmanager
def _loading() -> Iterator[None]:
    """Have the rest loaded without what takes time and is of no use.

    What is loaded now stays, so the collector finds nothing in it. aiohttp's client, which nobody
    uses here, reads all certificates of this machine when it is loaded (60 ms, 2 MB); it gets none.
    """
    name = "SSL_CERT_FILE"
    before = os.environ.get(name)
    os.environ[name] = os.devnull
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _listening(config: Config) -> list[socket]:
    """Return sockets that listen, while the rest is still to be loaded, which takes longer.

    None where that fails: whoever needs them tries once more, and says why.
    """
    from wellspoken.proxy.http.sockets import listening

    try:
        return listening(config.server.listen, mode=int(config.server.socket_mode, 8))
    except OSError:
        return []
