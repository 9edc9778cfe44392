"""Several answers as one: places become choices, one envelope, one usage, the best of many."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import Raw, json
from msgspec.structs import replace

from tests.adapters.text_events import START, asked, entry, lp
from wellspoken.adapters.backend_answer import BackendAnswer
from wellspoken.adapters.events import (
    UNKNOWN,
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Start,
    Text,
    Usage,
)
from wellspoken.adapters.exchange import Exchange
from wellspoken.adapters.merge import Best, Merge, entries_in
from wellspoken.adapters.tokens.table import NULL
from wellspoken.adapters.translate import StreamTranslator


def parts_of(exchange: Exchange, source: str = "backend") -> list[Exchange]:
    parts = [exchange.part(None) for _ in range(exchange.n)]
    for part in parts:
        part.result.usage_source = source
    return parts


def answer(text: str, prompt: int, completion: int, *logprobs: float) -> list[Event]:
    """Return the events of one whole answer, its entries one for each of `logprobs`."""
    rows = lp(*(entry(text, value) for value in logprobs)) if logprobs else None
    return [
        Start("cmpl-" + text * 8, 1, "m"),
        Text(0, text, rows, b"raw"),
        Finish(0, "stop", raw=b"raw"),
        Usage(prompt, completion),
        End(True),
    ]


def texts(events: Sequence[Event]) -> dict[int, str]:
    return {event.choice: event.text for event in events if isinstance(event, Text)}


def test_places_are_choices_under_the_first_answers_envelope() -> None:
    exchange = asked(n=2)
    merge = Merge(exchange, parts_of(exchange), 2)
    events = merge(1, answer("b", 7, 2)) + merge(0, answer("a", 7, 3))
    assert [event.id for event in events if isinstance(event, Start)] == ["cmpl-bbbbbbbb"]
    assert texts(events) == {0: "a", 1: "b"}
    assert [event.choice for event in events if isinstance(event, Finish)] == [1, 0]
    # another answer's own bytes name the wrong choice and id
    assert all(event.raw is None for event in events if isinstance(event, Text | Finish))
    assert [type(event) for event in events[-2:]] == [Usage, End]
    assert sum(isinstance(event, End) for event in events) == 1


def test_each_prompt_counts_once_and_every_completion() -> None:
    exchange = asked(n=4)
    merge = Merge(exchange, parts_of(exchange), 2)
    places = ((0, 5), (1, 5), (2, 11), (3, 11))
    events = [event for place, size in places for event in merge(place, answer("x", size, 3))]
    assert exchange.result.usage == Usage(5 + 11, 4 * 3)
    assert [event for event in events if isinstance(event, Usage)] == [exchange.result.usage]


def test_details_add_up_as_the_counts_do() -> None:
    exchange = asked(n=3)
    merge = Merge(exchange, parts_of(exchange), 3)
    given = (
        Usage(5, 4, Raw(b'{"cached_tokens":3}'), Raw(b'{"reasoning_tokens":2}')),
        Usage(5, 4, Raw(b'{"cached_tokens":5}')),
        Usage(5, 4, Raw(), Raw(b'{"reasoning_tokens":1,"audio_tokens":0}')),
    )
    for place, usage in enumerate(given):
        merge(place, [usage, End(True)])
    assert exchange.result.usage is not None
    assert json.decode(exchange.result.usage.prompt_details) == {"cached_tokens": 3}
    told = json.decode(exchange.result.usage.completion_details)
    assert told == {"reasoning_tokens": 3, "audio_tokens": 0}


@pytest.mark.parametrize(
    ("sources", "worst"),
    [
        (("backend", "backend"), "backend"),
        (("backend", "tokens"), "tokens"),
        (("estimate", "tokenizer"), "estimate"),
        (("tokenizer", "tokenize"), "tokenizer"),
        (("tokenize", "backend"), "tokenize"),
    ],
)
def test_the_usage_is_as_good_as_its_worst_part(sources: tuple[str, str], worst: str) -> None:
    exchange = asked(n=2)
    parts = parts_of(exchange)
    for part, source in zip(parts, sources, strict=True):
        part.result.usage_source = source
    merge = Merge(exchange, parts, 2)
    for place in (0, 1):
        merge(place, answer("x", 1, 1))
    assert exchange.result.usage_source == worst


def test_a_fault_of_one_goes_on_at_once_and_an_extra_keeps_its_place() -> None:
    exchange = asked(n=2)
    merge = Merge(exchange, parts_of(exchange), 2)
    fault = Fault(502, "no")
    own, whole = Extra("choice", 0, "a", NULL), Extra("answer", None, "b", NULL)
    assert merge(1, [START, own, whole, fault]) == [START, own, whole, fault]
    assert (own.choice, whole.choice) == (1, None)


def best_of(scores: Sequence[Sequence[float]], n: int, each: int, **more: object) -> list[Event]:
    exchange = asked(n=n, **more)
    parts = [exchange.part(None) for _ in scores]
    for part in parts:
        part.result.usage_source = "backend"
    best = Best(exchange, parts, each)
    out: list[Event] = []
    for place, values in enumerate(scores):
        before = best(place, answer(chr(97 + place), 4, len(values), *values))
        if place + 1 < len(scores):
            assert not any(isinstance(event, Text | Finish | Usage | End) for event in before)
        out += before
    return out


def test_the_best_mean_wins_and_all_tokens_count() -> None:
    # the sum of b's is the greatest, the mean of c's
    events = best_of([[-1.0, -1.0], [-0.8], [-0.5, -0.6]], n=1, each=3, logprobs=True)
    assert texts(events) == {0: "c"}
    assert [(x.prompt, x.completion) for x in events if isinstance(x, Usage)] == [(4, 5)]


def test_the_best_n_of_each_prompt_are_its_choices_in_order() -> None:
    scores = [[-3.0], [-1.0], [-2.0], [-0.1], [-0.3], [-0.2]]
    events = best_of(scores, n=4, each=3, logprobs=True)
    assert texts(events) == {0: "b", 1: "c", 2: "d", 3: "f"}
    assert [x.choice for x in events if isinstance(x, Finish)] == [0, 1, 2, 3]
    assert [(x.prompt, x.completion) for x in events if isinstance(x, Usage)] == [(8, 6)]


def test_an_answer_whose_logprobs_are_not_known_is_the_last_choice() -> None:
    assert texts(best_of([[], [-50.0]], n=1, each=2, logprobs=True)) == {0: "b"}
    assert texts(best_of([[UNKNOWN], [-50.0]], n=1, each=2, logprobs=True)) == {0: "b"}


@pytest.mark.parametrize("wanted", [False, True])
def test_logprobs_that_were_asked_for_the_choice_alone_are_not_given(wanted: bool) -> None:
    events = best_of([[-1.0], [-2.0]], n=1, each=2, logprobs=wanted)
    (text,) = (event for event in events if isinstance(event, Text))
    assert (text.lp is not None) is wanted


def test_an_echoed_prompt_does_not_score() -> None:
    """With the prompt's entries in its mean the longer, worse answer would win."""
    exchange = asked(n=1, logprobs=True, echo=True)
    parts = [exchange.part("p") for _ in range(2)]
    prelude: list[Event] = [Text(0, "p", lp(entry("p", -90.0)))]
    assert len(entries_in(prelude)) == 1
    chosen = []
    for leading in ((1, 1), (0, 0)):
        best = Best(exchange, parts, 2, leading)
        out: list[Event] = []
        for place, values in enumerate(([-1.0], [-2.0] * 9)):
            start, *rest = answer("ab"[place], 1, len(values), *values)
            out += best(place, [start, Text(0, "p", lp(entry("p", -90.0))), *rest])
        chosen.append("".join(event.text for event in out if isinstance(event, Text)))
    assert chosen == ["pa", "pb"]


