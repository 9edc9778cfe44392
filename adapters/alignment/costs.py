"""What speaks against a cover: the rows that it leaves out, by what and where they are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby, takewhile
from typing import Literal, NamedTuple, get_args

from wellspoken.adapters.alignment.ends import CONTINUING, MOST_BYTES
from wellspoken.adapters.alignment.placement import (
    AFTER,
    FAR,
    FRONT,
    GAP,
    LEFT,
    LEFT_OUT,
    MARKED,
    PARTS,
    SHOWN,
    SPACE,
    SPACES,
    TAIL,
    UNMARKED,
    Hints,
    Joint,
    Mark,
    Option,
    Piece,
    Rows,
    Stretch,
    is_blank,
    is_part,
    is_space,
    measure_space,
)

_UTF8 = bytes(range(0xF5))  # bytes that a text in UTF-8 has
_SPACES = bytes([*range(0x21), *range(0x80, 0xC0), 0xC2, 0xE1, 0xE2, 0xE3])  # that white space has
STOP_ROWS = 16  # rows that a stop string is sought in
LOST_ROWS = 32  # rows behind a content that are looked at for text that parts of it own
NEAR = 256  # rows before a stretch that are looked at for a text
HELD = 12  # characters of text that is held back, at most as a rule


Kind = Literal["text", "blank", "space"]


class _Outside(NamedTuple):
    """Sums over rows, so that what is outside takes as long to price however much it is.

    `every` and `ahead` are how many rows before each are of a kind and no control tokens; `ahead`
    those alone whose next control token opens; `opens` counts these. `following` is the first
    control token from each row on, `preceding` the last one before it, -1 if there is none.
    """

    every: dict[Kind, list[int]]
    ahead: dict[Kind, list[int]]
    opens: list[int]
    following: list[int]
    preceding: list[int]


class Costs:
    """Prices the rows before, between and behind the stretches of a cover."""

    def __init__(self, rows: Rows, content: bytes, hints: Hints) -> None:
        self.rows = rows
        self.content = content
        self.hints = hints
        self.looked = 0  # rows that were looked at to price gaps
        self.marks = hints.marks or [""] * len(rows)
        self.tails = _price_tails(rows, self.marks, hints)
        self.heads = _price_heads(self.marks)

    def price_gap(self, joint: Joint, first: int) -> int:
        """Return what the rows cost between a joint and the next stretch's first, or before all."""
        if first <= joint.row:
            return 0
        ahead = self._next_mark(joint.row, first)
        near = self._list_near(max(joint.row, first - NEAR), first)
        self.looked += len(near)
        space = self._is_space(near, first)
        blank = space or all(is_space(row) or is_blank(row) for row in near)
        head = self.heads[first]
        if shown := self._price_shown(joint, first):
            head += shown
        elif self._is_better(joint, first):
            head += SHOWN
        elif joint.at and ahead == "closes":
            head += MARKED
        # Inside of a content nobody strips white space.
        inside = self.hints.own < 0 and not all(map(is_blank, near))
        if joint.at or (self.hints.inner and (inside or not blank or ahead)):
            lost = ahead != "" and self._has_content(joint.row, first)
            return GAP + head + (PARTS if lost else 0 if ahead else UNMARKED)
        if self.marks[first - 1]:
            return AFTER + head
        parts = is_part(self.rows[first]) and any(map(is_part, near[:1]))
        lost = (ahead != "" and not blank) or (parts and (ahead != "" or self.hints.reasoned))
        if blank and not ahead and not self.hints.reasoned:
            lost = lost or (is_part(near[0]) and not is_part(self.rows[first]))
        return (SPACE if space else FRONT) + head + (MARKED if lost and not shown else 0)

    def _list_near(self, row: int, first: int) -> list[Sequence[Option]]:
        """Return the rows before one, the nearest first, up to a control token or a text."""
        near: list[Sequence[Option]] = []
        for n in takewhile(lambda n: not self.marks[n], range(first - 1, row - 1, -1)):
            near.append(self.rows[n])
            option = self.rows[n][0]
            if (option.data or b"".join(option.texts)).strip(_SPACES):
                break
        return near

    def _is_space(self, near: Rows, first: int) -> bool:
        """Say whether rows before one are white space, with a character that it ends."""
        shown = [row[0].data or _get_opening(row[0]) for row in reversed(near)]
        whole = b"".join(shown) + (self.rows[first][0].data or b"")
        return all(shown) and measure_space(whole) >= sum(map(len, shown))

    def _has_content(self, row: int, end: int) -> bool:
        """Say whether some of these rows are no white space, though in no call or reasoning."""
        if any(self._count(kind, row, end, behind=True) for kind in ("text", "blank")):
            return True
        return (self.rows[row][0].data or b"").startswith(CONTINUING)  # of a character before

    def _price_shown(self, joint: Joint, first: int) -> int:
        """Return what rows before it cost that are likely content: before a call, not a thought."""
        if not self.hints.last:
            return 0
        behind = self.hints.reasoned and not joint.at
        if not behind and not self._has_open(joint.row, first):
            return 0
        if self._count("text", joint.row, first, behind=behind):
            return SHOWN
        parts = self._count("blank", joint.row, first, behind=behind)
        spaces = self._count("space", joint.row, first, behind=behind)
        if joint.at or not parts:
            return 0
        return SHOWN if parts >= MOST_BYTES or not spaces else SPACES

    def price_tail(self, stretch: Stretch, joint: Joint, at: int) -> int:
        """Return what the rows behind the content cost, or a last one that is hardly of it."""
        hints = self.hints
        tail = self.tails[joint.row] if joint.row < len(self.tails) else 0
        left = joint.row <= hints.own < len(self.tails)  # some that came with the text
        alone = joint.row == stretch.first + 1 and joint.row > 1 and not left
        rest = len(self.content) - at
        if alone and all(_begins_more(x.data or b"", rest) for x in self.rows[stretch.first]):
            tail = max(tail, TAIL if hints.last else AFTER)  # it only begins as that ends
        if tail and hints.stops and self._is_stop(stretch, joint):
            tail = 0
        if left and "closes" in self.marks[joint.row : -1]:
            tail = max(tail, MARKED)
        if joint.over and self.marks[joint.row - 1]:
            tail = max(tail, SPACE)
        if left and not any(map(_is_told, stretch.trace(joint))):
            far = self.is_far(joint.row, hints.own) or self._is_told(hints.own)
            tail = max(tail, FAR if far else 0 if hints.lags else LEFT)
        return tail

    def price_lost(self, pieces: Sequence[Piece]) -> int:
        """Return what texts just behind the content cost, of which one is in what parts own."""
        first = pieces[-1].row + 1
        if self.hints.lags or first == len(self.rows) or all(x.option.data for x in pieces):
            return 0
        near = range(first, min(first + LOST_ROWS, len(self.rows)))
        behind = list_texts(self.rows, self.marks, near)
        return LEFT_OUT if owns_any(pieces, behind, self.content) else 0

    def _is_better(self, joint: Joint, first: int) -> bool:
        """Say whether one of the rows before it tells what its own first row does not.

        That is a text, not all ASCII, which the content begins with, and not of a thought.
        """
        if joint.at or not is_part(self.rows[first]):
            return False
        before = self._beginnings[: bisect_left(self._beginnings, first)]
        inside = takewhile(lambda n: n >= joint.row, reversed(before))
        return any(self._next_mark(n, first) != "closes" for n in inside)

    def _next_mark(self, row: int, end: int) -> Mark:
        """Return the first control token of these rows."""
        place = self._outside.following[row]
        return self.marks[place] if place < end else ""

    def _has_open(self, row: int, end: int) -> bool:
        opens = self._outside.opens
        return opens[end] > opens[row]

    def _count(self, kind: Kind, row: int, end: int, *, behind: bool) -> int:
        """Return how many of these rows are of a kind and stand before a token that opens.

        `behind`: those behind the last control token count too.
        """
        every, ahead = self._outside.every[kind], self._outside.ahead[kind]
        last = max(self._outside.preceding[end], row)
        return ahead[last] - ahead[row] + (every[end] - every[last] if behind else 0)

    @cached_property
    def _outside(self) -> _Outside:
        return _count_rows(self.rows, self.marks)

    @cached_property
    def _beginnings(self) -> list[int]:
        """The rows whose text, not all ASCII, is what the content begins with."""
        texts = [row[0].data or b"" for row in self.rows]
        texts = [text if text.isascii() else text[measure_space(text) :] or text for text in texts]
        begin = self.content.startswith
        return [n for n, x in enumerate(texts) if not x.isascii() and begin(x)]

    def _is_told(self, row: int) -> bool:
        """Say whether the row's own text is what the content begins with."""
        option = self.rows[row][0] if row < len(self.rows) else None
        text = (option.data or option.texts[0]) if option else b""
        text = text[measure_space(text) :]
        return bool(text) and (self.content.startswith(text) or text.startswith(self.content))

    def is_far(self, row: int, own: int) -> bool:
        """Say whether more stands before a text's own rows than text is held back, as a rule."""
        rows = self.rows[row:own]
        text = b"".join(x[0].data or b"".join(x[0].texts) for x in rows).decode(errors="ignore")
        return len(text) + sum(map(is_part, rows)) // 2 > HELD or "closes" in self.marks[row:own]

    def _is_stop(self, stretch: Stretch, joint: Joint) -> bool:
        """Say whether what stands behind the content begins with a stop string, or begins one."""
        last = stretch.trace(joint)[-1]
        text = _get_over(last, self.content)
        for row in self.rows[joint.row : joint.row + STOP_ROWS]:
            text += row[0].data or row[0].texts[-1]
        stops = self.hints.stops if text else ()
        return any(text.startswith(stop) or stop.startswith(text) for stop in stops)


