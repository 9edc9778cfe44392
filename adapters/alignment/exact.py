"""Rows that may be parts of characters, each taken for bytes that show just as it does.

Theory. A token has bytes, whatever a server shows of it, and those of the content's rows are the
content's, one after the other. b"\\xa9\\xf0" shows as two U+FFFD, so a row of two U+FFFD stands for
the end of one character and the beginning of the next, or for two bytes inside of one. A walk
stands at a byte of the content, and a row leads from one byte to another if what is between shows
as that row. All ways go on together: a set of bytes is a number, of which bit n is byte n, and a
row takes two or three operations on it, however many ways there are.

What nobody told stays untold: the split of a character among rows that do not tell theirs is not
given away, the last of them owns it whole (contract rule 7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from wellspoken.adapters.alignment.ends import CONTINUING, strip_space
from wellspoken.adapters.alignment.parts import Parts, price_end
from wellspoken.adapters.alignment.placement import (
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
    is_part,
)

_MOST = 3  # bytes of a character that a part of it has
_LONG = 16_384  # bytes of a content at most, and words that a walk looks at
_WORD = 512  # bits of a set that take as long as one operation does
_STEPS = 16  # operations that take as long as one state of parts.py does


class _Form(NamedTuple):
    """Bytes that show as a row: `front` that end a character, a text, `back` that begin one."""

    front: int
    text: bytes
    back: int

    @property
    def size(self) -> int:
        return self.front + len(self.text) + self.back


class _Step(NamedTuple):
    """A row that owns `size` bytes from any of the `places` on; those of it `over` the end."""

    option: Option
    size: int
    places: int
    cut: int = 0


def is_exact(rows: Rows, content: bytes) -> bool:
    """Say whether each row shows what its bytes are, and the content lacks none of its own.

    And whether there are not so many that a walk would hold the loop.
    """
    size = len(content)
    few = size <= _LONG and sum(map(len, rows)) * (1 + size // _WORD) <= _LONG
    return (
        few
        and REPLACEMENT not in content
        and all(
            option.data is not None or option.most == 1 for options in rows for option in options
        )
    )


class Exact:
    """The walker of such rows; `bytewise`: what tells no text is one byte, and no text lacks any.

    That is so with every vocabulary that falls back to bytes.
    """

    def __init__(
        self, rows: Rows, content: bytes, budget: Budget, hints: Hints, *, bytewise: bool
    ) -> None:
        self.rows = rows
        self.content = content
        self.budget = budget
        self.hints = hints
        self.bytewise = bytewise
        self.parts = Parts(rows, content, budget, hints)
        for _ in range(_MOST):  # the last may be parts of a character that never came
            quiet = self.parts.quiet
            self.parts.quiet -= quiet > 0 and is_part(rows[quiet - 1])
        self.rests = [0] * (_MOST + 1)  # places inside a character with so many bytes to its end
        self.starts = [0] * (_MOST + 2)  # places where a character of so many bytes begins
        at = 0
        for character in content.decode():
            size = len(character.encode())
            self.starts[size] |= 1 << at
            for inside in range(1, size):
                self.rests[size - inside] |= 1 << (at + inside)
            at += size
        self.begins = sum(self.starts)
        self.known: dict[Option, list[_Step]] = {}
        self.price = 1 + len(content) // _WORD

    def find_begins(self, row: int, at: int) -> list[int]:
        """Return the rows from `row` on with which a stretch may begin at `at`."""
        return self.parts.find_begins(row, at)

    def walk(self, row: int, at: int) -> Stretch | None:
        """Return the longest stretch that begins with `row` at `at`; None if that does not fit."""
        size = len(self.content)
        end, trails, reached = 1 << size, [1 << at], 1 << at
        arrived: list[tuple[float, int]] = []
        for index in range(row, len(self.rows)):
            steps = self._steps_of(index, at if index == row else -1)
            reached, came = 0, False
            for step in steps:
                from_here = trails[-1] & step.places
                reached |= from_here << step.size
                if from_here:
                    over = reached >> (size + 1)
                    came = came or bool(over) or bool(reached & end and step.size)
                    reached &= 2 * end - 1
            if not self.budget.spend(1 + self.price * len(steps) // _STEPS):
                break
            if came:
                arrived.append((self._price(index), index if self.hints.ahead else -index))
            reached &= end - 1
            trails.append(reached)
            if not reached:
                break
        return self._leave(row, at, trails, arrived)

    def _price(self, index: int) -> float:
        """Return the penalty of an end behind this row."""
        rows = self.rows
        following = rows[index + 1] if index + 1 < len(rows) else ()
        inner = any((x.data or b"").startswith(CONTINUING) for x in following)
        told = all((x.texts[-1] if x.data is None else x.data) for x in rows[index])
        told = told or self.hints.last
        return price_end(told, inner=inner, left=self.parts.price_left(index))

    def _leave(
        self, row: int, at: int, trails: Sequence[int], arrived: list[tuple[float, int]]
    ) -> Stretch | None:
        """Return the stretch that these sets of places are, None if they lead nowhere."""
        size = len(self.content)
        joints = [
            Joint(row + n, place)
            for n in range(len(trails) - 1, max(len(trails) - 1 - BACK, 0), -1)
            for place in _furthest(trails[n] & self.begins)
            if at < place
        ]
        if arrived:
            penalty, index = min(arrived)
            last = abs(index)
            steps = self._steps_of(last, at if last == row else -1)
            over = not any(
                trails[last - row] & step.places & (1 << (size - step.size))
                for step in steps
                if step.size <= size
            )
            joints.insert(0, Joint(last + 1, size, (size, 0), penalty, over))
        if not joints:
            return None
        first = [step for step in self._steps_of(row, at) if step.places >> at & 1]
        cut = all(step.cut for step in first)
        return Stretch(
            row, joints, bool(arrived), lambda joint: self._trace(row, at, trails, joint), cut
        )

    def _trace(self, row: int, at: int, trails: Sequence[int], joint: Joint) -> list[Piece]:
        """Return the pieces of a way that ends at a joint, from its last row back to its first."""
        size, stop = len(self.content), joint.at
        pieces: list[Piece] = []
        for index in range(joint.row - 1, row - 1, -1):
            before = trails[index - row]
            steps = self._steps_of(index, at if index == row else -1)
            step, start = _find_step(steps, before, stop, size)
            over = start + step.size - stop
            pieces.append(Piece(index, start, stop, step.option, step.cut, over))
            stop = start
        return _give_whole(pieces[::-1], self.content)

    def _steps_of(self, index: int, front: int) -> list[_Step]:
        """Return the steps of a row.

        As a stretch's first, at `front`, it may lack the white space with which it does not fit.
        """
        found = []
        for option in self.rows[index]:
            if option not in self.known:
                self.known[option] = list(self._make_steps(option))
                self.budget.spend(self.price)
            steps = self.known[option]
            found += steps
            if front >= 0 and not any(step.places >> front & 1 for step in steps):
                found += self._strip(option, front)
        return found

    def _strip(self, option: Option, at: int) -> Iterator[_Step]:
        """Give the steps from `at` without the white space that the content lacks there."""
        if option.data is None:
            bare = strip_space(option, self.content, at)
            if bare is not option:
                for step in self._make_steps(bare):
                    yield step._replace(option=option)
        elif cut := find_cut(option.data, self.content, at):
            data, rest = option.data[cut:], self.content[at:]
            if rest.startswith(data) or data.startswith(rest):
                yield _Step(option, len(data), 1 << at, cut)

    def _make_steps(self, option: Option) -> Iterator[_Step]:
        if option.data is not None:
            yield _Step(option, len(option.data), self._find_places(_Form(0, option.data, 0)))
            return
        for form in dict.fromkeys(_list_forms(option, bytewise=self.bytewise)):
            if places := self._find_places(form):
                yield _Step(option, form.size, places)

    def _find_places(self, form: _Form) -> int:
        """Return the places where the content has such bytes, or its rest could begin them."""
        content, size = self.content, len(self.content)
        front, text, back = form
        ends = front + len(text)
        places = sum(self.rests[front:]) if front else self.begins | sum(self.rests)
        begins = sum(self.starts[back + 1 :]) if back else -1
        if not text:
            found = places & (begins >> ends)
        else:
            found = places & (_find_all(content, text) >> front) & (begins >> ends)
        for at in range(max(size - form.size + 1, 0), size):  # over the end
            rest = content[at + front :]
            ends = not front or self.rests[front] >> at & 1
            if ends and (rest == text or (len(rest) < len(text) and text.startswith(rest))):
                found |= 1 << at
        return found


def _list_forms(option: Option, *, bytewise: bool) -> Iterator[_Form]:
    """Give what may show as a row that is a pattern: its text, and parts beside it."""
    text = b"".join(option.texts)
    if sum(map(bool, option.texts)) > 1:
        return  # parts of a character between whole ones
    holes = option.holes or (0,)
    if option.texts == PART:
        shown = _list_shown(option.least, bytewise=bytewise)
        yield from (_Form(front, b"", back) for front, back in shown if front + back)
        if option.firm:
            yield _Form(0, b"", 0)
    elif option.firm:
        shown = [(0, 0)] if bytewise else _list_shown(0, bytewise=False)
        yield from (_Form(front, text, back) for front, back in shown)
    else:
        opens, closes = not option.texts[0], not option.texts[-1]
        fronts = [x for x, back in _list_shown(holes[0], bytewise=bytewise) if not back]
        backs = [x for front, x in _list_shown(holes[-1], bytewise=bytewise) if not front]
        for front in fronts if opens else [0]:
            yield from (_Form(front, text, back) for back in (backs if closes else [0]))


def _list_shown(count: int, *, bytewise: bool) -> list[tuple[int, int]]:
    """Return how many bytes that end and that begin a character show as so many U+FFFD.

    What begins one shows as one, as much as there is of it, or each byte does; each byte that goes
    on with one shows as another. 0: nobody tells how many. `bytewise`: each is one byte.
    """
    every = range(_MOST + 1)
    if bytewise:
        found = [(count or 1, 0), ((count or 1) - 1, 1)]
    elif not count:
        found = [(front, back) for front in every for back in every]
    else:
        found = [(count - 1, back) for back in every[1:]]
        found += [(count - back, back) for back in every]
    return [pair for pair in found if pair[0] in every]


def _find_all(content: bytes, text: bytes) -> int:
    """Return the places of a text as a set."""
    found = bytearray(len(content) // 8 + 1)
    at = content.find(text)
    while at >= 0:
        found[at >> 3] |= 1 << (at & 7)
        at = content.find(text, at + 1)
    return int.from_bytes(found, "little")


def _furthest(places: int) -> Iterator[int]:
    for _ in range(EXITS):
        if not places:
            return
        yield places.bit_length() - 1
        places ^= 1 << (places.bit_length() - 1)


def _find_step(steps: Sequence[_Step], before: int, stop: int, size: int) -> tuple[_Step, int]:
    """Return the first step that leads from one of these places to `stop`, and where from."""
    for step in steps:
        start = stop - step.size
        if start >= 0 and (before & step.places) >> start & 1:
            return step, start
    for step in steps:  # it reaches over the content's end
        first = max(size - step.size + 1, 0)
        if beyond := (before & step.places) >> first:
            return step, first + (beyond & -beyond).bit_length() - 1
    raise AssertionError("a place that no step leads to")


def _give_whole(pieces: list[Piece], content: bytes) -> list[Piece]:
    """Return the pieces with each character the last one's of those that do not tell its split."""
    found: list[Piece] = []
    sure = start = pieces[0].start if pieces else 0
    for n, piece in enumerate(pieces):
        end = piece.end
        if piece.option.data:
            sure = end
        elif n + 1 < len(pieces) and not pieces[n + 1].option.data:
            while end > sure and end < len(content) and content[end] & 0xC0 == 0x80:
                end -= 1
        found.append(piece._replace(start=start, end=end))
        start = end
    return found
