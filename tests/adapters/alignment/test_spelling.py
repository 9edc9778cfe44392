"""Raw vocabulary spellings: what each stands for, and what is none of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.adapters.completions import SPLIT, Rows, arrays_in, translate_rows
from wellspoken.adapters.alignment.spelling import (
    BYTE_LEVEL,
    SPELLINGS,
    find_spellings,
    raw_byte_level,
    raw_sentencepiece,
)
from wellspoken.adapters.tokens.table import raw_escapes

CHARACTER = {byte: character for character, byte in BYTE_LEVEL.items()}


@pytest.mark.parametrize(
    ("token", "data"),
    [
        ("▁Hello", b" Hello"),
        ("▁", b" "),
        ("▁▁a▁", b"  a "),
        ("<0x0A>", b"\n"),
        ("<0xe2>", b"\xe2"),
        ("<0x0>", None),
        ("<0x0A>x", None),
        ("Hello", None),
        ("", None),
    ],
)
def test_sentencepiece(token: str, data: bytes | None) -> None:
    assert raw_sentencepiece(token) == data


@pytest.mark.parametrize(
    ("token", "data"),
    [
        ("Ġis", b" is"),
        ("Ċ", b"\n"),
        ("Ã©", b"\xc3\xa9"),
        ("Ã", b"\xc3"),
        ("is", None),
        ("", None),
        ("a b", None),
        ("你", None),
    ],
)
def test_byte_level(token: str, data: bytes | None) -> None:
    assert raw_byte_level(token) == data


@pytest.mark.parametrize(
    ("token", "data"),
    [
        (r"bytes:\xe2\x80", b"\xe2\x80"),
        (r"\xe2\x80", b"\xe2\x80"),
        (r" a\xE2b", b" a\xe2b"),
        ("bytes:", None),
        (r"\x", None),
        (r"\u00e9", None),
        ("a", None),
    ],
)
def test_escapes(token: str, data: bytes | None) -> None:
    assert raw_escapes(token) == data


@given(st.binary(min_size=1, max_size=8))
def test_every_byte_has_its_spelling(data: bytes) -> None:
    assert len(BYTE_LEVEL) == 256
    raw = "".join(CHARACTER[byte] for byte in data)
    assert raw_byte_level(raw) == (data if raw.encode() != data else None)
    assert raw_escapes("".join(f"\\x{byte:02x}" for byte in data)) == data


PARTS = [
    "▁",
    "<0x",
    "0A>",
    "<0x0A>",
    "\\x",
    "f0",
    "byte: ",
    "byte: \\xf0",
    "Ġ",
    "é",
    "你",
    "a",
    " ",
]


@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=3).map("".join), max_size=4))
def test_the_spellings_are_those_that_a_token_has(tokens: list[str]) -> None:
    used = [each for each in SPELLINGS if any(each[1](x) is not None for x in tokens)]
    assert find_spellings(tokens) == used


@given(st.text())
def test_a_text_is_spelled_if_a_spelling_reads_it(token: str) -> None:
    used = [each for each in SPELLINGS if each[1](token) is not None]
    assert find_spellings([token]) == used


def test_their_names_are_repairs() -> None:
    assert [name for name, _ in SPELLINGS] == [
        "logprobs_raw_sentencepiece",
        "logprobs_raw_byte_level",
        "logprobs_byte_spelled",
        "logprobs_raw_escapes",
    ]


def test_a_text_that_spells_an_escape_keeps_its_entries() -> None:
    assert arrays_in(translate_rows("é\\xf0", SPLIT))["token_logprobs"] == [-0.2, -0.3, -0.1]


def test_it_keeps_them_beside_another_deviation() -> None:
    outcome = translate_rows("é\\xf0", SPLIT, unheard_of=3)
    assert arrays_in(outcome)["token_logprobs"] == [-0.2, -0.3, -0.1]


def test_openais_own_spelling_is_no_deviation_beside_another() -> None:
    rows = [row for row in SPLIT if row[0] != "\\xf0"]
    assert "logprobs_raw_escapes" not in translate_rows("é", rows, unheard_of=3).repairs


def test_alternatives_that_differ_keep_their_numbers() -> None:
    top = {"a": -0.5, "\ufffd": -1.5, "-\ufffd": -2.5}
    assert [*arrays_in(translate_rows("a", [("a", -0.5, top)]))["top_logprobs"][0].values()] == [
        -0.5,
        -1.5,
        -2.5,
    ]


def test_escapes_are_lower_case() -> None:
    upper = "bytes:\\xC3"
    rows: Rows = [(upper, -0.2, {upper: -0.2}), *SPLIT[1:2]]
    assert arrays_in(translate_rows("é", rows))["tokens"][0] == "bytes:\\xc3"
