"""Which of the pieces that cover a text go out with it, and which wait for what follows."""

from __future__ import annotations

from itertools import takewhile

from wellspoken.adapters.alignment.candidates import CONTROL, is_part
from wellspoken.adapters.alignment.ends import MOST_BYTES
from wellspoken.adapters.alignment.placement import ANY, PART, Option, Piece
from wellspoken.adapters.events import Entry

UNSURE = 240  # bytes of text at most that wait to have their split told


def find_waiting(pieces: list[Piece], content: bytes, lags: bool, inner: bool) -> int:
    """Return the piece from which on the text waits, since what follows may tell it better.

    Where no content stands right before (`inner`), all waits if only pieces without text do not:
    the entries before them may be the content's as well.
    """
    first = len(pieces) - (pieces[-1].over > 0)
    first = find_held(pieces, content, find_unsure(pieces[:first]) if lags else first)
    return first if inner or (first and pieces[first - 1].end) else 0


def find_held(pieces: list[Piece], content: bytes, first: int) -> int:
    """Return the piece at or before `first` from which text can wait: it begins a character.

    Nothing before may have a part of that one.
    """
    while 0 < first < len(pieces) and (
        content[pieces[first].start] & 0xC0 == 0x80
        or pieces[first - 1].end > pieces[first].start
        or (is_unsure(pieces[first - 1].option) and len(content) - pieces[first].start <= UNSURE)
    ):
        first -= 1
    return first


def come_early(pieces: list[Piece], first: int) -> bool:
    """Say whether entries are shown to run ahead of their text.

    Known texts came before `first`, the first entry that came with the text; or the parts at the
    end are more than what they own has bytes, so the last of them are of what comes next.
    """
    if any(x.option.data and x.row < first and x.end > x.start for x in pieces):
        return True
    parts = list(takewhile(lambda x: x.option.texts == PART and not x.option.data, pieces[::-1]))
    least = sum(max(piece.option.least, 1) for piece in parts)
    return least > sum(piece.end - piece.start for piece in parts) > 0


def may_be_ahead(pieces: list[Piece], content: bytes) -> bool:
    """Say whether parts that own none may own text, and the known entry behind runs ahead of it.

    That is so where they may have the bytes of characters with which the content goes on, and the
    entry is of what would follow those.
    """
    parts = 0
    for piece in pieces:
        data = piece.option.data
        if data and parts:
            text = content[piece.start :].decode(errors="ignore")
            for size in range(1, min(parts, len(text)) + 1):
                owned, rest = text[:size].encode(), text[size:].encode()
                if len(owned) >= parts and min(owned) > 127 and data.startswith(rest):
                    return True
        parts = parts + 1 if not data and piece.start == piece.end else 0
    return False


def find_unsure(pieces: list[Piece]) -> int:
    """Return the first of the last pieces whose split the next text may tell better."""
    first = len(pieces)
    while first and is_unsure(pieces[first - 1].option):
        first -= 1
    near = first < len(pieces) and pieces[-1].end - pieces[first].start <= UNSURE
    return first if near else len(pieces)


def is_unsure(option: Option) -> bool:
    """Say whether a row's last bytes are parts of a character, and nothing tells which."""
    return option.data is None and not option.texts[-1]


def has_text(entries: list[Entry]) -> bool:
    """Say whether text stands among entries before any control token: a whole character at least.

    More parts than one has bytes are one, whatever they tell.
    """
    near = list(takewhile(lambda entry: not CONTROL.fullmatch(entry.token), entries))
    return len(near) > MOST_BYTES or not all(map(is_part, near))


def trim_front(pieces: list[Piece], content: bytes, entries: list[Entry]) -> list[Piece]:
    """Return the pieces without empty ones before ASCII text, which has no parts of characters.

    Nor does a control token stand before the first text.
    """
    owner = next((n for n, piece in enumerate(pieces) if piece.end > piece.start), 0)
    option = pieces[owner].option
    front = option.most < ANY and (option.data or b"").isascii()
    first = owner if front and content[: pieces[owner].end].isascii() else 0
    while first < owner and CONTROL.fullmatch(entries[pieces[first].row].token):
        first += 1
    return pieces[first:]


def has_few_parts(pieces: list[Piece], content: bytes) -> bool:
    """Say whether the last character has more bytes than parts that tell no text."""
    start, end = pieces[-1].start, pieces[-1].end
    last = content[start:end].decode(errors="ignore")[-1:].encode()
    same = takewhile(lambda x: x.option.is_blank and x.start >= start, pieces[::-1])
    return len(last) > len(list(same))
