"""Every fixture gives exactly its expected output, however it comes, and that output conforms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance import (
    Facts,
    Row,
    Violation,
    check_body,
    check_completion_body,
    check_completion_stream,
    check_error,
    check_stream,
)
from tests.corpus import Dialect, Fixture, fixtures, text_fixtures
from tests.fold import comparable, fold, fold_completion
from tests.reading import facts_of
from tests.replay import SPLITS, Outcome, as_other, replay
from tests.replay import body as body_outcome
from tests.replay import stream as stream_outcome

ALL = [*fixtures(), *text_fixtures()]
STREAMS = [f for f in ALL if f.streamed and f.status < 400]
AS_ASKED = [f for f in ALL if f.status < 400 and f.streamed == f.for_stream]
BY_NAME = {f.name: f for f in ALL}

# counted whenever they are met, although nothing is left to repair
COUNTED = {
    "error_in_200",
    "logprobs_incomplete",
    "logprobs_missing",
    "logprobs_untiled",
    "token_ids_missing",
}

# What a broken answer cannot be made to hold: fixture -> rules, why. A rule that holds after all
# makes the test fail, so nothing is waived for longer than needed.
LOST = (
    "llama.cpp drops entries before a stop string, so the proxy does not forward it with logprobs"
)
UNECHOED = "its text lacks the prompt that was asked for, which is put before it"
LEAKED = "its text is markup, which its table says to recover (stages/test_recover.py)"
BEHIND = frozenset({"7.chunk"})  # what a body made of entries behind their text holds all the same
WAIVED: dict[str, tuple[frozenset[str], str]] = {
    "constructed/qwen3-leaked.json": (frozenset({"7.count", "8.text"}), LEAKED),
    "constructed/qwen3-leaked.sse": (frozenset({"7.count", "8.text"}), LEAKED),
    "vllm/0.12-devstral-leaked.sse": (frozenset({"8.text"}), LEAKED),
    **{
        f"constructed/{name}": (frozenset({"8.text"}), LEAKED)
        for name in (
            "apertus-leaked.json",
            "call-in-text-too.json",
            "deepseek-lone-invoke.sse",
            "gpt-oss-leaked.sse",
            "minimax-thinks-twice.sse",
            "mistral-leaked-before-text.json",
            "kimi-k2-leaked.json",
            "llama4-leaked.sse",
            "qwen2.5-coder-fenced.json",
            "qwen2.5-coder-tools.sse",
            "step3-leaked.sse",
        )
    },
    "constructed/minimax-closing-logprobs.sse": (
        BEHIND,
        "its entries come behind their text, and so leave behind it",
    ),
    "llamacpp/b11549-chat_stop.json": (frozenset({"7.tiling"}), LOST),
    "llamacpp/b11549-x_stop_multi.json": (frozenset({"7.tiling"}), LOST),
    "completions/llamacpp/b11549-v1c_stop.json": (frozenset({"L.tiling"}), LOST),
    "native/llamacpp/b11549-native_stopword.json": (frozenset({"L.tiling"}), LOST),
    "native/llamacpp/b11549-native_stopword2.json": (frozenset({"L.tiling"}), LOST),
    "native/llamacpp/2025-completion.json": (
        frozenset({"L.tiling"}),
        "the sample shows a token of part of a character which its text has not",
    ),
    "completions/localai/2.x-stream.sse": (
        frozenset({"10.numbers"}),
        "its last chunk has zeros where the chunk before it had the counts",
    ),
    "completions/tabbyapi/2024-tokens-once.json": (
        frozenset({"L.count"}),
        "it lists each different token once, and the alternatives of every position",
    ),
    "completions/tgi/2.0-stream-end-token.sse": (
        frozenset({"8.text"}),
        "the end-of-text token's name is no text",
    ),
    "completions/vllm/0.32.0-comp_echo_only.json": (
        frozenset({"10.numbers"}),
        "it counts a token that was not asked for and that the answer has not",
    ),
    "completions/vllm/0.32.0-echo-tokens-as-ids.json": (frozenset({"8.text"}), UNECHOED),
    "completions/vllm/0.32.0-echo-tokens-as-ids.sse": (frozenset({"8.text"}), UNECHOED),
    "constructed/text-after-finish.sse": (
        frozenset({"8.text"}),
        "a choice is over at its reason, so text behind it is dropped by name",
    ),
    "native/llamacpp-held/b11549-limit-in-held-text.sse": (
        frozenset({"8.text"}),
        "the stream never sent what it held back; the body of the same question has it",
    ),
    "constructed/vllm-0.4.2-sampled-not-among-top.sse": (
        frozenset({"7.numbers"}),
        "the backend told no number of the sampled token",
    ),
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
    ("completions/llamacpp/b11549-v1c_stream.sse", "completions/llamacpp/b11549-v1c_logprobs.json"),
    ("completions/llamacpp/b11549-v1c_empty.sse", "completions/llamacpp/b11549-v1c_empty.json"),
    ("completions/llamacpp/pr10627-hybrid.sse", "completions/llamacpp/pr10627-hybrid.json"),
    ("completions/openai/logprobs.sse", "completions/openai/logprobs.json"),
    ("completions/vllm/0.2.7-stream-echo.sse", "completions/vllm/0.2.7-echo-logprobs.json"),
    ("vllm/0.32.0-part-alone.sse", "vllm/0.32.0-part-alone.json"),
    ("completions/vllm/0.32.0-part-alone.sse", "completions/vllm/0.32.0-part-alone.json"),
    ("completions/vllm/0.32.0-eos-alone.sse", "completions/vllm/0.32.0-eos-alone.json"),
    ("completions/vllm/0.6-multi-prompt-n.sse", "completions/vllm/0.6-multi-prompt-n.json"),
    ("native/llamacpp/b11549-native_stream.sse", "native/llamacpp/b11549-native_probs.json"),
    ("native/llamacpp/b11549-native_empty.sse", "native/llamacpp/b11549-native_empty.json"),
    ("native/llamacpp/b11549-native_stream_limit.sse", "native/llamacpp/b11549-native_limit.json"),
    ("native/llamacpp/b4240-stream-byte-tokens.sse", "native/llamacpp/b4240-byte-tokens.json"),
    ("native/llamacpp/pr10627-hybrid.sse", "native/llamacpp/pr10627-hybrid.json"),
    (
        "native/llamacpp-held/b11549-limit-in-held-text.sse",
        "native/llamacpp-held/b11549-limit-in-held-text.json",
    ),
]


OTHER_TYPE = {False: "text/event-stream", True: "application/json"}


# Bugs of the translation that a fixture shows: strict, so that a mended one has to leave.
BROKEN_AGAIN = {
    "constructed/tgi-1.4-bare-floats.json": "entries without a text are dropped where one owns all",
}


def name_of(fixture: Fixture) -> str:
    return fixture.name


def marked(found: list[Fixture], broken: dict[str, str]) -> list[Any]:
    return [
        pytest.param(f, marks=[pytest.mark.xfail(strict=True, reason=broken[f.name])])
        if f.name in broken
        else f
        for f in found
    ]


def expected(fixture: Fixture) -> tuple[bytes, dict[str, object]]:
    index = fixture.expected_path.with_name("expected.json")
    if not (index.exists() and fixture.expected_path.exists()):
        pytest.fail(f"python -m tests.update_fixtures {fixture.name}, then review what it wrote")
    summaries = json.loads(index.read_text())
    return fixture.expected_path.read_bytes(), summaries[fixture.key]


def violations(fixture: Fixture, outcome: Outcome, facts: Facts | None) -> list[Violation]:
    """Check what the client gets, as what it is."""
    if outcome.status >= 400:
        if outcome.fault is not None:  # a stream that never began: the proxy writes the envelope
            keys = ("message", "type", "param", "code")
            envelope = {"error": {key: outcome.fault[key] for key in keys}}
            return check_error(json.dumps(envelope).encode(), outcome.status)
        return check_error(outcome.body, outcome.status)
    if "prompt" in fixture.request:
        check = check_completion_stream if fixture.for_stream else check_completion_body
    else:
        check = check_stream if fixture.for_stream else check_body
    return check(outcome.body, fixture.asked, facts)


@pytest.mark.parametrize("fixture", ALL, ids=name_of)
def test_expected_output(fixture: Fixture) -> None:
    outcome = replay(fixture)
    body, summary = expected(fixture)
    assert outcome.body == body
    assert outcome.summary() == summary


@pytest.mark.no_cover  # the same bytes once more
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("fixture", STREAMS, ids=name_of)
def test_any_split_gives_the_same_bytes(fixture: Fixture, split: str) -> None:
    assert replay(fixture, SPLITS[split]) == replay(fixture)


@pytest.mark.parametrize("nothing", [b"data:\n\n", b"data: \r\n\r\n", b"data\n\n"])
@pytest.mark.parametrize("fixture", STREAMS, ids=name_of)
def test_data_with_nothing_is_no_event(fixture: Fixture, nothing: bytes) -> None:
    raw = nothing + fixture.raw.replace(b"\n\n", b"\n\n" + nothing)
    expected = replay(fixture)
    found = replay(replace(fixture, raw=raw))
    assert (found.body, found.fault) == (expected.body, expected.fault)


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
    folded = fold_completion if "prompt" in BY_NAME[whole].request else fold
    assert comparable(folded(stream.body)) == comparable(json.loads(body.body))


@pytest.mark.parametrize("fixture", AS_ASKED, ids=name_of)
def test_the_other_form_is_the_same_answer(fixture: Fixture) -> None:
    given = replay(fixture)
    request, other = as_other(fixture)
    if given.status >= 400 or other.status >= 400:
        assert other.status >= 400 and check_error(other.body, other.status) == []
        return
    found = violations(
        replace(fixture, request=request, content_type=OTHER_TYPE[fixture.streamed]),
        other,
        facts_of(fixture),
    )
    waived, why = WAIVED.get(fixture.name, (frozenset(), ""))
    rules = {violation.rule.replace("chunk", "tiling") for violation in found}
    assert rules == waived - BEHIND, (why, found)
    streamed, body = (given.body, other.body) if fixture.streamed else (other.body, given.body)
    folded = fold_completion if "prompt" in request else fold
    assert comparable(folded(streamed)) == comparable(json.loads(body))


@pytest.mark.parametrize("fixture", marked(ALL, BROKEN_AGAIN), ids=name_of)
def test_own_output_passes_unchanged(fixture: Fixture) -> None:
    first = replay(fixture)
    dialect: Dialect = "completions" if "prompt" in fixture.request else "chat"
    if first.status >= 400:
        again = body_outcome(fixture.request, first.status, "application/json", first.body, dialect)
        if first.fault is not None:
            return
    elif fixture.for_stream:
        again = stream_outcome(fixture.request, [first.body], dialect)
    else:
        again = body_outcome(fixture.request, 200, "application/json", first.body, dialect)
    assert again.body == first.body
    assert again.repairs.keys() <= COUNTED


def test_facts_are_read_from_most_fixtures() -> None:
    answered = [f for f in ALL if f.status < 400]
    known = [facts for f in answered if (facts := facts_of(f)) is not None]
    scored = [f for facts in known for f in facts.choices.values() if f.rows]
    exact = [f for f in scored if f.drops is not None]
    assert len(known) > 0.9 * len(answered)
    assert len(scored) > 60 and len(exact) > 30


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("llamacpp/b11549-chat_limit.json", "7"),
        ("completions/llamacpp/b11549-v1c_limit.json", "L"),
        ("native/llamacpp/b11549-native_stream_limit.sse", "L"),
    ],
)
def test_a_lost_row_would_be_seen(name: str, rule: str) -> None:
    fixture = BY_NAME[name]
    facts = facts_of(fixture)
    assert facts is not None
    known = facts.choices[0]
    assert known.rows is not None and known.drops == {}
    outcome = replay(fixture)

    def rules(rows: tuple[Row, ...]) -> set[str]:
        changed = replace(facts, choices={0: replace(known, rows=rows)})
        return {v.rule for v in violations(fixture, outcome, changed)}

    assert rules(known.rows) == set()
    assert rules((*known.rows, known.rows[0])) == {f"{rule}.count"}
    assert rules(known.rows[::-1]) == {f"{rule}.numbers"}
