"""The commands `wellspoken export` and `wellspoken import` on the command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

_EXPORT_HELP = """\
examples:
  wellspoken export --config wellspoken.toml > train.jsonl
  wellspoken export --store chats.db --since 7d --metadata team=search > train.jsonl
  wellspoken export --store chats.db --format evals --model qwen3 -o evals.jsonl
  wellspoken export --store env:DATABASE_URL --format full | gzip > backup.jsonl.gz

Writes stored completions (store: true) as JSON lines, oldest first, also beside a running proxy.

formats:
  chat   OpenAI's fine-tuning: {"messages", "tools", "parallel_tool_calls"}, a line a choice.
         Left out, and counted: answers that were cut (length, content_filter) or are empty,
         and what fine-tuning refuses (audio, files).
  evals  OpenAI's evals: {"item": {"input", "metadata", ...}, "sample": {"output_text", ...}}
  full   everything, one line a completion; wellspoken import makes the same store of it

A completion that cannot be read, since the database is damaged, is told and left out.
Exit code: 0, 1 if the store, a completion or the disk failed, 2 for wrong usage.
"""
_IMPORT_HELP = """\
examples:
  wellspoken import --store chats.db backup.jsonl
  zcat backup.jsonl.gz | wellspoken import --store env:DATABASE_URL
  wellspoken import --config wellspoken.toml --key env:ALICE_KEY train.jsonl

Stores what wellspoken export wrote, in any of its formats, and records {"request", "response"} as
wellspoken convert takes them. Each line becomes a conforming chat completion. A line of the full
format keeps its id and owner; the others' ids are made of the line, so that what is there already
is skipped, and the same file may be imported again.
Exit code: 0, 1 if lines were rejected or the store failed, 2 for wrong usage.
"""


def main(arguments: Sequence[str]) -> int:
    """Run `export` or `import`, the first argument; return the exit code."""
    if sys.stderr is None:  # closed by who started it: what goes wrong is in the exit code
        sys.stderr = open(os.devnull, "w")
    try:
        return (_export if arguments[0] == "export" else _import)(arguments[1:])
    except KeyboardInterrupt:
        return 130  # while it was being loaded


def _export(arguments: Sequence[str]) -> int:
    options = _export_parser().parse_args(arguments)
    from wellspoken.proxy.transfer.export_command import ExportOptions, run

    return run(ExportOptions(**vars(options)))


def _import(arguments: Sequence[str]) -> int:
    options = _import_parser().parse_args(arguments)
    from wellspoken.proxy.transfer.import_command import ImportOptions, run

    return run(ImportOptions(**vars(options)))


def _parser(command: str, usage: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"wellspoken {command}",
        usage=f"wellspoken {command} {usage}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--config", metavar="FILE", help="the proxy's TOML file, with its [store]")
    which.add_argument(
        "--store",
        metavar="PATH_OR_URL",
        help="a SQLite file, or postgresql://..., better as env:NAME or file:PATH of where it "
        "stands (default: WELLSPOKEN_STORE_PATH or WELLSPOKEN_STORE_URL)",
    )
    return parser


def _text(given: str) -> str:
    """Return what is given, if JSON can hold it."""
    if any("\ud800" <= each <= "\udfff" for each in given):
        raise argparse.ArgumentTypeError("it is not UTF-8")
    return given


def _export_parser() -> argparse.ArgumentParser:
    parser = _parser("export", "[options] > FILE", _EXPORT_HELP)
    parser.add_argument(
        "--format", choices=("chat", "evals", "full"), default="chat", help="default: chat"
    )
    when = "a date, a time (2026-01-31T18:00:00Z; UTC) or an age (90m, 12h, 7d, 4w)"
    parser.add_argument("--since", metavar="WHEN", help=f"from then on: {when}")
    parser.add_argument("--until", metavar="WHEN", help="before then")
    parser.add_argument(
        "--metadata",
        metavar="KEY=VALUE",
        type=_text,
        action="append",
        default=[],
        help="only what has this pair; repeat for more",
    )
    parser.add_argument("--model", metavar="NAME", type=_text, help="only this model's answers")
    parser.add_argument(
        "--key", metavar="env:NAME", help="only what this client key stored; or file:PATH"
    )
    parser.add_argument(
        "--all",
        dest="everything",
        action="store_true",
        help="chat: answers that were cut or are empty, too",
    )
    parser.add_argument(
        "-o", "--output", dest="out", metavar="FILE", help="write here, not to stdout"
    )
    return parser


def _import_parser() -> argparse.ArgumentParser:
    parser = _parser("import", "[options] [FILE]", _IMPORT_HELP)
    parser.add_argument("file", nargs="?", metavar="FILE", help="lines; - or none: stdin")
    parser.add_argument(
        "--key",
        metavar="env:NAME",
        help="the client key that may see them; or file:PATH (default: whose they were, else "
        "everybody where no keys are configured)",
    )
    parser.add_argument(
        "--model", metavar="NAME", type=_text, help="of lines that name none (default unknown)"
    )
    parser.add_argument(
        "--rejects",
        metavar="FILE",
        help='write {"line", "reason", "input"} of each rejected line here, not to stderr',
    )
    return parser