def _count_rows(rows: Rows, marks: Sequence[Mark]) -> _Outside:
    following, preceding = [len(rows)], [-1]
    for n in range(len(rows) - 1, -1, -1):
        following.append(n if marks[n] else following[-1])
    following.reverse()
    kinds: tuple[Kind, ...] = get_args(Kind)
    every: dict[Kind, list[int]] = {kind: [0] for kind in kinds}
    ahead: dict[Kind, list[int]] = {kind: [0] for kind in kinds}
    opens = [0]
    for n, row in enumerate(rows):
        of: Kind = "space" if is_space(row) else "blank" if is_blank(row) else "text"
        before = following[n] < len(rows) and marks[following[n]] == "opens"
        for kind in kinds:
            one = kind == of and not marks[n]
            every[kind].append(every[kind][-1] + one)
            ahead[kind].append(ahead[kind][-1] + (one and before))
        opens.append(opens[-1] + (marks[n] == "opens"))
        preceding.append(n if marks[n] else preceding[-1])
    return _Outside(every, ahead, opens, following, preceding)


def _get_opening(option: Option) -> bytes:
    """Return the text before a part of a character behind which none stands."""
    return b"" if any(option.texts[1:]) else option.texts[0]


def list_texts(rows: Rows, marks: Sequence[Mark], places: Iterable[int]) -> list[bytes]:
    """Return the texts of those rows that have one, up to the first control token.

    Without white space in front, which the content may lack.
    """
    options = (rows[n][0] for n in takewhile(lambda n: not marks[n], places))
    texts = [x.data or b"".join(x.texts) for x in options if not x.is_blank]
    return [text[measure_space(text) :] or text for text in texts]


