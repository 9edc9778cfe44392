"""By which reading and which spelling entries cover a piece of content."""

from __future__ import annotations

from collections.abc import Sequence

from wellspoken.adapters.alignment.candidates import Reading, mark_of, options
from wellspoken.adapters.alignment.cover import SURE, Hints, cover
from wellspoken.adapters.alignment.placement import STEPS, Budget, Cover, Rows
from wellspoken.adapters.alignment.spelling import SPELLINGS, Undo
from wellspoken.adapters.events import Entry

Spelling = tuple[str, Undo] | None
Found = tuple[Cover | None, Spelling]

LEFT_BEHIND = 10  # cost of rows with text behind a content that only a loose reading covers


def find_cover(
    entries: Sequence[Entry],
    content: bytes,
    hints: Hints,
    readings: Sequence[Reading],
    learned: Spelling,
    budget: Budget,
) -> Found:
    """Return the cheapest cover by the first reading that has one, and its spelling.

    `learned`: the spelling of the choice so far. `budget`: the whole answer's.
    """
    # Readings outside, spellings inside: a looser reading is worse than another spelling, since it
    # finds room for nearly anything. A cheap cover ends the search, which another spelling may
    # better, but not a looser reading.
    left = Budget(min(STEPS, budget.left))
    given = left.left
    hints = hints._replace(marks=[mark_of(entry) for entry in entries])
    best: Found = (None, None)
    tried: list[Rows] = []
    used = (x for x in SPELLINGS if any(_is_spelled(entry, x[1]) for entry in entries))
    spellings = tuple(dict.fromkeys((learned, None, *used)))
    for reading in readings:
        before = best[0].cost if best[0] is not None else None
        for spelling in spellings:
            undo = spelling[1] if spelling else None
            rows = [options(entry, undo, reading) for entry in entries]
            if rows in tried:
                continue
            tried.append(rows)
            found = cover(rows, content, left, hints)
            if found is None or (reading.exact and found.cost):
                continue
            found = found._replace(cost=found.cost + _cost(reading, rows, found, hints))
            if before is not None and found.cost >= before:
                continue
            if best[0] is None or _rank(found) < _rank(best[0]):
                best = (found, spelling or learned)
        if best[0] is not None and best[0].cost < SURE:
            break
    budget.left -= given - max(left.left, 0)
    return best


def _cost(reading: Reading, rows: Rows, found: Cover, hints: Hints) -> int:
    """Return how much worse a cover is for its reading."""
    if not reading.cost or hints.lags or not found.pieces:
        return reading.cost
    behind = rows[found.pieces[-1].row + 1 :]
    return reading.cost + (LEFT_BEHIND if any(not row[0].is_blank for row in behind) else 0)


def _rank(found: Cover) -> tuple[int, int]:
    """Rank covers: the cheapest, and of equal ones that which leaves the fewest rows behind."""
    return found.cost, -found.pieces[-1].row if found.pieces else 0


def _is_spelled(entry: Entry, undo: Undo) -> bool:
    return undo(entry.token) is not None or any(
        undo(row.token) is not None for row in entry.top_logprobs
    )
