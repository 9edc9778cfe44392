"""Contract rule 7, tiling: entries without text that own nothing, beside those that own a part.

All answers are constructed: they are the shortest of kinds that drawn answers showed
(tests/adapters/properties). Each test names the mutant that it rejects.
"""

from __future__ import annotations

import pytest

from tests.adapters.stages.test_tiling_unknown import apart, numbers, rows_of, tile
from tests.answers import (
    TOOL,
    Said,
    bare,
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


def tops(*tokens: str) -> Said:
    """Translate a stream of these tokens, told by the completions endpoint's maps alone."""
    parts = [say(x, logprobs={"top_logprobs": [{x: -n}]}) for n, x in enumerate(tokens, 1)]
    return stream([role(), *parts, end()], scored(), waived=["7.chunk"])


@pytest.mark.parametrize("blank", [1, 2, 3, 4])
@pytest.mark.parametrize("texts", [["語"], ["ü", "語"], ["語", "語"], ["語", "語", "語"]])
def test_blank_tokens_before_a_text_that_has_its_own_entry_take_nothing(
    blank: int, texts: list[str]
) -> None:
    """Mutants, each of which loses a number.

    `_option` reads no alternative as empty; `_is_guess` looks at the tokens of entries whose token
    is not known; `Costs.price_lost` is 0; `_is_doubtful` takes it that entries lag.
    """
    tokens = [""] * blank + texts
    own = [([bare(token, -n)], token) for n, token in enumerate(tokens, 1)]
    for said in (apart(own), tops(*tokens)):
        assert numbers(said) == [-n for n in range(1, len(tokens) + 1)]
        assert said.joined.decode() == "".join(texts)


def test_a_part_does_not_take_the_characters_of_known_texts_before_it() -> None:
    """Mutant: `find_cover` compares readings by their covers' cost alone; the last owns all four.

    The first two tokens end with the byte that the next character begins with, which is left out.
    """
    said = tile("¡\x80\x81\x80", "¡", "\x81", "", reason="length")
    assert said.rows == [
        ("¡", -1, [0xC2, 0xA1]),
        ("\x80\x81", -2, [0xC2, 0x80, 0xC2, 0x81]),
        ("\x80", -3, [0xC2, 0x80]),
    ]


def test_a_letter_is_no_byte_where_another_reading_needs_no_guess() -> None:
    """Mutant: `_is_sure` looks at the cover's cost alone; "ß" is the byte 0xDF, shown as U+FFFD."""
    thought = chunk({"reasoning_content": "ß"}, logprobs=lp(*rows_of("ß", "</think>")))
    said = stream(
        [role(), thought, say("\ufffd", logprobs=lp(bare("", -3))), end("length")],
        scored(),
        waived=["7.chunk"],
    )
    assert numbers(said) == [-3]


def test_parts_before_white_space_are_not_of_the_character_behind_it() -> None:
    """Mutant: `price_gap` looks at all parts before; the first three own "。" and " " is twice."""
    part = "\ufffd"
    tokens = ["</think>", " ", part, part, part, " ", part, part, part, " caf"]
    said = tile("。 caf", *tokens, reason="length")
    assert said.rows[-2:] == [("。", -9, [0xE3, 0x80, 0x82]), (" caf", -10, [*b" caf"])]
    assert numbers(said) == [-7, -8, -9, -10]


def test_parts_behind_the_content_of_a_call_are_not_left_out() -> None:
    """Mutant: `_count_parts` keeps none of them behind a call; the last three are lost.

    The first three of the six may be of white space that was cut off, which nothing tells.
    """
    rows = rows_of("<tool_call>", "f", "</tool_call>", " ", *[""] * 6)
    told = message("어", tool_calls=[call()])
    given = choice(message=told, logprobs=lp(*rows), finish_reason="tool_calls")
    assert numbers(body(completion(given), scored(tools=[TOOL]))) == [-5, -6, -7, -8, -9, -10]


def test_a_part_does_not_own_the_texts_that_stand_before_it() -> None:
    """Mutant: `_cost` looks at the texts behind a content alone; four numbers are lost.

    Parts of a text are left out of each token: the third begins with the end of a woman, and ends
    with the beginning of the next.
    """
    joiner = "\u200d"
    said = tile(f"👩{joiner}👩{joiner}👧", "", "", joiner, joiner, "", "")
    assert numbers(said) == [-1, -2, -3, -4, -5, -6]
    assert [said.entries[n]["token"] for n in (2, 5)] == [joiner, "👧"]


@pytest.mark.parametrize("part", ["", "\ufffd"])
@pytest.mark.parametrize("between", [1, 2])
def test_entries_of_one_event_are_not_left_for_later_text(part: str, between: int) -> None:
    """Mutant: `_cover` takes a cover by exact forms though text is left behind it (U+FFFD)."""
    tokens = ["a", part, part, "好", *[part] * between, "好", "b"]
    rows = rows_of(*tokens)
    said = apart([(rows[:1], "a"), (rows[1:-1], "好好"), (rows[-1:], "b")])
    assert numbers(said) == [-n for n in range(1, len(tokens) + 1)]
    assert said.joined.decode() == "a好好b"


def test_a_part_behind_stripped_white_space_does_not_own_what_bytes_behind_it_spell() -> None:
    """Mutants, by each of which the first part owns "好": its three bytes are lost.

    `Parts` does not say that white space was cut; `Costs._is_space` takes no part for one of that.
    It is U+3000 here, whose last byte came with the second token.
    """
    rows = rows_of(" \ufffd", *[f"byte: \\x{byte:02x}" for byte in (0x80, 0xE5, 0xA5, 0xBD)])
    said = apart([(rows[:1], ""), (rows[1:], "好")], reason="length")
    assert said.rows == [("\\xe5", -3, [0xE5]), ("\\xa5", -4, [0xA5]), ("\\xbd", -5, [0xBD])]


def test_a_part_does_not_own_the_text_that_stands_behind_it() -> None:
    """Mutant: `Costs.price_lost` is 0; the third part owns the emoji, whose number is lost.

    The parts are of U+3000 between white space, all of which was cut off.
    """
    said = apart([(rows_of("\t\ufffd", "\ufffd", "\ufffd ", " 😀"), "😀")])
    assert said.rows == [("😀", -4, [0xF0, 0x9F, 0x98, 0x80])]


@pytest.mark.parametrize("parts", [2, 3])
def test_parts_do_not_own_together_the_text_that_stands_behind_them(parts: int) -> None:
    """Mutant: `owns_any` looks at each part's own alone; two own the flag, its number is lost."""
    rows = rows_of(*["\ufffd"] * parts, " ", "🇩🇪", " ")
    said = apart([*[([row], "") for row in rows[:-2]], ([rows[-2]], "🇩🇪"), ([rows[-1]], " ")])
    assert numbers(said) == [-parts - 2, -parts - 3]
    assert said.joined.decode() == "🇩🇪 "


def test_a_byte_is_no_text_that_a_part_may_not_own() -> None:
    """Mutant: `owns_any` looks at parts too; "éü" is the second's, and the first byte is lost."""
    byte = "byte: \\xc3"
    said = apart([(rows_of(byte, "\ufffdü", byte), "éü")], reason="length")
    assert said.rows[:2] == [("\\xc3", -1, [0xC3]), ("\\xa9ü", -2, [0xA9, 0xC3, 0xBC])]


def test_a_last_part_is_kept_where_its_character_has_fewer_than_bytes() -> None:
    """Mutant: `has_few_parts` is never true; the last number is lost as the end of the text's.

    Each token's text lacks what is not UTF-8, so the second owns two characters.
    """
    said = tile(" 0你好 e\u0301", " 0", "", " e", "", "")
    assert numbers(said) == [-1, -2, -3, -4, -5]
    assert len(tile("é", "", "", "").entries) == 2
