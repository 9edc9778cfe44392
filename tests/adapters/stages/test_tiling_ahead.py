"""Contract rule 7, tiling: whether entries run ahead of their text, or stand before all of it.

All answers are constructed: they are the shortest of kinds that drawn answers showed
(tests/adapters/properties/runs). Each test names the mutant that it rejects.
"""

from __future__ import annotations

from tests.adapters.stages.test_tiling_unknown import PART, apart, numbers, rows_of, tile


def test_parts_for_each_byte_may_be_the_text_that_their_like_follows() -> None:
    """Mutant: `may_be_ahead` is never true; the second "ü" has no entry."""
    said = apart([(rows_of("", ""), ""), (rows_of("ü", start=3), "ü"), ([], "ü")])
    assert numbers(said) == [-1, -2, -3]
    assert said.joined.decode() == "üü"


def test_a_text_whose_own_entry_stands_behind_its_parts_waits() -> None:
    """Mutant: `_is_doubtful` looks at `may_be_ahead` alone; three numbers are lost."""
    said = apart(
        [
            (rows_of(PART, PART), ""),
            (rows_of(" Größe", start=3), ""),
            (rows_of("ü", start=4), "ü"),
            (rows_of("!", start=5), " G"),
            ([], "rößeü!"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5]
    assert said.joined.decode() == "ü Größeü!"


def test_a_known_text_is_not_left_out_for_parts_that_own_none() -> None:
    """Mutant: `_is_sure` does not look at parts; the first entry is left out."""
    said = apart(
        [
            (rows_of("👩"), ""),
            (rows_of("", "", "", start=2), ""),
            (rows_of("👩\u200d", start=5), ""),
            (rows_of("x", start=6), "👩\u200d"),
            ([], "👩\u200dx"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5, -6]


def test_names_of_bytes_that_make_utf8_are_that() -> None:
    """Mutant: `is_byte_level` is always false; the thought's first entry is the content's."""
    said = apart(
        [
            (rows_of("ing"), ""),
            (rows_of("ĉ", start=2), ""),
            (rows_of("</think>", start=3), ""),
            (rows_of("ĊĊ", start=4), ""),
            (rows_of("ing", start=5), "ing"),
        ]
    )
    assert numbers(said) == [-5]


def test_names_of_bytes_that_make_no_utf8_are_texts() -> None:
    """Mutant: a guessed spelling ends the search; "ñor" is taken for a byte that was cut off."""
    said = tile(PART, "se", "ñor", "</think>", "", "", reason="length")
    assert numbers(said) == [-4, -5]


def test_bytes_that_make_a_text_stand_behind_a_closing_token() -> None:
    """Mutant: `_price_tails` looks at each row alone; the thought's bytes are the content's."""
    bytes_of = [f"\\x{byte:02x}" for byte in "😀".encode()]
    said = tile("😀", *bytes_of, "</think>", *bytes_of)
    assert numbers(said) == [-6, -7, -8, -9]


def test_three_parts_behind_a_content_are_of_it_unless_that_was_cut_off() -> None:
    """Mutant: `Hints.cut` is always set; the white space's parts are the content's first."""
    call = ("<tool_call>", "{}", "</tool_call>")
    said = tile("한국", " ", "", "", "", *call, *[""] * 6)
    assert numbers(said) == [-8, -9, -10, -11, -12, -13]


def test_parts_that_stripped_white_space_may_have_are_kept() -> None:
    """Mutant: `_count_parts` leaves one of them out, the end of the text as it seems."""
    assert len(tile("é", "", "", "", "").entries) == 4
    assert len(tile("é", "", "", "").entries) == 2


def test_white_space_that_ends_in_a_known_text_begins_it() -> None:
    """Mutant: `_is_better` compares a text with its white space; its entry is left out."""
    said = tile("🇩🇪", " ", "", "", "", "\u3000🇩", *[""] * 4)
    assert numbers(said)[0] <= -5
    assert -5 in numbers(said)
