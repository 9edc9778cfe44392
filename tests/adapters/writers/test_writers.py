"""What the writers give: OpenAI's keys in OpenAI's order, exact to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.answers import (
    TOOL,
    Json,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    counted,
    end,
    entry,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.fold import payloads
from tests.replay import exchange
from wellspoken.adapters.events import (
    End,
    Event,
    Extra,
    Fault,
    Finish,
    Open,
    Reasoning,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.writers.chat_body import ChatBody
from wellspoken.adapters.writers.chat_stream import ChatStream
from wellspoken.adapters.writers.completion_stream import CompletionStream
from wellspoken.adapters.writers.objects import error_object, extra_keys, usage_object

HEAD = '"id":"chatcmpl-12345678","object":"chat.completion.chunk","created":1741570283,"model":"m",'
START = Start("chatcmpl-12345678", 1_741_570_283, "m")
ROLE = '{"role":"assistant","content":"","refusal":null}'


def written(*events: Event, **request: Any) -> list[str]:
    """Return the data of the stream's events, the envelope's keys left out."""
    writer = ChatStream(exchange(ask(stream=True, **request)))
    out = writer([START, *events])
    return [x.decode().replace(HEAD, "") for x in payloads(out)]


def part(delta: str, reason: str = "null", more: str = "", top: str = "") -> str:
    head = f'{{{top}"choices":[{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":'
    return f"{head}{reason}{more}}}]}}"


def test_a_stream() -> None:
    found = written(Text(0, "Hi"), Finish(0, "stop"), Usage(1, 2), End(True))
    assert found == [part(ROLE), part('{"content":"Hi"}'), part("{}", '"stop"'), "[DONE]"]


def test_nothing_is_written_after_the_end_or_a_fault() -> None:
    assert written(End(True), Text(0, "Hi")) == ["[DONE]"]
    found = written(Text(0, "Hi"), Fault(502, "x"), Text(0, "more"), End(True))
    assert len(found) == 3 and json.loads(found[2])["error"]["message"] == "x"


def test_a_fault_before_everything_is_not_in_the_stream() -> None:
    writer = ChatStream(exchange(ask(stream=True)))
    assert writer([Fault(404, "x")]) == b""
    assert writer.fault is not None and writer.done and not writer.started


def test_an_envelope_alone_writes_nothing() -> None:
    writer = ChatStream(exchange(ask(stream=True)))
    assert writer([START, Open(0)]) == b""
    assert not writer.started


def test_calls() -> None:
    found = written(
        ToolDelta(0, 0, "call_1", "f", ""), ToolDelta(0, 0, None, None, "{}"), tools=[TOOL]
    )
    opened = '{"role":"assistant","content":null,"refusal":null}'
    first = '{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}'
    more = '{"index":0,"function":{"arguments":"{}"}}'
    assert found == [
        part(opened),
        part(f'{{"tool_calls":[{first}]}}'),
        part(f'{{"tool_calls":[{more}]}}'),
    ]


def test_functions() -> None:
    found = written(
        ToolDelta(0, 0, "call_1", "f", ""),
        ToolDelta(0, 0, None, None, "{}"),
        functions=[{"name": "f"}],
    )
    assert found[1:] == [
        part('{"function_call":{"name":"f","arguments":""}}'),
        part('{"function_call":{"arguments":"{}"}}'),
    ]


def test_extras_go_with_the_next_chunk_of_their_choice() -> None:
    extras = [
        Extra("answer", None, "timings", Raw(b"[1]")),
        Extra("choice", 0, "token_ids", Raw(b"[2]")),
        Extra("message", 0, "vendor", Raw(b"[3]")),
        Extra("choice", 1, "token_ids", Raw(b"[4]")),
    ]
    found = written(Text(0, "a"), *extras, Text(0, "b"), Text(1, "c"))
    assert found[2].endswith(
        '"delta":{"content":"b","vendor":[3]},"logprobs":null,"finish_reason":null,"token_ids":[2]}],"timings":[1]}'
    )
    assert '"token_ids":[4]' in found[4] and '"index":1' in found[4]


def test_extras_go_with_the_last_chunks_too() -> None:
    timings = Extra("answer", None, "timings", Raw(b"1"))
    vendor = Extra("message", 0, "vendor", Raw(b"1"))
    found = written(Text(0, "a"), vendor, Finish(0, "stop"), Usage(1, 2))
    assert found[2] == part('{"vendor":1}', '"stop"')
    options = {"stream_options": {"include_usage": True}}
    found = written(Text(0, "a"), Finish(0, "stop"), timings, Usage(1, 2), **options)
    assert json.loads(found[-1])["timings"] == 1
    assert json.loads(found[-1])["usage"]["total_tokens"] == 3


@pytest.mark.parametrize("writer", [ChatStream, CompletionStream])
def test_no_reason_precedes_an_error(writer: type[ChatStream] | type[CompletionStream]) -> None:
    """A client that has one takes the answer for whole; with `n` this holds for each choice."""
    write = writer(exchange(ask(stream=True, n=2)))
    told = write([START, Text(0, "a"), Finish(0, "stop"), Text(1, "b")])
    assert b'"a"' in told and b'"b"' in told and b'"stop"' not in told
    told = write([Finish(1, "length"), Fault(502, "It broke off.")])
    assert write.done and b"It broke off." in told and b'"length"' not in told
    write = writer(exchange(ask(stream=True, n=2)))
    told = write([START, Text(0, "a"), Finish(0, "stop"), Text(1, "b"), Finish(1, "length")])
    assert b'"stop"' not in told
    told = write([End(True)])
    assert told.index(b'"stop"') < told.index(b'"length"') < told.index(b"[DONE]")


def test_extras_before_anything_do_not_take_the_role_chunks_place() -> None:
    found = written(Extra("message", 0, "vendor", Raw(b"1")), Text(0, "a"))
    assert found == [part(ROLE), part('{"content":"a","vendor":1}')]


def test_extras_wait_for_no_raw_chunk() -> None:
    """No key that waits is lost to a chunk that goes out as it came."""
    opened = f'{{{HEAD}"choices":[{{"index":0,"delta":{ROLE}}}]}}'.encode()
    found = written(Extra("answer", None, "timings", Raw(b"1")), Open(0, opened), Text(0, "a"))
    assert [json.loads(x)["choices"][0]["delta"] for x in found] == [
        json.loads(ROLE),
        {"content": "a"},
    ]
    assert sum('"timings":1' in x for x in found) == 1


def test_extras_and_entries_of_one_chunk() -> None:
    said = say("Hi", logprobs={"content": [entry("Hi")], "refusal": None})
    said["choices"][0]["token_ids"] = [7]
    got = stream([role(), said, end()], scored(return_token_ids=True))
    middle = json.loads(list(payloads(got.raw))[1])["choices"][0]
    assert middle["token_ids"] == [7]
    assert middle["logprobs"]["content"][0]["token"] == "Hi"
    assert got.repairs == {}


def test_reasoning_comes_behind_the_role() -> None:
    found = written(Reasoning(0, "Hm"), Text(0, "a"))
    assert found == [part(ROLE), part('{"reasoning_content":"Hm"}'), part('{"content":"a"}')]


def test_a_tier_and_a_fingerprint_are_of_the_envelope() -> None:
    writer = ChatStream(exchange(ask(stream=True, service_tier="auto")))
    out = writer([Start("chatcmpl-12345678", 1_741_570_283, "m", "fp"), Text(0, "a")])
    for x in payloads(out):
        assert list(json.loads(x)) == [
            "id",
            "object",
            "created",
            "model",
            "service_tier",
            "system_fingerprint",
            "choices",
        ]


def test_a_bodys_keys_are_in_openais_order() -> None:
    rows = {"content": [entry("Hi")], "refusal": None}
    said = body(completion(choice(logprobs=rows, x=1), system_fingerprint="fp"), scored())
    assert list(said.answer) == [
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        "system_fingerprint",
    ]
    assert list(said.choice) == ["index", "message", "logprobs", "finish_reason"]
    assert list(said.message) == ["role", "content", "refusal"]
    assert list(said.entries[0]) == ["token", "logprob", "bytes", "top_logprobs"]


def test_pieces_of_a_stream_become_one_body() -> None:
    """A server that streams though a body was asked for."""
    parts: list[Json] = [
        role(),
        chunk({"reasoning_content": "Hm"}),
        chunk({"reasoning_content": "."}),
        say("H"),
        say("i"),
        chunk({"tool_calls": [{"index": 0, **call(arguments='{"a"')}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        end("tool_calls"),
        counted(),
    ]
    raw = b"".join(b"data: " + json.dumps(x).encode() + b"\n\n" for x in parts)
    said = body(raw + b"data: [DONE]\n\n", ask(tools=[TOOL]))
    assert said.message == {
        "role": "assistant",
        "content": "Hi",
        "refusal": None,
        "reasoning_content": "Hm.",
        "tool_calls": [call(arguments='{"a":1}')],
    }
    assert said.repairs["stream_for_body"] == 1


@pytest.mark.parametrize("k", ["content", "refusal"])
def test_a_choice_that_opens_with_its_words_says_them(k: str) -> None:
    said = stream([chunk({k: "No"}), end()])
    assert said.message[k] == "No"


def test_a_call_behind_empty_content_has_no_content() -> None:
    said = body(completion(choice(message=message("", tool_calls=[call()]))), ask(tools=[TOOL]))
    assert said.message["content"] in ("", None)
    assert said.message["tool_calls"] == [call()]


def test_the_body_of_events_alone() -> None:
    writer = ChatBody(exchange(ask()))
    writer([START, Open(0), Text(0, "Hi"), Finish(0, "stop"), Usage(1, 2), End(True)])
    assert writer.fault is None
    wanted = (
        '{"id":"chatcmpl-12345678","object":"chat.completion","created":1741570283,"model":"m",'
        '"choices":[{"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},'
        '"logprobs":null,"finish_reason":"stop"}],'
        '"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
    )
    assert writer.body().decode() == wanted
    writer([Fault(502, "x"), Text(0, "!")])
    assert writer.fault == Fault(502, "x")


def test_shapes() -> None:
    usage = usage_object(Usage(None, 2, Raw(b'{"cached_tokens":1}')))
    assert (usage.prompt_tokens, usage.total_tokens) == (0, 2)
    assert bytes(usage.prompt_tokens_details) == b'{"cached_tokens":1}'  # type: ignore[arg-type]
    assert json.loads(error_object(Fault(400, "x", "t", "p", "c"))) == {
        "error": {"message": "x", "type": "t", "param": "p", "code": "c"}
    }


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([b"1"], ',"k":1'),
        ([b"1", b"2"], ',"k":2'),
        ([b"[1]", b"[2,3]"], ',"k":[1,2,3]'),
        ([b"[]", b"[2]"], ',"k":[2]'),
        ([b"[1]", b"[]"], ',"k":[1]'),
        ([b"[ ]", b"[1]", b"[\n]", b"[2, 3 ]", b"[ ]"], ',"k":[1,2, 3]'),
        ([b"[1]"] * 9, ',"k":[1,1,1,1,1,1,1,1,1]'),
        ([b"[1]", b"null", b"[2]"], ',"k":[2]'),
        ([b"[1]", b"2"], ',"k":2'),
        ([], ""),
    ],
)
def test_lists_that_come_in_pieces_are_joined(values: list[bytes], wanted: str) -> None:
    extras = [Extra("choice", 0, "k", Raw(value)) for value in values]
    assert extra_keys(extras).decode() == wanted
    extras = [Extra("answer", None, "k", Raw(value)) for value in values]
    assert extra_keys(extras).decode() == (f',"k":{values[-1].decode()}' if values else "")
