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

from collections.abc import Sequence
from functools import partial

from wellspoken.adapters.alignment.placement import (
    ANY,
    PART,
    REPLACEMENT,
    Budget,
    Joint,
    Option,
    Piece,
    Rows,
    Stretch,
    find_cut,
)

WIDTH = 256  # states kept after a row; where the split is certain there is one
UNFINISHED = 8  # penalty of an end behind which the rest of a character comes
LEFT_ROWS = 4  # penalty of an end behind which text comes, where nothing should
_PLACES = 4  # of a known text, at which a row that stands for any text may end
_EXITS = 32  # states in which a stretch may be left after a row, the furthest
_BACK = 3  # rows before the place where a stretch breaks off, at which it may be left as well
_CONTINUING = tuple(bytes([byte]) for byte in range(0x80, 0xC0))

State = tuple[int, int]
"""(position in the content, parts of the character there that have come and own nothing)"""
Trail = dict[State, tuple[int, State, Option]]
"""state -> (penalties so far, state before, option taken)"""


class Parts:
    """The walker of any rows.

    `lags`: more of them have come than the content is of. `quiet`: from this one on no row has text
    that may be content.
    """

    def __init__(
        self, rows: Rows, content: bytes, budget: Budget, *, lags: bool, quiet: int
    ) -> None:
        self.rows = rows
        self.content = content
        self.budget = budget
        self.lags = lags
        self.quiet = quiet

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
        arrived: list[tuple[int, int, State]] = []  # (penalties, rows, state) at the content's end
        anchor = (row, at)  # the last row and position that were certain
        for index in range(row, len(rows)):
            following = rows[index + 1] if index + 1 < len(rows) else ()
            inner = any(x.data is not None and x.data[:1] in _CONTINUING for x in following)
            ending = index + 1 >= self.quiet
            reached = _advance(
                reached, rows[index], following, content, index == row, inner, ending
            )
            if not reached or not self.budget.spend(len(reached) * len(rows[index])):
                break
            if len(reached) == 1:
                anchor = (index, next(iter(reached))[0])
            elif len(reached) > WIDTH:  # a run of parts alone, as in a text of emojis: all alike
                reached = _nearest(reached, anchor, (index, len(rows)), size)
            trails.append(reached)
            ways = [(way[0], end) for end, way in reached.items() if end[0] == size > way[1][0]]
            if ways:
                penalty, end = min(ways)
                penalty += UNFINISHED if inner else 0
                penalty += LEFT_ROWS if not self.lags and not ending else 0
                arrived.append((penalty, index if self.lags else -index, end))
        return self._leave(row, at, trails, arrived)

    def _leave(
        self, row: int, at: int, trails: list[Trail], arrived: list[tuple[int, int, State]]
    ) -> Stretch | None:
        """Return the stretch that these steps are, None if they lead nowhere."""
        size = len(self.content)
        trace = partial(_trace, trails, row, self.content)
        joints = [
            Joint(row + n + 1, state[0], state, trails[n][state][0])
            for n in range(len(trails) - 1, max(len(trails) - 1 - _BACK, -1), -1)
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
        return Stretch(row, joints, bool(arrived), trace) if joints else None

    def find_begins(self, row: int, at: int) -> list[int]:
        """Return the rows from `row` on with which a stretch may begin at `at`."""
        rest = self.content[at:]
        parted = rest[0] >= 0x80
        found: list[int] = []
        run = -1  # the first of the blank rows just before
        for n in range(row, len(self.rows)):
            options = self.rows[n]
            if all(option.is_blank for option in options):
                run = n if run < 0 else run
                if run == n and (parted or options[0].most == ANY):
                    found.append(n)
                continue
            if run not in found and any(_may_begin(option, rest, parted) for option in options):
                whole = all((x.data or x.texts[0] or b"").isascii() for x in options)
                found.append(n if whole or run < 0 else run)
            run = -1
        self.budget.spend(len(self.rows) - row)
        return found


def _exits(trail: Trail) -> list[State]:
    """Return the states in which a stretch may be left: the furthest, without parts that wait."""
    return sorted(trail, key=lambda state: (state[1] > 0, -state[0], trail[state][0]))[:_EXITS]


def _may_begin(option: Option, rest: bytes, parted: bool) -> bool:
    if option.data is None:
        if _strip(option, rest, 0) is not option:
            return True
        text = option.texts[0]
        return rest.startswith(text) if text else parted or rest.startswith(option.texts[-1])
    if rest.startswith(option.data) or option.data.startswith(rest):
        return True
    if rest.startswith(REPLACEMENT):
        return bool(_as_replaced(option.data, 0, rest))
    cut = find_cut(option.data, rest, 0)
    text = option.data[cut:]
    return bool(cut) and (rest.startswith(text) or text.startswith(rest))


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
            ends = _ends(option, state, content, front, inner)
            if front and option.data is None:
                bare = _strip(option, content, state[0])
                if bare is not option:
                    ends = [*ends, *_ends(bare, state, content, front, inner)]
            if option.most == ANY:
                ends = [*ends, *_ends_of_any(state[0], following, content, ending)]
            for penalty, end in ends:
                if end not in found or total + penalty < found[end][0]:
                    found[end] = (total + penalty, state, option)
    return found


def _strip(option: Option, content: bytes, at: int) -> Option:
    """Return a pattern without the white space in front that the content lacks."""
    n = 0 if option.texts[0] else 1
    cut = find_cut(option.texts[n], content, at) if n == 0 or option.firm else 0
    if not cut and n == 0 and option.texts[0].isspace() and not content[at : at + 1].isspace():
        cut = len(option.texts[0])
    texts = (*option.texts[:n], option.texts[n][cut:], *option.texts[n + 1 :])
    return option._replace(texts=texts) if cut else option


Ends = Sequence[tuple[int, State]]


def _ends(option: Option, state: State, content: bytes, front: bool, inner: bool) -> Ends:
    """Return (penalty, state after) for one option taken at `state`."""
    if option.data is not None:
        return _ends_of_known(option.data, state, content, front)
    if option.most in (1, ANY) and option.texts == PART:
        return _part_ends(state, content, inner)
    found, size = {state[0]: 0}, len(content)
    for last, text in enumerate(option.texts):
        found = {
            min(at + len(text), size): penalty
            for at, penalty in found.items()
            if content.startswith(text, at)
            or (
                text.startswith(content[at:]) and (at < size or not option.firm) and state[0] < size
            )
        }
        if last + 1 < len(option.texts):
            behind = option.texts[last + 1]
            inside = behind.startswith(_CONTINUING) or (not behind and inner)
            found = _with_gaps(found, option.most, content, inside)
    for at, penalty in list(found.items()):
        if at == size - len(REPLACEMENT) and content.endswith(REPLACEMENT):
            found[size] = penalty + 1  # a part of a character at the end, which the text lacks
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


def _ends_of_any(
    at: int, following: Sequence[Option], content: bytes, ending: bool
) -> list[tuple[int, State]]:
    """Return the ends of a row that stands for any text: where the next one's is, or the end.

    The less text it is, the better, since what is known should be found in its place.
    """
    ends = [(8 + len(content) - at, (len(content), 0))] if ending and at < len(content) else []
    for option in following:
        text = option.data or option.texts[0]
        found = content.find(text, at + 1) if text else -1
        for _ in range(_PLACES):
            if found < 0:
                break
            ends.append((6 + found - at, (found, 0)))
            found = content.find(text, found + 1)
    return ends


def _ends_of_known(data: bytes, state: State, content: bytes, front: bool) -> Ends:
    position, opened = state
    if content.startswith(data, position):
        whole = _character_end(content, position) - position
        # Parts that own nothing belong to the character that comes now, if it has that many.
        penalty = 0 if not opened or opened < whole else 2
        if opened and data[:1] >= b"\xc0" and len(data) < whole:
            penalty = 6  # it begins that character, so none came before it
        return ((penalty, (position + len(data), 0)),)
    if position < len(content) and data.startswith(content[position:]):
        return ((0, (len(content), 0)),)
    replaced = _as_replaced(data, position, content)
    if replaced:
        return [(penalty, (end, opened)) for penalty, end in replaced]
    cut = find_cut(data, content, position) if front else 0
    if cut and position < len(content):
        text = data[cut:]
        if content.startswith(text, position) or text.startswith(content[position:]):
            return ((1, (min(position + len(text), len(content)), 0)),)
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
        fits = not alone or content.startswith(REPLACEMENT, position)
        penalty = (0 if fits else 4) + (0 if opened < end - position else 3)
        ends.append((penalty, (end, 0)))
        if inner:
            ends += [(1, (at, 0)) for at in range(position + 1, end)]
            if end < len(content):  # the rest of this one, and the beginning of the next
                ends += [(2, (at, 0)) for at in range(end + 1, _character_end(content, end))]
    return ends


def _character_end(content: bytes, at: int) -> int:
    """Return the position after the character that `at` is in."""
    at += 1
    while at < len(content) and content[at] & 0xC0 == 0x80:
        at += 1
    return at


def _as_replaced(data: bytes, position: int, content: bytes) -> Sequence[tuple[int, int]]:
    """Return where undecodable bytes end if the content shows U+FFFD for them, or for a part."""
    if not content.startswith(REPLACEMENT, position):
        return ()
    text = data.decode("utf-8", "replace").encode()
    if text == data:
        return ()
    bytewise = b"".join(REPLACEMENT if byte >= 0x80 else bytes([byte]) for byte in data)
    ends = [(0, position + len(x)) for x in {text, bytewise} if content.startswith(x, position)]
    return [*ends, (2, position)] if not text.replace(REPLACEMENT, b"") else ends


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
        if option.data is None and option.most < ANY and not own.endswith(option.texts[-1]):
            over = 1  # or more: what stands behind its parts reaches over the end
        pieces.append(Piece(index, start, stop, option, cut, over))
        end = before
    return pieces[::-1]
