"""The conformance checker is itself checked: it passes what conforms and refuses every mutant."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance import RULES, check_body, check_error, check_stream
from tests.conformance.test_conformance_completions import BODY_MUTANTS as COMPLETION_MUTANTS
from tests.conformance.test_conformance_completions import (
    STREAM_MUTANTS as COMPLETION_STREAM_MUTANTS,
)
from tests.conformance.test_conformance_stream import FRAMING_MUTANTS, STREAM_MUTANTS
from tests.conforming import BODIES, ERROR, ID, STREAMS, TEXT, entries, sse
from tests.fold import comparable, fold

Path = tuple[str | int, ...]
Mutation = Callable[[Any], Any]

CHOICE: Path = ("choices", 0)
MESSAGE: Path = (*CHOICE, "message")
CALL: Path = (*MESSAGE, "tool_calls", 0)
ENTRIES: Path = (*CHOICE, "logprobs", "content")
TOP: Path = (*ENTRIES, 1, "top_logprobs")
REPLACED = {"token": "\ufffd", "bytes": [239, 191, 189]}


def at(answer: Any, path: Path) -> Any:
    """Return what lies at a path."""
    for step in path:
        answer = answer[step]
    return answer


def put(*path: str | int, value: Any) -> Mutation:
    """Set what lies at a path."""

    def mutate(answer: Any) -> None:
        at(answer, path[:-1])[path[-1]] = value

    return mutate


def drop(*path: str | int) -> Mutation:
    """Remove what lies at a path."""

    def mutate(answer: Any) -> None:
        del at(answer, path[:-1])[path[-1]]

    return mutate


def edit(*path: str | int, by: Callable[[Any], Any]) -> Mutation:
    """Change what lies at a path in place."""

    def mutate(answer: Any) -> None:
        by(at(answer, path))

    return mutate


def all_zero(found: list[dict[str, Any]]) -> None:
    """Make every number of the entries 0."""
    for entry in found:
        for item in (entry, *entry["top_logprobs"]):
            item["logprob"] = 0.0


def one_for_all(found: list[dict[str, Any]]) -> None:
    """One entry at -9999 for the whole answer."""
    whole = {"token": TEXT, "bytes": list(TEXT.encode()), "logprob": -9999.0, "top_logprobs": []}
    found[:] = [whole]


def merged(found: list[dict[str, Any]]) -> None:
    """Leave an entry out and let the next one own its bytes, so that the text still tiles."""
    owner = found.pop(1)
    found[1]["bytes"] = owner["bytes"] + found[1]["bytes"]
    found[1]["token"] = " é"


def swapped(found: list[dict[str, Any]]) -> None:
    """Give the sampled token the best alternative's value."""
    found[3]["logprob"] = found[3]["top_logprobs"][0]["logprob"]


def nameless(found: list[dict[str, Any]]) -> None:
    """A partial token that nobody completes."""
    found.append({"token": "", "bytes": None, "logprob": -1.0, "top_logprobs": []})


