"""Colours of a terminal, where there is one and nobody has said no to them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple, Self, TextIO

_CODES: Final = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2"}


class Colour(NamedTuple):
    """Puts text in colours, or leaves it alone."""

    on: bool

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str] = os.environ) -> Self:
        """Return colours for what is written to `stream`.

        There are none unless it is a terminal, with NO_COLOR set to anything
        (https://no-color.org), or on a terminal that has none (TERM=dumb).
        """
        wanted = not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        return cls(wanted and stream.isatty())

    def put(self, name: str, text: str) -> str:
        """Return `text` in the colour of this name."""
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if self.on else text
