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
from heapq import heappop, heappush
from itertools import takewhile
from typing import NamedTuple

from wellspoken.adapters.alignment.costs import Costs
from wellspoken.adapters.alignment.ends import CONTINUING
from wellspoken.adapters.alignment.exact import Exact, is_exact
from wellspoken.adapters.alignment.known import Known
from wellspoken.adapters.alignment.parts import GUESS, Parts
from wellspoken.adapters.alignment.placement import (
    AFTER,
    ANY,
    FRONT,
    GAP,
    INSIDE,
    PARTIAL,
    REPLACEMENT,
    SPACE,
    Budget,
    Cover,
    Hints,
    Joint,
    Mark,
    Option,
    Piece,
    Rows,
    Stretch,
    Walker,
    is_blank,
    is_part,
    is_space,
)
from wellspoken.adapters.alignment.replaced import cover_replaced

MOST_GAPS = 6
NARROW = 24  # states kept after a row where all of them are too many
FEW = 8  # of the states that may be looked at, one in so many is left for those
MOST_WORK = 8  # of the states left, one in so many may go into pricing one place's gaps
ROWS = 16  # rows of a gap that take as long to look at as one state
GAPS = 2  # gaps that take as long to price as one state does to look at
PRICED = 8  # states that take as long to look at as one way over the content does to price
SURE = 6  # a cover below this is not searched for further


class _Way(NamedTuple):
    """Stretches one after the other, and what they cost."""

    cost: int
    penalty: float
    joint: Joint
    stretches: tuple[tuple[Stretch, Joint], ...]

    @property
    def first(self) -> int:
        return self.stretches[0][0].first

    def rank(self, more: int = 0) -> tuple[float, float, int, int]:
        """Return what it is sorted by, at `more` cost; of equal ones the furthest is first."""
        cost = self.cost + more + self.penalty // 4
        return cost, self.penalty, -self.joint.at, self.joint.row

    def trace(self) -> list[Piece]:
        """Return the pieces of all stretches."""
        return [piece for stretch, joint in self.stretches for piece in stretch.trace(joint)]


Begins = list[tuple[int, int]]
"""(what the rows left out before it cost, row), the cheapest last"""
Ranked = tuple[float, float, int, int, int, _Way, Begins | None]


def cover(rows: Rows, content: bytes, budget: Budget, hints: Hints) -> Cover | None:
    """Return how `rows` cover `content` from its start, None if they do not."""
    first = _skip(rows, hints, budget)
    behind = None
    if first:
        first = _skip_end(rows, hints.marks, first)
        marks, own = hints.marks[first:], max(hints.own - first, 0)
        rest = hints._replace(own=own, marks=marks, reasoned=True)
        behind = _cover(rows[first:], content, budget, rest)
    if behind is not None:
        pieces = [piece._replace(row=piece.row + first) for piece in behind.pieces]
        behind = behind._replace(pieces=pieces)
        if behind.cost < SURE:
            return behind
    found = _cover(rows, content, budget, hints)
    if found is None or (behind is not None and behind.cost <= found.cost + GAP):
        return behind
    return found


def _skip(rows: Rows, hints: Hints, budget: Budget) -> int:
    """Return how many rows stand for the text before the content, 0 if that cannot be told.

    They are sought before the first control token that closes something, then anywhere.
    """
    text = hints.before.decode().strip().encode() or hints.before
    closing = next((n for n, mark in enumerate(hints.marks) if n and mark == "closes"), 0)
    for few in (rows[:closing], rows) if text else ():
        found = _cover(few, text, budget, Hints(lags=True, ahead=True)) if few else None
        if found is not None and found.cost <= FRONT:
            begins = _is_front(rows, hints.marks, found.pieces[0].row)
            return found.pieces[-1].row + 1 if begins else 0
    return 0


def _is_front(rows: Rows, marks: Sequence[Mark], first: int) -> bool:
    """Say whether no text stands between a row and the last control token before it, if any."""
    for n in range(first - 1, -1, -1):
        if marks[n]:
            return True
        if not is_space(rows[n]) and not is_blank(rows[n]):
            return not any(marks[:n])
    return True


def _skip_end(rows: Rows, marks: Sequence[Mark], first: int) -> int:
    """Return the row behind the token that closes reasoning, if nothing stands before that."""
    for n in range(first, len(marks)):
        if marks[n]:
            return n + 1 if marks[n] == "closes" else first
        if not is_space(rows[n]) and not is_blank(rows[n]):
            break
    return first


