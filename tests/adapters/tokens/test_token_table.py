"""The table of token bytes: what it tells, what it does not, and that it is bounded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellspoken.adapters.tokens.table import (
    NULL,
    TokenTable,
    bytes_json,
    digits,
    escape,
    is_plain,
    spell,
    token_id,
)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a", True),
        (" ", True),
        ("😀", True),
        ("\\xf0", True),
        ("", False),
        ("\ufffd", False),
        ("a\ufffd", False),
        ("token_id:7", False),
        ("token_id:x", True),
        (" token_id:7", True),
    ],
)
def test_a_text_tells_its_bytes_or_does_not(text: str, plain: bool) -> None:
    table = TokenTable()
    assert is_plain(text) is plain
    assert json.loads(bytes(table[text])) == (list(text.encode()) if plain else None)
    assert (text in table) is plain
    assert table.odd == (0 if plain else 1)


@pytest.mark.parametrize(
    ("text", "number"),
    [("token_id:7", 7), ("token_id:0", 0), ("token_id:", None), ("token_id:-1", None)],
)
def test_a_placeholder_names_its_id(text: str, number: int | None) -> None:
    assert token_id(text) == number


@pytest.mark.parametrize(
    "text",
    ["token_id:٣", "7", "token_id:7 "],
)
def test_other_texts_name_none(text: str) -> None:
    assert token_id(text) is None


def test_parts_of_characters_are_spelled_as_openai_spells_them() -> None:
    assert spell(b"\xf0\x9f") == "\\xf0\\x9f"
    assert spell(b"a\xf0\xc3\xa9") == "a\\xf0é"
    assert escape("é".encode()) == "\\xc3\\xa9"
    assert bytes(bytes_json(b"\x00\xff")) == b"[0,255]"


@given(st.lists(st.text(min_size=1, max_size=2), max_size=60))
def test_it_is_bounded_and_never_wrong(texts: list[str]) -> None:
    table = TokenTable(capacity=4)
    for text in texts:
        found = table[text]
        if found is NULL:
            assert not is_plain(text)
        else:
            assert json.loads(bytes(found)) == list(text.encode())
        assert len(table) + len(table.old) <= 8


def test_what_is_used_again_stays() -> None:
    table = TokenTable(capacity=2)
    first = table["a"]
    for text in ("b", "c"):  # the second generation begins
        table[text]
    assert "a" not in table and "a" in table.old
    assert table["a"] is first  # the same object: comparing it is cheap
    assert "a" in table


LONG = "1" * 5_000


@pytest.mark.parametrize("text", ["²", "٣", LONG, "", "-1", "1.5", None, 3, []])
def test_only_short_ascii_digits_are_a_number(text: Any) -> None:
    assert digits(text) is None
