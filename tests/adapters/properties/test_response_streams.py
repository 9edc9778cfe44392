"""Whatever events come, and whatever a backend sends, a response's stream conforms and is its body.

No text, argument or number that the events have is lost, and none is said twice.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from tests.adapters.properties.streams import Draw, Stream, streams
from tests.conformance import Violation
from tests.conformance.responses import check_response, check_response_stream, fold_response_stream
from tests.examples import examples
from tests.replay import exchange
from tests.response_facts import TOOLS, facts, response_exchange, stream_response, write_body
from tests.response_fold import fold_response
from wellspoken.adapters.events import (
    End,
    Entry,
    Event,
    Fault,
    Finish,
    Logprobs,
    Open,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.adapters.writers.response_replay import replay_response
from wellspoken.adapters.writers.response_stream import ResponseStream

Json = dict[str, Any]

START = Start("chatcmpl-12345678", 1, "m")
ASKED: Json = {"model": "m", "input": "Hi", "include": ["message.output_text.logprobs"]}
texts = st.text(max_size=4)
names = st.sampled_from(["g", "h", *TOOLS])
inputs = st.one_of(texts.map(lambda text: json.dumps({"input": text})), texts)
few = settings(max_examples=examples(300), database=None)


@st.composite
def scored(draw: Draw) -> Text:
    """Draw a text whose entries are its characters, some of which have no known bytes."""
    text = draw(st.text(st.sampled_from('aé你"'), max_size=3))
    rows = [
        Entry(x, -0.25, Raw(json.dumps(list(x.encode())).replace(" ", "").encode()), [])
        for x in text
    ]
    if draw(st.integers(0, 4)) == 0:
        rows = [Entry("token_id:7", -0.5, Raw(b"null"), []), *rows]
    return Text(0, text, Logprobs(rows, plain=True))


@st.composite
def calls(draw: Draw) -> list[Event]:
    """Draw a call in pieces, between which something may be said; its number is set later."""
    arguments = draw(inputs)
    places = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=3)))
    pieces = [arguments[a:b] for a, b in pairwise([0, *places, len(arguments)])]
    found: list[Event] = [ToolDelta(0, 0, "", draw(names), pieces[0])]
    for piece in pieces[1:]:
        if draw(st.integers(0, 3)) == 0:
            found.append(draw(said))
        found.append(ToolDelta(0, 0, None, None, piece))
    return found


said = st.one_of(
    texts.map(lambda text: Text(0, text)),
    scored(),
    texts.map(lambda text: Reasoning(0, text)),
    texts.map(lambda text: Refusal(0, text)),
    st.builds(Open, st.just(0)),
)
reasons = st.sampled_from(["stop", "length", "tool_calls", "content_filter"])


@st.composite
def answers(draw: Draw) -> list[Event]:
    """Draw an answer's events in the order that events have, perhaps with a failure among them."""
    parts = draw(st.lists(st.one_of(said.map(lambda event: [event]), calls()), max_size=8))
    events: list[Event] = [START, *(event for part in parts for event in part)]
    number = -1
    for place, event in enumerate(events):
        if isinstance(event, ToolDelta):
            number += event.name is not None
            id = f"call_{number}" if event.name is not None else None
            events[place] = ToolDelta(0, number, id, event.name, event.arguments)
    events += [Finish(0, draw(reasons)), Usage(draw(st.integers(0, 9)), 3), End(True)]
    if draw(st.integers(0, 2)) == 0:
        events.insert(draw(st.integers(0, len(events) - 1)), Fault(502, "It broke off."))
    return events


def until_fault(events: list[Event]) -> list[Event]:
    """Return the events that count."""
    for place, event in enumerate(events):
        if isinstance(event, Fault):
            return events[:place]
    return events


def joined(events: list[Event], kind: type[Text] | type[Reasoning] | type[Refusal]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def arguments_of(events: list[Event]) -> list[tuple[str, str]]:
    """Return each call's name at the backend, and its arguments."""
    found: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, ToolDelta):
            if event.name is not None:
                found.append((event.name, ""))
            found[-1] = (found[-1][0], found[-1][1] + event.arguments)
    return found


