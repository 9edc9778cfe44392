"""Contract rule 7, tiling: entries whose bytes nobody tells, beside those that are known.

All answers are constructed: what a server shows that decodes each token alone, with U+FFFD
(llama-cpp-python's, TensorRT-LLM's and mlx-lm's ways) or without any text for a part of a character
(Rust's from_utf8), and what vLLM, llama.cpp to b4273 and OpenAI's completions show. Each test names
the mutant that it rejects.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.answers import (
    Json,
    Said,
    bare,
    body,
    choice,
    chunk,
    completion,
    end,
    entry,
    lp,
    role,
    say,
    scored,
    stream,
)
from wellspoken.adapters.events import UNKNOWN

PART = "\ufffd"


def rows_of(*tokens: str, start: int = 1) -> list[Json]:
    """Return an entry without bytes for each token, whose numbers are -1, -2 and so on."""
    return [bare(token, -n) for n, token in enumerate(tokens, start)]


def numbers(said: Said) -> list[float]:
    return [row["logprob"] for row in said.entries]


def tile(content: str, *tokens: str, reason: str = "stop", **more: Any) -> Said:
    """Translate a body of these tokens."""
    given = choice(content, logprobs=lp(*rows_of(*tokens)), finish_reason=reason)
    return body(completion(given), scored(**more))


def apart(events: list[tuple[list[Json], str]], reason: str = "stop") -> Said:
    """Translate a stream whose events bring entries, or text, or both."""
    parts = [say(text, logprobs=lp(*rows) if rows else None) for rows, text in events]
    return stream([role(), *parts, end(reason)], scored(), waived=["7.chunk"])


# --- which entries a text has ---------------------------------------------------------------------


def test_a_text_behind_its_entries_has_those_of_the_event_before() -> None:
    """Mutant: `Run.recent` always 0, so that the reasoning's first parts are the content's."""
    thought = [bare("", -100 - n) for n in range(40)]
    said = apart(
        [
            *[([row], "") for row in thought],
            (rows_of("so"), ""),
            (rows_of("", "", start=2), ""),
            ([], "é"),
        ]
    )
    assert said.rows == [("", -2, None), ("é", -3, [0xC3, 0xA9])]


def test_entries_that_come_later_are_of_later_text() -> None:
    """Mutant: what is held is covered again when entries come without text."""
    said = apart(
        [
            (rows_of("a", "b"), "a"),
            ([], "b"),
            (rows_of("", "", start=3), ""),
            ([], "어"),
            (rows_of("어", start=5), ""),
            ([], "어"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5]
    assert said.joined == "ab어어".encode()


def test_white_space_that_waits_costs_no_search_of_all_that_waits() -> None:
    """Mutant: each try is one of `LATE`, though it found the entries."""
    thought = [bare(f"w{n}", -100 - n) for n in range(60)]
    blanks = rows_of(*["\n"] * 12)
    said = apart([([row], "") for row in thought] + [([bare("</think>", -99)], "")]
                 + [([row], "\n") for row in blanks])  # fmt: skip
    assert numbers(said) == [-float(n) for n in range(1, 13)]


def test_parts_that_come_with_the_text_are_not_left_for_a_known_one() -> None:
    """Mutant: `LEFT_ROWS` and `GUESS` 0, so that the last four are left and lost."""
    part = [PART] * 4
    said = tile("🇪😀😀", *part, "😀", *part)
    assert numbers(said) == [-float(n) for n in range(1, 10)]
    assert said.entries[4]["bytes"] == list("😀".encode())


# --- how many bytes U+FFFD stands for -------------------------------------------------------------


def test_a_character_has_no_more_parts_than_bytes() -> None:
    """Mutant: `least` 1 for each token, so that the first 語 has all and the second one none."""
    said = apart(
        [
            (rows_of(PART), ""),
            (rows_of(PART * 2, start=2), ""),
            (rows_of(PART * 2, start=3), "語"),
            (rows_of(" ", "w", start=4), "語 w"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5]
    assert [row["token"] for row in said.entries[-2:]] == [" ", "w"]


def test_a_named_byte_behind_a_character_that_has_gone_out() -> None:
    """Mutant: `_find_inside` finds nothing; the byte's number is lost."""
    said = apart(
        [
            (rows_of("a"), "a"),
            (rows_of(PART, PART * 2, start=2), "世"),
            (rows_of("byte: \\x80", start=4), ""),
            (rows_of(PART, "b", start=5), "\u200db"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5, -6]
    assert said.joined == "a世\u200db".encode()
    assert said.entries[3]["token"] == "\\xe2\\x80"


# --- rows between and behind the content ----------------------------------------------------------


@pytest.mark.parametrize("part", ["", PART])
def test_parts_behind_a_call_are_the_contents(part: str) -> None:
    """Mutant: PARTS 0; the first run's parts would own all, and the second's are lost."""
    tokens = [
        *[part] * 4,
        *[part] * 4,
        "<tool_call>",
        "{}",
        "</tool_call>",
        *[part] * 3,
        "\t",
        "</s>",
    ]
    said = tile("😀👍\u3000\t", *tokens)
    assert numbers(said) == [*(-float(n) for n in range(1, 9)), -12, -13, -14, -15]


@pytest.mark.parametrize("part", ["", PART])
def test_parts_behind_stripped_white_space_are_the_contents(part: str) -> None:
    """Mutant: SPACES 0; what stands behind the call would own all, and "ü" is lost."""
    tokens = [" ", *[part] * 2, "<tool_call>", "{}", "</tool_call>", *[part] * 3]
    assert numbers(tile("ü。", *tokens)) == [-2, -3, -7, -8, -9]


def test_u_fffd_behind_the_content_is_no_end_of_text() -> None:
    """Mutant: `_count_parts` leaves out the last row whatever it tells."""
    assert numbers(tile("é", *[PART] * 5)) == [-1, -2, -3, -4, -5]
    assert numbers(tile("é", "é", "")) == [-1]


def test_named_bytes_behind_a_character_that_is_cut_off_stay() -> None:
    """Mutant: `_count_parts` undoes no spelling; the last byte's number is lost."""
    said = tile("a\ufffd", "a" + PART, "byte: \\x9f", "byte: \\x98", reason="length")
    assert numbers(said) == [-1, -2, -3]


@pytest.mark.parametrize(("stop", "kept"), [("\nUser:", [-1, -2, -3]), ("停", [-1])])
def test_parts_before_a_stop_string_are_not_of_it_unless_it_has_some(
    stop: str, kept: list[float]
) -> None:
    """Mutants: none are kept where a stop string was asked for; all are."""
    tokens = [PART, PART, "\n", "User:"] if stop.isascii() else [PART, PART, PART]
    assert numbers(tile("ab", "ab", *tokens, stop=[stop])) == kept


def test_an_answer_cut_inside_a_character_is_not_that_of_the_reasoning() -> None:
    """Mutant: `_begins_more` counts the bytes of the part that was cut."""
    said = tile("42", "<think>", "4", "2", "</think>", "42\\xe8\\xaa", reason="length")
    assert numbers(said) == [-5]


def test_a_text_of_nothing_is_no_stop_string() -> None:
    """Mutant: `_is_stop` says so, and the first parts of the reasoning are the content's."""
    said = tile("é", *[""] * 40, "so", "</think>", "", "", "\n", "User:", stop=["\nUser:"])
    assert numbers(said) == [-43, -44]


def test_parts_of_white_space_that_was_stripped_are_outside() -> None:
    """Mutant: `measure_space` knows ASCII alone; the number of the second token is lost."""
    said = tile("😀a", " \\xe2", "\\x80\\xa8\n😀", "a")
    assert [(row["token"], row["logprob"]) for row in said.entries] == [("😀", -2), ("a", -3)]


def test_letters_are_not_read_as_bytes_where_they_are_what_they_say() -> None:
    """Mutant: UNDONE 0; the reasoning's ü is read as a byte, and the content loses its first."""
    tokens = ["<think>", "\n", "ü", "</think>", "\n\n", PART, PART, PART, PART, "&"]
    given = choice("üø&", logprobs=lp(*rows_of(*tokens)))
    given["message"]["reasoning_content"] = "ü"
    said = body(completion(given), scored())
    assert numbers(said) == [-6, -7, -8, -9, -10]


def test_more_blank_tokens_than_a_text_has_bytes_are_texts_of_their_own() -> None:
    """Mutant: `has_too_many_parts` never; the second 어 would own both, and " x" what it lacks."""
    said = apart([(rows_of("", "", "", "어", " x"), "어"), ([], "어 x")])
    assert numbers(said) == [-1, -2, -3, -4, -5]
    assert [row["token"] for row in said.entries[-2:]] == ["어", " x"]


# --- a text that ends inside a character ----------------------------------------------------------


@pytest.mark.parametrize("shown", ["at once", "alone"])
def test_a_part_at_the_end_that_no_entry_shows_comes_with_one(shown: str) -> None:
    """Mutant: U+FFFD goes out before it (`Run.tail`), so that a chunk has an entry and no text."""
    texts = [".\ufffd"] if shown == "at once" else [".", "\ufffd"]
    parts = [say(texts[0], logprobs=lp(entry(".", -1))), *map(say, texts[1:])]
    said = stream([role(), *parts, chunk({}, logprobs={"content": []}), end("length")], scored())
    assert said.rows == [(".", -1, [46]), ("\\xef\\xbf\\xbd", UNKNOWN, [0xEF, 0xBF, 0xBD])]


def test_more_parts_than_their_text_has_bytes_are_of_what_follows() -> None:
    """Mutant: `come_early` counts no parts, so "ö" has four rows and "ß" none."""
    said = apart(
        [
            (rows_of(" Gr"), " Gr"),
            (rows_of(*PART * 3, start=2), ""),
            (rows_of(PART, start=5), "ö"),
            (rows_of("e", start=6), ""),
            ([], "ße"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5, -6]
    assert [row["bytes"] for row in said.entries][-2:] == [list("ß".encode()), [101]]


def test_a_known_text_before_its_own_shows_that_entries_run_ahead() -> None:
    """Mutant: `come_early` looks at no known text, so the last " " owns "界" as well."""
    said = apart(
        [
            (rows_of(" Hel"), ""),
            (rows_of("l", start=2), " Hell"),
            (rows_of("o世" + PART, PART * 2, start=3), ""),
            (rows_of(PART, start=5), "o世"),
            (rows_of(PART, PART, PART, start=6), ""),
            (rows_of(" ", start=9), "界世"),
            (rows_of("H", start=10), "界 H"),
        ]
    )
    assert numbers(said) == [-float(n) for n in range(1, 11)]
    assert said.entries[8]["token"] == " "


def test_each_u_fffd_of_a_row_is_a_byte_at_least() -> None:
    """Mutant: `come_early` counts rows; the entry that says U+FE0F comes out as the flag."""
    said = apart(
        [
            (rows_of(PART, PART, PART * 2), ""),
            (rows_of(PART * 4, start=4), "👍"),
            (rows_of(PART, start=5), "🏽"),
            (rows_of("\ufe0f", start=6), "🏳"),
            ([], "\ufe0f"),
        ]
    )
    assert numbers(said) == [-1, -2, -3, -4, -5, -6]
    assert said.entries[5]["token"] == "\ufe0f"


def test_text_that_stands_among_entries_alone_runs_ahead() -> None:
    """Mutant: `Run.add` does not look at entries without text; four numbers are lost."""
    said = apart(
        [
            (rows_of("❤"), "❤"),
            (rows_of("", "", "", start=2), ""),
            (rows_of(" ", start=5), ""),
            (rows_of("", start=6), ""),
            (rows_of("", start=7), "\ufe0f"),
            (rows_of("", start=8), " "),
            (rows_of("", start=9), ""),
            ([], "👍"),
        ]
    )
    assert numbers(said) == [-float(n) for n in range(1, 10)]
    assert said.entries[4]["token"] == " "


def test_the_characters_token_has_the_part_that_it_begins_too() -> None:
    """Mutant: `over` not set for a surplus; the part is told as another token's."""
    said = apart([(rows_of(PART), ""), (rows_of(PART * 2, start=2), "é"), ([], PART)], "length")
    assert numbers(said) == [-1, -2]
    assert said.joined.decode(errors="replace") == "é" + PART


def test_of_two_positions_without_their_own_tokens_neither_is_all_of_the_text() -> None:
    """Mutant: the first position's alternative that is the whole text is chosen (vLLM <= 0.4.2)."""
    tops = {"top_logprobs": [{"ab": -2.0, "a": -1.0}, {"b": -3.0, "c": -4.0}]}
    said = stream([role(), say("ab", logprobs=tops), end()], scored(k=2))
    assert said.rows == [("a", -1.0, [97]), ("b", -3.0, [98])]


def test_a_part_among_texts_that_nobody_tells_shows_no_u_fffd() -> None:
    """The mutant that writes such entries as they came breaks rule 7.null."""
    assert [row["token"] for row in tile("a" + PART, "token_id:7", PART).entries] == [
        "token_id:7",
        "",
    ]
