"""The stream's part of the checker's own tests; every rule has a mutant (test_conformance...)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.responses import (
    check_response,
    check_response_stream,
    comparable_response,
    fold_response_stream,
)
from tests.conforming_responses import SAMPLES, Events, item_events, message, sse_events, text

Mutation = Callable[[Events], Any]

# places in the stream of "text" and of "scored":
# 0 created, 1 in_progress, 2 item, 3 part, 4 and 5 deltas, 6 text, 7 part, 8 item, 9 completed


def put(n: int, *path: str | int, value: Any) -> Mutation:
    """Set what lies at a path of an event."""

    def mutate(events: Events) -> None:
        found: Any = events[n]
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = value

    return mutate


def drop(n: int, *path: str | int) -> Mutation:
    """Remove an event, or what lies at a path of it."""

    def mutate(events: Events) -> None:
        found: Any = events
        for step in (n, *path)[:-1]:
            found = found[step]
        del found[(n, *path)[-1]]

    return mutate


def insert(n: int, event: Any) -> Mutation:
    """Put an event, or a copy of the one of a number, before another."""
    return lambda events: events.insert(n, copy.deepcopy(events[event] if isinstance(event, int)
                                                         else event))  # fmt: skip


def swap(n: int, m: int) -> Mutation:
    """Exchange two events."""

    def mutate(events: Events) -> None:
        events[n], events[m] = events[m], events[n]

    return mutate


def cut(n: int) -> Mutation:
    """End the stream before an event."""
    return lambda events: events.__delitem__(slice(n, None))


def interleave(events: Events) -> None:
    """Begin the second call before the first is done."""
    first = next(n for n, e in enumerate(events) if e.get("output_index") == 2)
    events.insert(first - 1, events.pop(first))


def empty_delta(events: Events) -> None:
    """Say nothing in a delta, and all in the other."""
    events[5]["delta"] = events[4]["delta"] + events[5]["delta"]
    events[4]["delta"] = ""


def move_row(events: Events) -> None:
    """Give a delta's row to the next one's text."""
    events[5]["logprobs"] = events[4]["logprobs"] + events[5]["logprobs"]
    events[4]["logprobs"] = []


def lose_row(events: Events) -> None:
    """Leave a row out of everything but the deltas."""
    for place in (events[6], events[7]["part"], events[8]["item"]["content"][0],
                  events[9]["response"]["output"][0]["content"][0]):  # fmt: skip
        place["logprobs"] = place["logprobs"][:-1]


def second_part(n: int) -> Mutation:
    """Add a second part to the message, with this content_index."""

    def mutate(events: Events) -> None:
        part, at = text("!"), {"item_id": events[2]["item"]["id"], "output_index": 0}
        new = item_events(message(part), 0)[1:-1]
        events[8:8] = [{**event, **at, "content_index": n} for event in new]
        for item in (events[-2]["item"], events[-1]["response"]["output"][0]):
            item["content"].append(part)

    return mutate


DELTA = 4
ITEM = ("response", "output", 0)

# (sample, name, mutation, rule)
STREAM_MUTANTS: list[tuple[str, str, Mutation, str]] = [
    ("text", "another type", put(4, "type", value="response.text.delta"), "S.type"),
    ("text", "specification's reasoning", put(4, "type", value="response.reasoning.delta"),
     "S.type"),
    ("text", "queued", insert(1, {"type": "response.queued", "response": {}}), "S.type"),
    ("text", "a chunk", put(4, "type", value=None), "S.type"),
    ("text", "no item_id", drop(4, "item_id"), "S.keys"),
    ("text", "no output_index", drop(4, "output_index"), "S.keys"),
    ("text", "no content_index", drop(4, "content_index"), "S.keys"),
    ("text", "no logprobs", drop(4, "logprobs"), "S.keys"),
    ("text", "no logprobs at the end", drop(6, "logprobs"), "S.keys"),
    ("text", "delta null", put(4, "delta", value=None), "S.keys"),
    ("text", "index a text", put(4, "content_index", value="0"), "S.keys"),
    ("text", "choices", put(4, "choices", value=[]), "S.keys"),
    ("calls", "content_index of a call", put(10, "content_index", value=0), "S.keys"),
    ("failed", "flat error", drop(6, "error"), "S.keys"),
    ("text", "from 1", lambda e: [x.update(sequence_number=n + 1) for n, x in enumerate(e)],
     "S.sequence"),
    ("text", "one twice", put(4, "sequence_number", value=3), "S.sequence"),
    ("text", "a gap", put(9, "sequence_number", value=12), "S.sequence"),
    ("text", "a text for a number", put(4, "sequence_number", value="4"), "S.sequence"),
    ("text", "no created", drop(0), "S.opening"),
    ("text", "no in_progress", drop(1), "S.opening"),
    ("text", "the other order", swap(0, 1), "S.opening"),
    ("text", "created twice", insert(2, 0), "S.opening"),
    ("text", "in_progress later", insert(5, 1), "S.opening"),
    ("text", "output first", put(0, "response", "output", value=[message(text())]), "S.empty"),
    ("text", "usage first", put(1, "response", "usage", value={}), "S.empty"),
    ("text", "completed first", put(0, "response", "status", value="completed"), "S.empty"),
    ("text", "ended first", put(0, "response", "completed_at", value=1741476778), "S.empty"),
    ("text", "no model first", drop(0, "response", "model"), "R.keys"),
    ("text", "new id", put(9, "response", "id", value="resp_0123456789"), "S.constant"),
    ("text", "new time", put(1, "response", "created_at", value=1741476776), "S.constant"),
    ("said", "user forgotten", drop(1, "response", "user"), "S.constant"),
    ("text", "no end", cut(9), "S.terminal"),
    ("text", "two ends", insert(9, 9), "S.terminal"),
    ("text", "more behind the end", insert(10, 4), "S.terminal"),
    ("text", "nothing", cut(0), "S.opening"),
    ("text", "a false failure", put(9, "type", value="response.failed"), "S.status"),
    ("cut", "a false completed", put(-1, "type", value="response.completed"), "S.status"),
    ("failed", "no error", drop(-2), "S.failed"),
    ("failed", "error last", swap(-2, -1), "S.failed"),
    ("failed", "another code", put(-2, "code", value="timeout"), "S.failed"),
    ("failed", "a code lost", lambda e: [each.update(code="context_length_exceeded")
                                         for each in (e[-2], e[-2]["error"])], "S.failed"),
    ("failed", "another message", put(-1, "response", "error", "message", value="x"), "S.failed"),
    ("failed", "error twice", insert(-1, -2), "S.failed"),
    ("text", "error amid", insert(5, SAMPLES["failed"].events[-2]), "S.failed"),
    ("failed", "a chat's name", lambda e: [each.update(param="messages[0]")
                                           for each in (e[-2], e[-2]["error"])], "error.names"),
    ("failed", "error without a type", drop(-2, "error", "type"), "12.shape"),
    ("text", "item at 1", lambda e: [x.update(output_index=1) for x in e[2:9]], "S.index"),
    ("calls", "items at one place", put(9, "output_index", value=0), "S.index"),
    ("calls", "interleaved", interleave, "S.one"),
    ("text", "added as done", put(2, "item", "status", value="completed"), "S.added"),
    ("text", "added full", put(2, "item", "content", value=[text()]), "S.added"),
    ("cut call", "added with arguments", put(2, "item", "arguments", value="{"), "S.added"),
    ("custom", "added with input", put(2, "item", "input", value="x"), "S.added"),
    ("text", "added without role", drop(2, "item", "role"), "item.keys"),
    ("text", "no item", drop(2), "S.item"),
    ("text", "another item's", put(4, "item_id", value="msg_0123456789"), "S.item"),
    ("text", "another place", put(4, "output_index", value=1), "S.item"),
    ("text", "another item done", put(8, "item", "id", value="msg_0123456789"), "S.item"),
    ("text", "part at 1", lambda e: [x.update(content_index=1) for x in e[3:8]],
     "S.content_index"),
    ("text", "a delta of another", put(4, "content_index", value=1), "S.content_index"),
    ("text", "two parts at 0", second_part(0), "S.content_index"),
    ("text", "a gap of parts", second_part(2), "S.content_index"),
    ("text", "no part", drop(3), "S.part"),
    ("text", "part added full", put(3, "part", "text", value="Hi"), "S.part"),
    ("text", "part twice", insert(4, 3), "S.part"),
    ("text", "a delta behind its part", swap(5, 7), "S.part"),
    ("scored", "part added with rows", put(3, "part", "logprobs", value=[{}]), "S.part"),
    ("text", "a refusal's delta", lambda e: [e[4].update(type="response.refusal.delta"),
                                             e[4].pop("logprobs")], "S.kind"),
    ("refusal", "part of text", put(3, "part", value=text("")), "S.kind"),
    ("custom", "arguments", put(3, "type", value="response.function_call_arguments.delta"),
     "S.kind"),
    ("text", "empty delta", empty_delta, "S.delta"),
    ("cut call", "empty delta of a call", insert(3, {**SAMPLES["cut call"].events[3], "delta": ""}),
     "S.delta"),
    ("text", "a delta lost", drop(4), "S.whole"),
    ("text", "a delta twice", insert(5, 4), "S.whole"),
    ("text", "the other order of deltas", swap(4, 5), "S.whole"),
    ("text", "another text", put(6, "text", value="Ho"), "S.whole"),
    ("text", "another part", put(7, "part", "text", value="Ho"), "S.whole"),
    ("text", "new annotations", put(7, "part", "annotations", value=[{}]), "S.whole"),
    ("calls", "arguments cut", put(12, "arguments", value="{"), "S.whole"),
    ("calls", "another name", put(12, "name", value="get_time"), "S.whole"),
    ("custom", "input cut", put(5, "input", value="*"), "S.whole"),
    ("scored", "rows lost", put(6, "logprobs", value=[]), "S.rows"),
    ("scored", "row lost at the end", lose_row, "S.rows"),
    ("scored", "another number", put(4, "logprobs", 0, "logprob", value=-0.5), "S.rows"),
    ("scored", "row apart from its text", move_row, "7.chunk"),
    ("text", "unasked rows", put(4, "logprobs", value=SAMPLES["scored"].events[4]["logprobs"]),
     "logprobs.unasked"),
    ("text", "no text done", drop(6), "S.order"),
    ("text", "text done twice", insert(7, 6), "S.order"),
    ("text", "no part done", drop(7), "S.order"),
    ("text", "no item done", drop(8), "S.order"),
    ("text", "part done, then text", swap(6, 7), "S.order"),
    ("text", "a delta behind its text", swap(5, 6), "S.order"),
    ("cut call", "no arguments done", drop(-3), "S.order"),
    ("cut call", "arguments done twice", insert(-2, -3), "S.order"),
    ("text", "another item at its end", put(8, "item", "role", value="user"), "S.item_done"),
    ("text", "item without its text", put(8, "item", "content", value=[]), "S.item_done"),
    ("calls", "call renamed", put(13, "item", "name", value="get_time"), "S.item_done"),
    ("text", "still in progress", put(8, "item", "status", value="in_progress"), "item.status"),
    ("text", "nothing at the end", put(9, "response", "output", value=[]), "S.final"),
    ("text", "another text at the end", put(9, *ITEM, "content", 0, "text", value="Ho"), "S.final"),
    ("calls", "order at the end", lambda e: e[-1]["response"]["output"].reverse(), "S.final"),
    ("failed", "items of nobody", put(-1, "response", "output", value=[
        message(text(), status="incomplete")] * 2), "S.final"),
    ("text", "a wrong sum at the end", put(9, "response", "usage", "total_tokens", value=1),
     "R.sum"),
]  # fmt: skip

FRAMING_MUTANTS: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("BOM", lambda d: b"\xef\xbb\xbf" + d, "S.framing"),
    ("CRLF", lambda d: d.replace(b"\n", b"\r\n"), "S.framing"),
    ("one newline", lambda d: d.replace(b"\n\n", b"\n", 1), "S.framing"),
    ("cut", lambda d: d[:-1], "S.framing"),
    ("cut more", lambda d: d[:-2], "S.framing"),
    ("blank lines", lambda d: d.replace(b"\n\n", b"\n\n\n", 1), "S.framing"),
    ("id line", lambda d: b"id: 1\n" + d, "S.framing"),
    ("no space", lambda d: d.replace(b"data: ", b"data:", 1), "S.framing"),
    ("a comment amid", lambda d: d.replace(b"\ndata", b"\n: x\ndata", 1), "S.framing"),
    ("an event alone", lambda d: b"event: ping\n\n" + d, "S.framing"),
    ("two data lines", lambda d: d.replace(b'"object"', b'\ndata: "object"', 1), "S.framing"),
    ("no event line", lambda d: d.replace(b"event: response.created\n", b""), "S.event"),
    ("another event", lambda d: d.replace(b"event: response.created", b"event: message"),
     "S.event"),
    ("an end", lambda d: d + b"data: [DONE]\n\n", "S.done"),
    ("an end with a name", lambda d: d + b"event: done\ndata: [DONE]\n\n", "S.done"),
    ("NaN", lambda d: d.replace(b'"top_p": 1.0', b'"top_p": NaN', 1), "json"),
    ("nothing", lambda d: b"", "S.terminal"),
]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_conforming_response_stream_passes(name: str) -> None:
    sample = SAMPLES[name]
    found = check_response_stream(sse_events(sample.events), sample.request, sample.facts)
    assert found == []


@pytest.mark.parametrize(
    ("sample", "mutate", "rule"),
    [pytest.param(s, m, r, id=f"{s}-{n}") for s, n, m, r in STREAM_MUTANTS],
)
def test_response_stream_mutant_is_refused(sample: str, mutate: Mutation, rule: str) -> None:
    good = SAMPLES[sample]
    events = copy.deepcopy(good.events)
    mutate(events)
    assert events != good.events
    found = check_response_stream(sse_events(events), good.request)
    assert rule in {v.rule for v in found}, found


@pytest.mark.parametrize(
    ("mutate", "rule"), [pytest.param(m, r, id=n) for n, m, r in FRAMING_MUTANTS]
)
def test_framing_mutant_of_a_response_is_refused(
    mutate: Callable[[bytes], bytes], rule: str
) -> None:
    good = sse_events(SAMPLES["text"].events)
    data = mutate(good)
    assert data != good
    found = check_response_stream(data, SAMPLES["text"].request)
    assert rule in {v.rule for v in found}, found


def test_comments_pass_between_events() -> None:
    good = sse_events(SAMPLES["text"].events)
    kept = b": keepalive\n\n" + good.replace(b"\n\nevent", b"\n\n: x\n\nevent") + b": repairs a\n\n"
    assert kept.count(b": x") > 5
    assert check_response_stream(kept, SAMPLES["text"].request) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_fold_of_a_response_stream_is_the_body(name: str) -> None:
    sample = SAMPLES[name]
    folded = fold_response_stream(sse_events(sample.events))
    assert folded == sample.body
    assert check_response(folded, sample.request, sample.facts) == []


@pytest.mark.parametrize(
    ("name", "mutate"),
    [
        ("text", put(4, "delta", value="Ho")),
        ("calls", put(10, "delta", value="[")),
        ("scored", put(4, "logprobs", 0, "logprob", value=-1.5)),
        ("reasoning", drop(4)),
        ("refusal", drop(5)),
        ("custom", drop(3)),
    ],
)
def test_fold_sees_a_difference_in_the_deltas(name: str, mutate: Mutation) -> None:
    sample = SAMPLES[name]
    events = copy.deepcopy(sample.events)
    mutate(events)
    folded = fold_response_stream(sse_events(events))
    assert comparable_response(folded) != comparable_response(sample.body)
