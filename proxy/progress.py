"""What the proxy says on stderr: lines, and below them on a terminal an engine's start."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from wellspoken.proxy.jsonl import Terminal

if TYPE_CHECKING:
    from typing import TextIO

    from wellspoken.engine.supervisor import Supervisor

INTERVAL: Final = 1.0  # seconds between two drawings, and two looks at what an engine does

# Escape sequences and control characters but tab and newline: an engine's own progress bars move
# the cursor over what stands there.
_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_DIGITS: Final = re.compile(r"\d+")


class Progress:
    """Stderr, with a last line that tells of an engine's start if it is a terminal.

    Any thread may write a line.
    """

    def __init__(self, file: TextIO) -> None:
        self._terminal = Terminal(file, progress=file.isatty())
        self._engine: Supervisor | None = None
        self._lock = threading.RLock()

    def line(self, text: str) -> None:
        """Write a line, above the progress."""
        # Nobody may read stderr any more, which is no reason to stop reading the engine's log.
        with self._lock, suppress(OSError, ValueError):
            self._terminal.say(_CONTROL.sub("", text))
            self._draw()

    def clear(self) -> None:
        """Wipe the progress off until it is drawn again, so that stdout may be written to."""
        with self._lock, suppress(OSError, ValueError):
            self._terminal.clear()

    async def follow(self, engine: Supervisor, log: logging.Logger) -> None:
        """Tell of each start of the engine until cancelled.

        A terminal gets a line that is drawn anew, else `log` a line for each phase that lasts.
        """
        self._engine = engine
        told = ""
        try:
            while True:
                if self._terminal.progress:
                    with self._lock, suppress(OSError, ValueError):
                        self._draw()
                else:
                    phase = _CONTROL.sub("", engine.phase)
                    if phase and _DIGITS.sub("", phase) != _DIGITS.sub("", told):
                        log.info("%s: %s", engine.kind.name, phase)
                    told = phase
                await asyncio.sleep(INTERVAL)
        finally:
            self._engine = None
            self.clear()

    def _draw(self) -> None:
        engine = self._engine
        if engine is None or engine.state != "starting":
            self._terminal.clear()
            return
        self._terminal.next = 0.0
        self._terminal.tick(lambda: f"{engine.kind.name}: {_doing(engine)}", None)


class Handler(logging.Handler):
    """Writes log records above the progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        self._progress.line(self.format(record))


def _doing(engine: Supervisor) -> str:
    """Return what a start does now and for how long, or why it pauses, on one line."""
    if engine.phase:
        said = f"{engine.phase}, {engine.elapsed:.0f} s"
    else:
        said = engine.reason if engine.restarts else "starting"
    return " ".join(_CONTROL.sub("", said).split())
