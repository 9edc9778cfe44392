"""The command `wellspoken convert`: stored answers in, one a line, OpenAI's answers out.

Lines are read, converted and written one at a time, so memory does not grow with the file.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from stat import S_ISREG
from typing import BinaryIO, Final, TextIO

from msgspec import Struct, json

from wellspoken.adapters import registry
from wellspoken.proxy.stored import Converter, RejectedLine

SHOWN: Final = 20  # rejected lines that are told on stderr
QUOTED: Final = 4_096  # bytes that --rejects keeps of a line above the cap
BLOCK: Final = 1 << 20
INTERVAL: Final = 0.1  # seconds between two drawings of the progress bar
BAR: Final = 24  # characters
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141  # what a shell says of a command that SIGPIPE ended


class Options(Struct, frozen=True):
    """What the command line says; `file` None or "-" is stdin, `max_line` in bytes."""

    file: str | None = None
    adapter: str = "auto"
    rejects: str | None = None
    chat: bool = False
    max_line: int = 256 << 20


class UsageError(Exception):
    """Options or files that cannot be used as given; the text says what to do."""


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

    def summary(self) -> str:
        """Return the last line of the command."""
        counts = (
            f"{self.lines} {'line' if self.lines == 1 else 'lines'}: {self.converted} converted, "
            f"{self.unchanged} unchanged, {self.rejected} rejected"
        )
        ordered = sorted(self.repairs.items(), key=lambda item: (-item[1], item[0]))
        listed = ", ".join(f"{name} {times}" for name, times in ordered)
        return f"{counts}; repairs: {listed or 'none'}"


class Lines:
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


class Terminal:
    """Stderr: notices, and on a terminal a line of progress that they do not mix with."""

    def __init__(self, file: TextIO, *, progress: bool) -> None:
        self.file = file
        self.progress = progress
        self.drawn = False
        self.next = 0.0

    def say(self, text: str) -> None:
        """Write a line; the progress is drawn anew after it."""
        self.clear()
        print(text, file=self.file, flush=True)

    def clear(self) -> None:
        """Wipe the progress off."""
        if self.drawn:
            self.file.write("\r\x1b[K")
            self.file.flush()
            self.drawn = False

    def tick(self, lines: Lines, tally: Tally) -> None:
        """Draw the progress, at most every `INTERVAL` seconds."""
        if not self.progress or (now := time.monotonic()) < self.next:
            return
        self.next = now + INTERVAL
        rejected = f", {tally.rejected:,} rejected" if tally.rejected else ""
        text = f"{tally.lines:,} lines{rejected}"
        if lines.size:
            share = min(lines.done / lines.size, 1.0)
            full = round(share * BAR)
            text = f"[{'#' * full}{'.' * (BAR - full)}] {share:4.0%}  {text}"
        try:
            width = os.get_terminal_size(self.file.fileno()).columns or 80
        except OSError:
            width = 80
        self.file.write(f"\r{text[: width - 1]}\x1b[K")
        self.file.flush()
        self.drawn = True


class Rejects:
    """Where rejected lines go: a file of JSON lines, else the first reasons to stderr."""

    def __init__(self, file: BinaryIO | None, terminal: Terminal) -> None:
        self.file = file
        self.terminal = terminal
        self.count = 0

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


def run(options: Options) -> int:
    """Convert; return the exit code: 0, 1 if a line was rejected, 2 for what cannot be used."""
    terminal = Terminal(sys.stderr, progress=sys.stderr.isatty() and not sys.stdout.isatty())
    tally = Tally()
    try:
        with ExitStack() as files:
            converter = _converter(options)
            lines = Lines(_source(options.file, files), options.max_line)
            rejects = Rejects(_rejects(options, lines.file, files), terminal)
            # Not sys.stdout's own buffer: under PYTHONUNBUFFERED that writes no more than fits.
            out = open(sys.stdout.fileno(), "wb", BLOCK, closefd=False)
            files.enter_context(out)
            _convert(lines, converter, out, rejects, tally)
    except UsageError as error:
        print(f"wellspoken: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # what reads the output has seen enough
        return PIPE_CLOSED
    except OSError as error:
        terminal.say(f"wellspoken: {error.strerror or error}; stopped after {tally.lines} lines")
        return 1
    except KeyboardInterrupt:
        terminal.say(f"wellspoken: interrupted after {tally.summary()}")
        return INTERRUPTED
    terminal.say(f"wellspoken: {tally.summary()}")
    return 1 if tally.rejected else 0


def _convert(
    lines: Lines, converter: Converter, out: BinaryIO, rejects: Rejects, tally: Tally
) -> None:
    try:
        for number, line in lines:
            if line:
                _one(number, line, lines, converter, out, rejects, tally)
                if not lines.regular:
                    out.flush()  # what comes bit by bit leaves bit by bit
            rejects.terminal.tick(lines, tally)
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


def _source(name: str | None, files: ExitStack) -> BinaryIO:
    if name is None and sys.stdin.isatty():
        raise UsageError("name a FILE, or send the lines to stdin: wellspoken convert < FILE")
    if name is None or name == "-":
        return sys.stdin.buffer
    try:
        return files.enter_context(open(name, "rb"))
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error


def _rejects(options: Options, source: BinaryIO, files: ExitStack) -> BinaryIO | None:
    name = options.rejects
    if name is None:
        return None
    if name == "-":
        raise UsageError("--rejects needs a file of its own, since stdout has the answers")
    try:
        if os.path.exists(name) and os.path.samestat(os.stat(name), os.fstat(source.fileno())):
            raise UsageError(f"--rejects {name} would overwrite what is read; name another file")
        return files.enter_context(open(name, "wb"))
    except OSError as error:
        raise UsageError(f"cannot write {name}: {error.strerror}") from error
