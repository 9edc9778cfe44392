"""Rows that may stand for parts of characters, whose split nobody tells, or for several texts.

Where bytes are not known, a stretch is a walk over the rows that keeps every reachable position,
prefers that a character is owned by its last row, and is bounded.

Example. The content "a😀b" came in rows "a", "", "", "b": two tokens made the emoji, and nothing
tells which bytes were whose. After "a" the walk stands at 1; the first "" may own nothing and stay
at 1 (one part has come) or take the whole emoji and stand at 5. Only one row can take it, and both
ways reach "b" at 5; that the first part takes it all costs a penalty, since a part alone is no
whole character. So the second "" owns the four bytes and the first one none. What holds of any
stretch: its pieces ascend, together they are the bytes it covers, and two overlap only where both
have a part of what the content shows as U+FFFD.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property, partial

from wellspoken.adapters.alignment.ends import (
    CONTINUING,
    State,
    find_ends,
    find_ends_of_any,
    show_replaced,
    strip_space,
)
from wellspoken.adapters.alignment.placement import (
    ANY,
    BACK,
    EXITS,
    PART,
    REPLACEMENT,
    Budget,
    Hints,
    Joint,
    Option,
    Piece,
    Rows,
    Stretch,
    find_cut,
    is_blank,
    measure_space,
)

GUESS = 1 / 1024  # penalty of text that nothing tells whose it is
STRANDED = 12  # penalty of parts without the character that they are of
WIDTH = 128  # states kept after a row; where the split is certain there is one
UNFINISHED = 8  # penalty of an end behind which the rest of a character comes
UNTOLD = GUESS / 2  # penalty of an end that no text tells
LEFT_ROWS = 40  # penalty of an end behind which text comes, where nothing should
LEFT_FIRST = 2  # the same behind a first text

Trail = dict[State, tuple[float, State, Option]]
"""state -> (penalties so far, state before, option taken)"""


class Parts:
    """The walker of any rows; it keeps `width` states after each."""

    def __init__(
        self, rows: Rows, content: bytes, budget: Budget, hints: Hints, width: int = WIDTH
    ) -> None:
        self.rows = rows
        self.content = content
        self.budget = budget
        self.hints = hints
        self.width = width
        self.begins: dict[int, list[tuple[int, int]]] = {}
        # What came with a first text may be reasoning's, which is priced by itself (LEFT, FAR).
        self.left = LEFT_ROWS if hints.own < 0 else LEFT_FIRST
        self.quiet = len(rows)  # from this one on no row has text that may be content
        while self.quiet and self._is_mute(self.quiet - 1):
            self.quiet -= 1

    def _is_mute(self, row: int) -> bool:
        """Say whether a row shows no text, not even that of a part."""
        options = self.rows[row]
        marks = self.hints.marks
        return (is_blank(options) and not options[0].least) or bool(marks and marks[row])

    def walk(self, row: int, at: int) -> Stretch | None:
        """Return the longest stretch that begins with `row` at `at`; None if that does not fit.

        Of all ways that reach as far it is the one with the fewest penalties.
        """
        # All ways go on together, row by row, each state with the best way to it alone: what
        # follows depends on the state, not on how it was reached. So rows times states bounds the
        # work, where the number of ways doubles with every part.
        rows, content, size = self.rows, self.content, len(self.content)
        trails: list[Trail] = []
        reached: Trail = {(at, 0): (0, (at, 0), Option(None))}
        # At the content's end: (penalties, rows, state).
        arrived: list[tuple[float, int, State]] = []
        anchor = (row, at)  # the last row and position that were certain
        for index in range(row, len(rows)):
            following = rows[index + 1] if index + 1 < len(rows) else ()
            inner = any(x.data is not None and x.data[:1] in CONTINUING for x in following)
            ending = index + 1 >= self.quiet
            reached = _advance(
                reached, rows[index], following, content, index == row, inner, ending
            )
            if not reached or not self.budget.spend(len(reached) * len(rows[index])):
                break
            if len(reached) == 1:
                anchor = (index, next(iter(reached))[0])
            elif len(reached) > self.width:  # a run of parts alone, as in a text of emojis
                reached = _nearest(reached, anchor, (index, len(rows)), size, self.width)
            trails.append(reached)
            left = self.price_left(index)
            ways = [
                (_price_end(way, end, size, inner=inner, left=left), end)
                for end, way in reached.items()
                if end[0] == size > way[1][0]
            ]
            if ways:
                penalty, end = min(ways)
                arrived.append((penalty, index if self.hints.ahead else -index, end))
        return self._leave(row, at, trails, arrived)

    def price_left(self, row: int) -> float:
        """Return the penalty of an end behind this row for the text that comes behind it."""
        return 0 if self.hints.lags or row + 1 >= self.quiet else self.left

    def _leave(
        self, row: int, at: int, trails: list[Trail], arrived: list[tuple[float, int, State]]
    ) -> Stretch | None:
        """Return the stretch that these steps are, None if they lead nowhere."""
        size = len(self.content)
        trace = partial(_trace, trails, row, self.content)
        joints = [
            Joint(row + n + 1, state[0], state, trails[n][state][0] + STRANDED * (state[1] > 0))
            for n in range(len(trails) - 1, max(len(trails) - 1 - BACK, -1), -1)
            for state in _exits(trails[n])
            if at < state[0] < size
        ]
        if arrived:
            # A row that owns a part of the end is the last one, or else the first: the others are
            # of what follows.
            penalty, index, end = min(arrived)
            _, before, option = trails[abs(index) - row][end]
            over = len(option.data or b"") > end[0] - before[0]
            joints.insert(0, Joint(abs(index) + 1, size, end, penalty, over))
        cut = all(_is_stripped(option, self.content, at) for option in self.rows[row])
        return Stretch(row, joints, bool(arrived), trace, cut) if joints else None

    def find_begins(self, row: int, at: int) -> list[int]:
        """Return the rows from `row` on with which a stretch may begin at `at`."""
        parted = self.content[at] >= 0x80
        found: set[int] = set()
        for first, end in self._runs:
            run = max(first, row)
            if run < end and (parted or self.rows[run][0].most == ANY):
                found.add(run)
        texts = self._list_texts(at)
        for n, run in texts[bisect_left(texts, (row, -1)) :]:
            found.add(n)
            if run >= 0 and n > row:
                found.add(max(run, row))
        self.budget.spend(1 + len(found))
        return sorted(found)

    @cached_property
    def _runs(self) -> list[tuple[int, int]]:
        """The first of each run of blank rows, and the row behind it."""
        blank = [n for n, row in enumerate(self.rows) if all(x.is_blank for x in row)]
        firsts = [n for k, n in enumerate(blank) if not k or blank[k - 1] != n - 1]
        lasts = [n for k, n in enumerate(blank) if blank[k + 1 : k + 2] != [n + 1]]
        return [(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]

    def _list_texts(self, at: int) -> list[tuple[int, int]]:
        """Return the rows whose text may begin at `at`, and the first of the blank ones before it.

        -1 if there is none, or they cannot be parts of its characters.
        """
        if at not in self.begins:
            rest = self.content[at:]
            parted = rest[0] >= 0x80
            before = {end: first for first, end in self._runs}
            self.begins[at] = found = []
            near = [n for each in (rest[0], -1) for n in self._rows_of.get(each, ())]
            if rest.startswith(REPLACEMENT):
                near = [n for n, row in enumerate(self.rows) if not all(x.is_blank for x in row)]
            for n in sorted(near):
                options = self.rows[n]
                if any(_may_begin(option, rest, parted) for option in options):
                    whole = all((x.data or x.texts[0] or b"").isascii() for x in options)
                    found.append((n, -1 if whole else before.get(n, -1)))
            self.budget.spend(len(near))
        return self.begins[at]

    @cached_property
    def _rows_of(self) -> dict[int, list[int]]:
        """The rows by the bytes that they may begin with, -1 for any; none that are blank."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for n, options in enumerate(self.rows):
            if all(x.is_blank for x in options):
                continue
            if all(x.data for x in options):
                firsts = {byte for x in options for byte in _list_firsts(x.data or b"")}
            else:
                firsts = {-1}
            for first in firsts:
                found[first].append(n)
        self.budget.spend(len(self.rows))
        return found


