"""Says what is done, now and then, so that nobody takes a wait for a hang."""

from __future__ import annotations

import threading
import time
from types import TracebackType

EVERY = 3.0  # seconds between two lines


class Progress:
    """A line when something else begins, and one every few seconds while it lasts.

    The lines in between come from a thread, since what lasts may be an import or a subprocess.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._now = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.end()

    def say(self, what: str) -> None:
        """Print what is done from now on."""
        self._now = what
        self._print(what)

    def note(self, what: str) -> None:
        """Have this printed as what is done, the next time that it is due."""
        self._now = what

    def end(self) -> None:
        """Print no more by itself."""
        self._ended.set()
        self._thread.join()

    def _repeat(self) -> None:
        while not self._ended.wait(EVERY):
            if what := self._now:
                self._print(what)

    def _print(self, what: str) -> None:
        print(f"[{time.monotonic() - self._began:3.0f} s] {what}", flush=True)