def as_input(arguments: str) -> str:
    """Return what a custom tool is given by these arguments."""
    try:
        told = json.loads(arguments)
    except ValueError:
        return arguments
    value = told.get("input") if isinstance(told, dict) else None
    return value if isinstance(value, str) else arguments


def check_said(response: Json, events: list[Event]) -> None:
    """Check that a response says what the events say, each thing once."""
    items = response["output"]
    parts = [part for item in items for part in item.get("content", ())]
    for kind, key, of in (
        ("output_text", "text", Text),
        ("refusal", "refusal", Refusal),
        ("reasoning_text", "text", Reasoning),
    ):
        assert "".join(x[key] for x in parts if x["type"] == kind) == joined(events, of)
    rows = [row["token"] for part in parts for row in part.get("logprobs", ())]
    lists = [event.lp for event in events if isinstance(event, Text) and event.lp is not None]
    assert rows == [entry.token for lp in lists for entry in lp.entries]
    told = [item for item in items if "call_id" in item]
    given = arguments_of(events)
    assert [item["call_id"] for item in told] == [f"call_{n}" for n in range(len(given))]
    for item, (name, arguments) in zip(told, given, strict=True):
        tool = TOOLS.get(name)
        assert item["name"] == (tool.name if tool else name)
        assert item.get("namespace") == (tool.namespace if tool else None)
        if tool and tool.custom:
            assert item["input"] == as_input(arguments)
        else:
            assert item["arguments"] == arguments


def broken(found: list[Violation]) -> list[Violation]:
    """Return the violations but those of entries by themselves, which are no writer's affair."""
    return [violation for violation in found if not violation.rule.startswith("7.")]


@few
@given(events=answers(), data=st.data())
def test_any_events_are_a_response(events: list[Event], data: st.DataObject) -> None:
    asked = response_exchange(logprobs=True)
    stream, writer = stream_response(events, asked)
    counted = until_fault(events)
    failed = len(counted) < len(events)
    body = write_body(events, asked.apart())
    assert body.fault == writer.fault and (body.fault is not None) == failed
    if not writer.started:
        assert failed and stream == b""
        assert not any(joined(counted, kind) for kind in (Text, Reasoning, Refusal))
        assert not any(isinstance(event, ToolDelta) for event in counted)
        return
    response = fold_response(stream)
    assert broken(check_response_stream(stream, ASKED)) == []
    assert fold_response_stream(stream) == response == json.loads(writer.body())
    assert body.body() == writer.body()
    check_said(response, counted)
    if failed:
        assert response["status"] == "failed"
    else:
        assert broken(check_response(body.body(), ASKED)) == []
    again = replay_response(writer.body())
    assert broken(check_response_stream(again, ASKED)) == []
    assert fold_response(again) == response
    places = sorted(data.draw(st.lists(st.integers(0, len(events)), max_size=4)))
    write = ResponseStream(asked.apart())
    parts = [events[a:b] for a, b in pairwise([0, *places, len(events)])]
    assert b"".join(map(write, parts)) == stream


def translate(stream: Stream, *, streams: bool) -> tuple[bytes, StreamTranslator]:
    """Return a random backend stream as a response; b"" for a body that failed."""
    asked = exchange({k: v for k, v in stream.request.items() if k != "n"})
    told = facts(top_logprobs=b"%d" % asked.k)
    asked = replace(asked, response=told, stream=streams, include_usage=streams, extensions="none")
    translator = StreamTranslator(asked, fold=not streams)
    out = b"".join([*map(translator.feed, stream.reads), translator.close()])
    if translator.missing_counts() is not None:
        out += translator.add_counts(NOTHING)
    if not streams and translator.fault is None:
        out = translator.answer().body
    return out, translator


@settings(max_examples=examples(200), database=None)
@given(streams())
def test_any_stream_of_a_backend_is_a_response(stream: Stream) -> None:
    out, translator = translate(stream, streams=True)
    body, whole = translate(stream, streams=False)
    assert translator.fault == whole.fault
    if not translator.started:
        assert out == b"" and translator.fault is not None
        return
    response = fold_response(out)
    request: Json = {"model": "m", "input": "Hi"}
    if stream.request.get("logprobs"):
        request |= {"include": ASKED["include"], "top_logprobs": translator.exchange.k}
    assert broken(check_response_stream(out, request)) == []
    if whole.fault is None:
        assert response == json.loads(body)
