"""The checker of completions: it passes what conforms and refuses every mutant."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance import RULES, check_completion_body, check_completion_stream
from tests.conforming import ERROR, TEXT, sse
from tests.conforming_completions import BODIES, ID, STREAMS, arrays, end, piece
from tests.fold import comparable, fold_completion

Mutation = Callable[[Any], Any]


def at(answer: Any, path: tuple[str | int, ...]) -> Any:
    """Return what lies at a path."""
    for step in path:
        answer = answer[step]
    return answer


def put(*path: str | int, value: Any) -> Mutation:
    """Set what lies at a path."""

    def mutate(answer: Any) -> None:
        at(answer, path[:-1])[path[-1]] = value

    return mutate


def of(key: str, by: Callable[[Any], Any]) -> Mutation:
    """Change one of the first choice's arrays in place."""
    return lambda answer: by(answer["choices"][0]["logprobs"][key])


def first(key: str, value: Any) -> Mutation:
    """Set a key of the first choice."""
    return put("choices", 0, key, value=value)


def score(key: str, place: int, value: Any) -> Mutation:
    """Set one item of one of the first choice's arrays."""
    return put("choices", 0, "logprobs", key, place, value=value)


def row(place: int, token: str, top: dict[str, float]) -> Mutation:
    """Give a position another token and alternatives, its value the same."""

    def mutate(answer: Any) -> None:
        logprobs = answer["choices"][0]["logprobs"]
        logprobs["tokens"][place], logprobs["top_logprobs"][place] = token, top

    return mutate


def shifted(answer: Any) -> None:
    """Count the offsets from the completion's start, as some servers do."""
    offsets = answer["choices"][0]["logprobs"]["text_offset"]
    offsets[:] = [offset - offsets[0] for offset in offsets]


def zero(answer: Any) -> None:
    """Make every number 0."""
    logprobs = answer["choices"][0]["logprobs"]
    logprobs["token_logprobs"] = [0.0 for _ in logprobs["tokens"]]
    logprobs["top_logprobs"] = [dict.fromkeys(top, 0.0) for top in logprobs["top_logprobs"]]


def renamed(answer: Any) -> None:
    """Give an alternative that is part of a character another's name."""
    top = answer["choices"][0]["logprobs"]["top_logprobs"]
    top[2] = {"bytes:\\xa9": -0.125, "bytes:\\xaa": -3.0}


def cut(place: int) -> Mutation:
    """Take a whole position away."""

    def mutate(answer: Any) -> None:
        for column in answer["choices"][0]["logprobs"].values():
            column.pop(place)

    return mutate


def merged(answer: Any) -> None:
    """Let one token own the next one's bytes, so that the text still tiles."""
    cut(2)(answer)
    row(1, " é", {" you": -0.5, " é": -2.0})(answer)


CHAT: dict[str, Any] = {"content": [], "refusal": None}
EMPTY: dict[str, list[Any]] = {key: [] for key in arrays()}
PLAIN_TOP = {"Hi": -0.25, "Hello": -1.5}

