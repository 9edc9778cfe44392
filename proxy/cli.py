"""The command `wellspoken`. What it needs is imported when it runs, so that --help is quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from wellspoken.proxy.cli_options import bare_parser, serving_flags, serving_parser, start

_URL_HELP = """\
examples:
  wellspoken http://localhost:8000                    in front of vLLM, on 127.0.0.1:8010
  wellspoken localhost:8080 --adapter llamacpp        in front of llama.cpp
  wellspoken https://llm.example:8443 --upstream-key env:LLM_KEY
  wellspoken unix:/run/llm/api.sock                   a server on a unix socket
  wellspoken localhost:8000 --listen 0.0.0.0:8010 --key env:MY_KEY   for other machines too
  wellspoken serve --config wellspoken.toml           several backends, all settings
  wellspoken serve --engine vllm --model ORG/NAME     with a vLLM of its own
  wellspoken serve --engine llamacpp --model m.gguf   or a llama.cpp
  wellspoken convert old.jsonl > new.jsonl            stored answers instead of a server's
  wellspoken export --store chats.db > chats.jsonl    what store: true has kept; import reads it

Makes a self-hosted LLM server speak OpenAI's chat-completions contract exactly.
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
        from wellspoken.proxy import cli_serve

        return cli_serve.main(arguments[1:])
    parser = _url_parser()
    if not arguments:
        parser.print_help()
        return 2
    return start(None, _url_flags(parser.parse_args(arguments)))


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


class _Version(argparse.Action):
    """Looks the version up only when asked: that takes as long as all of --help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from wellspoken.proxy.build import version

        print(f"wellspoken {version()}")
        parser.exit(0)


def _url_parser() -> argparse.ArgumentParser:
    parser = serving_parser(
        "wellspoken",
        "wellspoken URL [options] | wellspoken serve|convert|export|import ...",
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


if __name__ == "__main__":
    raise SystemExit(main())
