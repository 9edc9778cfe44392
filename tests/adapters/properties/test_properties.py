"""Whatever a backend does to an answer, what the client gets conforms, and no number is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.adapters.properties.deviations import DEVIATIONS, TOGETHER
from tests.adapters.properties.generators import Case, cases
from tests.conformance import check_body, check_stream
from tests.corpus import checked_request
from tests.examples import examples
from tests.fold import comparable, fold
from tests.replay import at_random, body, stream

few = settings(
    max_examples=examples(40),
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def answered(case: Case, seed: int = 0) -> dict[str, Any]:
    """Translate, check every rule against what the backend gave, and return the answer."""
    request, raw = case.request(), case.raw()
    asked = checked_request(request)
    if case.streamed:
        outcome = stream(request, at_random(raw, seed))
        found = check_stream(outcome.body, asked, case.facts())
        answer = fold(outcome.body)
    else:
        outcome = body(request, 200, "application/json", raw)
        found = check_body(outcome.body, asked, case.facts())
        answer = json.loads(outcome.body)
    assert (outcome.status, outcome.fault) == (200, None), outcome.body
    assert found == [], (found, raw.decode(), outcome.body.decode())
    choice = answer["choices"][0]
    if case.told:
        assert choice["finish_reason"] == case.reason
    calls = choice["message"].get("tool_calls", [])
    told = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in calls]
    assert told == case.calls
    assert choice["message"].get("reasoning_content") == case.reasoning
    return answer


@pytest.mark.parametrize("name", DEVIATIONS)
@few
@given(data=st.data())
def test_a_deviating_answer_is_repaired(name: str, data: st.DataObject) -> None:
    answered(data.draw(cases(DEVIATIONS[name])), data.draw(st.integers(0, 99)))


@pytest.mark.parametrize("names", TOGETHER, ids="+".join)
@few
@given(data=st.data())
def test_deviations_together_are_repaired(names: tuple[str, ...], data: st.DataObject) -> None:
    answered(data.draw(cases(*(DEVIATIONS[name] for name in names))))


@few
@given(case=cases())
def test_a_conforming_answer_passes_untouched(case: Case) -> None:
    request, raw = case.request(), case.raw()
    asked = checked_request(request)
    if case.streamed:
        assert check_stream(raw, asked, case.facts()) == []  # the generator itself is right
        outcome = stream(request, at_random(raw))
    else:
        assert check_body(raw, asked, case.facts()) == []
        outcome = body(request, 200, "application/json", raw)
    assert outcome.body == raw
    assert outcome.repairs == {}


@few
@given(case=cases())
def test_a_stream_and_its_fold_say_the_same(case: Case) -> None:
    if not case.streamed:
        return
    folded = {**fold(case.raw()), "id": "chatcmpl-0123456789"}
    folded.setdefault("usage", {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})
    request = {k: v for k, v in case.request().items() if not k.startswith("stream")}
    whole = json.loads(body(request, 200, "application/json", json.dumps(folded).encode()).body)
    streamed = fold(stream(case.request(), at_random(case.raw())).body)
    assert comparable(streamed) == comparable(whole)
