"""What the proxy says on stderr: lines, and below them on a terminal an engine's start."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TextIO

from wellspoken.proxy import logs
from wellspoken.proxy.config.tables import Log
from wellspoken.proxy.logs import Logs
from wellspoken.proxy.terminal.drawing import Terminal

if TYPE_CHECKING:
    from wellspoken.engine.supervisor import Supervisor

INTERVAL: Final = 1.0  # seconds between two drawings, and two looks at what an engine does
CLEAR: Final = 0.5  # seconds for which a terminal that was stopped is waited for

# Escape sequences and control characters but tab and newline: an engine's own progress bars move
# the cursor over what stands there.
_CONTROL: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
)
_DIGITS: Final = re.compile(r"\d+")


def print_out(text: str) -> None:
    """Print to stdout, as far as somebody takes it: what is served does not depend on that."""
    try:
        print(text, flush=True)
    except OSError:  # a pipe that was closed, a full disk
        # What is left of it would fail once more at the end of the process, and change its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def log_on_stderr(config: Log) -> Iterator[tuple[EngineProgress, Logs]]:
    """Have this process log to stderr as `config` says, until the block is left."""
    if sys.stderr is None:  # closed by who started it
        sys.stderr = open(os.devnull, "w")
    progress = EngineProgress(sys.stderr)
    log = logs.set_up(config, progress)
    try:
        yield progress, log
    finally:
        log.close()


class EngineProgress:
    """Stderr, with a last line that tells of an engine's start if it is a terminal.

    Any thread may write a line. Once a log is attached (logs/), that one's thread does all the
    writing, so that nobody waits for a terminal that was stopped.
    """

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.terminal = file.isatty()
        self._drawn = self.terminal and os.environ.get("TERM") != "dumb"
        self._terminal = Terminal(file, progress=self._drawn)
        self._engine: Supervisor | None = None
        self._lock = threading.RLock()
        self._log: Logs | None = None

    def attach(self, log: Logs | None, *, draws: bool) -> None:
        """Have `log` write, None: nobody else; `draws`: also the progress, on a terminal."""
        self._log = log
        self._terminal.progress = self._drawn and draws

    def line(self, text: str) -> None:
        """Write a line of an engine's, above the progress."""
        text = _CONTROL.sub("", text)
        if self._log is not None:
            self._log.line(text)
        else:
            self.show(f"{text}\n")

    def show(self, text: str) -> bool:
        """Write whole lines, or nothing, above the progress; say whether that was possible."""
        # Nobody may read stderr any more, which is no reason to stop reading the engine's log.
        with self._lock, suppress(OSError, ValueError):
            if text:
                self._terminal.say(text.removesuffix("\n"))
            self._draw()
            return True
        return False

    def clear(self) -> None:
        """Wipe the progress off until it is drawn again, so that stdout may be written to.

        What was logged before stands above it then, unless the terminal is stopped.
        """
        if self._log is not None and self.terminal:
            self._log.flush(CLEAR)
        if self._lock.acquire(timeout=CLEAR):
            try:
                with suppress(OSError, ValueError):
                    self._terminal.clear()
            finally:
                self._lock.release()

    async def follow(self, engine: Supervisor, log: logging.Logger) -> None:
        """Tell of each start of the engine until cancelled.

        A terminal gets a line that is drawn anew, else `log` a line for each phase that lasts.
        """
        self._engine = engine
        told = ""
        try:
            while True:
                if self._terminal.progress and self._log is not None:
                    self._log.put(b"")
                elif self._terminal.progress:
                    self.show("")
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


def _doing(engine: Supervisor) -> str:
    """Return what a start does now and for how long, or why it pauses, on one line."""
    if engine.phase:
        said = f"{engine.phase}, {engine.elapsed:.0f} s"
    else:
        said = engine.reason if engine.restarts else "starting"
    return " ".join(_CONTROL.sub("", said).split())