# (sample, name, mutation, rule)
BODY_MUTANTS: list[tuple[str, str, Mutation, str]] = [
    ("plain", "extra key", put("timings", value={}), "keys"),
    ("plain", "service tier", put("service_tier", value="default"), "keys"),
    ("plain", "extra choice key", first("stop_reason", None), "keys"),
    ("plain", "a message", first("message", {"content": TEXT}), "keys"),
    ("plain", "text null", first("text", None), "types"),
    ("plain", "choices an object", put("choices", value={}), "types"),
    ("plain", "usage null", put("usage", value=None), "10.present"),
    ("plain", "wrong sum", put("usage", "total_tokens", value=7), "10.sum"),
    ("plain", "null details", put("usage", "prompt_tokens_details", value=None), "9.null"),
    ("plain", "null fingerprint", put("system_fingerprint", value=None), "9.null"),
    ("plain", "a chat's id", put("id", value="chatcmpl-0123456789"), "6.id"),
    ("plain", "short id", put("id", value="cmpl-1"), "6.id"),
    ("scored", "another's id", put("id", value=f"{ID}x"), "6.id"),
    ("plain", "monotonic created", put("created", value=763), "6.created"),
    ("plain", "model path", put("model", value="/models/x"), "6.model"),
    ("plain", "a chat's object", put("object", value="chat.completion"), "6.object"),
    ("plain", "no index", first("index", None), "5.index"),
    ("four", "order", lambda a: a["choices"].reverse(), "5.order"),
    ("four", "one missing", lambda a: a["choices"].pop(), "5.count"),
    ("plain", "null reason", first("finish_reason", None), "L.reason"),
    ("plain", "empty reason", first("finish_reason", ""), "L.reason"),
    ("plain", "tool calls", first("finish_reason", "tool_calls"), "L.reason"),
    ("plain", "a list", first("finish_reason", ["stop"]), "L.reason"),
    ("plain", "reason absent", lambda a: a["choices"][0].pop("finish_reason"), "1.present"),
    ("plain", "logprobs absent", lambda a: a["choices"][0].pop("logprobs"), "7.present"),
    ("plain", "unasked", first("logprobs", EMPTY), "7.unasked"),
    ("scored", "chat-shaped", first("logprobs", CHAT), "L.shape"),
    ("scored", "a fifth array", put("choices", 0, "logprobs", "bytes", value=[]), "L.shape"),
    ("scored", "no offsets", lambda a: a["choices"][0]["logprobs"].pop("text_offset"), "L.shape"),
    ("scored", "null array", put("choices", 0, "logprobs", "tokens", value=None), "L.shape"),
    ("scored", "token an int", score("tokens", 0, 7), "L.shape"),
    ("scored", "alternatives a list", score("top_logprobs", 0, []), "L.shape"),
    ("scored", "one offset less", of("text_offset", lambda c: c.pop()), "L.arrays"),
    ("scored", "one value more", of("token_logprobs", lambda c: c.append(-1.0)), "L.arrays"),
    ("scored", "positive", score("token_logprobs", 0, 1e-6), "L.value"),
    ("scored", "huge", score("top_logprobs", 4, {"bytes:\\x98\\x80": -3.4e38}), "L.value"),
    ("scored", "a text", score("token_logprobs", 0, "-INF"), "L.value"),
    ("scored", "null value", score("token_logprobs", 0, None), "L.null"),
    ("scored", "null alternatives", score("top_logprobs", 0, None), "L.null"),
    ("echo", "alternatives of a null", score("top_logprobs", 0, {"<s>": -1.0}), "L.null"),
    ("echo", "a null amid", lambda a: [score(key, 3, None)(a) for key in (
        "token_logprobs", "top_logprobs")], "L.null"),
    ("scored", "k + 1", of("top_logprobs", lambda c: c[0].update({"x": -2.0})), "L.k"),
    ("k 0", "one all the same", of("top_logprobs", lambda c: c[0].update(x=-9.0)), "L.k"),
    ("scored", "unsorted", score("top_logprobs", 0, {"Hello": -1.5, "Hi": -0.25}), "L.descending"),
    ("scored", "not its own", score("token_logprobs", 1, -0.5), "L.own"),
    ("scored", "not among them", of("top_logprobs", lambda c: c[0].pop("Hi")), "L.own"),
    ("scored", "from 0", shifted, "L.offset"),
    ("scored", "in bytes", score("text_offset", 5, 12), "L.offset"),
    ("scored", "a float", score("text_offset", 0, 3.0), "L.offset"),
    ("scored", "falling", score("text_offset", 2, 5), "L.offset"),
    ("prompt of ids", "falling", score("text_offset", 1, 41), "L.offset"),
    ("echo", "after the prompt", lambda a: of("text_offset", lambda c: c.__setitem__(
        slice(None), [n + 3 for n in c]))(a), "L.offset"),
    ("broken character", "beyond", score("text_offset", 2, 6), "L.offset"),
    ("scored", "upper-case hex", row(2, "bytes:\\xA9", {"bytes:\\xA9": -0.125}), "L.spelling"),
    ("scored", "text as bytes", row(0, "bytes:\\x48i", {"bytes:\\x48i": -0.25}), "L.spelling"),
    ("scored", "replaced", row(3, "\ufffd", {"!": -0.75, ".": -1.0, "\ufffd": -4.0}),
     "L.spelling"),
    ("scored", "escapes of a chat", row(2, "\\xa9", {"\\xa9": -0.125, "\\xa8": -3.0}), "L.tiling"),
    ("scored", "raw BPE", row(0, "ĠHi", {"ĠHi": -0.25}), "L.tiling"),
    ("scored", "token missing", cut(0), "L.tiling"),
    ("scored", "text cut", first("text", "Hi é"), "L.tiling"),
    ("scored", "begin of text", row(0, "<s>", {"<s>": -0.25}), "L.tiling"),
    ("echo", "prompt not scored", cut(1), "L.tiling"),
    ("echo", "a word outside", score("tokens", 0, "Oh"), "L.tiling"),
    ("text unknown", "known part", row(0, "Ho", {"Ho": -1.0}), "L.tiling"),
    ("scored", "none left", first("logprobs", None), "L.missing"),
    ("no text", "nothing said of those given", first("logprobs", None), "L.missing"),
    ("scored", "merged", merged, "L.count"),
    ("scored", "all zero", zero, "L.numbers"),
    ("scored", "another number", lambda a: (
        score("token_logprobs", 5, -0.1)(a), score("top_logprobs", 5, {"!": -0.1, "\n": -12})(a)),
     "L.numbers"),
    ("scored", "another's name", renamed, "L.numbers"),
    ("scored", "alternative gone", of("top_logprobs", lambda c: c[0].pop("Hello")), "L.offered"),
    ("scored", "another text", first("text", "Hi"), "8.text"),
    ("echo", "no prompt", first("text", TEXT), "L.echo"),
    ("scored", "constant usage", put("usage", value={
        "prompt_tokens": 100, "completion_tokens": 100, "total_tokens": 200}), "10.numbers"),
]  # fmt: skip