def _cover(rows: Rows, content: bytes, budget: Budget, hints: Hints) -> Cover | None:
    # Known bytes need no walk. The rows without an end are tried so first, since an end-of-text
    # token, which has no bytes, stands behind nearly all.
    front, sure = _without_end(rows), None
    if all(len(options) == 1 and options[0].data is not None for options in front):
        known = Known(front, content, budget)
        found = _Search(known, front, rows, content, budget, hints).run()
        if found is None and REPLACEMENT in content:
            found = _add_costs(cover_replaced(known), rows, hints)
        if found is None or found.cost >= PARTIAL:
            found = _cover_unended(known, rows, hints) or found
        if found is None and (pieces := known.find_inside(0)):
            found = Cover(pieces, len(content), INSIDE)
        parted = bool(known.data) and known.data[0].startswith(CONTINUING)
        whole = found is not None and found.covered == len(content)
        # A last row that may stand for any text would do so wherever the others cost much.
        loose = any(options[0].most == ANY for options in rows[len(front) :])
        whole = whole and (loose or (found is not None and found.cost < SURE))
        if whole or (len(front) == len(rows) and not parted):
            return found
        sure = found
    if budget.left < 0:
        return sure
    exact = _cover_exactly(rows, content, budget, hints)
    if exact is not None and (sure is None or exact.cost <= sure.cost):
        sure = exact
        if exact.cost <= AFTER and exact.penalty < GUESS:
            return exact
    few = budget.left // FEW
    most = Budget(budget.left - few)
    found = _Search(Parts(rows, content, most, hints), rows, rows, content, most, hints).run()
    if found is None and most.left < 0:  # too many ways: a few of them may do
        most = Budget(few)
        parts = Parts(rows, content, most, hints, width=NARROW)
        found = _Search(parts, rows, rows, content, most, hints).run()
        few = 0
    budget.left = most.left + few
    if sure is None or found is None:
        return sure or found
    if sure is exact:
        return min(sure, found, key=lambda each: (each.cost, each.penalty))
    return sure if sure.cost < found.cost else found


def _cover_exactly(rows: Rows, content: bytes, budget: Budget, hints: Hints) -> Cover | None:
    """Return the cheapest cover by rows of which each shows what its bytes are, None if none is.

    Of equal ones that is better in which each part is one byte.
    """
    best = None
    for bytewise in (False, True) if is_exact(rows, content) else ():
        walker = Exact(rows, content, budget, hints, bytewise=bytewise)
        most = ANY if best is None else best.cost
        found = _Search(walker, rows, rows, content, budget, hints).run(most)
        if found is None:
            break
        best = found
    return best


def _add_costs(found: Cover | None, rows: Rows, hints: Hints) -> Cover | None:
    """Return the cover with what it costs to begin and to end where it does."""
    if found is None or not found.pieces:
        return found
    costs = Costs(rows, b"", hints)
    head = costs.heads[found.pieces[0].row]
    tail = [*costs.tails, 0][found.pieces[-1].row + 1]
    return found._replace(cost=found.cost + head + tail)


def _cover_unended(known: Known, rows: Rows, hints: Hints) -> Cover | None:
    """Return how rows cover a content behind which U+FFFD stands for parts that tell no text."""
    content = known.content.removesuffix(REPLACEMENT)
    if content in (b"", known.content):
        return None
    shorter = Known(known.rows, content, known.budget)
    found = _Search(shorter, known.rows, rows, content, known.budget, hints).run()
    if (found is None or found.cost >= PARTIAL) and REPLACEMENT in content:
        found = _add_costs(cover_replaced(shorter), rows, hints)
    if found is None or found.cost >= PARTIAL or not found.pieces or found.pieces[-1].over:
        return None
    end = found.pieces[-1].row + 1
    parts = list(takewhile(lambda n: is_blank(rows[n]), range(end, len(rows))))
    size = len(known.content)
    if not parts:
        return found
    begin, size = len(content), len(known.content)
    pieces = [Piece(n, begin, size if n == parts[-1] else begin, Option(None)) for n in parts]
    return found._replace(pieces=found.pieces + pieces, covered=size)


def _is_cut(data: bytes) -> bool:
    """Say whether bytes are no whole characters."""
    return data.decode(errors="ignore").encode() != data


