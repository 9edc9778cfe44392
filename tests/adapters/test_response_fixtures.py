"""Every fixture of a chat answer as a response, as a body, as a stream and streamed again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.adapters.test_fixtures import BEHIND, WAIVED
from tests.conformance import Facts, Violation
from tests.conformance.responses import (
    check_response,
    check_response_error,
    check_response_stream,
    comparable_response,
    fold_response_stream,
)
from tests.corpus import Fixture, fixtures
from tests.reading import facts_of
from tests.replay import NOW, Outcome
from tests.responses_replay import as_response_request, replay_as_response, response_exchange
from wellspoken.adapters.events import Fault
from wellspoken.adapters.writers.response_replay import replay_response
from wellspoken.adapters.writers.response_stream import fail_stream

ALL = [f for f in fixtures() if (f.request.get("n") or 1) == 1]
BY_NAME = {f.name: f for f in ALL}
FORMS = [pytest.param(False, id="body"), pytest.param(True, id="stream")]


def name_of(fixture: Fixture) -> str:
    return fixture.name


def violations(
    fixture: Fixture, outcome: Outcome, stream: bool, facts: Facts | None
) -> list[Violation]:
    """Check what the client gets, as what it is."""
    asked = as_response_request(fixture.request, stream=stream)
    if outcome.status >= 400:
        return check_response_error(outcome.body, outcome.status)
    check = check_response_stream if stream else check_response
    return check(outcome.body, asked, facts)


def answer(fixture: Fixture, *, stream: bool) -> Outcome:
    return replay_as_response(fixture, as_response_request(fixture.request, stream=stream))


@pytest.mark.parametrize("stream", FORMS)
@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_a_fixture_conforms_as_a_response(fixture: Fixture, stream: bool) -> None:
    found = violations(fixture, answer(fixture, stream=stream), stream, facts_of(fixture))
    rules = {each.rule.replace("chunk", "tiling") for each in found}
    waived, why = WAIVED.get(fixture.name, (frozenset(), ""))
    if waived == BEHIND:  # only a stream has entries that come behind their text
        waived = frozenset({"7.tiling"}) if stream else frozenset()
    assert rules == waived, (why, found)


@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_a_response_s_stream_folds_to_its_body(fixture: Fixture) -> None:
    body, stream = answer(fixture, stream=False), answer(fixture, stream=True)
    if body.status >= 400:
        failed = stream.status >= 400 or fold_response_stream(stream.body)["status"] == "failed"
        assert failed
        return
    assert stream.status == 200
    folded = fold_response_stream(stream.body)
    assert comparable_response(folded) == comparable_response(json.loads(body.body))


@pytest.mark.parametrize("fixture", [f for f in ALL if f.status < 400], ids=name_of)
def test_a_kept_response_is_streamed_again(fixture: Fixture) -> None:
    body = answer(fixture, stream=False)
    if body.status >= 400:
        assert check_response_error(body.body, body.status) == []
        return
    again = replay_response(body.body)
    asked = as_response_request(fixture.request, stream=True)
    waived, _ = WAIVED.get(fixture.name, (frozenset(), ""))
    left = waived - BEHIND
    found = check_response_stream(again, asked, facts_of(fixture))
    assert {each.rule.replace("chunk", "tiling") for each in found} <= left, found
    assert fold_response_stream(again) == json.loads(body.body)
    assert again.endswith(replay_response(body.body, 1))


def test_a_stream_that_failed_before_it_began_conforms() -> None:
    asked = {"model": "m", "input": "Hi", "stream": True}
    facts = response_exchange(asked).response
    assert facts is not None
    fault = Fault(502, "The server went away.", code="upstream_gone")
    stream = fail_stream(facts, "m", NOW, fault)
    assert check_response_stream(stream, asked) == []
    assert fold_response_stream(stream)["error"]["message"] == "The server went away."


@pytest.mark.parametrize("stream", FORMS)
def test_a_row_lost_from_a_response_would_be_seen(stream: bool) -> None:
    fixture = BY_NAME["llamacpp/b11549-chat_limit.json"]
    facts = facts_of(fixture)
    assert facts is not None
    known = facts.choices[0]
    assert known.rows is not None and known.drops == {}
    got = answer(fixture, stream=stream)
    for rows, rule in (((*known.rows, known.rows[0]), "7.count"), (known.rows[::-1], "7.numbers")):
        changed = replace(facts, choices={0: replace(known, rows=rows)})
        assert {v.rule for v in violations(fixture, got, stream, changed)} == {rule}