def part(n: int, **more: Any) -> Mutation:
    """Set keys of the n-th chunk's choice."""
    return lambda chunks: chunks[n]["choices"][0].update(more)


def insert(n: int, chunk: Any) -> Mutation:
    """Put a chunk before the n-th."""
    return lambda chunks: chunks.insert(n, chunk)


def late(chunks: Any) -> None:
    """Let an entry come with the text after its own."""
    chunks[0]["choices"][0]["logprobs"] = None
    chunks[1]["choices"][0]["logprobs"] = arrays(0, 3)


def restarted(chunks: Any) -> None:
    """Count each chunk's offsets from that chunk's start."""
    offsets = chunks[1]["choices"][0]["logprobs"]["text_offset"]
    offsets[:] = [3 + offset - offsets[0] for offset in offsets]


STREAM_MUTANTS: list[tuple[str, str, Mutation, str]] = [
    ("plain", "extra key", lambda c: c[0].update(timings={}), "keys"),
    ("plain", "a delta", part(0, delta={}), "keys"),
    ("plain", "text null", part(1, text=None), "types"),
    ("plain", "reason with text", lambda c: (c.pop(), part(1, finish_reason="stop")(c)), "L.alone"),
    ("scored", "reason with entries", part(3, logprobs=EMPTY), "L.alone"),
    ("plain", "eos_token", part(2, finish_reason="eos_token"), "L.reason"),
    ("plain", "empty reason", part(0, finish_reason=""), "L.reason"),
    ("plain", "reason absent", lambda c: c[0]["choices"][0].pop("finish_reason"), "1.present"),
    ("plain", "no reason", lambda c: c.pop(), "1.once"),
    ("plain", "two reasons", lambda c: c.append(end()), "1.once"),
    ("plain", "text after it", lambda c: c.append(piece("x")), "1.once"),
    ("plain", "logprobs absent", lambda c: c[0]["choices"][0].pop("logprobs"), "7.present"),
    ("plain", "unasked", part(0, logprobs=EMPTY), "7.unasked"),
    ("plain", "no index", lambda c: c[0]["choices"][0].pop("index"), "5.index"),
    ("four", "order", lambda c: c.insert(0, c.pop(1)), "5.order"),
    ("four", "one missing", lambda c: (c.pop(3), c.pop(5)), "5.count"),
    ("plain", "another id", lambda c: c[1].update(id="cmpl-another-one"), "6.constant"),
    ("plain", "object", lambda c: c[1].update(object="text_completion.chunk"), "6.object"),
    ("plain", "usage unasked", lambda c: c[2].update(usage=None), "10.unasked"),
    ("plain", "usage chunk unasked", insert(3, {**piece(""), "choices": []}), "10.unasked"),
    ("usage", "not null before", lambda c: c[0].pop("usage"), "10.null"),
    ("usage", "no usage", lambda c: c.pop(), "10.last"),
    ("usage", "with a choice", lambda c: c[1].update(c.pop()["usage"] and {
        "usage": {"prompt_tokens": 19, "completion_tokens": 6, "total_tokens": 25}}), "10.last"),
    ("usage", "not the last", lambda c: c.insert(0, c.pop()), "10.last"),
    ("scored", "another's entries", late, "L.chunk"),
    ("scored", "offsets restart", restarted, "L.offset"),
    ("scored", "entries lost", part(2, logprobs=None), "L.count"),
    ("echo", "null later on", lambda c: [c[1]["choices"][0]["logprobs"][key].__setitem__(
        0, None) for key in ("token_logprobs", "top_logprobs")], "L.null"),
    ("echo", "no prompt", part(0, text="Hi"), "L.echo"),
    ("plain", "error, then more", insert(1, ERROR), "12.done"),
    ("plain", "error of another shape", lambda c: c.append({"error": "x"}), "12.shape"),
]  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_conforming_body_passes(name: str) -> None:
    sample = BODIES[name]
    data = json.dumps(sample.answer).encode()
    facts = sample.facts and replace(sample.facts, id=ID)
    assert check_completion_body(data, sample.request, facts) == []


