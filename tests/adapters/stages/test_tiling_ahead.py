"""Contract rule 7, tiling: whether entries run ahead of their text, or stand before all of it.

All answers are constructed: they are the shortest of kinds that drawn answers showed
(tests/adapters/properties/runs). Each test names the mutant that it rejects.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.stages.test_tiling_unknown import PART, apart, numbers, rows_of, tile
from tests.answers import (
    Json,
    body,
    call,
    choice,
    chunk,
    completion,
    end,
    lp,
    message,
    role,
    say,
    scored,
    stream,
)
from wellspoken.adapters.alignment.search import find_cover
from wellspoken.adapters.events import Entry
from wellspoken.adapters.stages import tiling_run


def test_parts_for_each_byte_may_be_the_text_that_their_like_follows() -> None:
    """Mutant: `may_be_ahead` is never true; the second "ü" has no entry."""
    said = apart([(rows_of("", ""), ""), (rows_of("ü", start=3), "ü"), ([], "ü")])
    assert numbers(said) == [-1, -2, -3]
    assert said.joined.decode() == "üü"


def test_parts_may_have_several_bytes_each_of_the_text_that_their_like_follows() -> None:
    """Mutant: `may_be_ahead` counts one byte for each part; the second "語" has no entry."""
    said = apart([(rows_of("", ""), ""), (rows_of("語", start=3), "語"), ([], "語")])
    assert numbers(said) == [-1, -2, -3]
    assert said.joined.decode() == "語語"


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


def test_a_control_token_of_which_the_text_may_have_the_beginning_stands_before_it() -> None:
    """Mutant: `price_tail` takes it as it takes any text; the thought is the content's."""
    said = apart(
        [
            (rows_of('"'), ""),
            (rows_of("</think>", start=2), ""),
            (rows_of('"<', start=3), '"<'),
            (rows_of("/", start=4), "/"),
            (rows_of("div", start=5), "div"),
        ]
    )
    assert numbers(said) == [-3, -4, -5]


def test_a_text_that_a_tag_before_its_own_entry_begins_with_waits() -> None:
    """Mutant: `_is_doubtful` sees no doubt where the tag may be a control token; it is lost."""
    ahead = [(rows_of("<b>", "<"), "<"), (rows_of("/b>", start=3), "b></b>")]
    assert apart(ahead).rows == [
        ("<b>", -1, [60, 98, 62]),
        ("<", -2, [60]),
        ("/b>", -3, [47, 98, 62]),
    ]
    behind = [
        (rows_of("</think>"), ""),
        (rows_of("<", start=2), "<"),
        (rows_of("b>", start=3), "b>"),
    ]
    assert numbers(apart(behind)) == [-2, -3]


def test_a_cover_does_not_begin_behind_known_bytes_of_its_first_character() -> None:
    """Mutant: `_is_inside` looks at parts alone; the first two numbers are lost."""
    said = apart(
        [
            (rows_of("so"), ""),
            (rows_of(PART, start=2), ""),
            (rows_of("byte: \\x91", start=3), ""),
            (rows_of(PART + "a", start=4), "👩a"),
        ]
    )
    assert numbers(said) == [-2, -3, -4]


def test_parts_that_cannot_be_of_a_text_wait_over_a_call() -> None:
    """Mutant: `_cover_held` looks once; the first character has all parts, the second none."""
    parts: list[Json] = [
        say("", logprobs=lp(*rows_of("é"))),
        say("é"),
        say("", logprobs=lp(*rows_of(" x", start=2))),
        say(" x"),
        say("", logprobs=lp(*rows_of(*[PART] * 4, start=3))),
        say("👍"),
        say("", logprobs=lp(*rows_of(*[PART] * 4, "<tool_call>", start=7))),
    ]
    parts += [chunk({"tool_calls": [call("f", '{"q": 1}', index=0)]}), say("🏽"), end("tool_calls")]
    said = stream([role(), *parts], scored(), waived=["7.chunk"])
    assert numbers(said) == [-float(n) for n in range(1, 11)]


def test_a_thought_is_not_sought_inside_of_a_call() -> None:
    """Mutant: `_is_front` is always true; the call's parts are the thought's, and "你" is lost."""
    thought = ("<think>", "é", "</think>", "\n\n")
    call_rows = ("<tool_call>", '{"q": "', "", "", '"}', "</tool_call>")
    rows = rows_of(*thought, " 你", *call_rows, "", "", "")
    told = message("你。", reasoning_content="é", tool_calls=[call("f", '{"q": "ש"}')])
    given = choice(message=told, logprobs=lp(*rows), finish_reason="tool_calls")
    assert numbers(body(completion(given), scored())) == [-5, -12, -13, -14]


def test_text_whose_split_nothing_tells_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: `_is_untold` is always false; each part's text is searched with all before it."""
    searched: list[int] = []

    def count(entries: list[Entry], *more: Any) -> Any:
        searched.append(len(entries))
        return find_cover(entries, *more)

    monkeypatch.setattr(tiling_run, "find_cover", count)
    parts = [say("語", logprobs=lp(*rows_of("", "", "", start=3 * n + 1))) for n in range(40)]
    said = stream([role(), *parts, end()], scored(stop=["###"]), waived=["7.chunk"])
    assert numbers(said) == [-float(n) for n in range(1, 121)]
    assert sum(searched) < 3 * 120


def test_parts_before_a_text_that_reaches_over_may_be_of_all_of_it() -> None:
    """Mutant: `has_too_many_parts` counts the bytes that have come; the first woman is lost.

    vLLM's entries, beside text that is held back: the last token ends four characters.
    """
    joiner = "\u200d"
    woman, text = f"👩{joiner}", "👧❤\ufe0f😀🇩"
    tokens = ["❤", "\ufe0f", "", "", "", woman, "", "", woman, "", "", "", "", text, "", "🇪"]
    told = {3: "❤\ufe0f", 9: woman + "👩", 13: joiner + "👧", 14: "❤\ufe0f", 15: "😀"}
    rows = rows_of(*tokens)
    said = apart([*[([row], told.get(n, "")) for n, row in enumerate(rows)], ([], "🇩🇪")])
    assert numbers(said) == [-n for n in range(1, len(tokens) + 1)]
    assert [said.entries[n]["token"] for n in (5, 8, 13, 15)] == [woman, woman, text, "🇪"]


def test_more_parts_than_a_text_has_bytes_may_have_text_that_comes_later() -> None:
    """Mutant: `_is_doubtful` leaves out `has_too_many_parts`; the first woman has a later entry.

    Text is held back, so what comes with the second woman's entry is the first one.
    """
    woman, joiner = "👩", "\u200d"
    rows = rows_of(*[""] * 7, woman, joiner)
    said = apart([(rows[:7], ""), (rows[7:8], woman), (rows[8:], joiner + woman + joiner)])
    assert numbers(said) == [-n for n in range(1, 10)]
    told = [row["token"] for row in said.entries if row["token"]]
    assert told == [woman, joiner, woman, joiner] and said.entries[8]["token"] == joiner
