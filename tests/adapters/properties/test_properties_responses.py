"""Whatever comes of a backend, as a response it conforms, and its stream amounts to its body."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.adapters.properties.deviations import DEVIATIONS
from tests.adapters.properties.generators import cases
from tests.adapters.properties.test_properties import few
from tests.conformance import Facts
from tests.conformance.responses import (
    check_response,
    check_response_stream,
    comparable_response,
    fold_response_stream,
)
from tests.conforming_responses import CUSTOM
from tests.replay import at_random
from tests.responses_replay import as_response_request, response_exchange
from wellspoken.adapters.events import (
    Alternative,
    End,
    Entry,
    Event,
    Fault,
    Finish,
    Logprobs,
    Reason,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator
from wellspoken.adapters.writers.response_body import ResponseBody
from wellspoken.adapters.writers.response_replay import replay_response
from wellspoken.adapters.writers.response_stream import ResponseStream

Json = dict[str, Any]

ASKED: Json = {
    "model": "m",
    "input": "Hi",
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 1,
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}, CUSTOM],
}
REASONS: list[Reason] = ["stop", "length", "tool_calls", "content_filter"]
pieces = st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1, max_size=4)


def conforms(body: bytes, stream: bytes, asked: Json, facts: Facts | None = None) -> Json:
    """Check a body, the stream of the same answer, and the body streamed again; return the body."""
    for found in (
        check_response(body, asked, facts),
        check_response_stream(stream, asked, facts),
        check_response_stream(replay_response(body), asked, facts),
    ):
        assert found == [], (body, stream)
    answer: Json = json.loads(body)
    assert comparable_response(fold_response_stream(stream)) == comparable_response(answer)
    assert fold_response_stream(replay_response(body)) == answer
    return answer


# --- through the whole translation ------------------------------------------------------------


def translated(asked: Json, streamed: bool, raw: bytes, seed: int) -> bytes:
    """Return what comes of a backend's answer."""
    translator = StreamTranslator(response_exchange(asked), fold="stream" not in asked)
    if streamed:
        out = b"".join(translator.feed(piece) for piece in at_random(raw, seed))
        out += translator.close()
    else:
        out = translator.whole(200, "application/json", raw)
    if translator.missing_counts() is not None:
        out += translator.add_counts(NOTHING)
    assert translator.fault is None
    return out if "stream" in asked else translator.answer().body


@pytest.mark.parametrize("name", ["none", *DEVIATIONS])
@few
@given(data=st.data())
def test_a_deviating_answer_conforms_as_a_response(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(*([DEVIATIONS[name]] if name in DEVIATIONS else [])))
    seed, raw = data.draw(st.integers(0, 99)), case.raw()
    forms = [as_response_request(case.request(), stream=stream) for stream in (False, True)]
    body, stream = (translated(asked, case.streamed, raw, seed) for asked in forms)
    facts = case.facts()
    if case.streamed and not case.include_usage:  # the backend told none
        facts = replace(facts, usage=None)
    answer = conforms(body, stream, forms[1], facts)
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    assert [(c["name"], json.loads(c["arguments"])) for c in calls] == case.calls
    thoughts = [item["content"] for item in answer["output"] if item["type"] == "reasoning"]
    said = "".join(part["text"] for content in thoughts for part in content)
    assert said == (case.reasoning or "")


# --- the writers by themselves ----------------------------------------------------------------


def scored(text: str) -> Logprobs:
    """Return the one entry of a text."""
    data = Raw(json.dumps(list(text.encode())).encode())
    return Logprobs([Entry(text, -0.5, data, [Alternative(text, -0.5, data)])], True)


@st.composite
def runs(draw: st.DrawFn) -> list[Event]:
    """Draw what one choice says, in an order that no backend has to keep to."""
    events: list[Event] = []
    count = 0
    for kind in draw(st.lists(st.sampled_from(["think", "say", "refuse", "f", "c"]), max_size=6)):
        parts = draw(pieces)
        if kind in "fc":
            key = "input" if kind == "c" else "x"
            parts = _cut(draw, json.dumps({key: "".join(parts)}))
            name = str(CUSTOM["name"]) if kind == "c" else "f"
            first = ToolDelta(0, count, f"call_{count}", name, parts[0])
            events += [first, *(ToolDelta(0, count, None, None, part) for part in parts[1:])]
            count += 1
        elif kind == "think":
            events += [Reasoning(0, part) for part in parts]
        elif kind == "refuse":
            events += [Refusal(0, part) for part in parts]
        else:
            events += [Text(0, part, scored(part) if part else None) for part in parts]
    return events


def _cut(draw: st.DrawFn, text: str) -> list[str]:
    place = draw(st.integers(0, len(text)))
    return [text[:place], text[place:]]


@few
@given(said=runs(), reason=st.sampled_from(REASONS), cuts=st.sets(st.integers(0, 30)))
def test_any_events_are_written_as_a_response(
    said: list[Event], reason: Reason, cuts: set[int]
) -> None:
    events = [Start("chatcmpl-12345678", 1, "m"), *said, Finish(0, reason), Usage(3, 9), End(True)]
    body = ResponseBody(response_exchange(ASKED))
    body(list(events))
    asked = {**ASKED, "stream": True}
    stream = ResponseStream(response_exchange(asked))
    places = [0, *sorted(n for n in cuts if 0 < n < len(events)), len(events)]
    groups = [events[a:b] for a, b in itertools.pairwise(places)]
    out = b"".join(stream(group) for group in groups)
    answer = conforms(body.body(), out, asked)
    assert json.loads(stream.body()) == answer
    texts = "".join(event.text for event in said if isinstance(event, Text))
    messages = [item for item in answer["output"] if item["type"] == "message"]
    parts = [part for item in messages for part in item["content"]]
    assert "".join(part.get("text", "") for part in parts) == texts


@few
@given(said=runs(), code=st.sampled_from([None, "upstream_cut", "context_length_exceeded"]))
def test_any_events_before_a_failure_are_written(said: list[Event], code: str | None) -> None:
    asked = {**ASKED, "stream": True}
    stream = ResponseStream(response_exchange(asked))
    fault = Fault(502, "The server went away.", code=code)
    out = b"".join(stream([event]) for event in [Start("chatcmpl-12345678", 1, "m"), *said, fault])
    if not stream.started:
        assert out == b""
        return
    found = check_response_stream(out, asked)
    assert found == [], out
    folded = fold_response_stream(out)
    assert folded["status"] == "failed"
    assert folded == json.loads(stream.body())
