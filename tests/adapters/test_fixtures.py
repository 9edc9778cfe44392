"""Every fixture gives exactly its expected output, however it comes, and that output conforms."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.conformance import Facts, Row, Violation, check_body, check_error, check_stream
from tests.corpus import ROOT, Fixture, fixtures
from tests.fold import comparable, fold
from tests.reading import facts_of
from tests.replay import SPLITS, Outcome, replay
from tests.replay import body as body_outcome
from tests.replay import stream as stream_outcome

ALL = fixtures()
STREAMS = [f for f in ALL if f.streamed and f.status < 400]
BY_NAME = {f.name: f for f in ALL}

# counted whenever they are met, although nothing is left to repair
COUNTED = {"logprobs_missing", "logprobs_untiled", "logprobs_incomplete", "error_in_200"}

# What a broken answer cannot be made to hold: fixture -> rules, why. A rule that holds after all
# makes the test fail, so nothing is waived for longer than needed.
LOST = (
    "llama.cpp drops entries before a stop string, so the proxy does not forward it with logprobs"
)
WAIVED: dict[str, tuple[frozenset[str], str]] = {
    "llamacpp/b11549-chat_stop.json": (frozenset({"7.tiling"}), LOST),
    "llamacpp/b11549-x_stop_multi.json": (frozenset({"7.tiling"}), LOST),
}

# A stream and the body of the same question, where the backend itself gave both the same answer
# (llama-cpp-python's streams lose characters, and llama.cpp's logprobs after </think>).
PAIRS = [
    ("vllm/0.3.3-legacy-length.sse", "vllm/0.3.3-legacy-length.json"),
    ("vllm/0.3.3-legacy-stop.sse", "vllm/0.3.3-legacy-stop.json"),
    ("vllm/0.4.2-legacy-length.sse", "vllm/0.4.2-legacy-length.json"),
    ("vllm/0.4.2-legacy-stop.sse", "vllm/0.4.2-legacy-stop.json"),
    ("vllm/0.32.0-chat_stream_logprobs.sse", "vllm/0.32.0-chat_logprobs.json"),
    ("llamacpp/b11549-chat_stream.sse", "llamacpp/b11549-chat_plain.json"),
    ("llamacpp/b11549-chat_stream_logprobs.sse", "llamacpp/b11549-chat_logprobs.json"),
    ("llamacpp/b11549-x_cut_stream.sse", "llamacpp/b11549-x_cut.json"),
    ("llamacpp/b11549-x_empty_stream.sse", "llamacpp/b11549-x_empty.json"),
    ("llamacpp/b11549-x_tool_stream.sse", "llamacpp/b11549-x_tool.json"),
    (
        "llama-cpp-python/0.3.36-legacy-x_cut_stream.sse",
        "llama-cpp-python/0.3.36-legacy-x_cut.json",
    ),
]


def name_of(fixture: Fixture) -> str:
    return fixture.name


def expected(fixture: Fixture) -> tuple[bytes, dict[str, object]]:
    index = ROOT / fixture.server / "expected.json"
    if not (index.exists() and fixture.expected_path.exists()):
        pytest.fail(f"python -m tests.update_fixtures {fixture.name}, then review what it wrote")
    summaries = json.loads(index.read_text())
    return fixture.expected_path.read_bytes(), summaries[fixture.name.partition("/")[2]]


def violations(fixture: Fixture, outcome: Outcome, facts: Facts | None) -> list[Violation]:
    """Check what the client gets, as what it is."""
    if outcome.status >= 400:
        if outcome.fault is not None:  # a stream that never began: the proxy writes the envelope
            keys = ("message", "type", "param", "code")
            envelope = {"error": {key: outcome.fault[key] for key in keys}}
            return check_error(json.dumps(envelope).encode(), outcome.status)
        return check_error(outcome.body, outcome.status)
    check = check_stream if fixture.streamed else check_body
    return check(outcome.body, fixture.asked, facts)


@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_expected_output(fixture: Fixture) -> None:
    outcome = replay(fixture)
    body, summary = expected(fixture)
    assert outcome.body == body
    assert outcome.summary() == summary


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("fixture", STREAMS, ids=name_of)
def test_any_split_gives_the_same_bytes(fixture: Fixture, split: str) -> None:
    assert replay(fixture, SPLITS[split]) == replay(fixture)


@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_output_conforms(fixture: Fixture) -> None:
    found = violations(fixture, replay(fixture), facts_of(fixture))
    rules = {violation.rule for violation in found}
    waived, why = WAIVED.get(fixture.name, (frozenset(), ""))
    assert rules == waived, (why, found)


@pytest.mark.parametrize(("streamed", "whole"), PAIRS)
def test_stream_folds_to_the_body(streamed: str, whole: str) -> None:
    stream, body = replay(BY_NAME[streamed]), replay(BY_NAME[whole])
    assert (stream.status, body.status) == (200, 200)
    assert comparable(fold(stream.body)) == comparable(json.loads(body.body))


@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_own_output_passes_unchanged(fixture: Fixture) -> None:
    first = replay(fixture)
    if first.status >= 400:
        again = body_outcome(fixture.request, first.status, "application/json", first.body)
        if first.fault is not None:
            return
    elif fixture.streamed:
        again = stream_outcome(fixture.request, [first.body])
    else:
        again = body_outcome(fixture.request, 200, "application/json", first.body)
    assert again.body == first.body
    assert again.repairs.keys() <= COUNTED


def test_facts_are_read_from_most_fixtures() -> None:
    answered = [f for f in ALL if f.status < 400]
    known = [facts for f in answered if (facts := facts_of(f)) is not None]
    scored = [f for facts in known for f in facts.choices.values() if f.rows]
    exact = [f for f in scored if f.drops is not None]
    assert len(known) > 0.9 * len(answered)
    assert len(scored) > 60 and len(exact) > 30


def test_a_lost_row_would_be_seen() -> None:
    fixture = BY_NAME["llamacpp/b11549-chat_limit.json"]
    facts = facts_of(fixture)
    assert facts is not None
    known = facts.choices[0]
    assert known.rows is not None and known.drops == {}
    outcome = replay(fixture)

    def rules(rows: tuple[Row, ...]) -> set[str]:
        changed = replace(facts, choices={0: replace(known, rows=rows)})
        return {v.rule for v in violations(fixture, outcome, changed)}

    assert rules(known.rows) == set()
    assert rules((*known.rows, known.rows[0])) == {"7.count"}
    assert rules(known.rows[::-1]) == {"7.numbers"}
