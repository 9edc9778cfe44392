"""What the completions writers give: OpenAI's keys in OpenAI's order, exact to the byte.

The events are constructed; the shape is that of OpenAI's API reference (contract, "Emission").
"""

from __future__ import annotations

import json

import pytest
from msgspec import Raw
from openai.types import Completion

from tests.adapters.text_events import (
    HEAD,
    START,
    asked,
    body,
    entry,
    lp,
    row,
    scored,
    silent,
    written,
)
from tests.fold import payloads
from wellspoken.adapters.events import (
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Open,
    Reason,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.writers.completion_body import CompletionBody
from wellspoken.adapters.writers.completion_stream import CompletionStream


def part(text: str, reason: str = "null", index: int = 0, logprobs: str = "null") -> str:
    choice = f'{{"text":"{text}","index":{index},"logprobs":{logprobs},"finish_reason":{reason}}}'
    return f'{{"choices":[{choice}]}}'


# Bodies


def test_a_body() -> None:
    wanted = (
        '{"choices":[{"text":"Hi!","index":0,"logprobs":null,"finish_reason":"length"}],'
        '"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
    )
    assert body(asked(), Text(0, "Hi"), Text(0, "!"), Finish(0, "length")) == wanted


def test_a_body_with_logprobs_and_a_fingerprint() -> None:
    exchange = scored(2, "Say")
    writer = CompletionBody(exchange)
    said = entry("Hi", -0.1, row("Hi", -0.1), row("Yo", -2.5))
    start = Start("cmpl-12345678", 1_741_570_283, "m", "fp")
    writer([start, Text(0, "Hi", lp(said)), Finish(0, "stop"), Usage(1, 1, Raw(b'{"x":1}'))])
    raw = writer.body()
    assert raw.decode() == (
        "{" + HEAD + '"choices":[{"text":"Hi","index":0,"logprobs":{"tokens":["Hi"],'
        '"token_logprobs":[-0.1],"top_logprobs":[{"Hi":-0.1,"Yo":-2.5}],"text_offset":[3]},'
        '"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,'
        '"total_tokens":2,"prompt_tokens_details":{"x":1}},"system_fingerprint":"fp"}'
    )
    read = Completion.model_validate_json(raw).choices[0].logprobs
    assert read is not None and read.text_offset == [3] and read.tokens == ["Hi"]


def test_a_body_lists_every_choice_that_had_anything_in_order() -> None:
    answer = body(asked(n=4), Finish(2, "stop"), Text(1, "b"), Open(3), Reasoning(0, "Hm"))
    found = json.loads(answer)["choices"]
    assert [(x["index"], x["text"], x["finish_reason"]) for x in found] == [
        (0, "", None),
        (1, "b", None),
        (2, "", "stop"),
        (3, "", None),
    ]


def test_a_fault_is_the_bodys() -> None:
    writer = CompletionBody(asked())
    writer([START, Text(0, "a"), Fault(502, "x"), Text(0, "b")])
    assert writer.fault == Fault(502, "x")


def test_extras_of_a_body() -> None:
    answer = body(
        asked(),
        Extra("choice", 0, "token_ids", Raw(b"[1]")),
        Text(0, "a"),
        Extra("message", 0, "vendor", Raw(b"3")),
        Extra("choice", 0, "token_ids", Raw(b"[2]")),
        Extra("answer", None, "timings", Raw(b"4")),
        Finish(0, "stop"),
    )
    assert '"finish_reason":"stop","token_ids":[1,2],"vendor":3}]' in answer
    assert answer.endswith('"total_tokens":3},"timings":4}')


# Streams


def test_a_stream() -> None:
    found = written(asked(), Text(0, 'H"i'), Finish(0, "stop"), Usage(1, 2), End(True))
    assert found == [part('H\\"i'), part("", '"stop"'), "[DONE]"]


def test_a_stream_with_usage_and_a_fingerprint() -> None:
    writer = CompletionStream(asked(include_usage=True))
    told = Start("cmpl-12345678", 1_741_570_283, "m", "fp")
    out = writer([START, Text(0, "a"), told, Finish(0, "stop"), Usage(1, 2), End(True)])
    found = [x.decode().replace(HEAD, "") for x in payloads(out)]
    usage = '{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}'
    assert found == [
        part("a")[:-1] + ',"usage":null}',
        part("", '"stop"')[:-1] + ',"usage":null,"system_fingerprint":"fp"}',
        f'{{"choices":[],"usage":{usage},"system_fingerprint":"fp"}}',
        "[DONE]",
    ]
    assert writer.done and writer.started


def test_a_stream_with_logprobs_goes_on_counting() -> None:
    exchange = scored(0, "né", n=2)
    found = written(
        exchange,
        Text(0, "Hi", lp(entry("Hi"))),
        Text(1, "Yo!", lp(entry("Yo"), entry("!"))),
        Text(0, "", lp()),
        Text(0, " you", lp(entry(" you", -1.25))),
    )
    lists = [json.loads(x)["choices"][0]["logprobs"] for x in found]
    assert [x and x["text_offset"] for x in lists] == [[2], [2, 4], [], [4]]
    assert found[3] == part(
        " you",
        logprobs='{"tokens":[" you"],"token_logprobs":[-1.25],"top_logprobs":[{" you":-1.25}],'
        '"text_offset":[4]}',
    )


UNEVEN = {
    "text without entries before": ([Text(0, "ab"), Text(0, "cd", lp(entry("cd")))], [[4]]),
    "text without entries between": (
        [Text(0, "ab", lp(entry("ab"))), Text(0, "é"), Text(0, "c", lp(entry("c")))],
        [[2], [5]],
    ),
    "entries that are more than the text": (
        [Text(0, "ab", lp(entry("abcd"), entry("e"))), Text(0, "c", lp(entry("c")))],
        [[2, 4], [4]],
    ),
    "entries that are less than the text": (
        [Text(0, "abc", lp(entry("a"))), Text(0, "d", lp(entry("d")))],
        [[2], [5]],
    ),
    "a character that never came": (
        [Text(0, "\ufffd", lp(entry(b"\xf0\x9f"))), Text(0, "ab", lp(entry("a"), entry("b")))],
        [[2], [3, 4]],
    ),
    "entries behind all of the text": (
        [Text(0, "ab"), Text(0, "c"), Text(0, "", lp(entry("ab"), entry("c")))],
        [[2, 4]],
    ),
    "an entry of text before, too": ([Text(0, "Hel"), Text(0, "lo", lp(entry("Hello")))], [[2]]),
    "a text that nobody tells": (
        [Text(0, "ab"), Text(0, "c", lp(silent("token_id:7"))), Text(0, "d", lp(entry("d")))],
        [[2], [5]],
    ),
}


@pytest.mark.parametrize("name", UNEVEN)
def test_an_offset_is_where_its_text_stands_whatever_has_entries(name: str) -> None:
    """The mutant that counts what has entries alone is behind the text (L.offset)."""
    events, offsets = UNEVEN[name]
    found = [json.loads(x)["choices"][0]["logprobs"] for x in written(scored(0, "né"), *events)]
    assert [x["text_offset"] for x in found if x] == offsets
    whole = json.loads(body(scored(0, "né"), *events))["choices"][0]["logprobs"]
    assert whole == {key: [v for x in found if x for v in x[key]] for key in whole}


def test_nothing_is_written_after_the_end_or_a_fault() -> None:
    assert written(asked(), End(True), Text(0, "Hi")) == ["[DONE]"]
    found = written(asked(), Text(0, "Hi"), Fault(502, "x"), Text(0, "more"), End(True))
    assert len(found) == 2
    assert found[1] == '{"error":{"message":"x","type":"server_error","param":null,"code":null}}'


def test_a_fault_or_an_envelope_before_everything_is_not_in_the_stream() -> None:
    writer = CompletionStream(asked(stream=True))
    assert writer([START, Open(0)]) == b"" and not writer.started
    assert writer([Fault(404, "x")]) == b""
    assert writer.fault == Fault(404, "x") and writer.done and not writer.started


def test_a_choice_that_a_higher_one_waits_for_appears_before_it() -> None:
    assert written(asked(n=2), Open(0, now=True), Text(1, "b")) == [part(""), part("b", index=1)]


def test_raw_chunks_go_out_as_they_came() -> None:
    exchange = asked(include_usage=True)
    extra = Extra("answer", None, "timings", Raw(b"1"))
    found = written(
        exchange,
        Text(0, "a", None, b'{"raw": 1}'),
        extra,
        Text(0, "b", None, b'{"raw": 2}'),
        Finish(0, "stop", raw=b'{"raw": 3}'),
        Usage(1, 2, raw=b'{"raw": 4}'),
    )
    waited = part("b")[:-1] + ',"usage":null,"timings":1}'
    assert found == ['{"raw": 1}', waited, '{"raw": 3}', '{"raw": 4}']


def test_offsets_go_on_behind_a_raw_chunk() -> None:
    exchange = scored()
    first = Text(0, "Hi", lp(entry("Hi")), b'{"raw": 1}')
    found = written(exchange, first, Text(0, "!", lp(entry("!"))))
    assert found[0] == '{"raw": 1}' and '"text_offset":[2]' in found[1]


def test_extras_go_with_the_next_chunk_of_their_choice() -> None:
    exchange = asked()
    found = written(
        exchange,
        Extra("choice", 1, "token_ids", Raw(b"[1]")),
        Extra("message", 0, "vendor", Raw(b"2")),
        Text(0, "a"),
        Text(1, "b"),
        Extra("answer", None, "timings", Raw(b"3")),
        Finish(0, "stop"),
    )
    assert found[0].endswith('"finish_reason":null,"vendor":2}]}')
    assert found[1].endswith('"finish_reason":null,"token_ids":[1]}]}')
    assert found[2].endswith('"finish_reason":"stop"}],"timings":3}')
    assert exchange.notes.counts == {}


def test_extras_that_come_too_late_are_counted() -> None:
    exchange = asked(include_usage=True)
    found = written(
        exchange,
        Finish(0, "stop"),
        Extra("answer", None, "timings", Raw(b"1")),
        Extra("choice", 0, "vendor", Raw(b"2")),
        Usage(1, 2),
        End(True),
    )
    assert json.loads(found[1])["timings"] == 1 and "vendor" not in "".join(found)
    assert exchange.notes.fields == {"vendor": 1}


# What a completions answer has no place for


STRANGE: list[Event] = [
    Reasoning(0, "Hm"),
    Refusal(0, "No", lp(entry("No"))),
    ToolDelta(0, 0, "call_1", "f", ""),
    ToolDelta(0, 0, None, None, "{}"),
    Finish(0, "tool_calls"),
]


@pytest.mark.parametrize("functions", [False, True])
def test_calls_reasoning_and_refusals_are_dropped_and_counted(functions: bool) -> None:
    for write in (written, body):
        exchange = asked(functions=functions)
        answer = "".join(write(exchange, *STRANGE))
        assert '{"text":"","index":0,"logprobs":null,"finish_reason":"stop"}' in answer
        called = "function_call" if functions else "tool_calls"
        assert exchange.notes.fields == {"reasoning_content": 1, "refusal": 1, called: 1}


def test_reasoning_that_the_reader_counted_is_not_counted_twice() -> None:
    exchange = asked(extensions="none")
    assert written(exchange, Reasoning(0, "Hm"), Finish(0, "stop")) == [part("", '"stop"')]
    assert exchange.notes.fields == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "stop"),
        ("function_call", "stop"),
        (None, "stop"),
    ],
)
def test_reasons_are_the_three_of_the_endpoint(given: Reason | None, reason: str) -> None:
    assert written(asked(), Finish(0, given)) == [part("", f'"{reason}"')]
    assert json.loads(body(asked(), Finish(0, given)))["choices"][0]["finish_reason"] == reason


def test_any_order_of_events_is_written() -> None:
    """No event crashes a writer, wherever it stands behind the envelope."""
    events: list[Event] = [*STRANGE, Open(1), Open(2, now=True), Text(2, "a"), Usage(None, 1)]
    for first in range(len(events)):
        turned = [*events[first:], *events[:first]]
        assert written(asked(n=3), *turned, End(False))[-1] == "[DONE]"
        assert [x["index"] for x in json.loads(body(asked(n=3), *turned))["choices"]] == [0, 1, 2]
