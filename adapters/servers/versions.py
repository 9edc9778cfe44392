"""Servers that change: a request table as a server of one version has it.

A row says from which version (`since`) it holds and which row held before (`older`). Where a form
exists that every version takes, the table uses that instead and needs neither.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import structs

from wellspoken.adapters.servers.backend import Backend
from wellspoken.adapters.servers.parameters import Support, Table

_NUMBERS: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})+", re.ASCII)
_FROM_SOURCE: Final = ".dev"  # 0.1.dev1: what a build tells that was made without git's tags


def for_version(backend: Backend, version: str) -> Backend:
    """Return the backend with the rows of this version, itself where they are the same.

    A version that cannot be compared, and that of a build from source, counts as the newest.
    """
    numbers = _numbers(version)
    if not numbers:
        return backend
    chat = _at(backend.chat_table, numbers, version)
    completion = _at(backend.completion_table, numbers, version)
    if chat == backend.chat_table and completion == backend.completion_table:
        return backend
    return structs.replace(backend, chat_table=chat, completion_table=completion)


def _numbers(version: str) -> tuple[int, ...]:
    found = _NUMBERS.match(version)
    if found is None or _FROM_SOURCE in version:
        return ()
    return tuple(map(int, found[0].split(".")))


def _at(table: Table, numbers: tuple[int, ...], version: str) -> Table:
    return {name: _row(row, numbers, version) for name, row in table.items()}


def _row(row: Support, numbers: tuple[int, ...], version: str) -> Support:
    """Return the row that holds at this version, a refusal where none does."""
    while row.since and numbers < _numbers(row.since):
        if row.older is None:
            note = f"Version {row.since} brought it, and this server is {version}. "
            return Support("refused", note=f"{note}Update the server, or leave it out.")
        row = row.older
    return row