def chunk(text: str, reason: str | None = None) -> bytes:
    ends = "null" if reason is None else f'"{reason}"'
    return (
        'data: {"id":"cmpl-123456789","object":"text_completion","created":1741570283,'
        f'"model":"m","choices":[{{"text":"{text}","index":0,"logprobs":null,'
        f'"finish_reason":{ends}}}],"timings":{{"prompt_n":3,"cache_n":0,"predicted_n":1}}}}\n\n'
    ).encode()


DONE = b"data: [DONE]\n\n"


def test_a_part_whose_end_comes_with_its_stop_string_ends_once() -> None:
    """Else the whole answer would be over before the other part has said a word."""
    exchange = asked(n=2, stops=("END",), logprobs=False)
    exchange = replace(exchange, enforced=True)
    parts = parts_of(exchange)
    sources = [BackendAnswer(part, "completions") for part in parts]
    merge = Merge(exchange, parts, 2)
    translator = StreamTranslator(exchange, "completions", sources=sources, merge=merge, fold=True)
    translator.feed(chunk("aEND") + chunk("b") + chunk("", "stop") + DONE, 0)
    assert sources[0].ended and not sources[0].clean and not translator.done
    translator.feed(chunk("cE"), 1)
    translator.feed(chunk("ND") + chunk("", "stop") + DONE, 1)
    assert translator.done
    body = translator.answer().body
    assert b'"text":"a"' in body and b'"text":"c"' in body
    # each: the counts of the chunk that completed the stop string, not of what was made behind it
    assert b'"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,' in body


def test_an_answer_whose_choices_all_wait_is_not_over() -> None:
    """A later part's bytes give the client nothing yet: neither its body nor an end."""
    exchange = asked(n=2, logprobs=False)
    parts = parts_of(exchange)
    sources = [BackendAnswer(part, "completions") for part in parts]
    merge = Best(exchange, parts, 2)
    translator = StreamTranslator(exchange, "completions", sources=sources, merge=merge, fold=True)
    for place, text in ((1, "b"), (0, "a")):
        assert translator.feed(chunk(text), place) == b"" and not translator.done
    for place in (1, 0):
        translator.feed(chunk("", "stop") + DONE, place)
    assert translator.done and translator.fault is None
    body = translator.answer().body
    assert b'"text":"a"' in body and b'"text":"b"' in body