def owns_any(pieces: Sequence[Piece], texts: Sequence[bytes], content: bytes) -> bool:
    """Say whether one of the texts, which are no parts, is in what parts of characters own."""
    runs = [list(run) for known, run in groupby(pieces, lambda x: x.option.data) if known is None]
    owned = [content[run[0].start : run[-1].end] for run in runs]
    whole = [text for text in texts if text.decode(errors="ignore")]
    return any(text in data for text in whole for data in owned)


def _is_told(piece: Piece) -> bool:
    """Say whether some of a piece's text is known."""
    option = piece.option
    return bool(option.data or option.texts[0] or (any(option.texts) and not piece.over))


def _get_over(piece: Piece, content: bytes) -> bytes:
    """Return a last piece's text beyond the content."""
    if not piece.over:
        return b""
    data = piece.option.data
    if data is not None:
        return data[len(data) - piece.over :]
    text = piece.option.texts[-1]
    same = (n for n in range(len(text), 0, -1) if content.endswith(text[:n]))
    return text[next(same, 0) :]


def _begins_more(data: bytes, size: int) -> bool:
    """Say whether there is text behind the first bytes, not just a part of a character."""
    return bool(data[measure_space(data) + size :].decode(errors="ignore"))


def _is_text(data: bytes) -> bool:
    """Say whether bytes are more than a part of a character."""
    return bool(data.decode(errors="ignore")) or data.strip(_UTF8) != b""


def _price_tails(rows: Rows, marks: Sequence[Mark], hints: Hints) -> list[int]:
    """Return for each row what it costs that it and all rows after it are behind the content."""
    costs = []
    ahead: Mark = ""  # the next control token
    near = far = False  # text stands before it; text that is in no call stands behind it
    parts = lost = 0  # rows without text before it, and those in no call behind it
    text = b""  # what the next rows begin with
    # Fewer may be of a character that is cut off, or one of it be what ends the text.
    most = MOST_BYTES if hints.cut else MOST_BYTES - 1
    for options, mark in zip(reversed(rows), reversed(marks), strict=True):
        if mark:
            far = far or (near and mark == "closes")
            lost += parts if mark == "closes" else 0
            near, parts, ahead, text = False, 0, mark, b""
        elif is_part(options):
            parts, text = parts + 1, b""
        else:
            text = (options[0].data or b"".join(options[0].texts)) + text[:MOST_BYTES]
            near = near or _is_text(text)
        cost = TAIL if hints.last and (near or far) else MARKED if ahead == "closes" and far else 0
        many = lost > 1 or parts >= most
        costs.append(max(cost, PARTS if hints.last and many else 0))
    return costs[::-1]


def _price_heads(marks: Sequence[Mark]) -> list[int]:
    """Return for each row what it costs to begin there: much inside of reasoning or a call."""
    costs, inside = [], False
    for mark in marks:
        costs.append(MARKED if inside else 0)
        inside = mark == "opens" or (inside and not mark)
    return costs
