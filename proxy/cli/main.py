"""The command `wellspoken`. What it needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from wellspoken.proxy.cli.options import (
    COMMANDS,
    UPSTREAM_TLS,
    add_options,
    nearest_command,
    serving_flags,
    serving_parser,
    start,
    upstream_tls,
)

_URL_HELP: Final = """\
examples:
  wellspoken http://localhost:8000               in front of vLLM
  wellspoken localhost:8080 --adapter llamacpp   in front of llama.cpp
  wellspoken unix:/run/llm/api.sock              a server on a unix socket
  wellspoken http://gpu1:8000 http://gpu2:8000   two that have the same models
  wellspoken https://llm.example:8443 --upstream-key env:LLM_KEY
  wellspoken localhost:8000 --listen 0.0.0.0:8010 --key env:MY_KEY
                                                 for other machines too
  wellspoken doctor http://localhost:8000        what a server gets wrong
  wellspoken serve --config wellspoken.toml      several backends, all settings
  wellspoken config example > wellspoken.toml    a file to start from
  wellspoken check wellspoken.toml               what is wrong with a file
  wellspoken config show wellspoken.toml         each setting, and what gave it
  wellspoken serve --engine vllm --model ORG/NAME     a vLLM of its own
  wellspoken serve --engine llamacpp --model m.gguf   or a llama.cpp
  wellspoken convert old.jsonl > new.jsonl       stored answers, mended
  wellspoken export --store chats.db > chats.jsonl    what `store: true` kept;
                                                 import reads it
  wellspoken version                             what a bug report needs
  wellspoken completion bash                     for bash, zsh or fish

Makes a self-hosted LLM server speak OpenAI's contract exactly. Each command has
a --help of its own.
"""
_URL_OPTIONS: Final = {
    "URL...": "the server's address, with or without /v1, or unix:/path; several: servers of the "
    "same models, which share the requests",
    "--adapter ADAPTER": "what server it is: auto (default), openai, vllm, llamacpp, ...",
    "--upstream-key env:NAME": "the key that the server wants: env:NAME or file:PATH, never the "
    "key itself",
    "--tokenizer NAME_OR_FILE": "the model's tokenizer, for exact token bytes: a tiktoken "
    "encoding, a .tiktoken file or a tokenizer.json",
    **UPSTREAM_TLS,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    2: wrong usage or configuration; 130: Ctrl-C; 141: nobody reads stdout any more.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _use_streams(writes=arguments[:1] in (["convert"], ["export"]))
    try:
        try:
            return _command(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # while it can still be told that this fails
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _leave_stdout()
        return 141
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        _leave_stdout()
        print(f"wellspoken: cannot write to stdout: {error.strerror}.", file=sys.stderr)
        return 1


_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def _use_streams(*, writes: bool) -> None:
    """Have a stdout and a stderr that take every text, whatever the shell has given.

    A number that is closed would else become that of a connection. `writes`: what goes to stdout is
    what the command is for, so that without one it is refused.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None and not (writes and name == "stdout"):
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave_stdout() -> None:
    """Let what is still to be written go nowhere, so that the interpreter's end is quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _command(arguments: list[str]) -> int:
    """Run the command that the first argument names, or else serve that URL, or those."""
    command = arguments[0] if arguments else ""
    if command == "help":
        return _command([*arguments[1:2], "--help"])
    if command in COMMANDS:
        module = import_module(f"wellspoken.proxy.cli.{COMMANDS[command]}")
        code: int = module.main(arguments)
        return code
    parser = url_parser()
    if not arguments:
        parser.print_help()
        return 2
    if not command.startswith("-") and (problem := _no_url(command)):
        parser.error(problem)
    options = parser.parse_args(arguments)
    for url in options.url:
        if problem := _no_url(url):
            parser.error(problem)
    return start(None, _url_flags(options))


_FILE: Final = re.compile(r"(?!\w+:)[^?#]*\.(toml|gguf)", re.IGNORECASE | re.DOTALL)
_OPTIONS: Final = {"toml": "--config", "gguf": "--engine llamacpp --model"}


def _no_url(word: str) -> str:
    """Return what to do about a word that is a command, or nearly one, "" for an address.

    A name without a dot or a port may be a host's too, so it must be near, and http:// decides;
    so does it for a host whose name ends like a file's.
    """
    if word in COMMANDS:
        return f"{word} is a command, so it comes first, as in: wellspoken {word}"
    if file := _FILE.fullmatch(word):
        option = _OPTIONS[file[1].lower()]
        return f"{word} is a file, no address. Write wellspoken serve {option} {word}"
    if re.search(r"[.:/\[\]]", word) or word == "localhost":
        return ""
    if word.isascii() and word.isdigit():
        return f"{word} is no address. Write the port behind its host, as in: localhost:{word}"
    near = nearest_command(word, COMMANDS)
    if not near and not re.search(r"\w", word):
        return f"{word!r} is no address. Write it like http://localhost:8000" if word else ""
    host = f"For a host of that name write http://{word}"
    return f"{word} is no command. Did you mean wellspoken {near}? {host}." if near else ""


class _Version(argparse.Action):
    """Looks the version up only when asked: that takes as long as all of --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from wellspoken.proxy.lifecycle.build import version

        print(f"wellspoken {version()}")
        parser.exit(0)


def url_parser() -> argparse.ArgumentParser:
    """Return the parser of what stands without a command."""
    usage = "wellspoken URL... [options] | wellspoken COMMAND ..."
    parser = serving_parser("wellspoken", usage, _URL_HELP)
    add_options(parser, _URL_OPTIONS)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return parser


def _url_flags(options: argparse.Namespace) -> dict[str, Any]:
    backend = {
        "url": options.url[0] if len(options.url) == 1 else options.url,
        "adapter": options.adapter,
        "key": options.upstream_key,
        "tokenizer": options.tokenizer,
        "tls": upstream_tls(options),
    }
    given = {key: value for key, value in backend.items() if value is not None}
    return {"backend": [given], **serving_flags(options)}