# (sample, name, mutation, rule)
BODY_MUTANTS: list[tuple[str, str, Mutation, str]] = [
    ("plain", "extra key", put("timings", value={}), "keys"),
    ("plain", "extra choice key", put(*CHOICE, "stop_reason", value=None), "keys"),
    ("plain", "extra message key", put(*MESSAGE, "reasoning", value="x"), "keys"),
    ("plain", "extra usage key", put("usage", "reasoning_tokens", value=0), "keys"),
    ("plain", "extra detail", put("usage", "prompt_tokens_details", "x", value=0), "keys"),
    ("plain", "unasked service tier", put("service_tier", value="default"), "keys"),
    ("plain", "role user", put(*MESSAGE, "role", value="user"), "types"),
    ("plain", "content a list", put(*MESSAGE, "content", value=["x"]), "types"),
    ("plain", "usage null", put("usage", value=None), "10.present"),
    ("plain", "usage absent", drop("usage"), "10.present"),
    ("plain", "wrong sum", put("usage", "total_tokens", value=24), "10.sum"),
    ("plain", "count a float", put("usage", "prompt_tokens", value=19.5), "10.sum"),
    ("plain", "null details", put("usage", "prompt_tokens_details", value=None), "9.null"),
    ("plain", "null calls", put(*MESSAGE, "tool_calls", value=None), "9.null"),
    ("plain", "no calls", put(*MESSAGE, "tool_calls", value=[]), "9.null"),
    ("plain", "null function call", put(*MESSAGE, "function_call", value=None), "9.null"),
    ("plain", "null annotations", put(*MESSAGE, "annotations", value=None), "9.null"),
    ("plain", "null audio", put(*MESSAGE, "audio", value=None), "9.null"),
    ("plain", "null fingerprint", put("system_fingerprint", value=None), "9.null"),
    ("plain", "null content", put(*MESSAGE, "content", value=None), "8.content"),
    ("tools", "absent content", drop(*MESSAGE, "content"), "8.content"),
    ("plain", "refusal absent", drop(*MESSAGE, "refusal"), "8.refusal"),
    ("plain", "refusal empty", put(*MESSAGE, "refusal", value=""), "8.refusal"),
    ("plain", "eos_token", put(*CHOICE, "finish_reason", value="eos_token"), "1.enum"),
    ("plain", "null reason", put(*CHOICE, "finish_reason", value=None), "1.enum"),
    ("plain", "empty reason", put(*CHOICE, "finish_reason", value=""), "1.enum"),
    ("plain", "reason object", put(*CHOICE, "finish_reason", value={"type": "stop"}), "1.enum"),
    ("plain", "abort", put(*CHOICE, "finish_reason", value="abort"), "1.enum"),
    ("plain", "reason absent", drop(*CHOICE, "finish_reason"), "1.present"),
    ("plain", "calls without", put(*CHOICE, "finish_reason", value="tool_calls"), "1.calls"),
    ("tools", "stop after calls", put(*CHOICE, "finish_reason", value="stop"), "1.calls"),
    ("tools", "arguments object", put(*CALL, "function", "arguments", value={}), "4.arguments"),
    ("tools", "no arguments", drop(*CALL, "function", "arguments"), "4.arguments"),
    ("tools", "no type", drop(*CALL, "type"), "4.open"),
    ("tools", "no name", put(*CALL, "function", "name", value=None), "4.open"),
    ("tools", "a call's index", put(*CALL, "index", value=0), "4.open"),
    ("tools", "empty call id", put(*CALL, "id", value=""), "4.id"),
    ("tools", "same call id", put(*CALL, "id", value="call_2"), "4.id"),
    ("tools", "calls an object", put(*MESSAGE, "tool_calls", value={"id": "x"}), "types"),
    ("function", "no name", put(*MESSAGE, "function_call", "name", value=""), "4.open"),
    ("plain", "no index", drop(*CHOICE, "index"), "5.index"),
    ("two", "order", edit("choices", by=lambda c: c.reverse()), "5.order"),
    ("two", "one missing", edit("choices", by=lambda c: c.pop()), "5.count"),
    ("plain", "id of completions", put("id", value="cmpl-0123456789"), "6.id"),
    ("plain", "short id", put("id", value="chatcmpl-A1"), "6.id"),
    ("scored", "another's id", put("id", value=f"{ID}x"), "6.id"),
    ("plain", "monotonic created", put("created", value=763), "6.created"),
    ("plain", "created a float", put("created", value=1741570283.5), "6.created"),
    ("plain", "created in ms", put("created", value=1741570283000), "6.created"),
    ("plain", "model path", put("model", value="/models/x"), "6.model"),
    ("plain", "object", put("object", value="chat.completion.chunk"), "6.object"),
    ("plain", "no object", drop("object"), "6.object"),
    ("plain", "logprobs absent", drop(*CHOICE, "logprobs"), "7.present"),
    ("plain", "unasked", put(*CHOICE, "logprobs", value={"content": [], "refusal": None}),
     "7.unasked"),
    ("scored", "legacy arrays", put(*CHOICE, "logprobs", value={"tokens": []}), "7.shape"),
    ("scored", "no refusal list", drop(*CHOICE, "logprobs", "refusal"), "7.shape"),
    ("scored", "content null", put(*ENTRIES, value=None), "7.shape"),
    ("scored", "no bytes key", drop(*ENTRIES, 0, "bytes"), "7.shape"),
    ("scored", "id in the entry", put(*ENTRIES, 0, "id", value=7), "7.shape"),
    ("scored", "id in an alternative", put(*TOP, 0, "id", value=7), "7.shape"),
    ("scored", "token an int", put(*TOP, 0, "token", value=7), "7.shape"),
    ("scored", "null alternatives", put(*ENTRIES, 0, "top_logprobs", value=None), "7.shape"),
    ("scored", "null value", put(*ENTRIES, 0, "logprob", value=None), "7.value"),
    ("scored", "huge value", put(*ENTRIES, 0, "logprob", value=-3.4e38), "7.value"),
    ("scored", "positive", put(*TOP, 0, "logprob", value=1e-7), "7.value"),
    ("scored", "a text", put(*TOP, 1, "logprob", value="-INF"), "7.value"),
    ("scored", "bytes a text", put(*ENTRIES, 0, "bytes", value="Hi"), "7.bytes"),
    ("scored", "bytes empty", put(*ENTRIES, 0, "bytes", value=[]), "7.bytes"),
    ("scored", "a byte of 256", put(*TOP, 0, "bytes", value=[256]), "7.bytes"),
    ("scored", "bytes null", put(*ENTRIES, 0, "bytes", value=None), "7.null"),
    ("scored", "alternative's null", put(*TOP, 0, "bytes", value=None), "7.null"),
    ("scored", "upper-case escapes", put(*ENTRIES, 3, "token", value="\\xF0\\x9F"), "7.spelling"),
    ("scored", "raw BPE", put(*TOP, 0, "token", value="Ġyou"), "7.spelling"),
    ("scored", "placeholder", put(*ENTRIES, 0, "token", value="token_id:7"), "7.spelling"),
    ("scored", "replaced", edit(*ENTRIES, 4, by=lambda e: e.update(REPLACED)), "7.replacement"),
    ("scored", "replaced too", edit(*TOP, 1, by=lambda e: e.update(REPLACED)), "7.replacement"),
    ("scored", "k + 1", edit(*TOP, by=lambda t: t.append(entries()[5]["top_logprobs"][1])), "7.k"),
    ("scored", "unsorted", edit(*TOP, by=lambda t: t.reverse()), "7.descending"),
    ("scored", "twice", edit(*TOP, by=lambda t: t.__setitem__(0, dict(t[1]))), "7.distinct"),
    ("scored", "not its own", put(*ENTRIES, 1, "logprob", value=-0.5), "7.own"),
    ("scored", "swapped", edit(*ENTRIES, by=swapped), "7.numbers"),
    ("scored", "all zero", edit(*ENTRIES, by=all_zero), "7.numbers"),
    ("scored", "one for all", edit(*ENTRIES, by=one_for_all), "7.count"),
    ("scored", "merged", edit(*ENTRIES, by=merged), "7.count"),
    ("scored", "alternative missing", edit(*TOP, by=lambda t: t.pop()), "7.offered"),
    ("scored", "none left", put(*CHOICE, "logprobs", value=None), "7.missing"),
    ("no text", "nothing said of those given", put(*CHOICE, "logprobs", value=None), "7.missing"),
    ("scored", "entry missing", drop(*ENTRIES, 0), "7.tiling"),
    ("scored", "EOS entry", edit(*ENTRIES, by=lambda e: e.append(entries()[0])), "7.tiling"),
    ("scored", "text cut", put(*MESSAGE, "content", value="Hi é"), "7.tiling"),
    ("scored", "nobody's part", edit(*ENTRIES, by=nameless), "7.count"),
    ("text unknown", "known part", put(*ENTRIES, 0, "bytes", value=list(b"Ho")), "7.spelling"),
    ("text unknown", "known parts apart", put(*MESSAGE, "content", value="Ho!"), "7.tiling"),
    ("split unknown", "invented", put(*ENTRIES, 0, "bytes", value=[0xC3]), "7.spelling"),
    ("scored", "another text", put(*MESSAGE, "content", value="Hi"), "8.text"),
    ("scored", "constant usage", put("usage", value={
        "prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}), "10.numbers"),
]  # fmt: skip

RAW_MUTANTS: list[tuple[str, bytes, bytes]] = [
    ("NaN", b'"logprob": -0.25', b'"logprob": NaN'),
    ("Infinity", b'"logprob": -0.25', b'"logprob": -Infinity'),
    ("duplicate key", b'"object": "chat.completion"', b'"object": 1, "object": "chat.completion"'),
    ("not UTF-8", b"chat.completion", b"chat.compl\xff"),
    ("lone surrogate", b'"Hi \\u00e9', b'"\\ud83dHi \\u00e9'),
    ("cut", b'"usage"', b'usage"'),
    ("a list", b'{"id"', b'[{"id"'),
]

ERROR_MUTANTS: list[tuple[str, Any, int, str]] = [
    ("flat", ERROR["error"], 404, "12.shape"),
    ("text", {"error": "Input validation error"}, 422, "12.shape"),
    ("beside", {**ERROR, "error_type": "validation"}, 422, "12.shape"),
    ("no param", {"error": {"message": "x", "type": "y", "code": None}}, 400, "12.shape"),
    ("code an int", {"error": {**ERROR["error"], "code": 404}}, 404, "12.shape"),
    ("no message", {"error": {**ERROR["error"], "message": ""}}, 404, "12.shape"),
    ("detail", {"detail": "Not Found"}, 404, "12.shape"),
    ("status", ERROR, 200, "12.status"),
    ("overflow", {"error": {**ERROR["error"], "message": "the request exceeds the available "
                            "context size"}}, 400, "12.context"),
    ("HTML", "<html>", 502, "json"),
]  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_conforming_body_passes(name: str) -> None:
    sample = BODIES[name]
    assert check_body(json.dumps(sample.answer).encode(), sample.request, sample.facts) == []


@pytest.mark.parametrize(
    ("sample", "mutate", "rule"),
    [pytest.param(s, m, r, id=f"{s}-{n}") for s, n, m, r in BODY_MUTANTS],
)
def test_body_mutant_is_refused(sample: str, mutate: Mutation, rule: str) -> None:
    good = BODIES[sample]
    answer = copy.deepcopy(good.answer)
    mutate(answer)
    assert answer != good.answer
    found = check_body(json.dumps(answer).encode(), good.request, good.facts)
    assert rule in {v.rule for v in found}, found


@pytest.mark.parametrize(("old", "new"), [pytest.param(o, n, id=i) for i, o, n in RAW_MUTANTS])
def test_raw_mutant_is_refused(old: bytes, new: bytes) -> None:
    good = BODIES["scored"]
    data = json.dumps(good.answer).encode()
    assert old in data
    found = check_body(data.replace(old, new, 1), good.request, good.facts)
    assert "json" in {v.rule for v in found}, found


def test_conforming_error_passes() -> None:
    assert check_error(json.dumps(ERROR).encode(), 404) == []


@pytest.mark.parametrize(
    ("value", "status", "rule"),
    [pytest.param(v, s, r, id=i) for i, v, s, r in ERROR_MUTANTS],
)
def test_error_mutant_is_refused(value: Any, status: int, rule: str) -> None:
    data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    assert rule in {v.rule for v in check_error(data, status)}


def test_stop_string_left_in_the_text_is_refused() -> None:
    good = BODIES["plain"]
    data = json.dumps(good.answer).encode()
    request = replace(good.request, stops=("é",))
    assert [v.rule for v in check_body(data, request)] == ["stop"]


def test_a_placeholder_beside_bytes_is_right_where_ids_were_asked_for() -> None:
    good = BODIES["scored"]
    request = replace(good.request, switches=frozenset({"return_tokens_as_token_ids"}))

    def rules(token: str) -> list[str]:
        answer = copy.deepcopy(good.answer)
        put(*ENTRIES, 0, "token", value=token)(answer)
        return [v.rule for v in check_body(json.dumps(answer).encode(), request)]

    assert rules("token_id:7") == [] != rules("token_id: 7")


@pytest.mark.parametrize("extensions", ["none", "known", "all"])
def test_extensions_say_which_keys_pass(extensions: Any) -> None:
    def rules(name: str, **more: Any) -> list[str]:
        answer = {**BODIES[name].answer, **more}
        request = replace(BODIES[name].request, extensions=extensions)
        return [v.rule for v in check_body(json.dumps(answer).encode(), request)]

    assert rules("reasoning") == (["keys"] if extensions == "none" else [])
    assert rules("switched") == (["keys"] if extensions == "none" else [])
    assert rules("plain", timings={"x": 1}) == ([] if extensions == "all" else ["keys"])
    assert rules("kept") == []


def test_every_rule_has_a_mutant() -> None:
    refused = {"json", "stop"}
    refused |= {rule for *_, rule in BODY_MUTANTS} | {rule for *_, rule in ERROR_MUTANTS}
    refused |= {rule for *_, rule in STREAM_MUTANTS} | {rule for *_, rule in FRAMING_MUTANTS}
    refused |= {rule for *_, rule in [*COMPLETION_MUTANTS, *COMPLETION_STREAM_MUTANTS]}
    assert refused == set(RULES)


@pytest.mark.parametrize(("stream", "name"), [("scored", "scored"), ("usage", "plain")])
def test_fold_of_a_stream_is_the_body(stream: str, name: str) -> None:
    folded = fold(sse(STREAMS[stream].answer))
    whole = copy.deepcopy(BODIES[name].answer)
    if stream == "usage":
        whole["choices"][0]["finish_reason"] = "length"
    usage = stream == "usage"
    assert comparable(folded, usage=usage) == comparable(whole, usage=usage)
    assert check_stream(sse(STREAMS[stream].answer), STREAMS[stream].request) == []


def test_fold_sees_a_difference() -> None:
    chunks = copy.deepcopy(STREAMS["scored"].answer)
    chunks[2]["choices"][0]["logprobs"]["content"][0]["logprob"] = -2.5
    assert comparable(fold(sse(chunks))) != comparable(BODIES["scored"].answer)


def test_fold_joins_calls() -> None:
    calls = fold(sse(STREAMS["tools"].answer))["choices"][0]["message"]["tool_calls"]
    assert calls == [
        {"id": "call_1", "type": "function",
         "function": {"name": "get_weather", "arguments": '{"city":"Rome"}'}},
        {"id": "call_2", "type": "function",
         "function": {"name": "get_time", "arguments": "{}"}},
    ]  # fmt: skip
