"""Stderr as people see it: lines, and below them on a terminal a line of progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TextIO

from wellspoken.proxy.terminal.width import columns_of, cut_to

INTERVAL: Final = 0.1  # seconds between two drawings of the progress bar
BAR: Final = 24  # characters


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

    def tick(self, text: Callable[[], str], share: float | None) -> None:
        """Draw the progress, at most every `INTERVAL` seconds; `share` of 1.0 is done, if known."""
        if not self.progress or (now := time.monotonic()) < self.next:
            return
        self.next = now + INTERVAL
        line = text()
        if share is not None:
            full = round(share * BAR)
            line = f"[{'#' * full}{'.' * (BAR - full)}] {share:4.0%}  {line}"
        self.file.write(f"\r{cut_to(line, columns_of(self.file) - 1)}\x1b[K")
        self.file.flush()
        self.drawn = True
