"""The hot lane is a short way, never another one: with it and without, a stream comes out the same.

The same is each write's bytes, what is noted the usage, and how it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.adapters.properties.mutations import mutants, scored
from tests.adapters.properties.test_properties import few
from tests.bench.data import Source
from tests.bench.forms import FORMS
from tests.corpus import Fixture, fixtures
from tests.examples import examples
from tests.replay import SPLITS, exchange, surroundings
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.lane import Lane
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator

Json = dict[str, Any]
Draw = Callable[..., Any]
STREAMS = [x for x in fixtures() if x.streamed and x.for_stream and x.status < 400]
TOKENS = ["a", " b", "é", "\n", " ", "you", "\ufffd", "", "token_id:7", "</s>", "7", "你"]
ENVELOPE = {
    "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
    "object": "chat.completion.chunk",
    "created": 1_741_570_283,
    "model": "m",
}


def outcome(make: Callable[[], Exchange], reads: Iterable[bytes], *, lane: bool) -> list[Any]:
    """Return all that can be seen of a translated stream."""
    asked = make()
    translator = StreamTranslator(asked)
    if not lane:
        translator.lane = None
    source = translator.sources[0]
    found: list[Any] = []
    for data in reads:
        found.append((translator.feed(data), translator.written, translator.started))
        found.append((translator.done, translator.fault, source.ended, source.clean))
    found.append(translator.close())
    if translator.missing_counts() is not None:
        found.append(translator.add_counts(NOTHING))
    notes, result = asked.notes, asked.result
    found += [notes.counts, notes.fields, notes.changes]
    return [*found, result.id, result.reasons, result.usage, result.usage_source]


def agree(make: Callable[[], Exchange], reads: list[bytes]) -> None:
    """Check that both ways tell the same."""
    assert outcome(make, reads, lane=True) == outcome(make, reads, lane=False)


numbers = st.one_of(
    st.floats(-20, 0).map(lambda x: round(x, 3)),
    st.sampled_from([0, -0.0, -9999, -1e-9, 0.5, -3.4e38, None, "x", -1, -123456789.125]),
)
some = st.floats(-20, 0).map(lambda x: round(x, 3))
tokens = st.sampled_from(TOKENS)


@st.composite
def rows(draw: Draw, value: Any, own: str) -> Json:
    """Draw an entry or alternative of the chat shape."""
    token = draw(st.one_of(st.just(own), st.just(own), tokens))
    row: Json = {"token": token, "logprob": draw(value)}
    told = draw(st.sampled_from(["own"] * 8 + ["none", "null", "other", "text"]))
    if told != "none":
        others = {"null": None, "other": [226, 128], "text": token}
        row["bytes"] = others.get(told, list(token.encode()))
    if draw(st.integers(0, 9)) == 0:
        row["id"] = draw(st.integers(0, 3))
    return row


@st.composite
def entries(draw: Draw, text: str, value: Any) -> list[Json]:
    """Draw the entries of a text, which are mostly one that is just that."""
    cut = draw(st.sampled_from([0, 0, 0, 0, 1]))
    found = []
    for token in filter(None, (text[:cut], text[cut:])) if text else [draw(tokens)]:
        entry = draw(rows(value, token))
        top = [draw(rows(value, x)) for x in draw(st.lists(tokens, max_size=3))]
        if draw(st.integers(0, 4)):
            top.sort(key=lambda x: x["logprob"] if isinstance(x["logprob"], float) else 0.0)
            top.reverse()
        entry["top_logprobs"] = [{**entry}, *top] if draw(st.booleans()) else top
        entry["top_logprobs"] = [
            {k: v for k, v in x.items() if k != "top_logprobs"} for x in entry["top_logprobs"]
        ]
        found.append(entry)
    return found


@st.composite
def arrays(draw: Draw, text: str, value: Any) -> Json:
    """Draw the completions endpoint's arrays."""
    top = {text: draw(value), **{x: draw(value) for x in draw(st.lists(tokens, max_size=3))}}
    if draw(st.integers(0, 5)) == 0:
        del top[text]
    form = draw(st.sampled_from(["tops", "tops", "all", "all", "none", "short", "two"]))
    if form == "tops":
        return {"top_logprobs": [top]}
    found: Json = {
        "tokens": [text],
        "token_logprobs": [draw(value)],
        "top_logprobs": [top],
        "text_offset": [0],
    }
    if form == "none":
        found["top_logprobs"] = None
    elif form == "short":
        found["tokens"] = []
    elif form == "two":
        found = {k: v * 2 for k, v in found.items()}
    return found


