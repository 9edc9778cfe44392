"""Whatever is in an answer, its translation does not raise, and what comes of it is an answer."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.properties.mutations import mutants, scored
from tests.adapters.properties.test_properties import few
from tests.adapters.test_fixtures import violations
from tests.corpus import Fixture
from tests.examples import examples
from tests.replay import as_other, at_random, replay

RECORDED = scored()
UNKNOWN = {"5.count", "7.chunk", "7.own", "7.replacement", "7.tiling"}
UNKNOWN |= {"L.chunk", "L.k", "L.own", "L.spelling", "L.tiling"}
"""Rules that a translation cannot hold where what it is given contradicts itself."""


@settings(few, max_examples=examples(200))
@given(fixture=mutants(RECORDED), seed=st.integers(0, 99))
def test_a_changed_answer_is_still_one(fixture: Fixture, seed: int) -> None:
    outcome = replay(fixture, lambda raw: at_random(raw, seed))
    rules = {violation.rule for violation in violations(fixture, outcome, None)}
    assert rules <= UNKNOWN
    as_other(fixture)
