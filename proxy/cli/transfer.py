"""The commands `wellspoken convert`, `wellspoken export` and `wellspoken import`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from wellspoken.proxy.cli.options import add_options, bare_parser

_CONVERT_HELP: Final = """\
examples:
  wellspoken convert legacy.jsonl > chat.jsonl
  zcat legacy.jsonl.gz | wellspoken convert --rejects bad.jsonl > chat.jsonl
  wellspoken convert --to chat completions.jsonl > chat.jsonl
  wellspoken convert --adapter llamacpp native.jsonl > chat.jsonl

Makes stored answers conform, one JSON object a line, in their order: bare
answers of any server, records {"request": ..., "response": ...}, lines of
OpenAI's batch output. What wraps an answer stays. Without its request an answer
keeps all it holds: every alternative, prompt_logprobs and token_ids. An id or a
created time that is none is replaced, the latter by the time of conversion.
Exit code: 0, 1 if lines were rejected, 2 for wrong usage.
"""
_EXPORT_HELP: Final = """\
examples:
  wellspoken export --config wellspoken.toml > train.jsonl
  wellspoken export --store chats.db --since 7d --metadata team=a > train.jsonl
  wellspoken export --store chats.db --format evals --model qwen3 -o evals.jsonl
  wellspoken export --store env:DATABASE_URL --format full | gzip > all.jsonl.gz

Writes stored completions (store: true) as JSON lines, oldest first, also beside
a running proxy. Responses (of /v1/responses) are in the full format alone, with
--key behind the completions; the others leave them out, and count them.

formats:
  chat   OpenAI's fine-tuning: {"messages", "tools", "parallel_tool_calls"}, a
         line a choice. Left out, and counted: answers that were cut (length,
         content_filter) or are empty, and what fine-tuning refuses (audio,
         files).
  evals  OpenAI's evals: {"item": {"input", "metadata", ...},
         "sample": {"output_text", ...}}
  full   everything, one line a completion or response, a response with all
         that it continues; wellspoken import makes the same store of it

What cannot be read, since the database is damaged, is told and left out.
Exit code: 0, 1 if the store, a row of it or the disk failed, 2 for wrong usage.
"""
_IMPORT_HELP: Final = """\
examples:
  wellspoken import --store chats.db backup.jsonl
  zcat all.jsonl.gz | wellspoken import --store env:DATABASE_URL
  wellspoken import --config wellspoken.toml --key env:ALICE_KEY train.jsonl

Stores what wellspoken export wrote, in any of its formats, and records
{"request", "response"} as wellspoken convert takes them. Each line becomes a
conforming chat completion, or of the full format the response that it was. A
line of that format keeps its id and owner; the others' ids are made of the
line, so that what is there already is skipped, and the same file may be
imported again.
Exit code: 0, 1 if lines were rejected or the store failed, 2 for wrong usage.
"""


_REJECTS: Final = {
    "--rejects FILE": 'write {"line", "reason", "input"} of each rejected line here, not to stderr',
}
_CONVERT: Final = {
    "[FILE]": "answers, one a line; - or none: stdin",
    "--adapter ADAPTER": "what server gave the answers, where their shape does not tell: "
    "llamacpp, vllm, ...",
    **_REJECTS,
    "--to {chat}": "make chat completions of /v1/completions answers too (default: they stay)",
    "--max-line SIZE": "reject longer lines: bytes, or with K, M or G (default 256M)",
}
_STORE: Final = {
    "--config FILE": "the proxy's TOML file, with its [store]",
    "--store PATH_OR_URL": "a SQLite file, or postgresql://..., better as env:NAME or file:PATH of "
    "where it stands (default: WELLSPOKEN_STORE_PATH or WELLSPOKEN_STORE_URL)",
}
_EXPORT: Final = {
    "--format {chat,evals,full}": "default: chat",
    "--since WHEN": "from then on: a date, a time (2026-01-31T18:00:00Z; UTC) or an age (90m, 12h, "
    "7d, 4w)",
    "--until WHEN": "before then",
    "--metadata KEY=VALUE...": "only what has this pair; repeat for more",
    "--model NAME": "only this model's answers",
    "--key env:NAME": "only what this client key stored; or file:PATH",
    "--all": "chat: answers that were cut or are empty, too",
    "-o, --output FILE": "write here, not to stdout",
}
_IMPORT: Final = {
    "[FILE]": "lines; - or none: stdin",
    "--key env:NAME": "the client key that may see them; or file:PATH (default: whose they were, "
    "else everybody where no keys are configured)",
    "--model NAME": "of lines that name none (default unknown)",
    **_REJECTS,
}


def main(arguments: Sequence[str]) -> int:
    """Run `convert`, `export` or `import`, the first argument; return the exit code."""
    command, *rest = arguments
    options = parser_of(command).parse_args(rest)
    return {"convert": _convert, "export": _export, "import": _import}[command](options)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return the parser of `convert`, `export` or `import`."""
    if command == "convert":
        usage = "wellspoken convert [options] [FILE] > NEW"
        parser = bare_parser("wellspoken convert", usage, _CONVERT_HELP)
        add_options(parser, _CONVERT, {"SIZE": _size})
        parser.set_defaults(adapter="auto", max_line="256M")
        return parser
    if command == "export":
        stored = _store_parser("export", "[options] > FILE", _EXPORT_HELP)
        add_options(stored, _EXPORT, _TEXTS)
        stored.set_defaults(format="chat", metadata=[])
        return stored
    stored = _store_parser("import", "[options] [FILE]", _IMPORT_HELP)
    add_options(stored, _IMPORT, _TEXTS)
    return stored


def _convert(options: argparse.Namespace) -> int:
    if sys.stdout is None:
        print("wellspoken: stdout is closed. Write > NEW behind the command.", file=sys.stderr)
        return 2
    from wellspoken.proxy.transfer.convert_command import ConvertOptions, run

    return run(ConvertOptions(**vars(options)))


def _size(text: str) -> int:
    """Return the bytes that `text` says."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:].upper())
    number = text if unit is None else text[:-1]
    if not (number.isascii() and number.isdigit() and 0 < len(number) < 16 and int(number)):
        raise argparse.ArgumentTypeError(f"{text!r} is no size. Write it like 64M.")
    return int(number) * (unit or 1)


def _export(options: argparse.Namespace) -> int:
    from wellspoken.proxy.transfer.export_command import ExportOptions, run

    return run(ExportOptions(**vars(options)))


def _import(options: argparse.Namespace) -> int:
    from wellspoken.proxy.transfer.import_command import ImportOptions, run

    return run(ImportOptions(**vars(options)))


def _store_parser(command: str, usage: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"wellspoken {command}",
        usage=f"wellspoken {command} {usage}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser.add_mutually_exclusive_group(), _STORE)
    return parser


def _text(given: str) -> str:
    """Return what is given, if JSON can hold it."""
    if any("\ud800" <= each <= "\udfff" for each in given):
        raise argparse.ArgumentTypeError("it is not UTF-8")
    return given


_TEXTS: Final = {"KEY=VALUE": _text, "NAME": _text}
