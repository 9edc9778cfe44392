"""How many tokens a request is taken to need, from its bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from wellspoken.proxy.limits.estimate import BYTES, FILE, answer_tokens, prompt_tokens

LONG = 4096
PARTS = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b'"', b"'")),
    st.integers(LONG - 2, 3 * LONG).map(lambda size: b"a" * size),
    st.integers(LONG - 2, 3 * LONG).map(lambda size: b"a" * (size - 1) + b" "),
)


@given(st.lists(PARTS, max_size=8))
def test_files_are_the_long_strings_without_a_space(parts: list[bytes]) -> None:
    """Compares with the same by the parts themselves."""
    body = b'"'.join(parts)
    files = [
        each
        for each in parts
        if len(each) >= LONG and each.isascii() and not set(b" \\\n") & set(each)
    ]
    if len(body) < LONG:
        files = []
    rest = len(body) - sum(map(len, files))
    assert prompt_tokens(body) == rest // BYTES + len(files) * FILE + 1


@pytest.mark.parametrize("begins", [b"a" * LONG, b"a" * 10 * LONG])
def test_a_text_that_begins_like_a_file_is_none(begins: bytes) -> None:
    """Its first bytes alone had made a prompt of any length a thousand tokens."""
    body = b'{"prompt":"' + begins + b" words" * 100_000 + b'"}'
    assert prompt_tokens(body) > 100_000


def test_prompts_are_not_read_once_more() -> None:
    """To read millions of them had taken seconds of the loop and a gigabyte."""
    assert answer_tokens({"prompt": Raw(b'["", ""]')}, 16, prompts=3) == 48
