"""The command `wellspoken import`: lines of JSON into the store, as `wellspoken export` wrote them.

Lines are read one at a time and stored in groups, so memory does not grow with the file.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial
from typing import Final

from msgspec import Struct

from wellspoken.proxy.store.completions import CompletionStore
from wellspoken.proxy.store.rows import Row
from wellspoken.proxy.terminal.drawing import Terminal
from wellspoken.proxy.transfer import jsonl, open_store
from wellspoken.proxy.transfer.import_lines import RowReader

ROWS: Final = 256
BYTES: Final = 4 << 20
"""What is stored at once."""
GZIP: Final = b"\x1f\x8b"
LONGEST: Final = 256 << 20  # bytes of a line


class ImportOptions(Struct, frozen=True):
    """What the command line says; `file` None or "-" is stdin."""

    config: str | None = None
    store: str | None = None
    key: str | None = None
    model: str | None = None
    rejects: str | None = None
    file: str | None = None


def summarize(tally: jsonl.Tally) -> str:
    """Return the last line of the command."""
    return tally.summarize(tally.lines, "imported", "there already")


def run(options: ImportOptions) -> int:
    """Import; return the exit code: 0, 1 if a line or the store failed, 2 for wrong usage."""
    return jsonl.run_command(partial(_import, options), summarize, progress=True)


def _import(options: ImportOptions, tally: jsonl.Tally, terminal: Terminal) -> None:
    with ExitStack() as stack:
        reader = RowReader(
            now=int(time.time()), owner=open_store.owner(options.key), model=options.model
        )
        lines = jsonl.JsonLines(jsonl.open_source(options.file, "import", stack), LONGEST)
        wanted = open_store.settings(options.config, options.store, made=True)
        open_store.refuse_overwriting(wanted, "--rejects", options.rejects)
        rejects = jsonl.Rejects(jsonl.open_rejects(options.rejects, lines.file, stack), terminal)
        target = stack.enter_context(open_store.open_for_command(wanted))
        group: list[Row] = []
        size = 0

        def import_line(line: bytes) -> None:
            nonlocal size
            if tally.lines == 1 and line.startswith(GZIP):
                raise jsonl.UsageError("the file is compressed: zcat FILE | wellspoken import ...")
            group.append(reader.row(line))
            size += len(line)
            if len(group) == ROWS or size >= BYTES:
                _store(target, group, tally)
                group.clear()
                size = 0

        jsonl.use_lines(lines, rejects, tally, import_line)
        _store(target, group, tally)
        rejects.close()


def _store(target: open_store.StoreRunner, group: list[Row], tally: jsonl.Tally) -> None:
    if group:
        new = target.run(_insert(target.store, group))
        tally.counts.update({"imported": new, "there already": len(group) - new})


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
