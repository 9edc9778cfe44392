"""Whatever becomes of an answer on its way, it is one for the client, and no number is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.adapters.properties.test_mutated import UNKNOWN
from tests.adapters.properties.test_properties import few
from tests.adapters.properties.wires import disturbed, framed, read, with_odd_envelopes, write
from tests.adapters.test_fixtures import ALL, BY_NAME, WAIVED, violations
from tests.conformance import Violation
from tests.corpus import Fixture
from tests.examples import examples
from tests.reading import facts_of
from tests.replay import as_other, at_random, replay


def is_json(fixture: Fixture) -> bool:
    """Say whether an answer is a good one whose JSON can be read and written again."""
    try:
        return fixture.status < 400 and all(isinstance(x, dict) for x in read(fixture))
    except ValueError:
        return False


RECORDED = [fixture for fixture in ALL if is_json(fixture)]
TOLD = [x for x in RECORDED if x.name not in WAIVED and facts_of(x) is not None]


def rules_in(found: list[Violation]) -> set[str]:
    """Return the rules of what was found.

    But for keys that a server doubled: what needs no repair passes as it came, with those.
    """
    return {x.rule for x in found if not x.detail.startswith("duplicate keys")}


def broken_rules(original: Fixture, changed: Fixture, seed: int = 0) -> set[str]:
    """Return the rules that a changed answer breaks, with the numbers that the original had."""
    facts = facts_of(original)
    assert facts is not None
    outcome = replay(changed, lambda raw: at_random(raw, seed))
    return rules_in(violations(changed, outcome, replace(facts, id=None)))


@settings(few, max_examples=examples(400))
@given(fixture=disturbed(RECORDED), seed=st.integers(0, 99))
def test_a_disturbed_answer_is_still_one(fixture: Fixture, seed: int) -> None:
    outcome = replay(fixture, lambda raw: at_random(raw, seed))
    rules = rules_in(violations(fixture, outcome, None))
    if b'"tool_calls":' in outcome.body:
        rules.discard("stop")  # a call between two texts is of what the model wrote between them
    assert rules <= UNKNOWN
    as_other(fixture)


@settings(few, max_examples=examples(200))
@given(fixture=with_odd_envelopes(TOLD), seed=st.integers(0, 99))
def test_no_number_is_lost_that_was_not_touched(fixture: Fixture, seed: int) -> None:
    outcome = replay(fixture)
    original = BY_NAME[fixture.name]
    if outcome.status < 400:
        assert broken_rules(original, fixture, seed) == set()


@pytest.mark.parametrize(
    ("name", "rule"),
    [("llamacpp/b11549-chat_limit.json", "7.count"), ("vllm/0.3.3-legacy-stop.json", "10.numbers")],
)
def test_one_that_is_lost_is_seen(name: str, rule: str) -> None:
    fixture = BY_NAME[name]
    parts = read(fixture)
    assert broken_rules(fixture, replace(fixture, raw=framed(fixture, map_write(parts)))) == set()
    if rule == "7.count":
        del parts[0]["choices"][0]["logprobs"]["content"][0]
    else:
        parts[0]["usage"]["prompt_tokens"] += 1
    assert rule in broken_rules(fixture, replace(fixture, raw=framed(fixture, map_write(parts))))


def map_write(parts: list[object]) -> list[bytes]:
    """Return the JSON of each part."""
    return [write(part) for part in parts]
