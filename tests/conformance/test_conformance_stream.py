"""The checker of streams: it passes what conforms and refuses every mutant."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.conformance import check_stream
from tests.conforming import (
    ERROR,
    MODEL,
    STREAMS,
    TEXT,
    USAGE,
    call,
    chunk,
    entries,
    finish,
    role,
    sse,
)

Chunks = list[Any]
Mutation = Callable[[Chunks], Any]


def part(chunks: Chunks, n: int) -> dict[str, Any]:
    """Return the n-th chunk's only choice."""
    found: dict[str, Any] = chunks[n]["choices"][0]
    return found


def delta(n: int, **more: Any) -> Mutation:
    """Add keys to the n-th chunk's delta."""
    return lambda chunks: part(chunks, n)["delta"].update(more)


def choice(n: int, **more: Any) -> Mutation:
    """Set keys of the n-th chunk's choice."""
    return lambda chunks: part(chunks, n).update(more)


def top(n: int, **more: Any) -> Mutation:
    """Set keys of the n-th chunk."""
    return lambda chunks: chunks[n].update(more)


def forget(n: int, key: str) -> Mutation:
    """Leave a key of the n-th chunk's choice out."""
    return lambda chunks: part(chunks, n).pop(key)


def insert(n: int, value: Any) -> Mutation:
    """Put a chunk before the n-th."""
    return lambda chunks: chunks.insert(n, value)


def tool(n: int, **more: Any) -> Mutation:
    """Set keys of the n-th chunk's call."""
    return lambda chunks: part(chunks, n)["delta"]["tool_calls"][0].update(more)


def function(n: int, **more: Any) -> Mutation:
    """Set keys of the n-th chunk's function."""
    return lambda chunks: part(chunks, n)["delta"]["tool_calls"][0]["function"].update(more)


def usage_everywhere(chunks: Chunks) -> None:
    """Usage on every chunk, as continuous_usage_stats has it."""
    for c in chunks:
        c["usage"] = USAGE


def moved_entry(chunks: Chunks) -> None:
    """An entry one chunk too late: the whole list is the same, each chunk's is not."""
    late = part(chunks, 1)["logprobs"]["content"].pop()
    part(chunks, 2)["logprobs"]["content"].insert(0, late)


def half_scored(chunks: Chunks) -> None:
    """One chunk's entries lost."""
    part(chunks, 2)["logprobs"] = None


def two_roles(chunks: Chunks) -> None:
    """A role in each delta, as Ollama and cortex have it."""
    for c in chunks[1:]:
        c["choices"][0]["delta"]["role"] = "assistant"


