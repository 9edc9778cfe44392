"""The command `wellspoken convert`: stored answers in, one a line, OpenAI's answers out.

Lines are read, converted and written one at a time, so memory does not grow with the file.
"""

from __future__ import annotations

import secrets
import sys
import time
from contextlib import ExitStack
from functools import partial

from msgspec import Struct

from wellspoken.adapters.servers import registry
from wellspoken.proxy.terminal.drawing import Terminal
from wellspoken.proxy.transfer import jsonl
from wellspoken.proxy.transfer.converter import Converter


class ConvertOptions(Struct, frozen=True):
    """What the command line says; `file` None or "-" is stdin, `max_line` in bytes."""

    file: str | None = None
    adapter: str = "auto"
    rejects: str | None = None
    to: str | None = None
    max_line: int = 256 << 20


def summarize(tally: jsonl.Tally) -> str:
    """Return the last line of the command; `tally.reasons` are repairs."""
    # What is being converted when an interrupt comes is not counted.
    lines = tally.counts.total() + tally.rejected
    counted = tally.summarize(lines, "converted", "unchanged")
    return f"{counted}; repairs: {tally.list_reasons() or 'none'}"


def run(options: ConvertOptions) -> int:
    """Convert; return the exit code: 0, 1 if a line was rejected, 2 for what cannot be used."""
    return jsonl.run_command(
        partial(_convert, options), summarize, progress=not sys.stdout.isatty()
    )


def _convert(options: ConvertOptions, tally: jsonl.Tally, terminal: Terminal) -> None:
    with ExitStack() as files:
        converter = _converter(options)
        lines = jsonl.JsonLines(jsonl.open_source(options.file, "convert", files), options.max_line)
        rejects = jsonl.Rejects(jsonl.open_rejects(options.rejects, lines.file, files), terminal)
        # Not sys.stdout's own buffer: under PYTHONUNBUFFERED that writes no more than fits.
        out = open(sys.stdout.fileno(), "wb", jsonl.BLOCK, closefd=False)
        files.enter_context(out)

        def convert_line(line: bytes) -> None:
            converted = converter.convert(line)
            out.write(converted.line)
            out.write(b"\n")
            tally.counts["converted" if converted.changed else "unchanged"] += 1
            tally.reasons.update(converted.repairs)
            if not lines.regular:
                out.flush()  # what comes bit by bit leaves bit by bit

        try:
            jsonl.use_lines(
                lines, rejects, tally, convert_line, hint="; --max-line raises the limit"
            )
        finally:
            out.flush()
        rejects.close()


def _converter(options: ConvertOptions) -> Converter:
    try:
        backend = registry.find(options.adapter)
    except ValueError as error:
        raise jsonl.UsageError(f"--adapter: {error}") from error
    return Converter(
        now=int(time.time()),
        new_id=lambda: secrets.token_hex(12),
        backend=backend,
        chat=options.to == "chat",
    )
