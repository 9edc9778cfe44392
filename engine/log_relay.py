"""From what an engine prints to lines of a log: cut, kept for error texts, and bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

Log = Callable[[str], None]

LINE_BYTES = 2_000
TAIL_LINES = 400
LINES_A_SECOND = 200
PERIOD = 1.0


class LineCutter:
    """Cuts a byte stream into text lines, each of at most `limit` bytes; never holds more.

    A line ends at a newline, or at a bare carriage return, with which a progress bar draws itself
    anew. The rest of a longer line is dropped, since a child that writes without newlines must not
    grow this process.
    """

    def __init__(self, limit: int = LINE_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()
        self._cut = False  # the held line reached the limit: drop until its end
        self._returned = b""  # a carriage return whose next byte, perhaps a newline, is not here

    def feed(self, data: bytes) -> list[tuple[str, bool]]:
        """Return the lines that `data` completes, and of each whether another one overwrites it.

        They are decoded with replacement and without their end; empty ones are left out.
        """
        data = self._returned + data
        self._returned = b"\r" if data.endswith(b"\r") else b""
        *complete, rest = data.removesuffix(b"\r").split(b"\n")
        lines: list[tuple[str, bool]] = []
        for piece in complete:
            self._hold(self._overwrite(piece.removesuffix(b"\r"), lines))
            lines.append((self._take(), False))
        self._hold(self._overwrite(rest, lines))
        return [line for line in lines if line[0]]

    def finish(self) -> list[tuple[str, bool]]:
        """Return what is held although no newline came: at most one line."""
        self._returned = b""
        line = self._take()
        return [(line, False)] if line else []

    def _overwrite(self, piece: bytes, lines: list[tuple[str, bool]]) -> bytes:
        """Add the lines that `piece` itself overwrites; return what comes after them."""
        *overwritten, last = piece.split(b"\r")
        for each in overwritten:
            self._hold(each)
            lines.append((self._take(), True))
        return last

    def _hold(self, piece: bytes) -> None:
        room = self._limit - len(self._held)
        self._held += piece[:room]
        self._cut = self._cut or len(piece) > room

    def _take(self) -> str:
        line = self._held.decode("utf-8", "replace")
        if self._cut:
            line += " [cut]"
        self._held.clear()
        self._cut = False
        return line


class LogRelay:
    """Gives each line to `on_line`, and as `name: line` to `log`, no more than a log can take.

    At most `LINES_A_SECOND` go to `log`, then one that says how many were left out; of lines that
    overwrite each other one a second. `tail` keeps the last of those that stay. Must be made and
    fed in a running event loop.
    """

    def __init__(self, name: str, log: Log, on_line: Log | None = None) -> None:
        self._name = name
        self._log = log
        self._on_line = on_line
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._cutter = LineCutter()
        self._count = 0
        self._left_out = 0
        self._drawn = False  # a line that is overwritten went on in this second
        self._period: asyncio.TimerHandle | None = None

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        self._take(self._cutter.feed(data))

    def finish(self) -> None:
        """Take the end of the stream; nothing is held back afterwards."""
        self._take(self._cutter.finish())
        if self._period is not None:
            self._period.cancel()
            self._next_period()

    def say(self, line: str) -> None:
        """Write a line of one's own to the log."""
        # A full disk, or a terminal that is gone, must not stop the reading: the engine would wait.
        with contextlib.suppress(OSError):
            self._log(f"{self._name}: {line}")

    def _take(self, lines: list[tuple[str, bool]]) -> None:
        for line, passing in lines:
            if self._on_line is not None:
                self._on_line(line)
            if not passing:
                self.tail.append(line)
            elif self._drawn:
                continue
            self._drawn = self._drawn or passing
            self._pass_on(line)

    def _pass_on(self, line: str) -> None:
        if self._period is None:
            self._period = asyncio.get_running_loop().call_later(PERIOD, self._next_period)
        self._count += 1
        if self._count > LINES_A_SECOND:
            self._left_out += 1
        else:
            self.say(line)

    def _next_period(self) -> None:
        if self._left_out:
            self.say(f"[{self._left_out} more lines in a second, left out]")
        self._count = self._left_out = 0
        self._drawn = False
        self._period = None
