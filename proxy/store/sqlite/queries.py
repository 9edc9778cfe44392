"""What `sqlite.py` asks of the file: each function is SQL on a connection, in its thread.

Those that write want a transaction around them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import json

from wellspoken.proxy.store.marks import Span, bounds, clamp, digest, marks, marks_of
from wellspoken.proxy.store.rows import Position, Query, Row

PRUNED = 16 * 1024 * 1024
"""How many bytes of rows one `prune` holds in memory at most, unless one row alone has more."""
FEW = 1024
"""A list of fewer rows than this in the range asked for is walked without looking for a shorter."""
WALKED = 4096
"""How far two long lists are walked together before it is worth to find out which is shorter."""
_EVERYBODY = b""

_COLUMNS = "c.id, c.owner, c.created, c.model, c.request_id, c.metadata, c.answer, c.parameters"
_WHOLE = f"{_COLUMNS}, c.messages, c.seq"
_BRIEF = f"{_COLUMNS}, x'', c.seq"
_NAMED = "c.owner = CAST(? AS TEXT) AND c.id = CAST(? AS TEXT)"
_RANGE = "({0}.created, {0}.seq) > (?, ?) AND ({0}.created, {0}.seq) < (?, ?)"

_encode = json.Encoder().encode
_metadata_of = json.Decoder(dict[str, str]).decode


def insert(db: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Add rows, except those whose owner and id are there."""
    lists: list[tuple[bytes, int, int]] = []
    added = size = 0
    for row in rows:
        created, taken = clamp(row.created), row.size
        done = db.execute(
            "INSERT INTO completion (owner, created, size, id, model, request_id, metadata, "
            "answer, parameters, messages) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (owner, id) DO NOTHING",
            (
                row.owner,
                created,
                taken,
                row.id,
                row.model,
                row.request_id,
                _encode(row.metadata).decode(),
                row.answer,
                row.parameters,
                row.messages,
            ),
        )
        if done.rowcount:
            assert done.lastrowid is not None
            added += 1
            size += taken
            lists += [(mark, created, done.lastrowid) for mark in _lists(row)]
    _list(db, lists)
    _count(db, added, size)


def get(db: sqlite3.Connection, owner: str, id: str) -> Row | None:
    """Return one row with all its columns."""
    found = _select(db, _WHOLE, owner, id)
    return None if found is None else _row(found)


def position(db: sqlite3.Connection, owner: str, id: str) -> Position | None:
    """Return where a row stands."""
    found = _select(db, "created, seq", owner, id)
    return None if found is None else Position(*found)


def size(db: sqlite3.Connection) -> tuple[int, int]:
    """Return how many rows there are, and how many bytes their columns take."""
    completions, taken = db.execute("SELECT completions, bytes FROM total").fetchone()
    return completions, taken


def set_metadata(
    db: sqlite3.Connection, owner: str, id: str, metadata: dict[str, str]
) -> Row | None:
    """Replace a row's metadata and return it; None: there is none."""
    row = get(db, owner, id)
    if row is None:
        return None
    _unlist(db, [row])
    row.metadata = dict(metadata)
    db.execute(
        "UPDATE completion SET metadata = ? WHERE seq = ?", (_encode(metadata).decode(), row.seq)
    )
    _list(db, [(mark, row.created, row.seq) for mark in _lists(row)])
    return row


def delete(db: sqlite3.Connection, owner: str, id: str) -> Row | None:
    """Delete a row and return what it was; None: there was none."""
    row = get(db, owner, id)
    if row is not None:
        _remove(db, [row])
    return row


def prune(db: sqlite3.Connection, before: int | None, over: int | None, limit: int) -> list[Row]:
    """Delete the oldest rows that are too old or too much, at most `limit`, and return them."""
    excess = size(db)[1] - over if over is not None else 0
    since = clamp(before) if before is not None else None
    rows: list[Row] = []
    held = 0
    oldest = db.execute(
        "SELECT c.seq, c.created, c.size FROM listed l CROSS JOIN completion c ON c.seq = l.seq "
        "WHERE l.digest = ? ORDER BY l.created, l.seq LIMIT ?",
        (_EVERYBODY, limit),
    )
    for seq, created, taken in oldest:
        if excess <= 0 and (since is None or created >= since):
            break
        if rows and held + taken > PRUNED:
            break
        whole = db.execute(f"SELECT {_WHOLE} FROM completion c WHERE c.seq = ?", (seq,))
        rows.append(_row(whole.fetchone()))
        held += taken
        excess -= taken
    oldest.close()
    _remove(db, rows)
    return rows


def find(db: sqlite3.Connection, query: Query) -> list[Row]:
    """Return the rows that are wanted, in order.

    A row that stands in several lists is looked for along one of them. Which one hardly matters
    while matches are frequent; where they are rare, it must be the shortest, and to find that takes
    a count, so that is done for what a first stretch did not answer.
    """
    span, lists = bounds(query), _lists_wanted(query)
    if len(lists) == 1:
        return _page(db, query, lists, span, query.limit)
    lists, shortest = _shortest(db, lists, span, FEW)
    edge = None if shortest < FEW else _edge(db, lists[0], span, query.descending)
    if edge is None:
        return _page(db, query, lists, span, query.limit)
    low, high = span
    if query.descending:
        first, span = (Position(edge.created, edge.seq - 1), high), (low, edge)
    else:
        first, span = (low, Position(edge.created, edge.seq + 1)), (edge, high)
    rows = _page(db, query, lists, first, query.limit)
    if len(rows) < query.limit:
        few = FEW
        while shortest >= few:
            few *= 8
            lists, shortest = _shortest(db, lists, span, few)
        rows += _page(db, query, lists, span, query.limit - len(rows))
    return rows


