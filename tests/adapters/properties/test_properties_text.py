"""Whatever a backend does to a completion, what the client gets conforms, and no number is lost."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.properties.deviations_text import TEXT_DEVIATIONS, TEXT_TOGETHER
from tests.adapters.properties.generators_native import NATIVE
from tests.adapters.properties.generators_text import TextCase, text_cases
from tests.adapters.properties.test_properties import few
from tests.conformance import (
    check_body,
    check_completion_body,
    check_completion_stream,
    check_stream,
)
from tests.corpus import checked_request
from tests.examples import examples
from tests.fold import chunks_of, comparable, fold, fold_completion
from tests.replay import Outcome, as_other, at_random, replay

fewer = settings(few, max_examples=examples(15))
CHECKS = {
    (False, False): check_completion_body,
    (False, True): check_completion_stream,
    (True, False): check_body,
    (True, True): check_stream,
}


def checked(case: TextCase, request: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """Check every rule against what the backend gave, and return the answer as a body."""
    streamed = bool(request.get("stream"))
    assert (outcome.status, outcome.fault) == (200, None), (case.raw().decode(), outcome)
    found = CHECKS[case.chat, streamed](outcome.body, checked_request(request), case.facts())
    assert found == [], (found, case.raw().decode(), outcome.body.decode())
    if not streamed:
        answer: dict[str, Any] = json.loads(outcome.body)
        return answer
    return (fold if case.chat else fold_completion)(outcome.body)


def answered(case: TextCase, seed: int = 0) -> None:
    """Translate as it was asked and the other way round, stream or body, and check both."""
    fixture = case.fixture()
    answer = checked(case, case.request(), replay(fixture, lambda raw: at_random(raw, seed)))
    if case.told:
        reasons = [choice["finish_reason"] for choice in answer["choices"]]
        assert reasons == [one.reason for one in case.answers]
    other = checked(case, *as_other(fixture))
    assert comparable(other) == comparable(answer)


@pytest.mark.parametrize("name", TEXT_DEVIATIONS)
@fewer
@given(data=st.data())
def test_a_deviating_completion_is_repaired(name: str, data: st.DataObject) -> None:
    answered(data.draw(text_cases(TEXT_DEVIATIONS[name])), data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("names", TEXT_TOGETHER, ids="+".join)
@fewer
@given(data=st.data())
def test_deviations_of_a_completion_together(names: tuple[str, ...], data: st.DataObject) -> None:
    answered(data.draw(text_cases(*(TEXT_DEVIATIONS[name] for name in names))))


@fewer
@given(case=text_cases())
def test_a_conforming_completion_stays_as_it_is(case: TextCase) -> None:
    request, raw = case.request(), case.raw()
    check = check_completion_stream if case.streamed else check_completion_body
    assert check(raw, checked_request(request), case.facts()) == []  # the generator is right
    outcome = replay(case.fixture())
    reordered = {"choices_out_of_order"} if case.echo and case.streamed else set()
    assert outcome.repairs.keys() <= reordered  # test_reported.py
    held = case.streamed and (
        case.echo or len(case.answers) > 1
    )  # what ends one choice waits for all
    if not case.scored and not held:
        assert outcome.body == raw
    elif case.streamed:
        assert objects(outcome.body) == objects(raw)
    else:
        assert json.loads(outcome.body) == json.loads(raw)


def objects(stream: bytes) -> list[Any]:
    """Return the chunks by their choice: an echo and an end are held, and others go ahead."""
    found = chunks_of(stream)
    return sorted(found, key=lambda chunk: [choice["index"] for choice in chunk["choices"]] or [99])


@pytest.mark.parametrize("name", NATIVE)
@fewer
@given(data=st.data())
def test_a_native_answer_of_llama_cpp_is_translated(name: str, data: st.DataObject) -> None:
    answered(data.draw(NATIVE[name]()), data.draw(st.integers(0, 99)))


@fewer
@given(case=text_cases(TEXT_DEVIATIONS["chat_shaped"]), place=st.integers(0, 99))
def test_a_lost_number_would_be_seen(case: TextCase, place: int) -> None:
    """The facts that all of the above are checked against are not loose."""
    outcome, facts = replay(case.fixture()), case.facts()
    check = CHECKS[False, case.streamed]
    n = place % len(case.answers)
    rows = list(case.answers[n].rows)
    m = place % len(rows)
    rows[m] = replace(rows[m], logprob=(rows[m].logprob or 0.0) - 0.5)
    choices = {**facts.choices, n: replace(facts.choices[n], rows=tuple(rows))}
    found = check(outcome.body, checked_request(case.request()), replace(facts, choices=choices))
    assert {violation.rule for violation in found} == {"L.numbers"}