def _list_firsts(data: bytes) -> bytes:
    """Return the bytes that a text may begin with, without some white space too."""
    return data[: measure_space(data) + 1]


def _price_end(
    way: tuple[float, State, Option], end: State, size: int, *, inner: bool, left: float
) -> float:
    """Return the penalties of a way that ends where the content does.

    `inner`: the next row begins inside a character, which is the content's last one unless that has
    all its bytes. `left`: text comes behind, though nothing should.
    """
    penalty, (at, _), option = way
    least = len(option.data if option.data is not None else b"".join(option.texts))
    told = at + least <= size and (option.data is not None or option.texts[-1] != b"")
    return penalty + price_end(told, inner=inner and not end[1], left=left)


def price_end(told: bool, *, inner: bool, left: float) -> float:
    """Return what speaks against an end, which a row's text tells or does not.

    `inner`: the rest of a character comes behind it. `left`: its price for text that does.
    """
    penalty = (UNFINISHED if inner else 0) + (0 if told else UNTOLD)
    return penalty + ((GUESS if told else left) if left else 0)


def _exits(trail: Trail) -> list[State]:
    """Return the states in which a stretch may be left: the furthest, without parts that wait."""
    return sorted(trail, key=lambda state: (state[1] > 0, -state[0], trail[state][0]))[:EXITS]


