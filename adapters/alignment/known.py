"""Rows whose bytes are all known: a stretch of them is one comparison in their concatenation."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import cached_property

from wellspoken.adapters.alignment.placement import (
    BACK,
    Budget,
    Joint,
    Piece,
    Rows,
    Stretch,
    find_cut,
    measure_space,
)


class Known:
    """The walker of such rows; `joined` are their bytes, `starts` where each row begins there."""

    def __init__(self, rows: Rows, content: bytes, budget: Budget) -> None:
        self.rows = rows
        self.content = content
        self.budget = budget
        self.data = [options[0].data or b"" for options in rows]
        self.joined = b"".join(self.data)
        self.starts = [0]
        for data in self.data:
            self.starts.append(self.starts[-1] + len(data))
        self.longest = max(map(len, self.data), default=0)

    @cached_property
    def rows_of(self) -> dict[bytes, list[int]]:
        """The rows by their bytes, also without white space in front."""
        found: defaultdict[bytes, list[int]] = defaultdict(list)
        for n, data in enumerate(self.data):
            for cut in range(measure_space(data) + 1):
                if data[cut:]:
                    found[data[cut:]].append(n)
        return found

    def walk(self, row: int, at: int) -> Stretch | None:
        """Return the longest stretch that begins with `row` at `at`; None if that does not fit."""
        self.budget.spend(1)
        begin = self.starts[row]
        same = self._count_same(begin, at)
        cut = 0
        if same < min(len(self.data[row]), len(self.content) - at) or not same:
            owner = next((n for n in range(row, len(self.data)) if self.data[n]), row)
            cut = find_cut(self.data[owner], self.content, at)
            same = self._count_same(begin + cut, at) if cut else 0
            if not same:
                return None
        whole = at + same == len(self.content)
        end = begin + cut + same
        if whole:
            last = bisect_left(self.starts, end)
            over = self.starts[last] > end
            joints = [Joint(last, len(self.content), (begin + cut, at), over=over)]
        else:
            last = bisect_right(self.starts, end) - 1
            if last >= len(self.rows):
                last = len(self.rows)
            mark = (begin + cut, at)
            joints = [
                Joint(n, at + self.starts[n] - begin - cut, mark)
                for n in range(last, max(last - BACK, row), -1)
                if self.starts[n] > begin + cut
            ]
        return Stretch(row, joints, whole, lambda joint: self._trace(row, joint), cut=bool(cut))

    def find_begins(self, row: int, at: int) -> list[int]:
        """Return the rows from `row` on with which a stretch may begin at `at`."""
        rest = self.content[at : at + self.longest]
        found = {n for size in range(1, len(rest) + 1) for n in self.rows_of.get(rest[:size], ())}
        if len(rest) < self.longest:
            found |= {n for n, data in enumerate(self.data) if _reaches_over(data, rest)}
        self.budget.spend(len(found) + 1)
        begins = {self._first_of(n, row) for n in found if n >= row}
        return sorted(begins)

    def find_inside(self, at: int) -> list[Piece]:
        """Return the pieces of the content's last place among the bytes, though inside a row."""
        begin = self.joined.rfind(self.content, self.starts[at])
        if begin < 0:
            return []
        row = bisect_right(self.starts, begin) - 1
        last = bisect_left(self.starts, begin + len(self.content))
        return self._trace(row, Joint(last, len(self.content), (begin, 0)))

    def _first_of(self, n: int, row: int) -> int:
        """Return the first of the rows before one that may be parts of its characters."""
        parted = not self.data[n].isascii()
        while parted and n > row and not self.data[n - 1]:
            n -= 1
        return n

    def _count_same(self, begin: int, at: int) -> int:
        """Return how many bytes are the same from here on in the rows and in the content."""
        joined, content = self.joined, self.content
        size = min(len(joined) - begin, len(content) - at)
        if joined.startswith(content[at : at + size], begin):
            return size
        low, high = 0, size  # the first `low` are the same, the first `high` are not
        step = 64
        while low + step < high:  # near the beginning, as a rule
            if joined[begin + low : begin + low + step] != content[at + low : at + low + step]:
                high = low + step
                break
            low += step
            step *= 2
        while high - low > 1:
            middle = (low + high) // 2
            if joined[begin + low : begin + middle] == content[at + low : at + middle]:
                low = middle
            else:
                high = middle
        return low

    def _trace(self, row: int, joint: Joint) -> list[Piece]:
        begin, at = joint.state
        pieces = []
        for n in range(row, joint.row):
            start, end = self.starts[n] - begin + at, self.starts[n + 1] - begin + at
            cut, over = max(at - start, 0), max(end - joint.at, 0)
            own = max(start, at)
            pieces.append(Piece(n, own, max(end - over, own), self.rows[n][0], cut, over))
        return pieces


def _reaches_over(data: bytes, rest: bytes) -> bool:
    return data.startswith(rest) or data[find_cut(data, rest, 0) :].startswith(rest)
