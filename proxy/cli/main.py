"""The command `wellspoken`. What it needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, Final

from wellspoken.proxy.cli.options import (
    COMMANDS,
    bare_parser,
    nearest_command,
    serving_flags,
    serving_parser,
    start,
)

_URL_HELP: Final = """\
examples:
  wellspoken http://localhost:8000                    in front of vLLM, on 127.0.0.1:8010
  wellspoken localhost:8080 --adapter llamacpp        in front of llama.cpp
  wellspoken https://llm.example:8443 --upstream-key env:LLM_KEY
  wellspoken unix:/run/llm/api.sock                   a server on a unix socket
  wellspoken localhost:8000 --listen 0.0.0.0:8010 --key env:MY_KEY   for other machines too
  wellspoken doctor http://localhost:8000             what a server gets wrong, and what is mended
  wellspoken serve --config wellspoken.toml           several backends, all settings
  wellspoken check wellspoken.toml                    what is wrong with that file, line by line
  wellspoken config show wellspoken.toml              each setting, and what gave it
  wellspoken serve --engine vllm --model ORG/NAME     with a vLLM of its own
  wellspoken serve --engine llamacpp --model m.gguf   or a llama.cpp
  wellspoken convert old.jsonl > new.jsonl            stored answers instead of a server's
  wellspoken export --store chats.db > chats.jsonl    what store: true has kept; import reads it

Makes a self-hosted LLM server speak OpenAI's chat-completions contract exactly. Each command has a
--help of its own.
"""
_CONVERT_HELP: Final = """\
examples:
  wellspoken convert legacy.jsonl > chat.jsonl
  zcat legacy.jsonl.gz | wellspoken convert --rejects bad.jsonl > chat.jsonl
  wellspoken convert --to chat completions.jsonl > chat.jsonl
  wellspoken convert --adapter llamacpp native.jsonl > chat.jsonl

Makes stored answers conform, one JSON object a line, in their order: bare answers of any server,
records {"request": ..., "response": ...}, lines of OpenAI's batch output. What wraps an answer
stays. Without its request an answer keeps all it holds: every alternative, prompt_logprobs and
token_ids. An id or a created time that is none is replaced, the latter by the time of conversion.
Exit code: 0, 1 if lines were rejected, 2 for wrong usage.
"""


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
    """Run the command that the first argument names, or else serve that URL."""
    command = arguments[0] if arguments else ""
    if command == "help":
        return _command([*arguments[1:2], "--help"])
    if command == "convert":
        return _convert(arguments[1:])
    if command in ("export", "import"):
        from wellspoken.proxy.cli import transfer as cli_transfer

        return cli_transfer.main(arguments)
    if command == "serve":
        from wellspoken.proxy.cli import serve as cli_serve

        return cli_serve.main(arguments[1:])
    if command in ("check", "config"):
        from wellspoken.proxy.cli import config as cli_config

        return cli_config.main(arguments)
    if command == "doctor":
        from wellspoken.proxy.cli import doctor as cli_doctor

        return cli_doctor.main(arguments[1:])
    parser = _url_parser()
    if not arguments:
        parser.print_help()
        return 2
    if not command.startswith("-") and (problem := _no_url(command)):
        parser.error(problem)
    options = parser.parse_args(arguments)
    if problem := _no_url(options.url):
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
    near = nearest_command(word, COMMANDS)
    if not near and not re.search(r"\w", word):
        return f"{word!r} is no address. Write it like http://localhost:8000" if word else ""
    host = f"For a host of that name write http://{word}"
    return f"{word} is no command. Did you mean wellspoken {near}? {host}." if near else ""


def _convert(arguments: Sequence[str]) -> int:
    options = _convert_parser().parse_args(arguments)
    if sys.stdout is None:
        print("wellspoken: stdout is closed. Write > NEW behind the command.", file=sys.stderr)
        return 2
    try:
        from wellspoken.proxy.transfer.convert_command import ConvertOptions, run

        return run(
            ConvertOptions(
                file=options.file,
                adapter=options.adapter,
                rejects=options.rejects,
                chat=options.to == "chat",
                max_line=options.max_line,
            )
        )
    except KeyboardInterrupt:
        return 130  # while it was being loaded


class _Version(argparse.Action):
    """Looks the version up only when asked: that takes as long as all of --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from wellspoken.proxy.lifecycle.build import version

        print(f"wellspoken {version()}")
        parser.exit(0)


def _url_parser() -> argparse.ArgumentParser:
    parser = serving_parser(
        "wellspoken",
        "wellspoken URL [options] | wellspoken COMMAND ...",
        _URL_HELP,
    )
    parser.add_argument(
        "url", metavar="URL", help="the server's address, with or without /v1, or unix:/path"
    )
    parser.add_argument(
        "--adapter",
        default=None,
        help="what server it is: auto (default), openai, vllm, llamacpp, ...",
    )
    parser.add_argument(
        "--upstream-key",
        metavar="env:NAME",
        help="the key that the server wants: env:NAME or file:PATH, never the key itself",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME_OR_FILE",
        help="the model's tokenizer, for exact token bytes: a tiktoken encoding, a .tiktoken file "
        "or a tokenizer.json",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return parser


def _convert_parser() -> argparse.ArgumentParser:
    usage = "wellspoken convert [options] [FILE] > NEW"
    parser = bare_parser("wellspoken convert", usage, _CONVERT_HELP)
    parser.add_argument(
        "file", nargs="?", metavar="FILE", help="answers, one a line; - or none: stdin"
    )
    parser.add_argument(
        "--adapter",
        default="auto",
        help="what server gave the answers, where their shape does not tell: llamacpp, vllm, ...",
    )
    parser.add_argument(
        "--rejects",
        metavar="FILE",
        help='write {"line", "reason", "input"} of each rejected line here, not to stderr',
    )
    parser.add_argument(
        "--to",
        choices=("chat",),
        help="make chat completions of /v1/completions answers too (default: they stay)",
    )
    parser.add_argument(
        "--max-line",
        type=_size,
        default="256M",
        metavar="SIZE",
        help="reject longer lines: bytes, or with K, M or G (default 256M)",
    )
    return parser


def _size(text: str) -> int:
    """Return the bytes that `text` says."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    number = text if unit is None else text[:-1]
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 16 and int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size. Write it like 64M.")
    return int(number) * (unit or 1)


def _url_flags(options: argparse.Namespace) -> dict[str, Any]:
    backend = {
        "url": options.url,
        "adapter": options.adapter,
        "key": options.upstream_key,
        "tokenizer": options.tokenizer,
    }
    given = {key: value for key, value in backend.items() if value is not None}
    return {"backend": [given], **serving_flags(options)}
