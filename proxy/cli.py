"""The command `wellspoken`. What it needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

_URL_HELP = """\
examples:
  wellspoken http://localhost:8000                    in front of vLLM, on 127.0.0.1:8010
  wellspoken localhost:8080 --adapter llamacpp        in front of llama.cpp
  wellspoken https://llm.example:8443 --upstream-key env:LLM_KEY
  wellspoken localhost:8000 --listen 0.0.0.0:8010 --key env:MY_KEY   for other machines too
  wellspoken serve --config wellspoken.toml           several backends, all settings
  wellspoken serve --engine llamacpp --model m.gguf   with a llama.cpp of its own
  wellspoken convert old.jsonl > new.jsonl            stored answers instead of a server's
  wellspoken export --store chats.db > chats.jsonl    what store: true has kept; import reads it

Makes a self-hosted LLM server speak OpenAI's chat-completions contract exactly.
"""
_SERVE_HELP = """\
examples:
  wellspoken serve --config wellspoken.toml
  wellspoken serve --engine llamacpp --model model.gguf
  wellspoken serve --config wellspoken.toml --listen 0.0.0.0:8010 --key file:keys.txt

Serves what a configuration file or an engine's flags say.
"""
_CONVERT_HELP = """\
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
    """Run the command line; return the exit code (2: wrong usage or configuration)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["convert"]:
        return _convert(arguments[1:])
    if arguments[:1] in (["export"], ["import"]):
        from wellspoken.proxy import cli_store

        return cli_store.main(arguments)
    if arguments[:1] == ["serve"]:
        options = _serve_parser().parse_args(arguments[1:])
        if (options.engine is None) != (options.model is None):
            print(
                "wellspoken: --engine and --model go together: "
                "wellspoken serve --engine llamacpp --model FILE.gguf",
                file=sys.stderr,
            )
            return 2
        flags = _serve_flags(options)
        file = options.config
    else:
        parser = _url_parser()
        if not arguments:
            parser.print_help()
            return 2
        options = parser.parse_args(arguments)
        flags = _url_flags(options)
        file = None
    return _run(file, flags)


def _convert(arguments: Sequence[str]) -> int:
    options = _convert_parser().parse_args(arguments)
    try:
        from wellspoken.proxy.convert import Options, run

        return run(
            Options(
                file=options.file,
                adapter=options.adapter,
                rejects=options.rejects,
                chat=options.to == "chat",
                max_line=options.max_line,
            )
        )
    except KeyboardInterrupt:
        return 130  # while it was being loaded


def _run(file: str | None, flags: dict[str, Any]) -> int:
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


class _Version(argparse.Action):
    """Looks the version up only when asked: that takes as long as all of --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from wellspoken.proxy.build import version

        print(f"wellspoken {version()}")
        parser.exit(0)


def _bare_parser(prog: str, usage: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _parser(prog: str, usage: str, description: str) -> argparse.ArgumentParser:
    parser = _bare_parser(prog, usage, description)
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


def _url_parser() -> argparse.ArgumentParser:
    parser = _parser(
        "wellspoken",
        "wellspoken URL [options] | wellspoken serve|convert|export|import ...",
        _URL_HELP,
    )
    parser.add_argument("url", metavar="URL", help="the server's address, with or without /v1")
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


def _serve_parser() -> argparse.ArgumentParser:
    parser = _parser("wellspoken serve", "wellspoken serve [options]", _SERVE_HELP)
    parser.add_argument("--config", metavar="FILE", help="a TOML file, see config.example.toml")
    parser.add_argument("--engine", choices=("llamacpp",), help="start this engine and serve it")
    parser.add_argument("--model", metavar="FILE", help="the engine's model, a .gguf file")
    return parser


def _convert_parser() -> argparse.ArgumentParser:
    usage = "wellspoken convert [options] [FILE] > NEW"
    parser = _bare_parser("wellspoken convert", usage, _CONVERT_HELP)
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
    return {"backend": [given], "server": _server_flags(options), **_auth_flags(options)}


def _serve_flags(options: argparse.Namespace) -> dict[str, Any]:
    engine = {"kind": options.engine, "model": options.model}
    given = {key: value for key, value in engine.items() if value is not None}
    flags: dict[str, Any] = {"server": _server_flags(options), **_auth_flags(options)}
    if given:
        flags["engine"] = given
    return flags


def _server_flags(options: argparse.Namespace) -> dict[str, Any]:
    return {} if options.listen is None else {"listen": options.listen}


def _auth_flags(options: argparse.Namespace) -> dict[str, Any]:
    if options.key is not None:
        return {"auth": {"keys": options.key}}
    return {} if options.auth is None else {"auth": options.auth}


if __name__ == "__main__":
    raise SystemExit(main())
