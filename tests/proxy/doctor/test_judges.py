"""The doctor's judges: each accepts a conforming answer, and refuses each of its mutants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conforming import BODIES, SCORED, STREAMS, body, choice, message, sse
from tests.conforming_completions import BODIES as TEXT_BODIES
from tests.proxy.doctor.answers import CONTEXT, LONG, Answers, Case, error, raw, said
from tests.proxy.doctor.chat_cases import CHAT_CASES
from tests.proxy.doctor.response_cases import RESPONSE_CASES
from tests.proxy.doctor.stream_cases import OTHER_CASES, STREAM_CASES
from wellspoken.proxy.doctor import rules_logprobs
from wellspoken.proxy.doctor.probe import (
    Probe,
    ProbeContext,
    ProbeResponse,
    Unclear,
    Verdict,
    judge,
    quote,
)
from wellspoken.proxy.doctor.probe_requests import NULLED, choose_stop
from wellspoken.proxy.doctor.probes import PROBES

CASES: dict[str, Case] = {**CHAT_CASES, **STREAM_CASES, **OTHER_CASES, **RESPONSE_CASES}
BY_NAME = {probe.name: probe for probe in PROBES}
BAD = [(name, words) for name, case in CASES.items() for words in case.bad]


def verdict(name: str, heard: Answers) -> Verdict:
    return judge(BY_NAME[name], heard, CASES[name].context)


def test_each_probe_has_a_conforming_answer_and_a_mutant() -> None:
    assert list(CASES) and CASES.keys() == BY_NAME.keys()
    assert all(case.bad for case in CASES.values())


def test_the_names_are_distinct_and_each_contract_is_a_sentence() -> None:
    assert len(BY_NAME) == len(PROBES) >= 30
    for probe in PROBES:
        assert probe.name == probe.name.lower() and " " not in probe.name
        assert probe.contract.endswith(".") and len(probe.contract) < 100, probe.name


@pytest.mark.parametrize("name", CASES)
def test_a_conforming_answer_passes(name: str) -> None:
    assert verdict(name, CASES[name].good) == Verdict("ok", "", CASES[name].good[-1].status)


@pytest.mark.parametrize(("name", "words"), BAD)
def test_a_mutant_is_refused_for_what_is_wrong_with_it(name: str, words: str) -> None:
    found = verdict(name, CASES[name].bad[words])
    assert found.state == "broken"
    assert words in found.said


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.lacks])
def test_a_proper_refusal_is_told_from_a_break(name: str) -> None:
    assert verdict(name, CASES[name].lacks).state == "lacks"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.unclear])
def test_what_cannot_be_told_is_no_verdict(name: str) -> None:
    assert verdict(name, CASES[name].unclear).state == "unclear"


@pytest.mark.parametrize("name", CASES)
def test_no_answer_and_any_other_status_are_breaks(name: str) -> None:
    count = len(CASES[name].good)
    silent = verdict(name, [ProbeResponse(failure="no answer within 1 s")] * count)
    assert (silent.state, silent.said) == ("broken", "no answer within 1 s")
    assert verdict(name, [error(status=502)] * count).state == "broken"
    assert verdict(name, [said(b"<html>", 502, content_type="text/html")] * count).state == "broken"


@pytest.mark.no_cover
@pytest.mark.parametrize("name", CASES)
def test_hostile_answers_are_judged_and_never_raise(name: str) -> None:
    """Anything that is JSON, in place of what is expected, also one level deeper."""
    count = len(CASES[name].good)
    values: list[Any] = [None, True, 0, -1.5, "x", [], [None], {}, {"a": None}]
    bodies: list[Any] = [*values, *({key: value} for key in KEYS for value in values)]
    bodies += [{"choices": [{key: value}]} for key in DEEP for value in values]
    bodies += [{"choices": [{"message": {}, "delta": {}, "logprobs": v}]} for v in DEEPER]
    for value in bodies:
        data = json.dumps(value).encode()
        for one in (said(data), said(data, 400), raw(b"data: " + data + b"\n\ndata: [DONE]\n\n")):
            assert verdict(name, [one] * count).state in ("broken", "lacks", "unclear", "ok")
    deep = b'{"id": %s, "choices": [{"index": %s}]}' % ((b"[" * 900 + b"]" * 900,) * 2)
    found = verdict(name, [said(deep)] * count).state
    assert found in ("broken", "unclear", "lacks") or name == "headers"  # which looks at no body
    for data in (b"", b"[" * 100_000, b"\xff", b'"\\ud800"', b"data:", b"data: {}\n\n"):
        assert verdict(name, [raw(data)] * count).state in ("broken", "unclear")


KEYS = ("choices", "data", "error", "usage", "object", "id")
DEEP = ("message", "delta", "logprobs", "text", "finish_reason", "index")
NO_ALTERNATIVES: list[Any] = [[], None, [{"token": [], "bytes": {}, "logprob": {}}], [[]]]
DEEPER: list[Any] = [
    {"content": [{"token": t, "bytes": b, "logprob": v, "top_logprobs": a}]}
    for t in ("x", None)
    for b in (None, [1], ["x"], 7)
    for v in (None, "x", -1)
    for a in NO_ALTERNATIVES
]


def test_the_suites_own_conforming_answers_pass() -> None:
    """The checker of the tests and the doctor's rules were written apart, and must agree."""
    for name, sample in BODIES.items():
        if sample.request != SCORED or name in ("refusal", "unscored"):
            continue
        [choice] = sample.answer["choices"]
        content = choice["message"]["content"]
        assert list(rules_logprobs.check_entries(choice)) == [], name
        assert list(rules_logprobs.check_tiling(choice, content)) == [], name
    for name in ("scored", "broken character", "split unknown"):
        [choice] = TEXT_BODIES[name].answer["choices"]
        start = choice["logprobs"]["text_offset"][0]
        assert list(rules_logprobs.check_arrays(choice, 2, start)) == [], name
    for name in ("plain", "empty", "tools", "refusal", "reasoning"):
        heard = [raw(sse(STREAMS[name].answer))]
        for probe in ("stream-framing", "stream-chunks", "stream-role", "stream-finish"):
            assert verdict(probe, heard).said == "", (name, probe)


