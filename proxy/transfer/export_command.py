"""The command `wellspoken export`: stored completions out, as lines of JSON.

They are read in pages and written as they come, so memory does not grow with the store.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from stat import S_ISREG
from typing import Final

from msgspec import Struct, structs

from wellspoken.proxy.lifecycle.terminal import Terminal
from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable
from wellspoken.proxy.store.rows import Position, Query, Row
from wellspoken.proxy.transfer.export_lines import Format, lines_of
from wellspoken.proxy.transfer.jsonl import (
    BLOCK,
    SHOWN,
    Tally,
    UsageError,
    run_command,
)
from wellspoken.proxy.transfer.open_store import (
    StoreRunner,
    open_for_command,
    owner,
    refuse_overwriting,
    settings,
)

MOST: Final = 64
BYTES: Final = 4 << 20
"""What a page has: a few rows where they are large, which they may be of some dozen MiB."""
AGAIN: Final = 0.5  # seconds after a page that failed
AGES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

_AGE: Final = re.compile(r"([0-9]{1,9})([smhdw])")
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:\d\d)?)?", re.ASCII
)


class ExportOptions(Struct, frozen=True):
    """What the command line says; `output` None or "-" is stdout."""

    config: str | None = None
    store: str | None = None
    since: str | None = None
    until: str | None = None
    metadata: Sequence[str] = ()
    model: str | None = None
    format: Format = "chat"
    key: str | None = None
    all: bool = False
    output: str | None = None


class Exports(Tally):
    """What was written so far, and why some was not."""

    def __init__(self, format: Format) -> None:
        self.format = format
        self.completions = self.lost = 0
        self.left_out: Counter[str] = Counter()

    def leave_out(self, reason: str) -> None:
        """Count a line that is not written."""
        self.left_out[reason] += 1

    def lose(self, problem: str, terminal: Terminal) -> None:
        """Count a completion that cannot be read, and say why of the first ones."""
        self.lost += 1
        if self.lost <= SHOWN:
            terminal.say(f"wellspoken: left out: {problem}")

    def progress(self) -> str:
        """Return what the line of progress says."""
        return f"{self.completions:,} completions, {self.lines:,} lines"

    def summary(self) -> str:
        """Return the last line of the command."""
        text = f"{_many(self.completions, 'completion')}, {_many(self.lines, 'line')} as "
        text += self.format
        if self.left_out:
            ordered = sorted(self.left_out.items(), key=lambda item: (-item[1], item[0]))
            listed = ", ".join(f"{reason} {times}" for reason, times in ordered)
            text += f"; {sum(self.left_out.values())} left out: {listed}"
        if self.lost:
            text += f"; {_many(self.lost, 'completion')} could not be read"
        return text


def run(options: ExportOptions) -> int:
    """Export; return the exit code: 0, 1 if the store, a row or the disk failed, 2: wrong usage."""
    to_stdout = options.output in (None, "-")
    seen = not (to_stdout and sys.stdout and sys.stdout.isatty())
    tally = Exports(options.format)
    work = partial(_run, options, tally)
    return run_command(work, tally, progress=seen, failures=(OSError, StoreError))


def _run(options: ExportOptions, tally: Exports, terminal: Terminal) -> int:
    with ExitStack() as stack:
        wanted = settings(options.config, options.store, made=False)
        query = _query(options)
        refuse_overwriting(wanted, "--output", None if options.output == "-" else options.output)
        source = stack.enter_context(open_for_command(wanted))
        out = LineWriter(stack.enter_context(_out(options.output)), tally)
        _export(source, query, out, options, terminal, tally)
    return tally.lost


def _export(
    source: StoreRunner,
    query: Query,
    out: LineWriter,
    options: ExportOptions,
    terminal: Terminal,
    tally: Exports,
) -> None:
    last = _last(source, query) if terminal.progress else None
    first: int | None = None
    while True:
        try:
            rows = _page(source, query)
        except Unusable as error:
            query = _past(source, query, error, terminal, tally)
            continue
        if not rows:
            return
        for row in rows:
            for line in lines_of(row, options.format, tally.leave_out, everything=options.all):
                out.add(line)
        out.flush()
        tally.completions += len(rows)
        at = rows[-1]
        first = rows[0].created if first is None else first
        terminal.tick(tally.progress, _share(first, at.created, last))
        query = structs.replace(
            query, after=Position(at.created, at.seq), limit=_limit(query.limit, rows)
        )
        rows.clear()  # so that the next page does not come beside it


class LineWriter:
    """Writes whole lines, some at once: what is cut off anywhere ends with one.

    `file` has no buffer of its own, so that closing it never waits for a reader.
    """

    def __init__(self, file: FileIO, tally: Exports) -> None:
        self.file = file
        self.tally = tally
        self.waiting: list[bytes] = []
        self.size = 0

    def add(self, line: bytes) -> None:
        """Write a line, given without its end, or keep it for a while."""
        self.waiting.append(line + b"\n")
        self.size += len(line)
        if self.size > BLOCK:
            self.flush()

    def flush(self) -> None:
        """Write what is kept, and count it."""
        data = b"".join(self.waiting)
        done = 0
        try:
            while done < len(data):
                done += self.file.write(memoryview(data)[done:]) or 0
        except OSError:
            whole = data.rfind(b"\n", 0, done) + 1
            self.tally.lines += data.count(b"\n", 0, whole)
            if S_ISREG(os.fstat(self.file.fileno()).st_mode):
                self.file.truncate(self.file.tell() - (done - whole))
            raise
        self.tally.lines += len(self.waiting)
        self.waiting, self.size = [], 0


def _page(source: StoreRunner, query: Query) -> list[Row]:
    """Return the next page, asking twice where the store or its large answers were out of reach."""
    try:
        return source.run(source.store.find(query))
    except Unavailable:
        time.sleep(AGAIN)
        return source.run(source.store.find(query))


def _past(
    source: StoreRunner, query: Query, error: Unusable, terminal: Terminal, tally: Exports
) -> Query:
    """Return how to go on where a page cannot be read: row by row, past one that is lost.

    One that was deleted while it was being read is there no more when it is asked for again.
    """
    alone = structs.replace(query, limit=1)
    first = source.run(source.store.positions(alone))
    if query.limit > 1 or not first:
        return alone
    try:
        source.run(source.store.find(alone))
        return alone
    except Unusable:
        if source.run(source.store.positions(alone)) != first:
            return alone
    tally.lose(str(error), terminal)
    return structs.replace(alone, after=first[0])


def _limit(limit: int, rows: list[Row]) -> int:
    """Return how many rows the next page has, if they are as large as these."""
    size = sum(len(row.answer) + len(row.parameters) + len(row.messages) for row in rows)
    return max(1, min(MOST, 2 * limit, BYTES * len(rows) // max(size, 1)))


def _last(source: StoreRunner, query: Query) -> int | None:
    """Return when the last completion was made that will be exported."""
    newest = structs.replace(query, descending=True, limit=1, messages=False)
    found = source.run(source.store.positions(newest))
    return found[0].created if found else None


def _share(first: int, now: int, last: int | None) -> float | None:
    """Return how much is done, by time: to count the rows could take longer than to write them."""
    return None if last is None or last <= first else min((now - first) / (last - first), 1.0)


def _query(options: ExportOptions) -> Query:
    now = time.time()
    since, until = moment(options.since, "--since", now), moment(options.until, "--until", now)
    if since is not None and until is not None and since >= until:
        raise UsageError("--since is not before --until, so there is nothing between them")
    return Query(
        owner=owner(options.key),
        limit=1,
        model=options.model,
        metadata=_pairs(options.metadata),
        since=since,
        until=until,
    )


def moment(text: str | None, option: str, now: float) -> int | None:
    """Return epoch seconds of a date, a time (RFC 3339, UTC unless it says more) or an age.

    Fractions are rounded up, which is exact: times in the store are whole seconds. Raises
    UsageError.
    """
    if text is None:
        return None
    if age := _AGE.fullmatch(text):
        return max(math.ceil(now - int(age[1]) * AGES[age[2]]), 0)
    try:
        if not _TIME.fullmatch(text):
            raise ValueError("not of that form")
        found = datetime.fromisoformat(text.upper())
        if found.tzinfo is None:
            found = found.replace(tzinfo=UTC)
        return max(math.ceil(found.timestamp()), 0)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option} {text!r} is no time ({error}). Write a date (2026-01-31), a time "
            "(2026-01-31T18:00:00Z) or an age (90m, 12h, 7d, 4w)"
        ) from None


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"--metadata {text!r} is no pair. Write it like team=search")
        if pairs.setdefault(key, value) != value:
            raise UsageError(f"--metadata has two values for {key!r}, and no completion has both")
    return pairs


def _out(name: str | None) -> FileIO:
    if name is None or name == "-":
        if sys.stdout is None:
            raise UsageError("stdout is closed; name a file: --output FILE")
        return open(sys.stdout.fileno(), "wb", 0, closefd=False)
    try:
        return open(name, "wb", 0)
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}") from error


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