@st.composite
def logprobs(draw: Draw, text: str) -> Json:
    """Draw a choice's `logprobs`, if it has the key."""
    value = draw(st.sampled_from([some, some, some, numbers]))
    form = draw(st.sampled_from(["content"] * 4 + ["arrays"] * 3 + ["null", "absent", "both"]))
    if form == "absent":
        return {}
    if form == "null":
        return {"logprobs": None}
    found = draw(arrays(text, value)) if form in ("arrays", "both") else {}
    if form in ("content", "both"):
        found["content"] = draw(entries(text, value))
        if draw(st.booleans()):
            found["refusal"] = None
    return {"logprobs": found}


CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}
CHOICE_KEYS: list[Json] = [
    {"token_ids": None},
    {"token_ids": [1]},
    {"stop_reason": None},
    {"stop_reason": "x"},
    {"index": 1},
    {"finish_reason": "length"},
    {"finish_reason": "weird"},
    {"odd": 1},
    {"delta": {}},
    {"delta": {"content": ""}},
    {"delta": {"role": "assistant", "content": "r"}},
    {"delta": {"content": "x", "reasoning_content": "t"}},
    {"delta": {"reasoning": "t"}},
    {"delta": {"content": "x", "refusal": None}},
    {"delta": {"tool_calls": [CALL]}},
    {"delta": {"content": None}},
    {"delta": {"content": [{"type": "text", "text": "p"}]}},
]
TOP_KEYS: list[Json] = [
    {"id": "chatcmpl-otherone1"},
    {"created": 1_741_570_284},
    {"model": "n"},
    {"model": 1},
    {"system_fingerprint": "fp"},
    {"system_fingerprint": "other"},
    {"system_fingerprint": None},
    {"system_fingerprint": ""},
    {"service_tier": "default"},
    {"service_tier": None},
    {"obfuscation": "xyz"},
    {"usage": None},
    {"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}},
    {"object": "chat.completion"},
    {"timings": {"prompt_n": 1}},
    {"choices": []},
    {"choices": None},
]


@st.composite
def chunks(draw: Draw, usual: Json) -> Json:
    """Draw a chunk: mostly some content alone."""
    text = draw(st.one_of(tokens, st.sampled_from(["a", "you", " b"])))
    choice: Json = {"index": 0, "delta": {"content": text}, **draw(logprobs(text))}
    if draw(st.integers(0, 5)):
        choice["finish_reason"] = None
    if draw(st.integers(0, 7)) == 0:
        choice |= draw(st.sampled_from(CHOICE_KEYS))
    chunk = {**ENVELOPE, "choices": [choice], **usual}
    if draw(st.integers(0, 11)) == 0:
        chunk["choices"] = [choice, {**choice, "index": 1}]
    if draw(st.integers(0, 7)) == 0:
        chunk |= draw(st.sampled_from(TOP_KEYS))
    return chunk


ODD_EVENTS = [
    b": comment\n\n",
    b"\n",
    b"event: error\ndata: {}\n\n",
    b"event: message\ndata: {}\n\n",
    b'error: {"code":500,"message":"m"}\n\n',
    b"data: [DONE]\n\n",
    b"data: null\n\n",
    b'data: {"error":{"message":"m"}}\n\n',
    b"data: {\n\n",
    b"data:\n\n",
    b"id: 1\nretry: 5\n\n",
    b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}\n\n',
]


