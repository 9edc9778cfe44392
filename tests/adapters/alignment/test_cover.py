"""Which entries cover a content, and which of its bytes each of them owns."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from wellspoken.adapters.alignment.cover import cover as cover_within
from wellspoken.adapters.alignment.parts import WIDTH
from wellspoken.adapters.alignment.placement import (
    FRONT,
    PARTIAL,
    SPACE,
    Budget,
    Cover,
    Hints,
    Option,
)

PART = Option(None)  # a part of a character of unknown split


def cover(
    tokens: list[list[Option]], content: bytes, after: bytes = b"", last: bool = False
) -> Cover | None:
    return cover_within(tokens, content, Budget(), Hints(after, last=last))


def rows(*tokens: bytes | Option) -> list[list[Option]]:
    return [[token if isinstance(token, Option) else Option(token)] for token in tokens]


def owned(found: Cover | None, content: str) -> list[tuple[int, bytes]]:
    assert found is not None
    data = content.encode()
    return [(piece.row, data[piece.start : piece.end]) for piece in found.pieces]


KNOWN: dict[str, tuple[list[bytes], str, list[tuple[int, bytes]], int]] = {
    "exact": ([b"a", b"bc"], "abc", [(0, b"a"), (1, b"bc")], 0),
    "an end-of-text token behind": ([b"a", b"b", b"</s>"], "ab", [(0, b"a"), (1, b"b")], 0),
    "the leading space": ([b" a", b"b"], "ab", [(0, b"a"), (1, b"b")], SPACE),
    "reasoning before": ([b"hm", b"a", b"b"], "ab", [(1, b"a"), (2, b"b")], FRONT),
    "the last of two": ([b"ab", b"-", b"ab"], "ab", [(0, b"ab")], 0),
    "the last, where all are there": ([b"x", b"ab", b"-", b"ab"], "ab", [(3, b"ab")], FRONT),
    "it reaches over": ([b"a", b"bcd"], "ab", [(0, b"a"), (1, b"b")], 0),
    "the rows end first": ([b"a"], "abc", [(0, b"a")], PARTIAL),
    "a part of a character": ([b"\xc3", b"\xa9"], "é", [(0, b"\xc3"), (1, b"\xa9")], 0),
    "an empty token between": ([b"a", b"", b"b"], "ab", [(0, b"a"), (1, b""), (2, b"b")], 0),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_bytes(name: str) -> None:
    tokens, content, wanted, cost = KNOWN[name]
    found = cover(rows(*tokens), content.encode(), last=name == "the last, where all are there")
    assert owned(found, content) == wanted
    assert found is not None and found.cost == cost


def test_what_reaches_over_is_told_apart() -> None:
    found = cover(rows(b" ab", b"cd"), b"abc")
    assert found is not None
    assert [(piece.cut, piece.over) for piece in found.pieces] == [(1, 0), (0, 1)]


def test_the_reasoning_tells_which_of_two_is_the_content() -> None:
    tokens = rows(b"ab", b"</think>", b"ab", b"a long tail behind the content")
    assert owned(cover(tokens, b"ab", b"ab"), "ab") == [(2, b"ab")]


@pytest.mark.parametrize("tokens", [[b"x"], [b"a", b"c"], [PART, b"x"]])
def test_what_does_not_cover_is_none(tokens: list[bytes | Option]) -> None:
    assert cover(rows(*tokens), b"ab") is None


def test_a_stretch_that_owns_nothing_is_not_left() -> None:
    """The space that the content lacks stands behind empty rows (rejects such a joint)."""
    content = "👍 ".encode()
    assert cover(rows(b"", b"", " 👍".encode(), "👩".encode()), content) is None


def test_a_byte_before_does_not_tell_what_a_part_behind_does_not() -> None:
    """It is of a thought, as the token that closes it says (rejects one byte for a text)."""
    tokens = rows(b"\xe6", b"x", b"</think>", PART, b"\x97\xa5")
    found = cover_within(tokens, "日".encode(), Budget(), Hints(marks=["", "", "closes", "", ""]))
    assert found is not None and [piece.row for piece in found.pieces] == [3, 4]


def test_no_rows_cover_nothing() -> None:
    assert cover([], b"ab") is None


SPLIT: dict[str, tuple[list[bytes | Option], str, list[tuple[int, bytes]]]] = {
    "the last part owns the character": (
        [PART, PART, PART],
        "😀",
        [(0, b""), (1, b""), (2, "😀".encode())],
    ),
    "between known ones": (
        [b"a", PART, PART, b"b"],
        "aéb",
        [(0, b"a"), (1, b""), (2, "é".encode()), (3, b"b")],
    ),
    "text before the part": (
        [Option(None, (b"a", b"")), PART, b"b"],
        "aéb",
        [(0, b"a"), (1, "é".encode()), (2, b"b")],
    ),
    "the leading space": ([b" a", PART], "aé", [(0, b"a"), (1, "é".encode())]),
    "text behind the part": (
        [PART, Option(None, (b"", b"b"))],
        "éb",
        [(0, b""), (1, "éb".encode())],
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_parts_of_unknown_split(name: str) -> None:
    tokens, content, wanted = SPLIT[name]
    assert owned(cover(rows(*tokens), content.encode()), content) == wanted


def test_each_of_two_characters_has_one_owner() -> None:
    """Which of four parts are the first character's nobody knows; the last is the last's."""
    found = owned(cover(rows(*[PART] * 4), "éé".encode()), "éé")
    assert sorted(data for _, data in found) == [b"", b"", "é".encode(), "é".encode()]
    assert found[-1][1] == "é".encode() and found[0][1] == b""


def test_an_option_may_be_an_alternative() -> None:
    choices = [[Option(b"x", pick=0), Option(b"a", pick=1)], [Option(b"b", pick=0)]]
    found = cover(choices, b"ab")
    assert owned(found, "ab") == [(0, b"a"), (1, b"b")]
    assert found is not None and [piece.option.pick for piece in found.pieces] == [1, 0]


REPLACED: dict[str, tuple[list[bytes], str]] = {
    "one for each byte": ([b"a", b"\xf0\x9f", b"b"], "a\ufffd\ufffdb"),
    "one for both": ([b"a", b"\xf0", b"\x9f", b"b"], "a\ufffdb"),
    "at the end": ([b"a", b"\xf0\x9f"], "a\ufffd"),
    "one for a run that is two errors": ([b"\xff\xff", b"a"], "\ufffda"),
    "at the front": ([b"\xf0\x9f", b"a"], "\ufffda"),
    "behind what is outside": ([b"hm", b"a", b"\xf0\x9f"], "a\ufffd"),
}


@pytest.mark.parametrize("name", REPLACED)
def test_undecodable_bytes_show_as_replacements(name: str) -> None:
    tokens, content = REPLACED[name]
    found = cover(rows(*tokens), content.encode())
    assert found is not None
    kept = [tokens[piece.row] for piece in found.pieces]
    assert b"".join(kept) in b"".join(tokens)
    assert b"".join(kept).decode("utf-8", "replace").replace("\ufffd", "") == content.replace(
        "\ufffd", ""
    )
    assert found.covered == len(content.encode())


def test_pieces_of_a_replaced_run_stand_within_the_content() -> None:
    """Mutant: without `_shown` the last piece began at 5, behind the content's end (a 500)."""
    content = "\ufffda".encode()
    found = cover(rows(b"\xff\xff\xff", b"\xff\xff", b"ab"), content)
    assert found is not None and found.covered == len(content)
    assert all(0 <= piece.start < piece.end <= len(content) for piece in found.pieces)