def _is_stripped(option: Option, content: bytes, at: int) -> bool:
    """Say whether a stretch's first row begins with white space that the content lacks."""
    if option.data is None:
        return strip_space(option, content, at) is not option
    return not content.startswith(option.data, at) and find_cut(option.data, content, at) > 0


def _may_begin(option: Option, rest: bytes, parted: bool) -> bool:
    if option.data is None:
        if strip_space(option, rest, 0) is not option:
            return True
        text = option.texts[0]
        if not text:
            return parted or rest.startswith(option.texts[-1])
        return rest.startswith(text) or text.startswith(rest)
    if rest.startswith(option.data) or option.data.startswith(rest):
        return True
    if rest.startswith(REPLACEMENT):
        return bool(show_replaced(option.data, 0, rest))
    cut = find_cut(option.data, rest, 0)
    text = option.data[cut:]
    return bool(cut) and (rest.startswith(text) or text.startswith(rest))


def _nearest(reached: Trail, anchor: State, at: State, size: int, width: int) -> Trail:
    """Return the states nearest to a steady pace from the anchor to the content's end.

    300 rows without text cover 150 emojis so; with the first states kept instead, the rows would be
    used up after 64 of them.
    """
    (row, position), (index, count) = anchor, at
    wanted = position + (size - position) * (index - row) / max(count - 1 - row, 1)
    kept = sorted(reached, key=lambda state: abs(state[0] - wanted))[:width]
    return {state: reached[state] for state in kept}


def _advance(
    reached: Trail,
    options: Sequence[Option],
    following: Sequence[Option],
    content: bytes,
    front: bool,
    inner: bool,
    ending: bool,
) -> Trail:
    """Return the states after one row; of two ways to one the first with fewer penalties stays.

    `front`: it is a stretch's first. `inner`: the next row begins inside a character. `ending`: no
    row behind has text.
    """
    found: Trail = {}
    for state, (total, _, _) in reached.items():
        for option in options:
            ends = find_ends(option, state, content, front, inner)
            if front and option.data is None:
                bare = strip_space(option, content, state[0])
                if bare is not option:
                    ends = [*ends, *find_ends(bare, state, content, front, inner)]
            if option.most == ANY:
                ends = [*ends, *find_ends_of_any(state[0], following, content, ending)]
            known = len(b"".join(option.texts)) if option.data is None else len(content)
            for penalty, end in ends:
                cost = total + penalty + (GUESS if end[0] - state[0] > known else 0)
                if end not in found or cost < found[end][0]:
                    found[end] = (cost, state, option)
    return found


def _reaches_over(option: Option, own: bytes) -> bool:
    # A part at its front owns a character of its own.
    least = sum(map(len, option.texts)) + (not option.texts[0] and option.least > 0)
    return not own.endswith(option.texts[-1]) or (len(own) < least and option.texts != PART)


def _trace(trails: list[Trail], first: int, content: bytes, joint: Joint) -> list[Piece]:
    """Return the pieces of the way that ends at a joint, from its last row back to its first."""
    pieces = []
    end = joint.state
    for index in range(joint.row - 1, first - 1, -1):
        _, before, option = trails[index - first][end]
        start, stop = before[0], end[0]
        size = len(option.data) if option.data is not None else stop - start
        beyond = size - (stop - start)
        data = option.data or b""
        own = content[start:stop]
        cut = over = 0
        if beyond > 0 and own and own in data:
            cut = data.find(own)
            over = beyond - cut
        elif data and beyond < 0 and own.endswith(data) and REPLACEMENT not in own:
            cut = beyond
        if option.data is None and option.most < ANY and _reaches_over(option, own):
            over = 1  # or more: what stands behind its parts reaches over the end
        if own and option.least > 1 and end[1] and stop == len(content):
            over = 1  # it has more bytes than its character: those of the next one
        pieces.append(Piece(index, start, stop, option, cut, over))
        end = before
    return pieces[::-1]