@pytest.mark.parametrize(
    ("sample", "mutate", "rule"),
    [pytest.param(s, m, r, id=f"{s}-{n}") for s, n, m, r in BODY_MUTANTS],
)
def test_body_mutant_is_refused(sample: str, mutate: Mutation, rule: str) -> None:
    good = BODIES[sample]
    answer = copy.deepcopy(good.answer)
    mutate(answer)
    assert json.dumps(answer) != json.dumps(good.answer)
    facts = good.facts and replace(good.facts, id=ID)
    found = check_completion_body(json.dumps(answer).encode(), good.request, facts)
    assert rule in {v.rule for v in found}, found


@pytest.mark.parametrize("name", STREAMS)
def test_conforming_stream_passes(name: str) -> None:
    sample = STREAMS[name]
    facts = sample.facts and replace(sample.facts, id=f"chat{ID}")
    assert check_completion_stream(sse(sample.answer), sample.request, facts) == []


@pytest.mark.parametrize(
    ("sample", "mutate", "rule"),
    [pytest.param(s, m, r, id=f"{s}-{n}") for s, n, m, r in STREAM_MUTANTS],
)
def test_stream_mutant_is_refused(sample: str, mutate: Mutation, rule: str) -> None:
    good = STREAMS[sample]
    chunks = copy.deepcopy(good.answer)
    mutate(chunks)
    assert chunks != good.answer
    found = check_completion_stream(sse(chunks), good.request, good.facts)
    assert rule in {v.rule for v in found}, found


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda d: d.replace(b"data: [DONE]\n\n", b""), "11.done"),
        (lambda d: d.replace(b"\n", b"\r\n"), "11.framing"),
        (lambda d: d.replace(b"data: {", b"event: x\ndata: {", 1), "11.framing"),
        (lambda d: d.replace(b'"created":', b'"created":NaN,"x":', 1), "json"),
    ],
)
def test_framing_is_a_chats(change: Callable[[bytes], bytes], rule: str) -> None:
    found = check_completion_stream(change(sse(STREAMS["plain"].answer)), STREAMS["plain"].request)
    assert rule in {v.rule for v in found}, found


def test_stop_string_left_in_the_text_is_refused() -> None:
    for name, text, rules in (("plain", "é", ["stop"]), ("echo", "ß", []), ("echo", "é", ["stop"])):
        request = replace(BODIES[name].request, stops=(text,))
        data = json.dumps(BODIES[name].answer).encode()
        assert [v.rule for v in check_completion_body(data, request)] == rules


def test_every_rule_of_completions_has_a_mutant() -> None:
    refused = {rule for *_, rule in [*BODY_MUTANTS, *STREAM_MUTANTS]}
    assert {rule for rule in RULES if rule.startswith("L.")} <= refused


@pytest.mark.parametrize(
    ("stream", "name"), [("scored", "scored"), ("echo", "echo"), ("usage", "length")]
)
def test_fold_of_a_stream_is_the_body(stream: str, name: str) -> None:
    folded = fold_completion(sse(STREAMS[stream].answer))
    usage = stream == "usage"
    assert comparable(folded, usage=usage) == comparable(BODIES[name].answer, usage=usage)


def test_fold_sees_a_difference() -> None:
    chunks = copy.deepcopy(STREAMS["scored"].answer)
    chunks[1]["choices"][0]["logprobs"]["text_offset"][0] = 4
    assert comparable(fold_completion(sse(chunks))) != comparable(BODIES["scored"].answer)
