"""The signals that end the proxy, and the one that has its configuration read again."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
from typing import Final

ENDS: Final = (signal.SIGTERM, signal.SIGINT)
"""The signals that end the proxy."""

ALL: Final = (*ENDS, signal.SIGHUP)
"""All signals that the proxy handles."""


class Signals:
    """SIGTERM and SIGINT as two events, the first one and the second one; SIGHUP as `reload`.

    A terminal that closes sends SIGHUP too. It is told from a SIGHUP of somebody's by the terminal
    being gone, and then means the end, as what is in memory is still to be written. Where SIGHUP is
    ignored, as nohup has it, a terminal's end changes nothing.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.reload = asyncio.Event()
        self.count = 0
        self._loop = asyncio.get_running_loop()
        self._terminal = signal.getsignal(signal.SIGHUP) != signal.SIG_IGN and _has_terminal()
        self._own = 0
        self._wakes = self._wake_loop()
        self._before = {number: signal.signal(number, self._handle) for number in ALL}
        for number in ALL:
            signal.siginterrupt(number, False)  # what C code waits for in a thread goes on

    def came(self) -> None:
        """Take note that the end is asked for, once more or for the first time."""
        self._own += 1
        self.raise_to(self._own)

    def raise_to(self, count: int) -> None:
        """Take note that the end was asked for so often, as somebody says who got signals too.

        One that was sent to both, as to a whole process group, is then not taken for two.
        """
        self.count = max(self.count, count)
        if self.count > 0:
            self.first.set()
        if self.count > 1:
            self.second.set()

    def _hung_up(self) -> None:
        if self._terminal and not _has_terminal():
            self._terminal = False  # the shell and the kernel may both say it
            self.came()
        else:
            self.reload.set()

    def _wake_loop(self) -> int | None:
        """Have a signal that another thread gets wake the loop; return the pipe's end it reads.

        None: the loop has itself woken, as uvloop's does. asyncio's does too for handlers added to
        it, but gives a signal its default back before another handler can be set: one that comes
        just then, and any thread may get it, ends the process.
        """
        reading, writing = os.pipe()
        for end in (reading, writing):
            os.set_blocking(end, False)
        own = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        if own == -1:
            self._loop.add_reader(reading, os.read, reading, 4096)
            return reading
        signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        os.close(reading)
        os.close(writing)
        return None

    def _handle(self, number: int, frame: object) -> None:
        """Have the loop act, as it is anywhere in its work that Python calls this."""
        act = self._hung_up if number == signal.SIGHUP else self.came
        self._loop.call_soon_threadsafe(act)

    def remove(self) -> None:
        """Take no more signals; where the end was asked for, one more changes nothing any more.

        Else it would have its own effect in what is left of the process, whose orderly end then
        looked like a failure.
        """
        for number, handler in self._before.items():
            signal.signal(number, _do_nothing if self.count else handler)
        if self.count:
            atexit.register(_ignore)
        if self._wakes is not None:
            signal.set_wakeup_fd(-1)
            self._loop.remove_reader(self._wakes)  # the pipe stays: a thread may be about to write


def _do_nothing(number: int, frame: object) -> None:
    """Handle a signal that another thread has taken and reports only now.

    Were it ignored by then, Python would print a traceback ("ignored due to race condition").
    """


def _ignore() -> None:
    """Ignore signals, now that no thread is left; Python's last step has no functions for them."""
    for number in ALL:
        signal.signal(number, signal.SIG_IGN)


def _has_terminal() -> bool:
    """Say whether this process has a controlling terminal, which it loses when that closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
