"""The command `wellspoken export`: stored completions and responses out, as lines of JSON.

They are read in pages and written as they come, so memory does not grow with the store.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from stat import S_ISREG
from typing import Final

from msgspec import Struct, structs

from wellspoken.proxy.store.database import Unavailable, Unusable
from wellspoken.proxy.store.kept_responses import is_response, owner_of_rows
from wellspoken.proxy.store.rows import Query, Row
from wellspoken.proxy.terminal.drawing import Terminal
from wellspoken.proxy.transfer import jsonl, open_store
from wellspoken.proxy.transfer.export_lines import Format, lines_of

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


def summarize(format: Format, tally: jsonl.Tally) -> str:
    """Return the last line of the command; `tally.reasons` say why lines are missing."""
    text = jsonl.count_of(tally.counts["completions"], "completion")
    if tally.counts["responses"]:
        text += f" and {jsonl.count_of(tally.counts['responses'], 'response')}"
    text += f", {jsonl.count_of(tally.lines, 'line')} as {format}"
    if tally.reasons:
        text += f"; {tally.reasons.total()} left out: {tally.list_reasons()}"
    if tally.rejected:
        text += f"; {jsonl.count_of(tally.rejected, 'row')} could not be read"
    return text


def run(options: ExportOptions) -> int:
    """Export; return the exit code: 0, 1 if the store, a row or the disk failed, 2: wrong usage."""
    to_stdout = options.output in (None, "-")
    seen = not (to_stdout and sys.stdout and sys.stdout.isatty())
    return jsonl.run_command(
        partial(_run, options), partial(summarize, options.format), progress=seen
    )


def _run(options: ExportOptions, tally: jsonl.Tally, terminal: Terminal) -> None:
    with ExitStack() as stack:
        wanted = open_store.settings(options.config, options.store, made=False)
        queries = _queries(options)
        open_store.refuse_overwriting(
            wanted, "--output", None if options.output == "-" else options.output
        )
        source = stack.enter_context(open_store.open_for_command(wanted))
        out = LineWriter(stack.enter_context(_out(options.output)), tally)
        for query in queries:
            _export(options, Pages(source, query, tally, terminal), out)


def _export(options: ExportOptions, pages: Pages, out: LineWriter) -> None:
    tally, terminal = pages.tally, pages.terminal
    last = pages.last() if terminal.progress else None
    first: int | None = None

    def leave_out(reason: str) -> None:
        tally.reasons[reason] += 1

    def progress() -> str:
        return f"{tally.counts['completions']:,} completions, {tally.lines:,} lines"

    for rows in pages:
        for row in rows:
            for line in lines_of(row, options.format, leave_out, everything=options.all):
                out.add(line)
        out.flush()
        responses = sum(map(is_response, rows))
        tally.counts["completions"] += len(rows) - responses
        if options.format == "full":
            tally.counts["responses"] += responses
        first = rows[0].created if first is None else first
        terminal.tick(progress, _share(first, rows[-1].created, last))
        rows.clear()  # so that the next page does not come beside it


@dataclass(slots=True)
class LineWriter:
    """Writes whole lines, some at once: what is cut off anywhere ends with one.

    `file` has no buffer of its own, so that closing it never waits for a reader.
    """

    file: FileIO
    tally: jsonl.Tally
    waiting: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, line: bytes) -> None:
        """Write a line, given without its end, or keep it for a while."""
        self.waiting.append(line + b"\n")
        self.size += len(line)
        if self.size > jsonl.BLOCK:
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


@dataclass(slots=True)
class Pages:
    """The rows that are wanted, a page at a time; `query` names those that come next."""

    source: open_store.StoreRunner
    query: Query
    tally: jsonl.Tally
    terminal: Terminal

    def __iter__(self) -> Iterator[list[Row]]:
        while True:
            try:
                rows = self._read()
            except Unusable as error:
                self.query = self._query_past(error)
                continue
            if not rows:
                return
            # As many as fit into a page, if they are as large as these.
            fitting = BYTES * len(rows) // max(sum(row.size for row in rows), 1)
            limit = max(1, min(MOST, 2 * self.query.limit, fitting))
            self.query = structs.replace(self.query, after=rows[-1].position, limit=limit)
            yield rows

    def last(self) -> int | None:
        """Return when the last completion was made that will be exported."""
        newest = structs.replace(self.query, descending=True, limit=1, messages=False)
        found = self.source.positions(newest)
        return found[0].created if found else None

    def _read(self) -> list[Row]:
        """Return the next page, asking twice where the store was out of reach."""
        try:
            return self.source.find(self.query)
        except Unavailable:
            time.sleep(AGAIN)
            return self.source.find(self.query)

    def _query_past(self, error: Unusable) -> Query:
        """Return how to go on where a page cannot be read: row by row, past one that is lost.

        One that was deleted while it was being read is there no more when it is asked for again.
        """
        alone = structs.replace(self.query, limit=1)
        first = self.source.positions(alone)
        if self.query.limit > 1 or not first:
            return alone
        try:
            self.source.find(alone)
            return alone
        except Unusable:
            if self.source.positions(alone) != first:
                return alone
        self.tally.rejected += 1
        if self.tally.rejected <= jsonl.SHOWN:
            self.terminal.say(f"wellspoken: left out: {error}")
        return structs.replace(alone, after=first[0])


def _share(first: int, now: int, last: int | None) -> float | None:
    """Return how much is done, by time: to count the rows could take longer than to write them."""
    return None if last is None or last <= first else min((now - first) / (last - first), 1.0)


def _queries(options: ExportOptions) -> list[Query]:
    """Return what is to be exported: everybody's rows, or one's completions, then the responses."""
    now = time.time()
    since, until = moment(options.since, "--since", now), moment(options.until, "--until", now)
    if since is not None and until is not None and since >= until:
        raise jsonl.UsageError("--since is not before --until, so there is nothing between them")
    owner = open_store.owner(options.key)
    query = Query(
        owner=owner,
        limit=1,
        model=options.model,
        metadata=_pairs(options.metadata),
        since=since,
        until=until,
    )
    if owner is None:
        return [query]
    # Their histories are not read for a format that has no place for them.
    full = options.format == "full"
    return [query, structs.replace(query, owner=owner_of_rows(owner), messages=full)]


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
        raise jsonl.UsageError(
            f"{option} {text!r} is no time ({error}). Write a date (2026-01-31), a time "
            "(2026-01-31T18:00:00Z) or an age (90m, 12h, 7d, 4w)"
        ) from None


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise jsonl.UsageError(f"--metadata {text!r} is no pair. Write it like team=search")
        if pairs.setdefault(key, value) != value:
            raise jsonl.UsageError(
                f"--metadata has two values for {key!r}, and no completion has both"
            )
    return pairs


def _out(name: str | None) -> FileIO:
    if name is None or name == "-":
        if sys.stdout is None:
            raise jsonl.UsageError("stdout is closed; name a file: --output FILE")
        return open(sys.stdout.fileno(), "wb", 0, closefd=False)
    try:
        return open(name, "wb", 0)
    except OSError as error:
        raise jsonl.UsageError(f"cannot write {name}: {error.strerror}") from error
