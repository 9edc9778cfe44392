"""File descriptors, of which a process has so many: a connection of a client's takes one, and so
does each to a backend.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import time
from collections.abc import Callable
from typing import Final

NONE_LEFT: Final = frozenset({errno.EMFILE, errno.ENFILE})
MOST: Final = 65_536
"""As many as the process takes by itself, where the system lets it."""
SPARE: Final = 128
"""For the store, the log, files that are read again, and connections that are refused."""
TOLD_SECONDS: Final = 60.0
_LOG: Final = logging.getLogger("wellspoken")


def raise_limit() -> None:
    """Take as many descriptors as the system allows without asking, `MOST` at most.

    The usual 1024 is kept low for programs that call select(); neither event loop does.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def default_connections() -> int:
    """Return how many connections of clients leave descriptors for all else.

    A request needs two: the client's connection, and one to a backend.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if soft == resource.RLIM_INFINITY else soft
    return max((most - SPARE) // 2, most // 4, 1)


def find_shortage() -> str:
    """Return what to say where no descriptor is left now, else ""."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return explain_shortage(error) if error.errno in NONE_LEFT else ""
    return ""


def explain_shortage(error: OSError) -> str:
    """Return why the system gives none, and what to do."""
    if error.errno == errno.ENFILE:
        return "no file descriptors are left on this machine: raise its limit (sysctl fs.file-max)"
    if error.errno == errno.EMFILE:
        return (
            "no file descriptors are left: raise the limit (ulimit -n, under systemd LimitNOFILE)"
        )
    return error.strerror or str(error)


class ShortageLog:
    """Logs that connections cannot be made, the same at once and then once a minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._told: dict[str, float] = {}

    def tell(self, text: str) -> None:
        """Log it, unless that was done less than `TOLD_SECONDS` ago."""
        now = self._now()
        if now >= self._told.get(text, now):
            self._told[text] = now + TOLD_SECONDS
            _LOG.error("%s", text)


SHORTAGES: Final = ShortageLog()
"""One for the process, whose descriptors they are."""