def has_metadata(metadata: str, wanted: str) -> bool:
    """Return whether a row's metadata has all wanted pairs, both as JSON: a function for SQL."""
    return _metadata_of(wanted).items() <= _metadata_of(metadata).items()


def _page(
    db: sqlite3.Connection, query: Query, lists: Sequence[bytes], span: Span, limit: int
) -> list[Row]:
    """Walk the first of the lists between two positions; each row must stand in the others too."""
    source = "listed l0"
    where = f"l0.digest = ? AND {_RANGE.format('l0')}"
    values: list[Any] = [lists[0], *span[0], *span[1]]
    for at, mark in enumerate(lists[1:], 1):
        source += f" CROSS JOIN listed l{at}"  # which keeps SQLite from another order
        where += f" AND l{at}.digest = ? AND l{at}.created = l0.created AND l{at}.seq = l0.seq"
        values.append(mark)
    where += " AND c.seq = l0.seq"
    if query.owner is not None:
        where += " AND c.owner = ?"
        values.append(query.owner)
    else:
        if query.model is not None:
            where += " AND c.model = ?"
            values.append(query.model)
        if query.metadata:
            where += " AND has_metadata(c.metadata, ?)"
            values.append(_encode(query.metadata).decode())
    order = "DESC" if query.descending else "ASC"
    found = db.execute(
        f"SELECT {_WHOLE if query.messages else _BRIEF} FROM {source} CROSS JOIN completion c "
        f"WHERE {where} ORDER BY l0.created {order}, l0.seq {order} LIMIT ?",
        (*values, limit),
    )
    return [_row(values) for values in found]


def _shortest(
    db: sqlite3.Connection, lists: Sequence[bytes], span: Span, most: int
) -> tuple[list[bytes], int]:
    """Return the lists with the shortest first, and its length, both as far as `most` rows tell."""
    counted = [
        db.execute(
            "SELECT count(*) FROM (SELECT 1 FROM listed WHERE digest = ? "
            "AND created BETWEEN ? AND ? LIMIT ?)",
            (mark, span[0].created, span[1].created, most),
        ).fetchone()[0]
        for mark in lists
    ]
    order = sorted(range(len(lists)), key=counted.__getitem__)
    return [lists[at] for at in order], counted[order[0]]


def _edge(db: sqlite3.Connection, mark: bytes, span: Span, descending: bool) -> Position | None:
    """Return the position of the last row of a list's first stretch; None: it ends before."""
    order = "DESC" if descending else "ASC"
    found = db.execute(
        f"SELECT l.created, l.seq FROM listed l WHERE l.digest = ? AND {_RANGE.format('l')} "
        f"ORDER BY l.created {order}, l.seq {order} LIMIT 1 OFFSET ?",
        (mark, *span[0], *span[1], WALKED - 1),
    ).fetchone()
    return None if found is None else Position(*found)


def _lists_wanted(query: Query) -> list[bytes]:
    """Return the lists in which a wanted row stands."""
    if query.owner is None:
        return [_EVERYBODY]
    return marks(query.owner, query.model, query.metadata) or [digest(query.owner)]


def _lists(row: Row) -> list[bytes]:
    """Return the lists in which a row stands."""
    return [_EVERYBODY, digest(row.owner), *marks_of(row)]


def _list(db: sqlite3.Connection, lists: Iterable[tuple[bytes, int, int]]) -> None:
    db.executemany("INSERT INTO listed VALUES (?, ?, ?)", sorted(lists))


def _unlist(db: sqlite3.Connection, rows: Iterable[Row]) -> None:
    db.executemany(
        "DELETE FROM listed WHERE digest = ? AND created = ? AND seq = ?",
        sorted((mark, row.created, row.seq) for row in rows for mark in _lists(row)),
    )


def _remove(db: sqlite3.Connection, rows: Sequence[Row]) -> None:
    _unlist(db, rows)
    db.executemany("DELETE FROM completion WHERE seq = ?", [(row.seq,) for row in rows])
    _count(db, -len(rows), -sum(row.size for row in rows))


def _count(db: sqlite3.Connection, rows: int, taken: int) -> None:
    db.execute("UPDATE total SET completions = completions + ?, bytes = bytes + ?", (rows, taken))


def _select(db: sqlite3.Connection, columns: str, owner: str, id: str) -> Any:
    # A client may ask for what UTF-8 cannot encode; no row is named like that.
    named = owner.encode("utf-8", "surrogatepass"), id.encode("utf-8", "surrogatepass")
    return db.execute(f"SELECT {columns} FROM completion c WHERE {_NAMED}", named).fetchone()


def _row(values: tuple[Any, ...]) -> Row:
    row = Row(*values)
    row.metadata = _metadata_of(values[5])
    return row