STREAM_MUTANTS: list[tuple[str, str, Mutation, str]] = [
    ("plain", "stopstop", insert(4, finish()), "1.once"),
    ("plain", "text after the end", insert(4, chunk({"content": "x"})), "1.once"),
    ("plain", "no end", lambda c: c.pop(), "1.once"),
    ("plain", "error after the end", insert(4, ERROR), "1.early"),
    ("plain", "end on a text chunk", choice(2, finish_reason="stop"), "1.empty_delta"),
    ("plain", "end with a text", delta(3, content=""), "1.empty_delta"),
    ("plain", "reason absent", forget(1, "finish_reason"), "1.present"),
    ("plain", "empty reason", choice(1, finish_reason=""), "1.enum"),
    ("plain", "null as a text", choice(1, finish_reason="null"), "1.enum"),
    ("plain", "eos", choice(3, finish_reason="eos"), "1.enum"),
    ("tools", "stop after calls", choice(5, finish_reason="stop"), "1.calls"),
    ("plain", "calls without", choice(3, finish_reason="tool_calls"), "1.calls"),
    ("plain", "role twice", two_roles, "3.repeat"),
    ("plain", "role null", delta(1, role=None), "3.repeat"),
    ("plain", "no role", lambda c: c.pop(0), "3.first"),
    ("plain", "no refusal beside the role", lambda c: part(c, 0)["delta"].pop("refusal"),
     "3.first"),
    ("plain", "text beside the role", delta(0, content="Hi"), "3.first"),
    ("plain", "null beside the role", delta(0, content=None), "3.null"),
    ("empty", "null in an empty answer", delta(0, content=None), "3.null"),
    ("tools", "text opens a call", delta(0, content=""), "3.null"),
    ("tools", "index gap", tool(4, index=2), "4.index"),
    ("tools", "index back", insert(5, call(0, "x")), "4.index"),
    ("tools", "no index", lambda c: part(c, 2)["delta"]["tool_calls"][0].pop("index"), "4.index"),
    ("tools", "from 1", lambda c: [tool(n, index=1)(c) for n in (1, 2, 3)], "4.index"),
    ("tools", "id repeated", tool(2, id="call_1"), "4.open"),
    ("tools", "id null", tool(2, id=None), "4.open"),
    ("tools", "type repeated", tool(2, type="function"), "4.open"),
    ("tools", "name repeated", function(2, name="get_weather"), "4.open"),
    ("tools", "name null", function(2, name=None), "4.open"),
    ("tools", "opened without a name", function(1, name=None), "4.open"),
    ("tools", "id empty", tool(1, id=""), "4.id"),
    ("tools", "same id", tool(4, id="call_1"), "4.id"),
    ("tools", "arguments an object", function(3, arguments={"city": "Rome"}), "4.arguments"),
    ("tools", "arguments null", function(1, arguments=None), "4.arguments"),
    ("tools", "an object of calls", delta(1, tool_calls={"index": 0}), "types"),
    ("plain", "no calls", delta(1, tool_calls=[]), "9.null"),
    ("plain", "null calls", delta(1, tool_calls=None), "9.null"),
    ("plain", "null content", delta(1, content=None), "9.null"),
    ("plain", "null refusal", delta(1, refusal=None), "9.null"),
    ("plain", "null reasoning", delta(1, reasoning_content=None), "9.null"),
    ("plain", "null fingerprint", top(1, system_fingerprint=None), "9.null"),
    ("refusal", "empty refusal", delta(1, refusal=""), "8.refusal"),
    ("plain", "reasoning", delta(1, reasoning="Hm"), "keys"),
    ("plain", "token ids", choice(1, token_ids=None), "keys"),
    ("plain", "timings", top(3, timings={}), "keys"),
    ("plain", "no index of the choice", forget(1, "index"), "5.index"),
    ("two", "order", lambda c: c.insert(0, c.pop(2)), "5.order"),
    ("two", "one missing", lambda c: [c.pop(i) for i in (5, 3, 2)], "5.count"),
    ("plain", "id changes", top(2, id="chatcmpl-0000000000"), "6.constant"),
    ("plain", "created changes", top(2, created=1_741_570_284), "6.constant"),
    ("plain", "fingerprint changes", top(2, system_fingerprint="fp_2"), "6.constant"),
    ("plain", "monotonic created", lambda c: [x.update(created=763) for x in c], "6.created"),
    ("plain", "no id", lambda c: [x.update(id="") for x in c], "6.id"),
    ("plain", "model _", lambda c: [x.update(model="_") for x in c], "6.model"),
    ("plain", "object", top(2, object="chat.completion"), "6.object"),
    ("plain", "logprobs absent", forget(1, "logprobs"), "7.present"),
    ("plain", "unasked", choice(1, logprobs={"content": [], "refusal": None}), "7.unasked"),
    ("scored", "legacy", choice(1, logprobs={"top_logprobs": [{"Hi": -0.25}]}), "7.shape"),
    ("scored", "one object", choice(1, logprobs=entries()[0]), "7.shape"),
    ("scored", "a list", choice(1, logprobs=[1]), "7.shape"),
    ("scored", "moved entry", moved_entry, "7.chunk"),
    ("scored", "half scored", half_scored, "7.tiling"),
    ("scored", "none", lambda c: [choice(n, logprobs=None)(c) for n in (1, 2, 3)], "7.missing"),
    ("scored", "alternatives", lambda c: part(c, 2)["logprobs"]["content"][0].update(
        top_logprobs=[]), "7.offered"),
    ("scored", "numbers", lambda c: part(c, 3)["logprobs"]["content"][0].update(
        logprob=-0.75), "7.numbers"),
    ("usage", "another text", delta(1, content="Hi"), "8.text"),
    ("usage", "key absent", lambda c: c[1].pop("usage"), "10.null"),
    ("usage", "per chunk", usage_everywhere, "10.last"),
    ("usage", "on the finish chunk", top(2, usage=USAGE), "10.last"),
    ("usage", "never", lambda c: c.pop(), "10.last"),
    ("usage", "twice", insert(3, chunk({}, top={"choices": [], "usage": USAGE})), "10.last"),
    ("usage", "backend's", lambda c: c[3].update(usage=USAGE | {"completion_tokens": 7,
                                                                "total_tokens": 26}),
     "10.numbers"),
    ("usage", "sum", lambda c: c[3].update(usage=USAGE | {"total_tokens": 26}), "10.sum"),
    ("plain", "null unasked", lambda c: [x.update(usage=None) for x in c], "10.unasked"),
    ("plain", "unasked chunk", insert(4, chunk({}, top={"choices": []})), "10.unasked"),
    ("plain", "error, then more", insert(1, ERROR), "12.done"),
    ("plain", "flat error", insert(4, {"error": "x"}), "12.shape"),
    ("plain", "a list of errors", insert(4, [ERROR]), "json"),
]  # fmt: skip

