"""By which reading and which spelling entries cover a piece of content."""

from __future__ import annotations

from collections.abc import Sequence

from wellspoken.adapters.alignment.candidates import UNCHOSEN, Reading, mark_of, options
from wellspoken.adapters.alignment.costs import list_texts, owns_any
from wellspoken.adapters.alignment.cover import SURE, cover
from wellspoken.adapters.alignment.ends import MOST_BYTES
from wellspoken.adapters.alignment.placement import (
    FRONT,
    LEFT_OUT,
    STEPS,
    Budget,
    Cover,
    Hints,
    Rows,
)
from wellspoken.adapters.alignment.spelling import (
    Undo,
    find_spellings,
    is_byte_level,
    raw_byte_level,
)
from wellspoken.adapters.events import Entry

Spelling = tuple[str, Undo] | None
Found = tuple[Cover | None, Spelling]

UNDONE = 9  # cost of reading letters as bytes, where no text before was spelled so


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
    first: tuple[int, int, int] = (0, 0, 0)  # its rank
    tried: list[Rows] = []
    spellings = _list_spellings(entries, learned)
    for reading in readings:
        before = first[0] if best[0] is not None else None
        for spelling in spellings:
            undo = spelling[1] if spelling else None
            rows = [options(entry, undo, reading) for entry in entries]
            if rows in tried:
                continue
            tried.append(rows)
            share = Budget(left.left // 2)  # a wrong spelling may not use all of it up
            left.left -= share.left
            found = cover(rows, content, share, hints)
            left.left += max(share.left, 0)
            if found is None or (reading.exact and found.cost):
                continue
            found = found._replace(cost=found.cost + _cost(reading, rows, content, found, hints))
            guessed = spelling is not learned and _is_guess(undo, entries)
            rank = _rank(found, UNDONE if guessed else 0)
            if before is not None and rank[0] >= before:
                continue
            if best[0] is None or rank < first:
                best, first = (found, spelling or learned), rank
        if best[0] is not None and _is_sure(best[0], first[0]):
            break
    budget.left -= given - max(left.left, 0)
    return best


def _list_spellings(entries: Sequence[Entry], learned: Spelling) -> list[Spelling]:
    """Return the learned spelling, none, and each that some entry has, without doubles."""
    tokens = [entry.token for entry in entries]
    for entry in entries:
        tokens += [row.token for row in entry.top_logprobs]
    return list(dict.fromkeys((learned, None, *find_spellings(tokens))))


def _is_guess(undo: Undo | None, entries: Sequence[Entry]) -> bool:
    """Say whether letters are read as bytes though not all tokens bear that out."""
    chosen = [x.token for x in entries if x.bytes is not UNCHOSEN]
    chosen += [row.token for x in entries if x.bytes is UNCHOSEN for row in x.top_logprobs]
    return undo is raw_byte_level and not is_byte_level(chosen)


def _is_sure(best: Cover, cost: int) -> bool:
    """Say whether a looser reading is not to be tried, by which parts may own what others do."""
    idle = best.cost >= FRONT and any(piece.option.data == b"" for piece in best.pieces)
    return not cost or (cost < SURE and not idle)


def _cost(reading: Reading, rows: Rows, content: bytes, found: Cover, hints: Hints) -> int:
    """Return how much worse a cover is for its reading, and for the text that it leaves out."""
    if reading.empty and has_too_many_parts(found):
        return SURE
    if not found.pieces or (hints.lags and not reading.alternatives):
        return reading.cost
    marks, first, end = hints.marks, found.pieces[0].row, found.pieces[-1].row + 1
    before = list_texts(rows, marks, reversed(range(first)))
    behind = list_texts(rows, marks, range(end, len(rows)))
    lost = owns_any(found.pieces, before, content) or (reading.cost and behind)
    return reading.cost + (LEFT_OUT if lost else 0)


def has_too_many_parts(found: Cover) -> bool:
    """Say whether more rows without text stand before a text than it may have parts."""
    parts = 0
    for piece in found.pieces:
        data = piece.option.data
        if data and parts:
            if parts >= MOST_BYTES:
                data = data[piece.cut :]
            if parts >= len(data):
                return True
        parts = parts + 1 if data == b"" else 0
    return False


def _rank(found: Cover, more: int) -> tuple[int, int, int]:
    """Rank covers: the cheapest, of equal ones that with the fewest rows behind, then outside."""
    last = found.pieces[-1].row if found.pieces else 0
    return found.cost + more, -last, -len(found.pieces)
