"""The signals that end the proxy, and the one that has its configuration read again."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

ENDS: Final = (signal.SIGTERM, signal.SIGINT)
"""The signals that end the proxy."""


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
        for number in ENDS:
            self._loop.add_signal_handler(number, self.came)
        self._loop.add_signal_handler(signal.SIGHUP, self._hung_up)

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

    def remove(self) -> None:
        """Take no more signals; those that end change nothing any more once one has come.

        Else one more would have its own effect in what is left of the process, whose orderly end
        then looked like a failure.
        """
        # The loop gives a signal its default back: one that came just then would end the process.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        try:
            for number in (*ENDS, signal.SIGHUP):
                self._loop.remove_signal_handler(number)
                if self._own and number in ENDS:
                    signal.signal(number, signal.SIG_IGN)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _has_terminal() -> bool:
    """Say whether this process has a controlling terminal, which it loses when that closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