FRAMING_MUTANTS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("BOM", lambda d: b"\xef\xbb\xbf" + d, "11.framing"),
    ("CRLF", lambda d: d.replace(b"\n", b"\r\n"), "11.framing"),
    ("one newline", lambda d: d.replace(b"\n\n", b"\n", 1), "11.framing"),
    ("cut", lambda d: d[:-1], "11.framing"),
    ("cut more", lambda d: d[:-2], "11.framing"),
    ("blank lines", lambda d: d.replace(b"\n\n", b"\n\n\n", 1), "11.framing"),
    ("event line", lambda d: b"event: message\n" + d, "11.framing"),
    ("event ping", lambda d: b"event: ping\ndata: {}\n\n" + d, "11.framing"),
    ("id line", lambda d: b"id: 1\n" + d, "11.framing"),
    ("retry", lambda d: b"retry: 10\n\n" + d, "11.framing"),
    ("no space", lambda d: d.replace(b"data: ", b"data:", 1), "11.framing"),
    ("error field", lambda d: b'error: {"code":400}\n\n' + d, "11.framing"),
    ("two data lines", lambda d: d.replace(b'"object"', b'\ndata: "object"', 1), "11.framing"),
    ("two ends", lambda d: d + b"data: [DONE]\n\n", "11.done"),
    ("no end", lambda d: d.replace(b"data: [DONE]\n\n", b""), "11.done"),
    ("end first", lambda d: b"data: [DONE]\n\n" + d, "11.done"),
    ("NaN", lambda d: d.replace(b'"created":1', b'"created":NaN,"x":1', 1), "json"),
    ("nothing", lambda d: b"", "11.done"),
]


@pytest.mark.parametrize("name", STREAMS)
def test_conforming_stream_passes(name: str) -> None:
    sample = STREAMS[name]
    assert check_stream(sse(sample.answer), sample.request, sample.facts) == []


@pytest.mark.parametrize(
    ("sample", "mutate", "rule"),
    [pytest.param(s, m, r, id=f"{s}-{n}") for s, n, m, r in STREAM_MUTANTS],
)
def test_stream_mutant_is_refused(sample: str, mutate: Mutation, rule: str) -> None:
    good = STREAMS[sample]
    chunks = copy.deepcopy(good.answer)
    mutate(chunks)
    assert chunks != good.answer
    found = check_stream(sse(chunks), good.request, good.facts)
    assert rule in {v.rule for v in found}, found


@pytest.mark.parametrize(
    ("mutate", "rule"), [pytest.param(m, r, id=n) for n, m, r in FRAMING_MUTANTS]
)
def test_framing_mutant_is_refused(mutate: Callable[[bytes], bytes], rule: str) -> None:
    good = sse(STREAMS["plain"].answer)
    data = mutate(good)
    assert data != good
    assert rule in {v.rule for v in check_stream(data, STREAMS["plain"].request)}


def test_comments_pass_anywhere() -> None:
    good = sse(STREAMS["plain"].answer)
    kept = b": keepalive\n\n" + good.replace(b"\n\ndata", b"\n\n: x\n\ndata") + b": repairs a,b\n\n"
    assert check_stream(kept, STREAMS["plain"].request) == []


@pytest.mark.parametrize("before", [[], [role()], [role(), chunk({"content": TEXT})]])
def test_an_error_event_ends_a_stream(before: Chunks) -> None:
    request = STREAMS["plain"].request
    assert check_stream(sse([*before, ERROR], done=False), request) == []
    found = check_stream(sse([*before, ERROR]), request)
    assert {v.rule for v in found} == {"12.done"}


def test_openai_s_own_first_chunk_of_a_call_passes() -> None:
    opening = role(content=None)
    first = call(0, "", id="call_1", name="f")["choices"][0]["delta"]["tool_calls"]
    opening["choices"][0]["delta"]["tool_calls"] = first
    chunks = [opening, call(0, "{}"), finish("tool_calls")]
    request = STREAMS["tools"].request
    assert request.model == MODEL
    assert check_stream(sse(chunks), request) == []


@pytest.mark.parametrize(
    ("last", "rules"), [("assistant", {"json"}), ("user", {"json", "3.first"})]
)
def test_a_chunk_with_a_key_twice_is_read_with_its_last_value(last: str, rules: set[str]) -> None:
    role = b'"role":"assistant"'
    data = sse(STREAMS["plain"].answer).replace(role, role + b',"role":"%b"' % last.encode(), 1)
    assert {v.rule for v in check_stream(data, STREAMS["plain"].request)} == rules


@pytest.mark.parametrize(("scored", "rules"), [(True, set()), (False, {"3.null"})])
def test_an_empty_content_opens_a_choice_where_it_has_entries(
    scored: bool, rules: set[str]
) -> None:
    own = {"token": "", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    given = {"content": [own], "refusal": None} if scored else None
    first = call(0, "{}", id="call_1", name="f")
    chunks = [role(), chunk({"content": ""}, logprobs=given), first, finish("tool_calls")]
    request = replace(STREAMS["tools"].request, logprobs=True)
    assert {v.rule for v in check_stream(sse(chunks), request)} == rules
