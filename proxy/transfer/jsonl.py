"""What convert, export and import share: how a command ends, the lines it reads and rejects."""

from __future__ import annotations

import os
import sys
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import BinaryIO, Final

from msgspec import Raw, json

from wellspoken.proxy.store.database import StoreError
from wellspoken.proxy.terminal.drawing import Terminal

SHOWN: Final = 20  # rejected lines that are told on stderr
QUOTED: Final = 4_096  # bytes that --rejects keeps of a line above the cap
BLOCK: Final = 1 << 20
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141  # what a shell says of a command that SIGPIPE ended

Fields = dict[str, Raw]
"""A JSON object whose values stay as they are written."""
fields_of = json.Decoder(Fields).decode
objects_of = json.Decoder(list[Fields]).decode
encode = json.Encoder().encode


class UsageError(Exception):
    """Options or files that cannot be used as given; the text says what to do."""


class RejectedLine(ValueError):
    """A line that cannot be used; its text says why."""


def is_given(value: Raw | None) -> bool:
    """Say whether a key stands there and is not null."""
    return value is not None and bytes(memoryview(value)[:5]) != b"null"


@dataclass(slots=True)
class Tally:
    """What came of a command's work so far.

    `lines` were read or, by export, written; `rejected`: what could not be used of them, or not be
    read. `counts`: how many of each kind came of the rest. `reasons`: what was done, or not, and
    how often.
    """

    lines: int = 0
    rejected: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def list_reasons(self) -> str:
        """Return the reasons with how often, the most frequent first."""
        ordered = sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))
        return ", ".join(f"{reason} {times}" for reason, times in ordered)

    def summarize(self, lines: int, *kinds: str) -> str:
        """Return how many lines there were, and what came of them."""
        counted = "".join(f"{self.counts[kind]} {kind}, " for kind in kinds)
        return f"{count_of(lines, 'line')}: {counted}{self.rejected} rejected"


def count_of(count: int, noun: str) -> str:
    """Return how many of something there are, in words."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def run_command(
    work: Callable[[Tally, Terminal], object],
    summarize: Callable[[Tally], str],
    *,
    progress: bool,
) -> int:
    """Do a command's work and say how it ended; return the exit code.

    1 says that something was rejected, or that a disk or the store failed, which ends the work; 2:
    wrong usage. `summarize` gives the last line. `progress`: whether its line may be drawn.
    """
    terminal = Terminal(sys.stderr, progress=progress and sys.stderr.isatty())
    tally = Tally()
    try:
        work(tally, terminal)
    except UsageError as error:
        print(f"wellspoken: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # what reads the output has seen enough
        return PIPE_CLOSED
    except (OSError, StoreError) as error:
        problem = getattr(error, "strerror", None) or error
        terminal.say(f"wellspoken: {problem}; stopped after {summarize(tally)}")
        return 1
    except KeyboardInterrupt:
        terminal.say(f"wellspoken: interrupted after {summarize(tally)}")
        return INTERRUPTED
    finally:
        terminal.clear()
    terminal.say(f"wellspoken: {summarize(tally)}")
    return 1 if tally.rejected else 0


def use_lines(
    lines: JsonLines,
    rejects: Rejects,
    tally: Tally,
    use: Callable[[bytes], None],
    *,
    hint: str = "",
) -> None:
    """Give each line that is not blank to `use`, and those that raise RejectedLine to `rejects`.

    `hint`: what to do about a line that is too long.
    """

    def progress() -> str:
        rejected = f", {tally.rejected:,} rejected" if tally.rejected else ""
        return f"{tally.lines:,} lines{rejected}"

    for number, line in lines:
        if line:
            tally.lines += 1
            try:
                if lines.over:
                    raise RejectedLine(f"longer than {lines.limit} bytes{hint}")
                use(line)
            except RejectedLine as error:
                tally.rejected += 1
                rejects.add(number, str(error), line)
            except Exception as error:
                error.add_note(f"in line {number}")
                raise
        rejects.terminal.tick(progress, lines.share)
    rejects.terminal.clear()


class JsonLines:
    """The lines of a file, as (number, bytes); `size` is None where it is not known.

    A line above `limit` bytes comes as its first `QUOTED` bytes with `over` set; the rest of it is
    read past.
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self.file = file
        self.limit = limit
        self.done = 0  # bytes
        self.over = False
        status = os.fstat(file.fileno())
        self.regular = S_ISREG(status.st_mode)
        self.size = status.st_size - file.tell() if self.regular else None

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := self.file.readline(self.limit + 2):  # the end of a line may be two bytes
            number += 1
            self.done += len(line)
            self.over = len(line.rstrip(b"\r\n")) > self.limit
            if self.over:
                while line[-1:] != b"\n" and (more := self.file.readline(BLOCK)):
                    self.done += len(more)
                    line = line[:QUOTED] + more[-1:]
                line = line[:QUOTED]
            if number == 1:
                line = line.removeprefix(BOM_UTF8)
            yield number, line.strip(b" \t\r\n")

    @property
    def share(self) -> float | None:
        """How much of the file is read, at most 1.0."""
        return min(self.done / self.size, 1.0) if self.size else None


@dataclass(slots=True)
class Rejects:
    """Where rejected lines go: a file of JSON lines, else the first reasons to stderr."""

    file: BinaryIO | None
    terminal: Terminal
    count: int = 0

    def add(self, number: int, reason: str, line: bytes) -> None:
        """Tell of one rejected line."""
        self.count += 1
        if self.file is not None:
            text = line.decode("utf-8", "replace")
            row = {"line": number, "reason": reason, "input": text}
            self.file.write(json.encode(row) + b"\n")
        elif self.count <= SHOWN:
            self.terminal.say(f"line {number}: {' '.join(reason.split())[:500]}")

    def close(self) -> None:
        """Tell how many reasons were not shown."""
        if self.file is None and self.count > SHOWN:
            more = self.count - SHOWN
            self.terminal.say(f"and {more} more; --rejects FILE keeps all of them")


def open_source(name: str | None, command: str, files: ExitStack) -> BinaryIO:
    """Open what a command reads, stdin for None or "-". Raises UsageError."""
    if sys.stdin is None and name in (None, "-"):
        raise UsageError("stdin is closed; name a FILE")
    if name is None and sys.stdin.isatty():
        raise UsageError(f"name a FILE, or send the lines to stdin: wellspoken {command} < FILE")
    if name is None or name == "-":
        return sys.stdin.buffer
    try:
        return files.enter_context(open(name, "rb"))
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error


def open_rejects(name: str | None, source: BinaryIO, files: ExitStack) -> BinaryIO | None:
    """Open the file of --rejects if one is named. Raises UsageError."""
    if name is None:
        return None
    if name == "-":
        raise UsageError("--rejects needs a file of its own, not stdout")
    try:
        if os.path.exists(name) and os.path.samestat(os.stat(name), os.fstat(source.fileno())):
            raise UsageError(f"--rejects {name} would overwrite what is read; name another file")
        return files.enter_context(open(name, "wb"))
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}") from error
