"""The command `wellspoken import`: lines of JSON into the store, as `wellspoken export` wrote them.

Lines are read one at a time and stored in groups, so memory does not grow with the file.
"""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from msgspec import Struct

from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.store.rows import Row
from wellspoken.proxy.transfer.converter import RejectedLine
from wellspoken.proxy.transfer.import_lines import Reader
from wellspoken.proxy.transfer.jsonl import (
    Lines,
    Rejects,
    Terminal,
    UsageError,
    finished,
    rejects_of,
    source_of,
)
from wellspoken.proxy.transfer.opening import Opened, opened, owner, settings, spare

ROWS: Final = 256
BYTES: Final = 4 << 20
"""What is stored at once."""
GZIP: Final = b"\x1f\x8b"
LONGEST: Final = 256 << 20  # bytes of a line


class Options(Struct, frozen=True):
    """What the command line says; `file` None or "-" is stdin."""

    config: str | None = None
    store: str | None = None
    key: str | None = None
    model: str | None = None
    rejects: str | None = None
    file: str | None = None


class Tally:
    """What came of the lines so far."""

    def __init__(self) -> None:
        self.lines = 0
        self.imported = 0
        self.present = 0
        self.rejected = 0

    def progress(self) -> str:
        """Return what the line of progress says."""
        rejected = f", {self.rejected:,} rejected" if self.rejected else ""
        return f"{self.lines:,} lines{rejected}"

    def summary(self) -> str:
        """Return the last line of the command."""
        return (
            f"{self.lines} {'line' if self.lines == 1 else 'lines'}: {self.imported} imported, "
            f"{self.present} there already, {self.rejected} rejected"
        )


def run(options: Options) -> int:
    """Import; return the exit code: 0, 1 if a line or the store failed, 2 for wrong usage."""
    terminal, tally = Terminal(sys.stderr, progress=sys.stderr.isatty()), Tally()
    return finished(partial(_run, options, terminal, tally), terminal, tally, (OSError, StoreError))


def _run(options: Options, terminal: Terminal, tally: Tally) -> int:
    with ExitStack() as stack:
        reader = Reader(now=int(time.time()), owner=owner(options.key), model=options.model)
        lines = Lines(source_of(options.file, "import", stack), LONGEST)
        wanted = settings(options.config, options.store, made=True)
        spare(wanted, "--rejects", options.rejects)
        rejects = Rejects(rejects_of(options.rejects, lines.file, stack), terminal)
        target = stack.enter_context(opened(wanted))
        try:
            _import(lines, reader, target, rejects, tally)
        finally:
            terminal.clear()
        rejects.close()
    return tally.rejected


def _import(lines: Lines, reader: Reader, target: Opened, rejects: Rejects, tally: Tally) -> None:
    group: list[Row] = []
    size = 0
    for number, line in lines:
        if number == 1 and line.startswith(GZIP):
            raise UsageError("the file is compressed: zcat FILE | wellspoken import ...")
        if line:
            tally.lines += 1
            try:
                if lines.over:
                    raise RejectedLine(f"longer than {lines.limit} bytes")
                group.append(reader.row(line))
                size += len(line)
            except RejectedLine as error:
                tally.rejected += 1
                rejects.add(number, str(error), line)
        if len(group) == ROWS or size >= BYTES:
            _store(target, group, tally)
            group, size = [], 0
        rejects.terminal.tick(tally.progress, lines.share)
    _store(target, group, tally)


def _store(target: Opened, group: list[Row], tally: Tally) -> None:
    if not group:
        return
    new = target.run(_insert(target.store, group))
    tally.imported += new
    tally.present += len(group) - new


async def _insert(store: CompletionStore, group: list[Row]) -> int:
    """Insert the rows that are not there yet; return how many."""
    there = await asyncio.gather(*(store.position(row.owner, row.id) for row in group))
    new: dict[tuple[str, str], Row] = {}
    for row, position in zip(group, there, strict=True):
        if position is None:
            new.setdefault((row.owner, row.id), row)
    if new:
        await store.insert(list(new.values()))
    return len(new)
