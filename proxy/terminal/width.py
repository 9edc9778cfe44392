"""How wide a window is, and how much of it a text takes."""

from __future__ import annotations

import os
import re
import unicodedata
from typing import Final, TextIO

_PLAIN: Final = re.compile(r"[ -~]*")
_NO_WIDTH: Final = frozenset({"Mn", "Me", "Cf"})


def columns_of(file: TextIO) -> int:
    """Return how many columns the window has that a file is; 80 where nobody tells."""
    try:
        return os.get_terminal_size(file.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):  # no window, or a file without a descriptor
        return 80


def count_columns(text: str) -> int:
    """Return how many columns a text takes: a letter of East Asia two, an accent none."""
    if _PLAIN.fullmatch(text):
        return len(text)
    return sum(map(_columns, text))


def cut_to(text: str, columns: int) -> str:
    """Return a text, or its beginning and a mark that there is more, of as many columns or less."""
    if count_columns(text) <= columns:
        return text
    end, left = 0, max(columns - 1, 0)
    while end < len(text) and (left := left - _columns(text[end])) >= 0:
        end += 1
    return f"{text[:end]}…"


def _columns(letter: str) -> int:
    if unicodedata.category(letter) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