@st.composite
def written(draw: Draw, usual: Json) -> bytes:
    """Draw a server event as it is written."""
    if draw(st.integers(0, 15)) == 0:
        return bytes(draw(st.sampled_from(ODD_EVENTS)))
    chunk = draw(chunks(usual))
    data = json.dumps(chunk, ensure_ascii=draw(st.booleans()), indent=None).encode()
    odd = draw(st.integers(0, 29))
    if odd == 0:
        data = data.replace(b": ", b":\ndata: ", 1)  # a line more
    elif odd == 1:
        place = draw(st.integers(0, len(data)))
        data = data[:place] + b"\xff" + data[place:]
    elif odd == 2:
        data = data.replace(b'"index": 0', b'"index": 1, "index": 0')
    end = draw(st.sampled_from([b"\n\n"] * 9 + [b"\r\n\r\n", b"\n\n\n"]))
    front: bytes = draw(st.sampled_from([b"data: "] * 9 + [b"data:"]))
    return front + data + bytes(end)


requests = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.just([{"role": "user", "content": "x"}])},
    optional={
        "logprobs": st.just(True),
        "stream_options": st.just({"include_usage": True}),
        "service_tier": st.just("auto"),
        "stop": st.sampled_from(["you", "zzz"]),
        "max_tokens": st.sampled_from([1, 3]),
        "n": st.just(2),
        "tools": st.just([{"type": "function", "function": {"name": "f"}}]),
    },
)
USUAL: list[Json] = [{}, {}, {"usage": None}, {"system_fingerprint": "fp"}]


@st.composite
def streams(draw: Draw) -> tuple[Json, Json, list[bytes]]:
    """Draw a request, what more its exchange has, and a backend's reads."""
    request = draw(requests) | {"stream": True}
    if "logprobs" in request or draw(st.booleans()):
        request |= {"logprobs": True, "top_logprobs": draw(st.integers(0, 3))}
    usual = draw(st.sampled_from(USUAL))
    role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    first = json.dumps({**ENVELOPE, "choices": [role | {"logprobs": None}], **usual}).encode()
    events = [b"data: " + first + b"\n\n", *draw(st.lists(written(usual), min_size=1, max_size=12))]
    data = b"".join(events)
    if draw(st.booleans()):
        places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
        return request, {}, [data[a:b] for a, b in pairwise([0, *places, len(data)])]
    joined = draw(st.integers(1, 4))
    reads = [b"".join(events[n : n + joined]) for n in range(0, len(events), joined)]
    return request, {"asks_usage": draw(st.booleans())}, reads


def asked(request: Json, more: Json) -> Exchange:
    """Return the exchange of a request."""
    return replace(exchange(request), **more)


@settings(few, max_examples=examples(2000))
@given(stream=streams())
def test_any_stream_comes_out_the_same(stream: tuple[Json, Json, list[bytes]]) -> None:
    request, more, reads = stream
    agree(lambda: asked(request, more), reads)


@pytest.mark.parametrize("fixture", STREAMS, ids=lambda x: f"{x.server}/{x.name}")
def test_a_recorded_stream_comes_out_the_same(fixture: Fixture) -> None:
    whole = [event + b"\n\n" for event in fixture.raw.split(b"\n\n")]
    for reads in ([fixture.raw], whole, *(list(split(fixture.raw)) for split in SPLITS.values())):
        agree(lambda: exchange(fixture.request, **surroundings(fixture)), reads)


@settings(few, max_examples=examples(400))
@given(fixture=mutants([x for x in scored() if x.streamed and x in STREAMS]))
def test_a_changed_stream_comes_out_the_same(fixture: Fixture) -> None:
    reads = [event + b"\n\n" for event in fixture.raw.split(b"\n\n")]
    agree(lambda: exchange(fixture.request, **surroundings(fixture)), reads)


@pytest.mark.parametrize("k", [0, 5])
@pytest.mark.parametrize("name", FORMS)
def test_the_servers_streams_take_the_lane(
    name: str, k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Source().answer(50, k)
    request: Json = {"model": "bench", "messages": [{"role": "user", "content": "x"}]}
    if k:
        request |= {"logprobs": True, "top_logprobs": k}
    events = FORMS[name].stream(answer).events
    taken = 0
    run = Lane.run

    def count(self: Lane, values: list[bytes], out: bytearray) -> tuple[int, Any]:
        nonlocal taken
        found = run(self, values, out)
        taken += found[0]
        return found

    monkeypatch.setattr(Lane, "run", count)
    for reads in (events, [b"".join(events)]):
        taken = 0
        agree(lambda: exchange(request | {"stream": True}), reads)
        assert taken >= 45
