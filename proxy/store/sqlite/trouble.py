"""What errors of SQLite mean for the store, in one line each and with what to do."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from wellspoken.proxy.store.database import StoreError, Unavailable, Unusable

_MEANING: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (Unavailable, "another process keeps it locked"),
    sqlite3.SQLITE_LOCKED: (Unavailable, "another process keeps it locked"),
    sqlite3.SQLITE_PROTOCOL: (Unavailable, "another process keeps it locked"),
    sqlite3.SQLITE_NOMEM: (Unavailable, "there is not enough memory"),
    sqlite3.SQLITE_FULL: (Unusable, "the disk is full: free some space"),
    sqlite3.SQLITE_IOERR: (
        Unusable,
        "the disk does not take it ({error}): look at its space, its limits and its health",
    ),
    sqlite3.SQLITE_READONLY: (
        Unusable,
        "it is read-only: make the file and its directory writable for this user",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        Unusable,
        "it cannot be opened: make the file and its directory writable for this user",
    ),
    sqlite3.SQLITE_NOTADB: (
        Unusable,
        "it is no SQLite database: move it away, or configure another path",
    ),
    sqlite3.SQLITE_CORRUPT: (
        Unusable,
        "it is damaged: restore a backup, or move it away (sqlite3's .recover may save rows)",
    ),
    sqlite3.SQLITE_TOOBIG: (StoreError, "a column is larger than SQLite takes (1 GB)"),
    sqlite3.SQLITE_CONSTRAINT: (StoreError, "a row breaks the schema ({error})"),
}


def explain_error(error: Exception, path: Path) -> StoreError:
    """Return what an error means and what to do, in one line."""
    if isinstance(error, OSError):
        return Unusable(
            f"{path}: it cannot be opened ({error.strerror}): make the file and its directory "
            "writable for this user"
        )
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # the driver's own, before SQLite saw the value
        return StoreError(f"{path}: SQLite cannot hold that ({error})")
    kind, text = _MEANING.get(code & 0xFF, (Unusable, "{error}"))
    return kind(f"{path}: {text.format(error=error)}")
