"""The command `wellspoken convert`: stored answers in, one a line, OpenAI's answers out.

Lines are read, converted and written one at a time, so memory does not grow with the file.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from typing import BinaryIO

from msgspec import Struct

from wellspoken.adapters.servers import registry
from wellspoken.proxy.transfer.converter import Converter, RejectedLine
from wellspoken.proxy.transfer.jsonl import (
    BLOCK,
    Lines,
    Rejects,
    Terminal,
    UsageError,
    finished,
    rejects_of,
    source_of,
)


class Options(Struct, frozen=True):
    """What the command line says; `file` None or "-" is stdin, `max_line` in bytes."""

    file: str | None = None
    adapter: str = "auto"
    rejects: str | None = None
    chat: bool = False
    max_line: int = 256 << 20


class Tally:
    """What came of the lines so far; `repairs` by name."""

    def __init__(self) -> None:
        self.converted = 0
        self.unchanged = 0
        self.rejected = 0
        self.repairs: Counter[str] = Counter()

    @property
    def lines(self) -> int:
        """All lines that were not blank."""
        return self.converted + self.unchanged + self.rejected

    def progress(self) -> str:
        """Return what the line of progress says."""
        rejected = f", {self.rejected:,} rejected" if self.rejected else ""
        return f"{self.lines:,} lines{rejected}"

    def summary(self) -> str:
        """Return the last line of the command."""
        counts = (
            f"{self.lines} {'line' if self.lines == 1 else 'lines'}: {self.converted} converted, "
            f"{self.unchanged} unchanged, {self.rejected} rejected"
        )
        ordered = sorted(self.repairs.items(), key=lambda item: (-item[1], item[0]))
        listed = ", ".join(f"{name} {times}" for name, times in ordered)
        return f"{counts}; repairs: {listed or 'none'}"


def run(options: Options) -> int:
    """Convert; return the exit code: 0, 1 if a line was rejected, 2 for what cannot be used."""
    terminal = Terminal(sys.stderr, progress=sys.stderr.isatty() and not sys.stdout.isatty())
    tally = Tally()
    return finished(partial(_run, options, terminal, tally), terminal, tally)


def _run(options: Options, terminal: Terminal, tally: Tally) -> int:
    with ExitStack() as files:
        converter = _converter(options)
        lines = Lines(source_of(options.file, "convert", files), options.max_line)
        rejects = Rejects(rejects_of(options.rejects, lines.file, files), terminal)
        # Not sys.stdout's own buffer: under PYTHONUNBUFFERED that writes no more than fits.
        out = open(sys.stdout.fileno(), "wb", BLOCK, closefd=False)
        files.enter_context(out)
        _convert(lines, converter, out, rejects, tally)
    return tally.rejected


def _convert(
    lines: Lines, converter: Converter, out: BinaryIO, rejects: Rejects, tally: Tally
) -> None:
    try:
        for number, line in lines:
            if line:
                _one(number, line, lines, converter, out, rejects, tally)
                if not lines.regular:
                    out.flush()  # what comes bit by bit leaves bit by bit
            rejects.terminal.tick(tally.progress, lines.share)
    finally:
        rejects.terminal.clear()
        out.flush()
    rejects.close()


def _one(
    number: int,
    line: bytes,
    lines: Lines,
    converter: Converter,
    out: BinaryIO,
    rejects: Rejects,
    tally: Tally,
) -> None:
    try:
        if lines.over:
            raise RejectedLine(f"longer than {lines.limit} bytes; --max-line raises the limit")
        converted = converter.convert(line)
    except RejectedLine as error:
        tally.rejected += 1
        rejects.add(number, str(error), line)
        return
    except Exception as error:
        error.add_note(f"in line {number}")
        raise
    out.write(converted.line)
    out.write(b"\n")
    if converted.changed:
        tally.converted += 1
    else:
        tally.unchanged += 1
    tally.repairs.update(converted.repairs)


def _converter(options: Options) -> Converter:
    try:
        backend = registry.find(options.adapter)
    except ValueError as error:
        raise UsageError(f"--adapter: {error}") from error
    return Converter(
        now=int(time.time()),
        new_id=lambda: secrets.token_hex(12),
        backend=backend,
        chat=options.chat,
    )
