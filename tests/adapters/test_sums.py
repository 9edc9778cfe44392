"""Which of the counts that an answer told hold, and how those of several are one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Raw

from wellspoken.adapters.events import UNNUMBERED, Usage
from wellspoken.adapters.sums import hold

CACHED = Raw(b'{"cached_tokens":4}')
OTHERS = Raw(b'{"cached_tokens":9}')
FULL = Usage(15, 10, CACHED)
TIMED = Usage(9, 3, Raw(b'{"cached_tokens":2}'), timed=True)
ONE: Sequence[object] = ()


def counts(usage: Usage | None) -> tuple[int | None, int | None, bytes] | None:
    return None if usage is None else (usage.prompt, usage.completion, bytes(usage.prompt_details))


@pytest.mark.parametrize(
    ("told", "wanted"),
    [
        ([], None),
        ([FULL], (15, 10, bytes(CACHED))),
        ([FULL, TIMED], (15, 10, bytes(CACHED))),
        ([TIMED, FULL], (15, 10, bytes(CACHED))),
        ([TIMED], (9, 3, b'{"cached_tokens":2}')),
        ([TIMED, Usage(10, 4, timed=True)], (10, 4, b"")),
        ([Usage(15, None, CACHED), TIMED], (9, 3, b'{"cached_tokens":2}')),
        ([Usage(15, None, CACHED), Usage(None, 3, timed=True)], (15, None, bytes(CACHED))),
        ([Usage(15, None, CACHED), Usage(None, 10)], (15, 10, bytes(CACHED))),
        ([Usage(15, 1, CACHED), Usage(None, 10, OTHERS)], (15, 10, bytes(CACHED))),
        ([FULL, Usage(0, 0)], (15, 10, bytes(CACHED))),
        ([Usage(0, 0), TIMED], (0, 0, b"")),
        ([Usage(15, 0, CACHED), Usage(0, 10)], (15, 10, bytes(CACHED))),
        ([FULL, Usage(15, 0)], (15, 10, b"")),
        ([Usage(0, 0), Usage(15, 0, CACHED)], (15, 0, bytes(CACHED))),
        ([FULL, Usage(16, 11)], (16, 11, b"")),
    ],
)  # fmt: skip
def test_the_last_that_tells_both_and_a_usage_before_timings(
    told: list[Usage], wanted: object
) -> None:
    assert counts(hold(told, 1, ONE)) == wanted


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("slots", [(0, 1), (1, 0), (UNNUMBERED, UNNUMBERED)])
def test_choices_add_up_and_their_prompt_counts_once(slots: tuple[int, int], timed: bool) -> None:
    told = [
        Usage(15, made, CACHED, timed=timed, slot=slot)
        for slot, made in zip(slots, (10, 7), strict=True)
    ]
    assert counts(hold(told, 2, ONE)) == (15, 17, bytes(CACHED))
    assert counts(hold(told, 1, ONE)) == (15, 7, bytes(CACHED))
    assert counts(hold(told, 2, ("a", "b"))) == (30, 17, b'{"cached_tokens":8}')


def test_what_a_choice_tells_again_replaces_what_it_told() -> None:
    told = [Usage(5, made, timed=True, slot=slot) for slot, made in ((0, 1), (1, 1), (0, 2))]
    assert counts(hold(told, 2, ONE)) == (5, 3, b"")
    assert counts(hold([*told, Usage(5, 9)], 2, ONE)) == (5, 9, b"")
