"""Which logprob entries cover a piece of content, and which bytes of it each of them owns.

The content's entries are a few *stretches* of the rows, one after the other: before the first one
stands reasoning, between two of them tool markup, behind the last one the end-of-text token, or
entries that run ahead of their text. A stretch is as long as may be, so there are few to try: from
where one breaks off, every row that may go on there begins the next. Of all covers the cheapest
is taken (placement.py says what is cheap), of equal ones that with the fewest guesses about parts
of characters, then that which leaves the fewest rows between its stretches and, unless more have
come than the content is of, behind them, then the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from wellspoken.adapters.alignment.known import Known
from wellspoken.adapters.alignment.parts import Parts
from wellspoken.adapters.alignment.placement import (
    AFTER,
    FRONT,
    GAP,
    INSIDE,
    LEFT,
    MARKED,
    PARTIAL,
    PARTS,
    REPLACEMENT,
    SHOWN,
    SPACE,
    TAIL,
    UNMARKED,
    Budget,
    Cover,
    Joint,
    Mark,
    Option,
    Piece,
    Rows,
    Stretch,
    Walker,
)
from wellspoken.adapters.alignment.replaced import cover_replaced

MOST_GAPS = 6
BROAD = 96  # ways that are followed on over a gap
STOP_ROWS = 16  # rows that a stop string is sought in
SURE = 6  # a cover below this is not searched for further


class Hints(NamedTuple):
    """What is known of the rows besides their texts.

    `before`: shown text that stands before the content, its reasoning, whose rows may come first;
    `reasoned`: they were found. `own`: the first row that came with the last piece of the content;
    `lags`: that tells nothing, since rows come before their text. `last`: all rows are there, and
    nothing may stand behind the content but what ends it, one of the `stops` among that. `marks`:
    which rows are control tokens.
    """

    before: bytes = b""
    own: int = 0
    lags: bool = False
    last: bool = False
    reasoned: bool = False
    stops: Sequence[bytes] = ()
    marks: Sequence[Mark] = ()


class _Way(NamedTuple):
    """Stretches one after the other, and what they cost."""

    cost: int
    penalty: int
    joint: Joint
    stretches: tuple[tuple[Stretch, Joint], ...]

    @property
    def first(self) -> int:
        return self.stretches[0][0].first

    def trace(self) -> list[Piece]:
        """Return the pieces of all stretches."""
        return [piece for stretch, joint in self.stretches for piece in stretch.trace(joint)]


def cover(rows: Rows, content: bytes, budget: Budget, hints: Hints) -> Cover | None:
    """Return how `rows` cover `content` from its start, None if they do not."""
    first = _skip(rows, hints.before, budget)
    if first:
        first = _skip_end(rows, hints.marks, first)
        marks, own = hints.marks[first:], max(hints.own - first, 0)
        behind = hints._replace(own=own, marks=marks, reasoned=True)
        found = _cover(rows[first:], content, budget, behind)
        if found is not None and found.cost < SURE:
            pieces = [piece._replace(row=piece.row + first) for piece in found.pieces]
            return found._replace(pieces=pieces)
    return _cover(rows, content, budget, hints)


def _skip(rows: Rows, before: bytes, budget: Budget) -> int:
    """Return how many rows stand for the text before the content, 0 if that cannot be told."""
    text = before.strip() or before
    found = _cover(rows, text, budget, Hints(lags=True)) if text else None
    return 0 if found is None or found.cost > FRONT else found.pieces[-1].row + 1


def _skip_end(rows: Rows, marks: Sequence[Mark], first: int) -> int:
    """Return the row behind the token that closes reasoning, if nothing stands before that."""
    for n in range(first, len(marks)):
        if marks[n]:
            return n + 1 if marks[n] == "closes" else first
        if not _is_space(rows[n][0]):
            break
    return first


def _cover(rows: Rows, content: bytes, budget: Budget, hints: Hints) -> Cover | None:
    # Known bytes need no walk. The rows without an end are tried so first, since an end-of-text
    # token, which has no bytes, stands behind nearly all.
    front = _without_end(rows)
    if all(len(options) == 1 and options[0].data is not None for options in front):
        known = Known(front, content, budget)
        found = _Search(known, front, rows, content, budget, hints).run()
        if found is None and REPLACEMENT in content:
            found = cover_replaced(known)
        if found is None:
            found = _cover_unended(known, rows, hints)
        if found is None and (pieces := known.find_inside(0)):
            found = Cover(pieces, len(content), INSIDE)
        if len(front) == len(rows) or (found is not None and found.covered == len(content)):
            return found
    quiet = len(rows)
    while quiet and (_is_blank(rows[quiet - 1]) or (hints.marks and hints.marks[quiet - 1])):
        quiet -= 1
    parts = Parts(rows, content, budget, lags=hints.lags, quiet=quiet)
    return _Search(parts, rows, rows, content, budget, hints).run()


def _cover_unended(known: Known, rows: Rows, hints: Hints) -> Cover | None:
    """Return how rows cover a content behind which U+FFFD stands for parts that tell no text."""
    content = known.content.removesuffix(REPLACEMENT)
    if content in (b"", known.content):
        return None
    shorter = Known(known.rows, content, known.budget)
    found = _Search(shorter, known.rows, rows, content, known.budget, hints).run()
    if found is None or found.cost >= PARTIAL:
        return None
    end = found.pieces[-1].row + 1
    parts = list(takewhile(lambda n: _is_blank(rows[n]), range(end, len(rows))))
    size = len(known.content)
    if not parts:
        return found
    begin, size = len(content), len(known.content)
    pieces = [Piece(n, begin, size if n == parts[-1] else begin, Option(None)) for n in parts]
    return found._replace(pieces=found.pieces + pieces, covered=size)


def _without_end(rows: Rows) -> Rows:
    """Return the rows without those at their end that tell no text: an end-of-text token."""
    last = len(rows)
    while last and all(x.data is None for x in rows[last - 1]) and _is_blank(rows[last - 1]):
        last -= 1
    return rows[:last]


class _Search:
    """Looks for the cheapest way through the rows, gap by gap."""

    def __init__(
        self,
        walker: Walker,
        rows: Rows,
        all_rows: Rows,
        content: bytes,
        budget: Budget,
        hints: Hints,
    ) -> None:
        self.walker = walker
        self.rows = rows
        self.size = len(content)
        self.budget = budget
        self.hints = hints
        self.best: _Way | None = None
        self.marks = hints.marks or [""] * len(all_rows)
        self.tails = _tail_costs(all_rows, self.marks, hints.last)
        self.heads = _head_costs(self.marks)

    def run(self) -> Cover | None:
        """Return the cheapest cover, None if there is none."""
        ways = [_Way(0, 0, Joint(0, 0), ())]
        for gaps in range(MOST_GAPS + 1):
            found = [further for way in ways for further in self._follow(way, gaps)]
            # With one gap more a cover costs at least this; the first may lie before the content.
            if self.best is not None and self.best.cost <= AFTER + GAP * gaps:
                break
            if self.budget.left < 0:
                break
            found.sort(key=lambda way: (-way.joint.at, way.cost, way.joint.row))
            ways = (ways if gaps == 0 else []) + found[:BROAD]
        best = self.best
        return None if best is None else Cover(best.trace(), best.joint.at, best.cost)

    def _follow(self, way: _Way, gaps: int) -> list[_Way]:
        """Return the ways that go on from this one and break off; offer those that arrive."""
        row, at = way.joint.row, way.joint.at
        begins = self.walker.find_begins(row, at) if gaps else range(min(len(self.rows), 1))
        found = []
        for begin in begins:
            stretch = self.walker.walk(begin, at) if self.budget.left >= 0 else None
            if stretch is None:
                continue
            cost = way.cost + self._gap_cost(way.joint, stretch)
            # Of equal ways that one is better which begins with a text that is known, and leaves no
            # parts of a character behind its last one.
            unsure = int(gaps > 0 and _is_blank(self.rows[begin]))
            unsure += 3 if at and begin > row and _is_blank(self.rows[row]) else 0
            for joint in stretch.joints:
                stretches = (*way.stretches, (stretch, joint))
                penalty = way.penalty + joint.penalty + unsure
                further = _Way(cost, penalty, joint, stretches)
                if stretch.whole and joint is stretch.joints[0]:
                    tail = self._tail_cost(further, at)
                    self._offer(further._replace(cost=cost + tail))
                elif joint.row < len(self.rows):
                    found.append(further)
                elif gaps == 0:
                    self._offer(further._replace(cost=cost + PARTIAL))
        return found

    def _offer(self, way: _Way) -> None:
        if self.best is None or self._rank(way) < self._rank(self.best):
            self.best = way

    def _rank(self, way: _Way) -> tuple[int, int, int, list[int]]:
        firsts = [stretch.first for stretch, _ in way.stretches]
        joints = [joint.row for _, joint in way.stretches]
        # Rows between two stretches, and those behind the last, unless more are of what follows.
        apart = sum(first - row for first, row in zip(firsts[1:], joints, strict=False))
        lags = self.hints.lags or self.hints.own < 0 or way.joint.over
        if self.hints.last or not lags:
            apart += len(self.tails) - joints[-1]
        return way.cost + way.penalty // 4, way.penalty, apart, firsts

    def _gap_cost(self, joint: Joint, stretch: Stretch) -> int:
        outside = self.rows[joint.row : stretch.first]
        if not outside:
            return SPACE if stretch.cut else 0
        head = self.heads[stretch.first]
        if self._is_shown(joint, stretch.first):
            head += SHOWN
        elif joint.at and "closes" in self.marks[joint.row : stretch.first]:
            head += 0 if "opens" in self.marks[joint.row : stretch.first] else MARKED
        if joint.at:
            return GAP + head + (0 if any(self.marks[joint.row : stretch.first]) else UNMARKED)
        if self.marks[stretch.first - 1]:
            return AFTER + head
        behind = takewhile(lambda n: not self.marks[n], reversed(range(joint.row, stretch.first)))
        blank = all(_is_space(self.rows[n][0]) for n in behind)
        return (SPACE if blank else FRONT) + head

    def _is_shown(self, joint: Joint, end: int) -> bool:
        """Say whether rows up to `end` are likely content: those before a call, after reasoning."""
        if not self.hints.last:
            return False
        ahead: Mark = "opens" if self.hints.reasoned and not joint.at else ""
        for n in range(end - 1, joint.row - 1, -1):
            ahead = self.marks[n] or ahead
            if not self.marks[n] and ahead == "opens":
                if not _is_space(self.rows[n][0], blank=joint.at > 0):
                    return True
        return False

    def _tail_cost(self, way: _Way, at: int) -> int:
        """Return what the rows behind the content cost, or a last one that is hardly of it."""
        stretch, joint = way.stretches[-1]
        tail = self.tails[joint.row] if joint.row < len(self.tails) else 0
        alone = joint.row == stretch.first + 1 and joint.row > 1
        rest = self.size - at
        if alone and all(len((x.data or b"").lstrip()) > rest for x in self.rows[stretch.first]):
            tail = max(tail, TAIL if self.hints.last else AFTER)  # it only begins as that ends
        hints = self.hints
        if tail and self.hints.stops and self._is_stop(way):
            tail = 0
        unsure = self.rows[stretch.first][0].is_blank and all(
            piece.option.is_blank for piece in stretch.trace(joint)
        )
        if unsure and not hints.lags and joint.row <= hints.own < len(self.tails):
            tail = max(tail, LEFT)
        return tail

    def _is_stop(self, way: _Way) -> bool:
        """Say whether what stands behind the content begins with a stop string, or begins one."""
        stretch, joint = way.stretches[-1]
        last = stretch.trace(joint)[-1]
        data = last.option.data or last.option.texts[-1]
        text = data[len(data) - last.over :] if last.over else b""
        for row in self.rows[joint.row : joint.row + STOP_ROWS]:
            text += row[0].data or row[0].texts[-1]
        return any(text.startswith(stop) or stop.startswith(text) for stop in self.hints.stops)


def _is_blank(row: Sequence[Option]) -> bool:
    return all(option.is_blank for option in row)


def _is_space(option: Option, blank: bool = True) -> bool:
    return (blank and option.is_blank) or (option.data or b"").isspace()


def _tail_costs(rows: Rows, marks: Sequence[Mark], last: bool) -> list[int]:
    """Return for each row what it costs that it and all rows after it are behind the content."""
    costs = []
    ahead: Mark = ""  # the next control token
    near = far = False  # text stands before it; text that is in no call stands behind it
    parts = lost = 0  # rows without text before it, and those in no call behind it
    for options, mark in zip(reversed(rows), reversed(marks), strict=True):
        if mark:
            far = far or (near and mark == "closes")
            lost += parts if mark == "closes" else 0
            near, parts, ahead = False, 0, mark
        elif options[0].is_blank:
            parts += 1
        else:
            near = True
        cost = MARKED if ahead == "closes" and far else TAIL if last and (near or far) else 0
        costs.append(max(cost, PARTS if last and lost > 1 else 0))
    return costs[::-1]


def _head_costs(marks: Sequence[Mark]) -> list[int]:
    """Return for each row what it costs to begin there: much inside of reasoning or a call."""
    costs, inside = [], False
    for mark in marks:
        costs.append(MARKED if inside else 0)
        inside = mark == "opens" or (inside and not mark)
    return costs
