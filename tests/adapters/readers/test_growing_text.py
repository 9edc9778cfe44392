"""Deltas that begin with what came before them are new text all the same."""

from __future__ import annotations

import pytest

from tests.answers import chunk, end, role, stream


@pytest.mark.parametrize("part", ["content", "reasoning_content"])
@pytest.mark.parametrize(
    "said",
    [
        [" h", " he", " hel", " hell", " hello"],  # a word spelled, by one token a chunk
        ["a", "aa", "aaaa", "aaaaaaaa"],  # each has all of the text before it, twice
        ["ha", "haha", "hahahaha!"],
        ["No. ", "No. ", "No. "],
    ],
    ids=lambda said: said[0],
)
def test_text_that_grows_is_no_repetition(part: str, said: list[str]) -> None:
    """The mutant that takes it for all of the text so far loses what the model said."""
    answer = stream([role(), *[chunk({part: text}) for text in said], end()])
    assert answer.message.get(part) == "".join(said)
    assert "message_repeated" not in answer.repairs
