"""The hot lane is a short way, never another one: with it and without, a stream comes out the same.

The same is each write's bytes, what is noted the usage, and how it ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from tests.adapters.properties.mutations import mutants, scored
from tests.adapters.properties.streams import ENVELOPE, Stream, streams
from tests.adapters.properties.test_properties import few
from tests.bench.data import Source
from tests.bench.forms import FORMS
from tests.corpus import Fixture, fixtures
from tests.examples import examples
from tests.linear import linear
from tests.replay import SPLITS, exchange, surroundings
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.lane import Lane
from wellspoken.adapters.tokens.tokenize import NOTHING
from wellspoken.adapters.translate import StreamTranslator

Json = dict[str, Any]
STREAMS = [x for x in fixtures() if x.streamed and x.for_stream and x.status < 400]


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
        if source.ended:
            break
    found.append(translator.close())
    if translator.missing_counts() is not None:
        found.append(translator.add_counts(NOTHING))
    notes, result = asked.notes, asked.result
    found += [notes.counts, notes.fields, notes.changes]
    return [*found, result.id, result.reasons, result.usage, result.usage_source]


def agree(make: Callable[[], Exchange], reads: list[bytes]) -> None:
    """Check that both ways tell the same."""
    assert outcome(make, reads, lane=True) == outcome(make, reads, lane=False)


@settings(few, max_examples=examples(4000))
@given(stream=streams())
def test_any_stream_comes_out_the_same(stream: Stream) -> None:
    agree(lambda: replace(exchange(stream.request), asks_usage=stream.asks_usage), stream.reads)


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

    def count(self: Lane, values: list[bytes], begin: int, out: bytearray) -> tuple[int, Any]:
        nonlocal taken
        found = run(self, values, begin, out)
        taken += found[0] - begin
        return found

    monkeypatch.setattr(Lane, "run", count)
    for reads in (events, [b"".join(events)]):
        taken = 0
        agree(lambda: exchange(request | {"stream": True}), reads)
        assert taken >= 45


def test_tokens_are_counted_as_entries_in_the_lane() -> None:
    request: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    request |= {"logprobs": True, "top_logprobs": 0, "max_tokens": 10}
    row = {"logprob": -1.0, "top_logprobs": []}
    entries = [{"token": x, "bytes": [ord(x)], **row} for x in "ab"]
    choice = {"index": 0, "delta": {"content": "ab"}, "finish_reason": None}
    chunk = {**ENVELOPE, "choices": [choice | {"logprobs": {"content": entries, "refusal": None}}]}
    reads = [b"data: " + json.dumps(chunk).encode() + b"\n\n"] * 5 + [b"data: [DONE]\n\n"]
    made = exchange(request)
    translator = StreamTranslator(made)
    out = b"".join(map(translator.feed, reads))
    assert b'"finish_reason":"length"' in out
    assert made.notes.counts["finish_reason_missing"] == 1


def test_a_chunk_with_more_alternatives_than_asked_for_is_written_anew() -> None:
    request: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    request |= {"logprobs": True, "top_logprobs": 1}
    rows = [{"token": x, "logprob": y, "bytes": [ord(x)]} for x, y in (("a", -0.5), ("b", -1.5))]
    logprobs = {"content": [rows[0] | {"top_logprobs": rows}], "refusal": None}
    choice = {"index": 0, "delta": {"content": "a"}, "logprobs": logprobs, "finish_reason": None}
    read = b"data: " + json.dumps({**ENVELOPE, "choices": [choice]}).encode() + b"\n\n"
    translator = StreamTranslator(exchange(request))
    for _ in range(6):
        out = translator.feed(read)
        assert out and b'"b"' not in out


def _say(role: bool) -> bytes:
    delta = {"role": "assistant", "content": "a"} if role else {"content": "a"}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    return b"data: " + json.dumps({**ENVELOPE, "choices": [choice]}).encode() + b"\n\n"


def test_a_read_of_many_events_takes_linear_time() -> None:
    request: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    read = _say(True) + _say(False)
    assert linear(lambda size: StreamTranslator(exchange(request)).feed(read * size), 4000)


@pytest.mark.parametrize("at", [1, 20])
def test_a_stream_none_of_whose_texts_is_plain_leaves_the_lane(at: int) -> None:
    request: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    translator = StreamTranslator(exchange(request))
    assert translator.lane is not None
    for _ in range(20 // at):
        translator.feed(_say(True) * at)
    translator.feed(_say(False))
    assert not translator.lane.is_open
    agree(lambda: exchange(request), [_say(x > 20 and x % 3 > 0) * at for x in range(60)])


def test_an_index_that_rises_behind_two_chunks_of_a_choice_is_another_choice() -> None:
    request: Json = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}
    chunks = []
    for place, index in enumerate((0, 0, 0, 1, 2)):
        delta = {"content": "a"} if place else {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None}
        chunks.append({**ENVELOPE, "choices": [choice | {"finish_reason": None}]})
    reads = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    agree(lambda: exchange(request), reads)
