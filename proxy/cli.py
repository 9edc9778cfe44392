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
  wellspoken https://llm.example:8443 --upstream-key env:LLM_KEY --listen 0.0.0.0:8010
  wellspoken serve --config wellspoken.toml           several backends, all settings
  wellspoken serve --engine llamacpp --model m.gguf   with a llama.cpp of its own

Makes a self-hosted LLM server speak OpenAI's chat-completions contract exactly.
"""
_SERVE_HELP = """\
examples:
  wellspoken serve --config wellspoken.toml
  wellspoken serve --engine llamacpp --model model.gguf
  wellspoken serve --config wellspoken.toml --listen 0.0.0.0:8010

Serves what a configuration file or an engine's flags say.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (2: wrong usage or configuration)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
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


def _run(file: str | None, flags: dict[str, Any]) -> int:
    from pathlib import Path

    from wellspoken.proxy.config import ConfigError, load

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


def _parser(prog: str, usage: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=usage,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen (default 127.0.0.1:8010)"
    )
    return parser


def _url_parser() -> argparse.ArgumentParser:
    parser = _parser("wellspoken", "wellspoken URL [options] | wellspoken serve ...", _URL_HELP)
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


def _url_flags(options: argparse.Namespace) -> dict[str, Any]:
    backend = {
        "url": options.url,
        "adapter": options.adapter,
        "key": options.upstream_key,
        "tokenizer": options.tokenizer,
    }
    given = {key: value for key, value in backend.items() if value is not None}
    return {"backend": [given], "server": _server_flags(options)}


def _serve_flags(options: argparse.Namespace) -> dict[str, Any]:
    engine = {"kind": options.engine, "model": options.model}
    given = {key: value for key, value in engine.items() if value is not None}
    flags: dict[str, Any] = {"server": _server_flags(options)}
    if given:
        flags["engine"] = given
    return flags


def _server_flags(options: argparse.Namespace) -> dict[str, Any]:
    return {} if options.listen is None else {"listen": options.listen}


if __name__ == "__main__":
    raise SystemExit(main())
