"""The thread that writes the log, so that no request waits for whoever reads it.

A pipe that nobody reads would otherwise stop the loop with its first full write. Lines gather for a
moment and leave together, in pieces that a pipe takes whole.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from stat import S_ISREG
from typing import Final

GATHER: Final = 0.02  # seconds for which lines gather before they are written together
MOST: Final = 8 * 1024 * 1024  # bytes that wait, about
FEWEST: Final = 64  # lines that may wait whatever their size
BATCH: Final = 512  # lines written at a time
_TURNS: Final = 20  # in which the end waits
AGAIN: Final = 5.0  # seconds between two lines that tell of lost ones, while many are lost

# A pipe takes so many bytes at once or none: with several writers no line is torn. POSIX's PIPE_BUF
# is at least 512, Linux' and the BSDs' is what select knows.
_ATOMIC: Final = select.PIPE_BUF
_FILE: Final = 65_536


Write = Callable[[list[bytes]], int]
"""Writes lines; returns how many could not be."""


class Descriptor:
    """A file descriptor; each write is of whole lines, and small enough to stay in one piece."""

    def __init__(self, descriptor: int) -> None:
        # One of our own: if somebody closes stderr, its number may become a client's connection.
        self._fd = os.dup(descriptor)
        self._piece = _FILE if S_ISREG(os.fstat(self._fd).st_mode) else _ATOMIC
        self._ready = select.poll()
        self._ready.register(self._fd, select.POLLOUT)
        self._torn = False  # a line was begun, and its rest could not be written

    def write(self, lines: list[bytes]) -> int:
        """Write lines; return how many could not be."""
        lost, at = 0, 0
        while at < len(lines):
            end, size = at + 1, len(lines[at])
            while end < len(lines) and size + len(lines[end]) <= self._piece:
                size += len(lines[end])
                end += 1
            lost += self._write(b"".join(lines[at:end]))
            at = end
        return lost

    def _write(self, data: bytes) -> int:
        """Write whole lines; return how many of them could not be, or not to their end."""
        rest = b"\n" + data if self._torn else data
        while rest:
            try:
                sent = os.write(self._fd, rest)
            except BlockingIOError:  # who shares the terminal or pipe with us has set it so
                self._ready.poll(1000)
            except OSError:  # nobody reads it any more, or the disk is full: perhaps not for ever
                return min(rest.count(b"\n"), data.count(b"\n"))
            else:
                self._torn = rest[sent - 1 : sent] != b"\n"
                rest = rest[sent:]
        return 0

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._fd)


class LogWriter(threading.Thread):
    """Writes lines in the order in which they come; where they come too fast, some are lost.

    `put` never waits and may be called anywhere, also where a garbage collection interrupts another
    `put`. `lost` makes the line that tells how many are missing.
    """

    def __init__(self, write: Write, lost: Callable[[int], bytes]) -> None:
        super().__init__(name="wellspoken-log", daemon=True)
        self._write = write
        self._lost = lost
        self._queue: SimpleQueue[bytes | threading.Event | None] = SimpleQueue()
        self._dropped = 0  # counted up by those who put, and never down
        # Of the writing thread alone:
        self._missing = 0  # of what was tried, not told yet
        self._told = 0  # of those dropped
        self._next = 0.0

    def put(self, line: bytes) -> None:
        """Have a line written; an empty one only lets the output draw anew."""
        # Any thread, and any point of this thread, may be here: SimpleQueue.put takes no lock that
        # a garbage collection could find held. What is read of its size may be old by a few lines.
        queued = self._queue.qsize()
        if queued > FEWEST and queued * len(line) > MOST:
            self._dropped += 1
        else:
            self._queue.put(line)

    def flush(self, seconds: float) -> bool:
        """Wait until what was put before is written; say whether that came about in time."""
        if not self.is_alive():
            return self._queue.empty()
        done = threading.Event()
        self._queue.put(done)
        return done.wait(seconds)

    def close(self, seconds: float) -> bool:
        """Write what is there and end; say whether that came about in time.

        A machine that stands still meanwhile takes one turn of the time, not all of it.
        """
        self._queue.put(None)
        for _ in range(_TURNS):
            self.join(seconds / _TURNS)
            if not self.is_alive():
                return True
        return False

    def run(self) -> None:
        """Write until `close`."""
        open_ = True
        while open_:
            batch = [self._queue.get()]
            if isinstance(batch[0], bytes):
                time.sleep(GATHER)
            try:
                while len(batch) < BATCH:
                    batch.append(self._queue.get_nowait())
            except Empty:
                pass
            lines = [line for line in batch if isinstance(line, bytes)]
            if lines:
                self._missing += self._write(lines)
            open_ = None not in batch
            self._tell(not open_)
            for waiting in batch:
                if isinstance(waiting, threading.Event):
                    waiting.set()

    def _tell(self, last: bool) -> None:
        """Write how many lines are missing, once those before them are through."""
        missing = self._missing + self._dropped - self._told
        if not missing or not (last or self._queue.empty() or time.monotonic() > self._next):
            return
        if not self._write([self._lost(missing)]):
            self._told += missing - self._missing
            self._missing = 0
            self._next = time.monotonic() + AGAIN
