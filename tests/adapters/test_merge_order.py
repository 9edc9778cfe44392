"""Several answers as one, whatever order their bytes come in: one body, one stream, one failure."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.answers import Json, ask, chunk, counted, data, end, entry, role, say
from tests.conformance import check_body, check_stream
from tests.corpus import checked_request
from tests.examples import examples
from tests.fold import comparable, fold, payloads
from tests.replay import exchange
from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.events import Fault
from wellspoken.adapters.merge import Merge
from wellspoken.adapters.translate import StreamTranslator

DONE = b"data: [DONE]\n\n"
PROMPT = 7

TEXTS = st.lists(st.text("ab #\u00e9", min_size=1, max_size=3), min_size=1, max_size=4)
CALLS = st.sampled_from([None, "f"])


@st.composite
def answers(draw: st.DrawFn) -> list[tuple[list[str], str | None]]:
    """Draw what each choice says: its tokens, and the tool it calls after them."""
    return draw(st.lists(st.tuples(TEXTS, CALLS), min_size=2, max_size=4))


def sent(tokens: list[str], tool: str | None, logprobs: bool) -> bytes:
    """Return the backend's stream of one answer, whose only choice has index 0."""
    parts: list[Any] = [role()]
    for place, token in enumerate(tokens):
        lp = {"content": [entry(token, -1.0 - place)], "refusal": None} if logprobs else None
        parts.append(say(token, logprobs=lp))
    if tool is not None:
        function = {"name": tool, "arguments": "{}"}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        parts.append(chunk({"tool_calls": [call]}))
    parts.append(end("stop" if tool is None else "tool_calls"))
    parts.append(counted(prompt_tokens=PROMPT, completion_tokens=len(tokens)))
    return b"".join(map(data, parts)) + DONE


def request(n: int, logprobs: bool, stream: bool) -> Json:
    function = {"name": "f", "parameters": {"type": "object"}}
    asked = ask(n=n, logprobs=logprobs, tools=[{"type": "function", "function": function}])
    if stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return asked


def translator(asked: Json, *, fold: bool) -> StreamTranslator:
    whole = exchange(asked)
    sources = [BackendAnswer(whole.part(None)) for _ in range(whole.n)]
    merge = Merge(whole, [source.exchange for source in sources], whole.n)
    return StreamTranslator(whole, sources=sources, merge=merge, fold=fold)


def pieces(draw: st.DataObject, streams: list[bytes]) -> list[tuple[int, bytes]]:
    """Draw how the streams are cut, and in which order the pieces of all of them come."""
    queues = []
    for stream in streams:
        size = len(stream)
        cuts = draw.draw(st.lists(st.integers(1, size - 1), max_size=6, unique=True))
        edges = [0, *sorted(cuts), size]
        queues.append([stream[a:b] for a, b in pairwise(edges)])
    order = [place for place, queue in enumerate(queues) for _ in queue]
    return [(place, queues[place].pop(0)) for place in draw.draw(st.permutations(order))]


@settings(max_examples=examples(150), deadline=None, database=None)
@given(answers(), st.booleans(), st.data())
def test_any_interleaving_is_one_answer(
    said: list[tuple[list[str], str | None]], logprobs: bool, draw: st.DataObject
) -> None:
    streams = [sent(tokens, tool, logprobs) for tokens, tool in said]
    order = pieces(draw, streams)
    asked, folded = request(len(said), logprobs, True), request(len(said), logprobs, False)
    streaming, whole = translator(asked, fold=False), translator(folded, fold=True)
    out = b"".join(streaming.feed(piece, place) for place, piece in order)
    assert not any(whole.feed(piece, place) for place, piece in order)
    assert streaming.done and whole.done and out.count(DONE) == 1
    body = whole.answer().body
    assert check_stream(out, checked_request(asked)) == []  # first appearances 0, 1, 2, ... too
    assert check_body(body, checked_request(folded)) == []
    answer = json.loads(body)
    assert comparable(fold(out), usage=True) == comparable(answer, usage=True)
    for choice, (tokens, tool) in zip(answer["choices"], said, strict=True):
        assert choice["message"]["content"] == "".join(tokens)
        assert ("tool_calls" in choice["message"]) == (tool is not None)
        if logprobs:
            rows = choice["logprobs"]["content"]
            assert [row["logprob"] for row in rows] == [-1.0 - at for at in range(len(tokens))]
    completion = sum(len(tokens) for tokens, _ in said)
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (PROMPT, completion)


FAILURES = st.sampled_from(["error event", "cut", "connection"])


@settings(max_examples=examples(150), deadline=None, database=None)
@given(answers(), FAILURES, st.data())
def test_one_that_fails_fails_the_answer_cleanly(
    said: list[tuple[list[str], str | None]], how: str, draw: st.DataObject
) -> None:
    """One error and nothing behind it, however far the others are; a body is the error alone."""
    streams = [sent(tokens, tool, False) for tokens, tool in said]
    order = pieces(draw, streams)
    failing = draw.draw(st.integers(0, len(said) - 1))
    own, fed = [], 0
    for at, (place, piece) in enumerate(order):
        if place == failing:
            if fed < streams[failing].index(b'"finish_reason": "'):  # so it is not complete
                own.append(at)
            fed += len(piece)
    at = draw.draw(st.sampled_from(own))
    asked, folded = request(len(said), False, True), request(len(said), False, False)
    for made in (translator(asked, fold=False), translator(folded, fold=True)):
        out = b""
        for place, piece in order[:at]:
            out += made.feed(piece, place)
        begun = made.started
        if how == "error event":
            out += made.feed(b'\n\ndata: {"error": {"message": "no", "code": 500}}\n\n', failing)
        elif how == "cut":
            out += made.close(failing)
        else:
            out += made.fail(Fault(502, "gone"), failing)
        assert made.fault is not None and made.done
        for place, piece in order[at:]:
            assert made.feed(piece, place) == b""
        if made.body is not None:
            answer = made.answer()
            assert answer.status >= 500 and set(json.loads(answer.body)) == {"error"}
            continue
        assert DONE not in out
        errors = [x for x in payloads(out) if "error" in json.loads(x)]
        assert len(errors) == int(begun)  # where nothing was written a proper answer is still due
        assert not begun or list(payloads(out))[-1] == errors[0]
