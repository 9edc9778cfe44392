"""The numbered steps that bring a database's schema up to date, one SQL file each."""

from __future__ import annotations

import re
from importlib.resources import files

_FILE = re.compile(r"(\d{4})_\w+\.sql")


def migrations(engine: str) -> list[tuple[int, str]]:
    """Return number and SQL of every step of an engine, `sqlite` or `postgres`, in order.

    The files are package data, `<engine>/0001_<what>.sql`. Raises ValueError unless
    they are numbered 1, 2, 3 and so on: a missing step would pass unnoticed.
    """
    found = []
    for file in files(f"{__package__}.{engine}").iterdir():
        named = _FILE.fullmatch(file.name)
        if named is not None:
            found.append((int(named[1]), file.read_text("utf-8")))
    found.sort()
    if not found or [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {engine} are not numbered from 1 without a gap")
    return found
