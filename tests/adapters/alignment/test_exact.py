"""Rows that show U+FFFD for parts of characters, each of which stands for bytes that show so.

Each test names the mutant of exact.py that it rejects.
"""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from wellspoken.adapters.alignment.cover import cover
from wellspoken.adapters.alignment.exact import Exact, _list_shown, is_exact
from wellspoken.adapters.alignment.placement import ANY, Budget, Cover, Hints, Option, Piece, Rows

CHARACTERS = "aé語👍\u200d"


def show(data: bytes, *, bytewise: bool) -> str:
    """Return what a server shows that decodes each token alone; `bytewise`: a U+FFFD a byte."""
    if bytewise:
        return data.decode(errors="surrogateescape").translate(
            {0xDC00 + byte: "\ufffd" for byte in range(0x80, 0x100)}
        )
    return data.decode(errors="replace")


def row_of(shown: str) -> list[Option]:
    """Return a row as candidates.py makes it of a token whose bytes nobody tells."""
    if "\ufffd" not in shown:
        return [Option(shown.encode())]
    texts: list[str] = [""]
    holes: list[int] = []
    for character in shown:
        if character != "\ufffd":
            texts[-1] += character
        elif holes and not texts[-1] and len(texts) > 1:
            holes[-1] += 1
        else:
            holes.append(1)
            texts.append("")
    return [Option(None, tuple(x.encode() for x in texts), holes=tuple(holes))]


def split(content: str, cuts: list[int]) -> list[bytes]:
    data = content.encode()
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def walk(rows: Rows, content: str, *, bytewise: bool = False) -> list[Piece] | None:
    """Return the pieces of the stretch from the first row, if that is the whole content."""
    data = content.encode()
    found = Exact(rows, data, Budget(), Hints(), bytewise=bytewise).walk(0, 0)
    return found.trace(found.joints[0]) if found and found.whole else None


def owned(pieces: list[Piece] | None, content: str) -> list[bytes] | None:
    return None if pieces is None else [content.encode()[p.start : p.end] for p in pieces]


@settings(max_examples=examples(60))
@given(st.text(CHARACTERS, min_size=1, max_size=6), st.lists(st.integers(0, 99)), st.booleans())
def test_all_rows_of_a_split_are_kept_and_known_ones_stand_in_their_place(
    content: str, cuts: list[int], bytewise: bool
) -> None:
    """Rejects a set of places that lacks one, and a row that owns one byte too few or too many."""
    tokens = split(content, cuts)
    rows = [row_of(show(token, bytewise=bytewise)) for token in tokens]
    found: Cover | None = cover(rows, content.encode(), Budget(), Hints())
    assert found is not None and found.cost == 0
    assert [piece.row for piece in found.pieces] == list(range(len(rows)))
    assert b"".join(owned(found.pieces, content) or ()) == content.encode()
    start = 0
    for token, row, piece in zip(tokens, rows, found.pieces, strict=True):
        if row[0].data is not None:
            assert (piece.start, piece.end) == (start, start + len(token))
        start += len(token)


@pytest.mark.parametrize("bytewise", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_what_shows_as_so_many_replacements(count: int, bytewise: bool) -> None:
    """Rejects a pair left out of `_list_shown`, and one too many."""
    shows = set()
    for before, after in product("é語👍", repeat=2):
        ends, begins = before.encode(), after.encode()
        for front, back in product(range(len(ends)), range(len(begins))):
            token = ends[len(ends) - front :] + begins[:back]
            ways = (True,) if bytewise else (True, False)
            if count in {show(token, bytewise=way).count("\ufffd") for way in ways}:
                shows.add((front, back))
    listed = set(_list_shown(count, bytewise=bytewise))
    # Of single bytes one at the end begins a character, or each goes on with one.
    assert listed <= shows if bytewise else listed == shows, (listed, shows)


def test_the_last_row_owns_a_character_whose_split_nobody_tells() -> None:
    """Rejects `_give_whole` without its loop: the first row would own two bytes of it."""
    rows = [row_of("\ufffd"), row_of("\ufffd")]
    assert owned(walk(rows, "語"), "語") == [b"", "語".encode()]


def test_a_row_between_known_ones_owns_what_they_leave() -> None:
    """Rejects `sure` that does not stop the loop: the known byte would be given away."""
    rows: Rows = [[Option(b"\xe8")], row_of("\ufffd"), [Option(b"\x9e")]]
    assert owned(walk(rows, "語"), "語") == [b"\xe8", b"\xaa", b"\x9e"]
    rows = [[Option(b"\xe8")], row_of("\ufffd"), row_of("\ufffd")]
    assert owned(walk(rows, "語"), "語") == [b"\xe8", b"", b"\xaa\x9e"]


def test_a_row_of_two_ends_a_character_and_begins_the_next() -> None:
    """Rejects forms with parts on one side alone."""
    rows: Rows = [[Option(b"\xc3")], row_of("\ufffd\ufffd"), [Option(b"\xa9")]]
    assert owned(walk(rows, "éé"), "éé") == [b"\xc3", b"\xa9\xc3", b"\xa9"]


def test_a_text_with_parts_on_both_sides() -> None:
    rows: Rows = [[Option(b"\xc3")], row_of("\ufffd=\ufffd"), [Option(b"\xa9")]]
    assert owned(walk(rows, "é=é"), "é=é") == [b"\xc3", b"\xa9=\xc3", b"\xa9"]


def test_a_last_row_reaches_over_the_content() -> None:
    """Rejects `_find_places` without its loop over the end."""
    pieces = walk([row_of("a"), row_of("b\ufffd")], "ab")
    assert owned(pieces, "ab") == [b"a", b"b"]
    assert pieces is not None and pieces[-1].over > 0


def test_the_first_row_lacks_its_white_space() -> None:
    """Rejects `_steps_of` without `_strip`."""
    pieces = walk([row_of(" \ufffd"), row_of("\ufffd")], "é")
    assert owned(pieces, "é") == [b"", "é".encode()]


def test_white_space_that_fits_is_not_left_out() -> None:
    """Half of it is there so far (rejects `_strip` wherever it can)."""
    pieces = walk([row_of("    ")], "  ")
    assert pieces is not None and (pieces[0].cut, pieces[0].over) == (0, 2)


def test_rows_that_cannot_be_so_are_none() -> None:
    """Rejects `begins` without the size: two bytes do not begin a character of two."""
    assert walk([row_of("\ufffd"), row_of("a")], "éa") is None
    assert walk([row_of("\ufffd"), row_of("a")], "語a", bytewise=True) is None
    assert walk([row_of("\ufffd\ufffd"), row_of("\ufffd\ufffd\ufffd")], "語", bytewise=True) is None


@pytest.mark.parametrize(
    ("option", "content", "exact"),
    [
        (Option(b"a"), "a", True),
        (Option(None), "é", True),
        (Option(None, most=4), "éé", False),
        (Option(None, most=ANY), "é", False),
        (Option(None), "\ufffd", False),
    ],
)
def test_only_rows_that_show_what_they_are_are_exact(
    option: Option, content: str, exact: bool
) -> None:
    assert is_exact([[option]], content.encode()) is exact


def test_a_hostile_answer_ends_with_the_budget() -> None:
    """Rejects a walk that spends nothing."""
    content = ("👍" * 300).encode()
    budget = Budget(500)
    walker = Exact([row_of("\ufffd\ufffd")] * 900, content, budget, Hints(), bytewise=False)
    walker.walk(0, 0)
    assert -500 < budget.left < 0