def test_a_replaced_part_is_no_more_than_the_content_shows() -> None:
    """Mutant: with runs alone the content's one U+FFFD took all four tokens."""
    assert owned(cover(rows(b"\xff", b"\xff", b"\xffa"), "\ufffd".encode()), "\ufffd") == [
        (0, "\ufffd".encode())
    ]


def test_a_replaced_byte_keeps_its_row_beside_a_part_that_none_shows() -> None:
    """Mutant: `_cover_unended` tries no `cover_replaced`; a loose reading gave "7" all of it.

    Seen on llama.cpp b11549: the last token began a character that the limit cut, and is not told.
    """
    content = "\ufffd7\0\ufffd"
    found = cover(rows(b"\x82", b"7", b"\0"), content.encode())
    assert found is not None and found.cost < PARTIAL
    assert owned(found, content) == [(0, "\ufffd".encode()), (1, b"7"), (2, b"\0")]


def test_replacements_that_are_not_there_do_not_cover() -> None:
    assert cover(rows(b"ab"), "x\ufffd".encode()) is None


@pytest.mark.parametrize("content", ["a\ufffd\ufffd", "a\ufffd"])
def test_replacements_beside_a_choice_of_tokens(content: str) -> None:
    found = cover([[Option(b"a"), Option(b"b", pick=0)], *rows(b"\xf0\x9f")], content.encode())
    assert found is not None and found.covered == len(content.encode())
    assert [piece.row for piece in found.pieces] == [0, 1]


@settings(max_examples=examples(200), deadline=None, database=None)
@given(st.text(min_size=1, max_size=12), st.lists(st.integers(0, 30), max_size=8), st.data())
def test_any_split_is_covered_exactly(text: str, cuts: list[int], data: st.DataObject) -> None:
    content = text.encode()
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    tokens = [content[a:b] for a, b in pairwise(edges)]
    before = data.draw(st.sampled_from([[], [b"\x00hm\x00"]]))
    found = cover(rows(*before, *tokens, b"</s>"), content)
    assert found is not None and found.covered == len(content)
    assert b"".join(content[piece.start : piece.end] for piece in found.pieces) == content


def test_a_hostile_answer_does_not_stall() -> None:
    """The work over all starts is bounded, whatever the rows may stand for."""
    budget = Budget(1_000)
    tokens = [*rows(*[PART] * 300), *rows(b"x")]
    assert cover_within(tokens, "é".encode() * 200 + b"y", budget, Hints()) is None
    assert -2 * WIDTH <= budget.left < 0