def test_a_limit_without_effect_is_seen_where_nothing_is_counted() -> None:
    answer = body(choice(message=message(LONG.text)))
    del answer["usage"]
    found = judge(BY_NAME["max-tokens"], [said(answer)], LONG)
    assert found.said == "the limit of 3 tokens had no effect"


def test_many_problems_are_cut_short() -> None:
    wrong = {"a": 1, "object": "x", "model": 7, "choices": [{"index": 3, "message": {}}]}
    found = verdict("chat-body", [said(wrong)])
    assert found.said.count("; ") == 4
    assert found.said.endswith(" more")


def test_a_request_that_was_not_sent_is_no_verdict() -> None:
    found = verdict("created", [ProbeResponse(failure="not asked any more", unsent=True)])
    assert (found.state, found.said) == ("unclear", "not asked any more")


def test_what_a_server_wrote_is_quoted_without_control_characters() -> None:
    assert quote("\x1b[31mred\n") == '"\\u001b[31mred\\n"'
    assert quote("\u202egpj.exe\x9b") == '"\\x202egpj.exe\\x9b"'
    assert len(quote("x" * 1000)) == 60


@pytest.mark.parametrize("text", ["", "a", "abc", "   ", "aaaaaaaa"])
def test_a_text_that_has_no_stop_string_gives_none(text: str) -> None:
    with pytest.raises(Unclear):
        choose_stop(text)


@pytest.mark.parametrize(
    "text", ["Hello world! café 😀 done.", "one two three", "abcde", "ab cdef gh"]
)
def test_a_stop_string_is_in_the_text_and_not_at_its_start(text: str) -> None:
    stop = choose_stop(text)
    assert text.index(stop) > 0
    assert stop == stop.strip()


def test_requests_are_shared_and_few() -> None:
    """What many probes ask alike is sent once; no answer is long but the one that is left."""
    requests = [ask for probe in PROBES for ask in probe.requests(CONTEXT)]
    assert len(requests) >= 50
    assert len(set(requests)) <= 51
    sent = [
        json.loads(ask.body)
        for ask in set(requests)
        if ask.body.endswith(b"}") and ask.body != b"{}"
    ]
    limits = [
        one.get("max_tokens") or one.get("max_completion_tokens")
        for one in sent
        if "messages" in one
    ]
    assert sum(limit or 0 for limit in limits) < 2000
    [nulled] = [one for one in sent if "n" in one and one["n"] is None]
    assert all(nulled[name] is None for name in NULLED)


def test_no_request_is_made_of_what_is_not_known() -> None:
    unknown = ProbeContext("m", listed=False)
    impossible = [probe.name for probe in PROBES if not possible(probe, unknown)]
    assert impossible == ["model", "stop", "stop-logprobs", "logit-bias"]


def possible(probe: Probe, context: ProbeContext) -> bool:
    try:
        return bool(probe.requests(context))
    except Unclear:
        return False
