"""The choices that a first answer lacks: any interleaving of the later ones is one answer."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conformance import Request, check_stream
from tests.conforming import MODEL, chunk, finish, role
from tests.examples import examples
from tests.fakes.upstream import DONE, event
from tests.fold import fold
from tests.replay import exchange
from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.rest import Rest
from wellspoken.adapters.translate import StreamTranslator

Json = dict[str, Any]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ASKED = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "stream": True}


def pieces(index: int, *words: str) -> list[bytes]:
    """Return the events of one choice."""
    said = [chunk({"content": word}, index) for word in words]
    return [event(one) for one in (role(index), *said, finish("stop", index))]


def end(cached: int = 0) -> list[bytes]:
    """Return a usage and the end; `cached`: how much of the prompt the server still knew."""
    told = {**USAGE, "prompt_tokens_details": {"cached_tokens": cached}}
    return [event({**chunk({}), "choices": [], "usage": told}), DONE]


def shuffled(draw: st.DrawFn, queues: list[list[bytes]]) -> list[tuple[int, bytes]]:
    """Return the queues' pieces in one order of many that keeps each queue's own."""
    places = [place for place, queue in enumerate(queues) for _ in queue]
    left = [list(queue) for queue in queues]
    return [(place, left[place].pop(0)) for place in draw(st.permutations(places))]


@settings(max_examples=examples(120), deadline=None, database=None)
@given(st.data())
def test_any_interleaving_is_one_answer(data: st.DataObject) -> None:
    n = data.draw(st.integers(2, 4))
    numbers = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=5, unique=True))
    asked = exchange({**ASKED, "n": n, "stream_options": {"include_usage": True}})
    rest = Rest(asked)
    first = BackendAnswer(asked)
    translator = StreamTranslator(asked, sources=[first], merge=rest)
    said = [pieces(number, f"a{number}", f"b{number}") for number in numbers]
    out = b""
    for _, piece in data.draw(st.composite(lambda draw: shuffled(draw, said))()):
        out += translator.feed(piece)
    out += b"".join(map(translator.feed, end()))
    lacks = rest.missing
    assert len(lacks) == max(0, n - len(numbers))
    parts = [asked.part(None) for _ in lacks]
    if parts:
        rest.expect(parts)
        translator.sources = (first, *(BackendAnswer(part) for part in parts))
        # A server that gives two choices where one was asked for is heard for the first.
        more = [[*pieces(0, f"x{place}", f"y{place}"), *pieces(1, "?"), *end(2)] for place in lacks]
        for place, piece in data.draw(st.composite(lambda draw: shuffled(draw, more))()):
            out += translator.feed(piece, place + 1)
    assert translator.done and translator.fault is None
    assert check_stream(out, Request(model=MODEL, n=n, include_usage=True)) == []
    found = fold(out)
    texts = {one["message"]["content"] for one in found["choices"]}
    later = {f"x{place}y{place}" for place in lacks}
    assert later <= texts and texts - later <= {f"a{number}b{number}" for number in numbers}
    assert len(texts) == n
    assert found["usage"]["prompt_tokens"] == 3
    assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert found["usage"]["completion_tokens"] == 2 + 2 * len(lacks)
