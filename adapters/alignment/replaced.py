"""A content whose undecodable bytes show as U+FFFD, and rows whose bytes are known."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from wellspoken.adapters.alignment.known import Known
from wellspoken.adapters.alignment.placement import FRONT, PARTIAL, SPACE, Cover, Piece

_UTF8 = re.compile(  # a character, or as much of one as there is
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]?|\xed[\x80-\x9f][\x80-\xbf]?|"
    rb"[\xe1-\xec\xee\xef][\x80-\xbf]{1,2}|\xf0[\x90-\xbf][\x80-\xbf]{0,2}|"
    rb"[\xf1-\xf3][\x80-\xbf]{1,3}|\xf4[\x80-\x8f][\x80-\xbf]{0,2}|.",
    re.DOTALL,
)


def cover_replaced(known: Known) -> Cover | None:
    """Return how the rows cover the content, None if they do not.

    One U+FFFD for each maximal part of a character, as decoders do, or as many as may be for each
    run.
    """
    joined, content = known.joined, known.content
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
                found = _cut(known, begin, ends[-1] - begin, len(ends) == len(wanted))
                return _show(found, [x - begin for x in ends], [end for _, end in wanted])
    return None


def _cut(known: Known, offset: int, size: int, whole: bool) -> Cover:
    """Return the rows that own `size` bytes of the joined bytes from `offset` on."""
    pieces = []
    at, end = 0, offset + size
    for index, data in enumerate(known.data):
        start, at = at, at + len(data)
        if at < offset or (at == offset and data):
            continue
        if start >= end:
            break
        cut, over = max(offset - start, 0), max(at - end, 0)
        own = max(start, offset) - offset
        option = known.rows[index][0]
        pieces.append(Piece(index, own, min(at, end) - offset, option, cut, over))
    cost = 0 if offset == 0 else SPACE if known.joined[:offset].isspace() else FRONT
    return Cover(pieces, size, cost if whole else PARTIAL)


def _characters(data: bytes, runs: bool) -> list[tuple[str, int]]:
    """Return (character, its end in bytes); with `runs` all U+FFFD in a row are one."""
    found: list[tuple[str, int]] = []
    for match in _UTF8.finditer(data):
        character = match[0].decode(errors="replace")
        if runs and character == "\ufffd" and found and found[-1][0] == "\ufffd":
            found.pop()
        found.append((character, match.end()))
    return found


def _show(found: Cover, ends: list[int], wanted: list[int]) -> Cover:
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