def _without_end(rows: Rows) -> Rows:
    """Return the rows without those at their end that tell no text: an end-of-text token."""
    last = len(rows)
    while last and all(x.data is None for x in rows[last - 1]) and is_blank(rows[last - 1]):
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
        self.budget = budget
        self.hints = hints
        self.best: _Way | None = None
        self.heap: list[Ranked] = []
        self.pushed = 0
        self.reached: dict[tuple[int, int], tuple[float, float]] = {}
        self.walks: dict[tuple[int, int], Stretch | None] = {}
        self.gaps: dict[tuple[int, bool, int], int] = {}
        self.costs = Costs(all_rows, content, hints)

    def run(self, most: int = ANY) -> Cover | None:
        """Return the cheapest cover, None if there is none that costs no more than `most`."""
        # The cheapest way is followed first, and no stretch is walked before it is known that none
        # that is cheaper to begin will do.
        start = _Way(0, 0, Joint(0, 0), ())
        if self.rows:
            self._follow(start, 0)
        self._push(start, AFTER, None)
        while self.heap and self.budget.left >= 0:
            cost, penalty, *_, way, begins = heappop(self.heap)
            bound = self._rank(self.best)[:2] if self.best is not None else (most, ANY)
            if (cost, penalty) > bound:
                break
            if begins is not None:
                self._follow(way, begins.pop()[1])
            elif (cost, penalty) <= bound:
                begins = self._list_begins(way)
            if begins:
                self._push(way, begins[-1][0], begins)
        best = self.best
        if best is None or best.cost > most:
            return None
        return Cover(best.trace(), best.joint.at, best.cost, best.penalty)

    def _push(self, way: _Way, more: int, begins: Begins | None) -> None:
        """Put a way on the heap, at what it costs at least to go on; `begins`: where it may."""
        self.pushed += 1
        heappush(self.heap, (*way.rank(more), self.pushed, way, begins))

    def _list_begins(self, way: _Way) -> Begins:
        """Return what rows cost with which a way may go on, and those; the cheapest is last."""
        row, at = way.joint.row, way.joint.at
        found = self.walker.find_begins(row, at)
        work = len(found) // GAPS
        if work > self.budget.left // MOST_WORK:  # too many to be priced before they are walked
            return [(0, n) for n in reversed(found)]
        self.budget.spend(work)
        return sorted(((self._price_gap(way.joint, n), n) for n in found), reverse=True)

    def _price_gap(self, joint: Joint, first: int) -> int:
        key = (joint.row, joint.at > 0, first)
        if key not in self.gaps:
            self.gaps[key] = self.costs.price_gap(joint, first)
            self.budget.spend(self.costs.looked // ROWS)
            self.costs.looked %= ROWS
        return self.gaps[key]

    def _follow(self, way: _Way, begin: int) -> None:
        """Take the ways that go on from this one with a row: offer what arrives, push the rest."""
        row, at = way.joint.row, way.joint.at
        stretch = self._walk(begin, at)
        if stretch is None:
            return
        cost = way.cost + self._price_gap(way.joint, begin)
        cost += SPACE if stretch.cut and begin == row else 0
        # Of equal ways that one is better which begins with a text that is known, and leaves no
        # parts of a character behind its last one.
        unsure = int(begin > row and is_blank(self.rows[begin]))
        unsure += 2 if begin > row and self._is_inside(begin) else 0
        unsure += 3 if at and begin > row and is_blank(self.rows[row]) else 0
        for joint in stretch.joints:
            stretches = (*way.stretches, (stretch, joint))
            further = _Way(cost, way.penalty + joint.penalty + unsure, joint, stretches)
            if stretch.whole and joint is stretch.joints[0]:
                if not self.budget.spend(PRICED):
                    return
                tail = self.costs.price_tail(stretch, joint, at)
                tail = max(tail, self.costs.price_lost(further.trace()))
                self._offer(further._replace(cost=cost + tail))
            elif joint.row < len(self.rows):
                self._reach(further)
            elif not way.stretches and begin == row:
                self._offer(further._replace(cost=cost + PARTIAL))

    def _reach(self, way: _Way) -> None:
        """Push a way to a place that none as cheap has come to."""
        place, price = (way.joint.row, way.joint.at), (way.cost, way.penalty)
        if len(way.stretches) <= MOST_GAPS and price < self.reached.get(place, (ANY, 0)):
            self.reached[place] = price
            # What goes on at once, without the white space at its front, is no gap.
            data = self.rows[way.joint.row][0].data or b""
            self._push(way, AFTER if data[:1].isspace() else GAP, None)

    def _is_inside(self, row: int) -> bool:
        """Say whether the row ends a character whose parts before are left out."""
        option = self.rows[row][0]
        opened = option.data is None and not option.texts[0] and not option.is_blank
        before = self.rows[row - 1]
        return opened and (is_part(before) or any(_is_cut(x.data or b"") for x in before))

    def _walk(self, row: int, at: int) -> Stretch | None:
        key = (row, at)
        if key not in self.walks:
            self.walks[key] = self.walker.walk(row, at) if self.budget.left >= 0 else None
        return self.walks[key]

    def _offer(self, way: _Way) -> None:
        if self.best is None or self._rank(way) < self._rank(self.best):
            self.best = way

    def _rank(self, way: _Way) -> tuple[float, float, int, list[int]]:
        firsts = [stretch.first for stretch, _ in way.stretches]
        joints = [joint.row for _, joint in way.stretches]
        # Rows between two stretches, and those behind the last, unless more are of what follows.
        apart = sum(first - row for first, row in zip(firsts[1:], joints, strict=False))
        own = self.hints.own
        left = way.joint.row <= own
        lags = self.hints.lags or own < 0
        lags = lags or (not self.costs.is_far(way.joint.row, own) if left else way.joint.over)
        if self.hints.last or not lags:
            apart += len(self.costs.rows) - joints[-1]
        return way.cost + way.penalty // 4, way.penalty, apart, firsts
