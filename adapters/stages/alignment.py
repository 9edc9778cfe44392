"""Which logprob entries cover a piece of content, and which bytes of it each of them owns.

A row's *options* are what its token may stand for in the content: known bytes, or a pattern where
the text holds U+FFFD or is empty (a part of a character whose split is unknown). If all bytes are
known, covering is a search in their concatenation; with patterns it is a walk over the rows that
keeps every reachable position, prefers that a character is owned by its last row, and is bounded.

Example. The content "a😀b" came in rows "a", "", "", "b": two tokens made the emoji, and nothing
tells which bytes were whose. After "a" the walk stands at 1; the first "" may own nothing and stay
at 1 (one part has come) or take the whole emoji and stand at 5. Only one row can take it, and both
ways reach "b" at 5; that the first part takes it all costs a penalty, since a part alone is no
whole character. So the second "" owns the four bytes and the first one none. What holds of any
cover: its pieces ascend, together they are the bytes it covers, and two overlap only where both
have a part of what the content shows as U+FFFD.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

PART = (b"", b"")  # the texts of a part of a character
PARTIAL = 3
WIDTH = 256  # states kept after a row; where the split is certain there is one
STEPS = 100_000
LAST_TOKEN = 16  # bytes that an end-of-text token may have behind the content
_FFFD = "\ufffd".encode()
_CONTINUING = tuple(bytes([byte]) for byte in range(0x80, 0xC0))
_UTF8 = re.compile(  # a character, or as much of one as there is
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]?|\xed[\x80-\x9f][\x80-\xbf]?|"
    rb"[\xe1-\xec\xee\xef][\x80-\xbf]{1,2}|\xf0[\x90-\xbf][\x80-\xbf]{0,2}|"
    rb"[\xf1-\xf3][\x80-\xbf]{1,3}|\xf4[\x80-\x8f][\x80-\xbf]{0,2}|.",
    re.DOTALL,
)


class Option(NamedTuple):
    """One thing a row's token may stand for.

    `data` are its bytes; None for a pattern: `texts`, with up to `most` characters that are not
    ASCII between one and the next. `pick` is the index of the alternative it is, -1 for the row's
    own token.
    """

    data: bytes | None
    texts: tuple[bytes, ...] = (b"", b"")
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


class Budget(Struct, eq=False):
    """States that may still be looked at, so that a hostile answer cannot stall the loop."""

    left: int = STEPS

    def spend(self, states: int) -> bool:
        """Take some; say whether any were left."""
        self.left -= states
        return self.left >= 0


def cover(rows: Rows, content: bytes, after: bytes, budget: Budget) -> Cover | None:
    """Return how `rows` cover `content` from its start, None if they do not.

    `after`: bytes that the rows hold before the content (its reasoning), where known.
    """
    # Known bytes need no walk: one search finds them, whatever the length. The rows without an end
    # are tried so first, since an end-of-text token, which has no bytes, stands behind nearly all.
    known = _without_end(rows)
    if all(len(options) == 1 and options[0].data is not None for options in known):
        found = _cover_known(known, content, after)
        if len(known) == len(rows) or (found is not None and found.covered == len(content)):
            return found
    # Each row may be the first of the content; those before it are outside (reasoning, markup).
    for first in range(len(rows)):
        found = _walk(rows, first, content, budget)
        if found is not None or not budget.spend(1):
            return found
    return None


def _without_end(rows: Rows) -> Rows:
    """Return the rows without the empty patterns at their end: an end-of-text token, as a rule."""
    last = len(rows)
    while last and len(rows[last - 1]) == 1 and rows[last - 1][0][:2] == (None, PART):
        last -= 1
    return rows[:last]


def _cover_known(rows: Rows, content: bytes, after: bytes) -> Cover | None:
    joined = b"".join(options[0].data or b"" for options in rows)
    offset = _offset(joined, content, after)
    if offset is not None:
        size = min(len(content), len(joined) - offset)
        return _cut(rows, offset, size, joined, size == len(content))
    if _FFFD in content:
        return _cover_replaced(rows, joined, content)
    return None


def _offset(joined: bytes, content: bytes, after: bytes) -> int | None:
    """Return where the content begins: behind the reasoning, at the front, or where it is found."""
    behind = joined.find(after) + len(after) if after and after in joined else 0
    if behind:
        found = _find(joined, content, behind)
        if found is not None:
            return found
    if joined.startswith(content) or (joined and content.startswith(joined)):
        return 0
    return _find(joined, content, 0)


def _find(joined: bytes, content: bytes, begin: int) -> int | None:
    """Return the last place of the content if little follows there, else the first.

    Much that follows is no end-of-text token: there the rows run ahead of this piece of content.
    """
    first = joined.find(content, begin)
    if first < 0:
        return None
    # A short answer ("4") may stand in the reasoning too; the answer itself is what comes last.
    last = joined.rfind(content, begin)
    return last if len(joined) - last - len(content) <= LAST_TOKEN else first


def _cut(rows: Rows, offset: int, size: int, joined: bytes, whole: bool) -> Cover:
    """Return the rows that own `size` bytes of the joined bytes from `offset` on."""
    pieces = []
    at, end = 0, offset + size
    for index, options in enumerate(rows):
        data = options[0].data or b""
        start, at = at, at + len(data)
        if at < offset or (at == offset and data):
            continue
        if start >= end:
            break
        cut, over = max(offset - start, 0), max(at - end, 0)
        own = max(start, offset) - offset
        pieces.append(Piece(index, own, min(at, end) - offset, options[0], cut, over))
    cost = 0 if offset == 0 else 1 if joined[:offset].isspace() else 2
    return Cover(pieces, size, cost if whole else PARTIAL)


def _cover_replaced(rows: Rows, joined: bytes, content: bytes) -> Cover | None:
    """Cover a content whose undecodable bytes show as U+FFFD.

    One for each maximal part of a character, as decoders do, or as many as may be for each run.
    """
    views = [(_characters(joined, runs), _characters(content, runs)) for runs in (False, True)]
    for at_front in (True, False):
        for shown, wanted in views:
            text = "".join(character for character, _ in shown)
            sought = "".join(character for character, _ in wanted)
            begins = text.startswith(sought) or (text and sought.startswith(text))
            first = 0 if begins else -1 if at_front else text.rfind(sought)
            if first >= 0:
                begin = shown[first - 1][1] if first else 0
                ends = [end for _, end in shown[first : first + len(wanted)]]
                complete = len(ends) == len(wanted)
                found = _cut(rows, begin, ends[-1] - begin, joined, complete)
                return _shown(found, [x - begin for x in ends], [end for _, end in wanted])
    return None


def _characters(data: bytes, runs: bool) -> list[tuple[str, int]]:
    """Return (character, its end in bytes); with `runs` all U+FFFD in a row are one."""
    found: list[tuple[str, int]] = []
    for match in _UTF8.finditer(data):
        character = match[0].decode(errors="replace")
        if runs and character == "\ufffd" and found and found[-1][0] == "\ufffd":
            found.pop()
        found.append((character, match.end()))
    return found


def _shown(found: Cover, ends: list[int], wanted: list[int]) -> Cover:
    """Place the pieces in the content: each has all of every character that it has a part of.

    `ends`: where the characters end in the bytes that the pieces are of; `wanted`: in the content.
    """
    starts = [0, *wanted]
    pieces = []
    for piece in found.pieces:
        start = starts[bisect_right(ends, piece.start)]
        empty = piece.start == piece.end
        end = start if empty else starts[bisect_left(ends, piece.end) + 1]
        pieces.append(piece._replace(start=start, end=end))
    return found._replace(pieces=pieces, covered=starts[len(ends)])


State = tuple[int, int]
"""(position in the content, parts of the character there that have come and own nothing)"""
Trail = dict[State, tuple[int, State, Option]]
"""state -> (penalties so far, state before, option taken)"""


def _walk(rows: Rows, first: int, content: bytes, budget: Budget) -> Cover | None:
    """Walk the rows from `first` along the way with the fewest penalties.

    Rows that are used up before the content cover its beginning, if they are all the rows.
    """
    # All ways go on together, row by row, each state with the best way to it alone: what follows
    # depends on the state, not on how it was reached. So rows times states bounds the work, where
    # the number of ways doubles with every part.
    trails: list[Trail] = []
    reached: Trail = {(0, 0): (0, (0, 0), Option(None))}
    size = len(content)
    done, end = -1, (0, 0)
    anchor = (first, 0)  # the last row and position that were certain
    for index in range(first, len(rows)):
        following = rows[index + 1] if index + 1 < len(rows) else ()
        reached = _advance(reached, rows[index], following, content, index == first)
        if not reached or not budget.spend(len(reached) * len(rows[index])):
            break
        if len(reached) == 1:
            anchor = (index, next(iter(reached))[0])
        elif len(reached) > WIDTH:  # a run of parts alone, as in a text of emojis: all are alike
            reached = _nearest(reached, anchor, (index, len(rows)), size)
        trails.append(reached)
        ways = [(way[0], state) for state, way in reached.items() if state[0] == size > way[1][0]]
        if ways:
            done, end = index, min(ways)[1]  # the last row that owns a part of the content's end
    if done < 0:
        if first or len(trails) < len(rows) or not max(trails[-1])[0]:
            return None
        done, end = len(rows) - 1, max(trails[-1])
    pieces = _trace(trails[: done - first + 1], first, end, content)
    cost = PARTIAL if end[0] < size else 2 if first else 1 if pieces[0].cut else 0
    return Cover(pieces, end[0], cost)


def _nearest(reached: Trail, anchor: State, at: State, size: int) -> Trail:
    """Return the states nearest to a steady pace from the anchor to the content's end.

    300 rows without text cover 150 emojis so; with the first states kept instead, the rows would be
    used up after 64 of them.
    """
    (row, position), (index, count) = anchor, at
    wanted = position + (size - position) * (index - row) / max(count - 1 - row, 1)
    kept = sorted(reached, key=lambda state: abs(state[0] - wanted))[:WIDTH]
    return {state: reached[state] for state in kept}


def _advance(
    reached: Trail,
    options: Sequence[Option],
    following: Sequence[Option],
    content: bytes,
    front: bool,
) -> Trail:
    """Return the states after one row; of two ways to one the first with fewer penalties stays."""
    found: Trail = {}
    inner = any(x.data is not None and x.data[:1] in _CONTINUING for x in following)
    for state, (total, _, _) in reached.items():
        for option in options:
            for penalty, end in _ends(option, state, content, front, inner):
                if end not in found or total + penalty < found[end][0]:
                    found[end] = (total + penalty, state, option)
    return found


Ends = Sequence[tuple[int, State]]


def _ends(option: Option, state: State, content: bytes, front: bool, inner: bool) -> Ends:
    """Return (penalty, state after) for one option taken at `state`."""
    if option.data is not None:
        return _ends_of_known(option.data, state, content, front)
    if option.most == 1 and option.texts == PART:
        return _part_ends(state, content, inner)
    found = {state[0]: 0}
    for last, text in enumerate(option.texts):
        found = {
            at + len(text): penalty for at, penalty in found.items() if content.startswith(text, at)
        }
        if last + 1 < len(option.texts):
            inside = option.texts[last + 1].startswith(_CONTINUING)
            found = _with_gaps(found, option.most, content, inside)
    opened = 0 if option.texts[-1] else 1
    return [(penalty, (at, opened)) for at, penalty in found.items()]


def _with_gaps(found: dict[int, int], most: int, content: bytes, inside: bool) -> dict[int, int]:
    """Return where each position may be after up to `most` characters that are not ASCII.

    `inside`: what follows begins with the end of a character, whose beginning is in the gap then.
    """
    reached: dict[int, int] = {}
    for start, penalty in found.items():
        at = start
        for count in range(most + 1):
            reached[at] = min(penalty + max(count - 1, 0), reached.get(at, 99))
            if at >= len(content) or content[at] < 0x80:
                break
            end = _character_end(content, at)
            if inside:
                reached |= dict.fromkeys(range(at + 1, end), penalty + count)
            at = end
    return reached


def _ends_of_known(data: bytes, state: State, content: bytes, front: bool) -> Ends:
    position, opened = state
    if content.startswith(data, position):
        whole = _character_end(content, position) - position
        # Parts that own nothing belong to the character that comes now, if it has that many.
        penalty = 0 if not opened or opened < whole else 2
        return ((penalty, (position + len(data), 0)),)
    if position < len(content) and data.startswith(content[position:]):
        return ((0, (len(content), 0)),)
    replaced = _as_replaced(data, position, content)
    if replaced:
        return [(penalty, (end, opened)) for penalty, end in replaced]
    stripped = data.lstrip() if front else b""
    if stripped and content.startswith(stripped, position):
        return ((1, (position + len(stripped), 0)),)
    return ()


def _part_ends(state: State, content: bytes, inner: bool) -> Ends:
    """Return the ends of a part of a character: it owns nothing, or completes its character.

    A character of n bytes has at most n parts, and a part alone is no whole character, unless the
    content shows U+FFFD there.
    """
    position, opened = state
    ends = [(0 if opened < 3 else 2, (position, min(opened + 1, 3)))]
    if position < len(content) and content[position] >= 0x80:
        end = _character_end(content, position)
        alone = not opened and content[position] >= 0xC0
        fits = not alone or content.startswith(_FFFD, position)
        penalty = (0 if fits else 4) + (0 if opened < end - position else 3)
        ends.append((penalty, (end, 0)))
        if inner:
            ends += [(1, (at, 0)) for at in range(position + 1, end)]
    return ends


def _character_end(content: bytes, at: int) -> int:
    """Return the position after the character that `at` is in."""
    at += 1
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at


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


def _trace(trails: list[Trail], first: int, end: State, content: bytes) -> list[Piece]:
    """Return the pieces of the way that ends at `end`, from its last row back to its first."""
    pieces = []
    for index in range(len(trails) - 1, -1, -1):
        _, before, option = trails[index][end]
        start, stop = before[0], end[0]
        size = len(option.data) if option.data is not None else stop - start
        beyond = size - (stop - start)
        data = option.data or b""
        own = content[start:stop]
        over = beyond if beyond > 0 and data.startswith(own) and own else 0
        cut = beyond - over if data.endswith(own) and own else 0
        pieces.append(Piece(first + index, start, stop, option, cut, over))
        end = before
    return pieces[::-1]
