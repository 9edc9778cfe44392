"""Contract rule 1: a finish reason under another name, or in another place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.answers import (
    Json,
    body,
    choice,
    chunk,
    completion,
    role,
    say,
    stream,
)


@pytest.mark.parametrize(
    ("keys", "reason", "repair"),
    [
        ({"stop_type": "eos"}, "stop", "finish_reason_stop_type"),
        ({"stop_type": "limit"}, "length", "finish_reason_stop_type"),
        ({"done_reason": "length"}, "length", "finish_reason_done_reason"),
        ({"stopped_eos": True, "stopped_limit": False}, "stop", "finish_reason_stopped_flags"),
        ({"stopped_limit": True}, "length", "finish_reason_stopped_flags"),
        ({"stopped_word": True}, "stop", "finish_reason_stopped_flags"),
    ],
)
def test_a_reason_under_another_name(keys: Json, reason: str, repair: str) -> None:
    bare = {**choice(), **keys}
    del bare["finish_reason"]
    last = chunk({})
    del last["choices"][0]["finish_reason"]
    last["choices"][0] |= keys
    for said in (body(completion(bare)), stream([role(), say("Hi"), last])):
        assert said.choice["finish_reason"] == reason
        assert said.repairs[repair] == 1
        assert "finish_reason_missing" not in said.repairs
        assert "extra_field_dropped" not in said.repairs  # folded, not lost


@pytest.mark.parametrize("key", ["stop_type", "done_reason"])
def test_a_failure_under_another_name_is_a_failure(key: str) -> None:
    bare = {**choice(), key: "abort"}
    del bare["finish_reason"]
    said = body(completion(bare))
    assert (said.status, said.error and said.error["code"]) == (502, "upstream_abort")


WHERE: list[Callable[[Json], Json]] = [
    lambda told: {**chunk({}), "choices": [{"index": 0, "delta": {}, **told}]},
    lambda told: chunk(told),
    lambda told: {**chunk({}), **told},
]


@pytest.mark.parametrize("where", WHERE, ids=["choice", "delta", "beside"])
@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"stop_type": "limit"}, "length"),
        ({"done_reason": "length"}, "length"),
        ({"stopped_limit": True, "stopped_eos": False}, "length"),
        ({"stop_type": "none", "done_reason": None, "stopped_limit": True}, "length"),
    ],
)
def test_a_reason_in_other_words_is_read_wherever_it_stands(
    where: Callable[[Json], Json], told: Json, reason: str
) -> None:
    blank = where({"stop_type": "none"})
    said = stream([role(), say("Hi"), blank, where(told)])
    assert said.choice["finish_reason"] == reason
    assert "extra_field_dropped" not in said.repairs
    assert "finish_reason_missing" not in said.repairs


def test_a_reason_in_the_delta() -> None:
    said = stream([role(), say("Hi"), chunk({"finish_reason": "length"})])
    assert said.choice["finish_reason"] == "length"
    assert said.repairs["finish_reason_misplaced"] == 1


@pytest.mark.parametrize("where", WHERE, ids=["choice", "delta", "beside"])
@pytest.mark.parametrize("key", ["stop_type", "done_reason"])
def test_a_failure_in_other_words_is_a_failure(where: Callable[[Json], Json], key: str) -> None:
    said = stream([role(), say("Hi"), where({key: "abort"})])
    assert said.error is not None and said.error["code"] == "upstream_abort"
