"""Which logprob entries cover a piece of content, and which bytes of it each of them owns.

A row's *options* are what its token may stand for in the content: known bytes, or a pattern where
the text holds U+FFFD or is empty (a part of a character whose split is unknown). If all bytes are
known, covering is a search in their concatenation; with patterns it is a walk over the rows that
keeps every reachable position, prefers that a character is owned by its last row, and is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

PARTIAL = 3
WIDTH = 64  # positions kept per row: a row is a part of a character, so few are ever needed
STEPS = 200_000  # rows tried over all starts, so that a hostile answer cannot stall the loop
_FFFD = "\ufffd".encode()
_REPLACED = re.compile("\ufffd+")


class Option(NamedTuple):
    """One thing a row's token may stand for.

    `data` are its bytes; None for a pattern: `before`, then up to `most` characters that are not
    ASCII, then `after`. `pick` is the index of the alternative it is, -1 for the row's own token.
    """

    data: bytes | None
    before: bytes = b""
    after: bytes = b""
    pick: int = -1
    most: int = 1


class Piece(NamedTuple):
    """A kept row: its index, the bytes it owns in the content, what of them is its option's.

    `cut`: bytes clipped from the option's front. `over`: bytes of it beyond the content's end.
    """

    row: int
    start: int
    end: int
    option: Option
    cut: int = 0
    over: int = 0


class Cover(NamedTuple):
    """The pieces in order; rows before the first are outside, rows after the last not reached.

    `covered`: bytes of the content that the pieces own. `cost`: 0 exact, 1 only white space was
    cut at the front, 2 more was, 3 the rows end before the content.
    """

    pieces: list[Piece]
    covered: int
    cost: int


Rows = Sequence[Sequence[Option]]


def cover(rows: Rows, content: bytes, after: bytes = b"") -> Cover | None:
    """Return how `rows` cover `content` from its start, None if they do not.

    `after`: bytes that the rows hold before the content (its reasoning), where known.
    """
    known = _without_end(rows)
    if all(len(options) == 1 and options[0].data is not None for options in known):
        found = _known(known, content, after)
        if len(known) == len(rows) or (found is not None and found.covered == len(content)):
            return found
    budget = STEPS
    for first in range(len(rows)):
        found, steps = _walk(rows, first, content)
        if found is not None:
            return found
        budget -= steps
        if budget < 0:
            return None
    return None


def _without_end(rows: Rows) -> Rows:
    """Return the rows without the empty patterns at their end: an end-of-text token, as a rule."""
    last = len(rows)
    while last and len(rows[last - 1]) == 1 and rows[last - 1][0][:3] == (None, b"", b""):
        last -= 1
    return rows[:last]


def _known(rows: Rows, content: bytes, after: bytes) -> Cover | None:
    joined = b"".join(options[0].data or b"" for options in rows)
    offset = _offset(joined, content, after)
    if offset is not None:
        size = min(len(content), len(joined) - offset)
        return _cut(rows, offset, size, joined, size == len(content))
    if _FFFD in content:
        return _replaced(rows, joined, content)
    return None


def _offset(joined: bytes, content: bytes, after: bytes) -> int | None:
    """Return where the content begins: at the front, behind the reasoning, or where it is found."""
    if joined.startswith(content) or (joined and content.startswith(joined)):
        return 0
    begin = joined.find(after) + len(after) if after and after in joined else 0
    first = joined.find(content, begin)
    if first < 0:
        return None
    last = joined.rfind(content)
    # Without reasoning to go by, the content is what stands last, but for one end-of-text token.
    return last if not begin and len(joined) - last - len(content) <= 16 else first


def _cut(rows: Rows, offset: int, size: int, joined: bytes, whole: bool) -> Cover:
    """Return the rows that own `size` bytes of the joined bytes from `offset` on."""
    pieces = []
    at, end = 0, offset + size
    for index, options in enumerate(rows):
        data = options[0].data or b""
        start, at = at, at + len(data)
        if at <= offset:
            continue
        if start >= end:
            break
        cut, over = max(offset - start, 0), max(at - end, 0)
        own = max(start, offset) - offset
        pieces.append(Piece(index, own, min(at, end) - offset, options[0], cut, over))
    cost = 0 if offset == 0 else 1 if joined[:offset].isspace() else 2
    return Cover(pieces, size, cost if whole else PARTIAL)


def _replaced(rows: Rows, joined: bytes, content: bytes) -> Cover | None:
    """Cover a content whose undecodable bytes were replaced: one U+FFFD or more for each run."""
    characters = _characters(joined)
    text = "".join(character for character, _ in characters)
    wanted = _REPLACED.sub("\ufffd", content.decode())
    if text.startswith(wanted) or (text and wanted.startswith(text)):
        first = 0
    else:
        first = text.rfind(wanted)
        if first < 0:
            return None
    last = min(first + len(wanted), len(characters))
    begin = characters[first - 1][1] if first else 0
    end = characters[last - 1][1] if last else 0
    complete = last - first == len(wanted)
    found = _cut(rows, begin, end - begin, joined, complete)
    return found._replace(covered=len(content) if complete else found.covered)


def _characters(data: bytes) -> list[tuple[str, int]]:
    """Return (character, its end in bytes), a run of undecodable bytes being one U+FFFD."""
    found: list[tuple[str, int]] = []
    at = 0
    while at < len(data):
        try:
            good, bad, end = data[at:].decode(), 0, len(data)
        except UnicodeDecodeError as error:
            good, bad, end = data[at : at + error.start].decode(), 1, at + error.end
        for character in good:
            at += len(character.encode())
            found.append((character, at))
        if bad:
            at = end
            if found and found[-1][0] == "\ufffd":
                found[-1] = ("\ufffd", at)
            else:
                found.append(("\ufffd", at))
    return found


Trail = dict[int, tuple[int, Option]]
"""position -> (position before, option taken)"""


def _walk(rows: Rows, first: int, content: bytes) -> tuple[Cover | None, int]:
    """Walk the rows from `first`; also returns how many rows were looked at.

    Rows that are used up before the content cover its beginning.
    """
    trails: list[Trail] = []
    reached: Trail = {0: (0, Option(None))}
    size = len(content)
    done = -1
    for index in range(first, len(rows)):
        reached = _advance(reached, rows[index], content, first == index)
        if not reached:
            break
        trails.append(reached)
        if size in reached and reached[size][0] < size:
            done = index  # the last row that owns a part of the content's end
    seen = len(trails) + 1
    if done < 0:
        exhausted = first == 0 and len(trails) == len(rows)
        if not (exhausted and max(trails[-1])):
            return None, seen
        done = len(rows) - 1
    trail = trails[done - first]
    end = size if size in trail else max(trail)
    pieces = _trace(trails[: done - first + 1], first, end, content)
    cost = PARTIAL if end < size else 2 if first else 1 if pieces[0].cut else 0
    return Cover(pieces, end, cost), seen


def _advance(reached: Trail, options: Sequence[Option], content: bytes, front: bool) -> Trail:
    """Return the positions after one row; of two ways to one position the first found stays."""
    found: dict[int, tuple[int, tuple[int, Option]]] = {}
    for position in reached:
        for option in options:
            for rank, end in _ends(option, position, content, front):
                if end not in found or rank < found[end][0]:
                    found[end] = (rank, (position, option))
    kept = sorted(found.items(), reverse=True)[:WIDTH] if len(found) > WIDTH else found.items()
    return {end: way for end, (_, way) in kept}


def _ends(option: Option, position: int, content: bytes, front: bool) -> Sequence[tuple[int, int]]:
    """Return (rank, position after) for one option taken at `position`; a lower rank is better."""
    data = option.data
    if data is not None:
        if content.startswith(data, position):
            return ((0, position + len(data)),)
        if position < len(content) and data.startswith(content[position:]):
            return ((0, len(content)),)
        replaced = _as_replaced(data, position, content)
        if replaced:
            return replaced
        stripped = data.lstrip() if front else b""
        if stripped and content.startswith(stripped, position):
            return ((1, position + len(stripped)),)
        return ()
    if not content.startswith(option.before, position):
        return ()
    at = position + len(option.before)
    ends = []
    for rank in (1, 0, 2, 3, 4)[: option.most + 1]:  # best: it completes the one that is its own
        if content.startswith(option.after, at):
            ends.append((rank, at + len(option.after)))
        if at >= len(content) or content[at] < 0x80:
            break
        at += 1
        while at < len(content) and content[at] & 0xC0 == 0x80:
            at += 1
    return ends


def _as_replaced(data: bytes, position: int, content: bytes) -> Sequence[tuple[int, int]]:
    """Return where undecodable bytes end if the content shows U+FFFD for them, or for a part."""
    if not content.startswith(_FFFD, position):
        return ()
    text = data.decode("utf-8", "replace").encode()
    if text == data:
        return ()
    bytewise = b"".join(_FFFD if byte >= 0x80 else bytes([byte]) for byte in data)
    ends = [(0, position + len(x)) for x in {text, bytewise} if content.startswith(x, position)]
    return [*ends, (2, position)] if not text.replace(_FFFD, b"") else ends


def _trace(trails: list[Trail], first: int, end: int, content: bytes) -> list[Piece]:
    pieces = []
    for index in range(len(trails) - 1, -1, -1):
        start, option = trails[index][end]
        size = len(option.data) if option.data is not None else end - start
        beyond = size - (end - start)
        data = option.data or b""
        over = beyond if beyond > 0 and data.startswith(content[start:end]) and end > start else 0
        cut = beyond - over if data.endswith(content[start:end]) and end > start else 0
        pieces.append(Piece(first + index, start, end, option, cut, over))
        end = start
    return pieces[::-1]
