"""The generators are right: unspoiled they conform, and each deviation really deviates."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample

from tests.adapters.properties.deviations import DEVIATIONS, TOGETHER
from tests.adapters.properties.generators import Case, cases
from tests.conformance import Violation, check_body, check_stream
from tests.corpus import checked_request
from tests.examples import examples

quick = settings(
    max_examples=examples(60),
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
first = settings(quick, max_examples=60, phases=[Phase.generate])  # the least one is not needed


def violations(case: Case) -> list[Violation]:
    check = check_stream if case.streamed else check_body
    return check(case.raw(), checked_request(case.request()), case.facts())


@quick
@given(case=cases())
def test_unspoiled_answers_conform(case: Case) -> None:
    assert violations(case) == []


@pytest.mark.parametrize("name", DEVIATIONS)
def test_a_deviation_is_one(name: str) -> None:
    try:
        find(cases(DEVIATIONS[name]), lambda case: bool(violations(case)), settings=first)
    except NoSuchExample:
        pytest.fail(f"{name}: nothing it does breaks a rule")


def test_together_are_known() -> None:
    assert {name for names in TOGETHER for name in names} <= DEVIATIONS.keys()
