"""What asyncio logs of a callback or a protocol that failed, and then goes on as if nothing was."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

# Said when an object is collected, in whichever test that is.
_LATE = ("was never retrieved", "was destroyed", "never closed", "Unclosed")


@contextmanager
def note_complaints() -> Iterator[list[str]]:
    """Give a list that gets each error that asyncio logs meanwhile, with its exception."""
    said: list[str] = []
    handler = _Noting(said)
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)


class _Noting(logging.Handler):
    def __init__(self, said: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if not any(words in text for words in _LATE):
            self._said.append(f"{text} {record.exc_info[1]!r}" if record.exc_info else text)
