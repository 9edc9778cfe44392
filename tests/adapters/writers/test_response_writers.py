"""What the response writers give: OpenAI's items and events, exact to the byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from tests.replay import NOW
from tests.response_facts import SUFFIX, facts, response_exchange, stream_response, write_body
from tests.response_fold import fold_response, response_events
from wellspoken.adapters.events import (
    Alternative,
    End,
    Entry,
    Event,
    Extra,
    Fault,
    Finish,
    Logprobs,
    Open,
    Reason,
    Reasoning,
    Refusal,
    Start,
    Text,
    ToolDelta,
    Usage,
)
from wellspoken.adapters.writers.response_objects import ECHOED, ResponseObject
from wellspoken.adapters.writers.response_replay import replay_response
from wellspoken.adapters.writers.response_stream import ResponseStream, fail_stream

Json = dict[str, Any]
START = Start("chatcmpl-12345678", 1, "m")
CALL = ToolDelta(0, 0, "c", "f", "{}")


def ids(prefix: str, place: int) -> str:
    return f"{prefix}_{SUFFIX}{place + 1:08x}"


def told(*events: Event, reason: Reason = "stop", **more: Any) -> list[str]:
    """Return the data of the events between the opening and the last, without type and number."""
    ends = () if isinstance(events[-1], Fault) else (Finish(0, reason), Usage(1, 2), End(True))
    exchange = response_exchange(stream=True, **more)
    stream, writer = stream_response([START, *events, *ends], exchange)
    fold_response(stream)
    assert writer.started and writer.done
    frames = stream.decode().split("\n\n")[2:-2]
    return [frame.split("\ndata: ")[1].replace('{"type":"', "", 1) for frame in frames]


def body(*events: Event, reason: Reason = "stop", **more: Any) -> tuple[Json, dict[str, int]]:
    """Return the response as a body, which the stream of the same events folds to; the notes."""
    ends = (Finish(0, reason), Usage(1, 2), End(True))
    exchange = response_exchange(**more)
    writer = write_body([START, *events, *ends], exchange)
    stream, streamed = stream_response([START, *events, *ends], exchange.apart())
    assert streamed.body() == writer.body()
    response: Json = json.loads(writer.body())
    assert fold_response(stream) == response
    return response, exchange.notes.counts


def entry(token: str, bytes: bytes | None = None) -> Entry:
    told = json.dumps(list(token.encode())).replace(" ", "").encode() if bytes is None else bytes
    return Entry(token, -0.5, Raw(told), [Alternative(token, -0.5, Raw(told))])


def scored(text: str, *entries: Entry) -> Text:
    return Text(0, text, Logprobs(list(entries), plain=True))


def test_a_message() -> None:
    own = '"token":"i","logprob":-0.5,"bytes":[105]'
    row = f'{{{own},"top_logprobs":[{{{own}}}]}}'
    id = ids("msg", 0)
    place = f'"item_id":"{id}","output_index":0,"content_index":0'
    item = f'{{"id":"{id}","type":"message","status":'
    part = '{"type":"output_text","text":'
    whole = f'{part}"Hi","annotations":[],"logprobs":[{row}]}}'
    assert told(Text(0, "H"), scored("i", entry("i"))) == [
        f'response.output_item.added","sequence_number":2,"output_index":0,"item":{item}"in_progress","role":"assistant","content":[]}}}}',
        f'response.content_part.added","sequence_number":3,{place},"part":{part}"","annotations":[],"logprobs":[]}}}}',
        f'response.output_text.delta","sequence_number":4,{place},"delta":"H","logprobs":[]}}',
        f'response.output_text.delta","sequence_number":5,{place},"delta":"i","logprobs":[{row}]}}',
        f'response.output_text.done","sequence_number":6,{place},"text":"Hi","logprobs":[{row}]}}',
        f'response.content_part.done","sequence_number":7,{place},"part":{whole}}}',
        f'response.output_item.done","sequence_number":8,"output_index":0,"item":{item}"completed","role":"assistant","content":[{whole}]}}}}',
    ]


def test_reasoning() -> None:
    id = ids("rs", 0)
    place = f'"item_id":"{id}","output_index":0,"content_index":0'
    item = f'{{"id":"{id}","type":"reasoning","summary":[],"content":'
    part = '{"type":"reasoning_text","text":"Hm"}'
    assert told(Reasoning(0, "H"), Reasoning(0, "m"), Text(0, "x"))[:7] == [
        f'response.output_item.added","sequence_number":2,"output_index":0,"item":{item}[],"status":"in_progress"}}}}',
        f'response.content_part.added","sequence_number":3,{place},"part":{{"type":"reasoning_text","text":""}}}}',
        f'response.reasoning_text.delta","sequence_number":4,{place},"delta":"H"}}',
        f'response.reasoning_text.delta","sequence_number":5,{place},"delta":"m"}}',
        f'response.reasoning_text.done","sequence_number":6,{place},"text":"Hm"}}',
        f'response.content_part.done","sequence_number":7,{place},"part":{part}}}',
        f'response.output_item.done","sequence_number":8,"output_index":0,"item":{item}[{part}],"status":"completed"}}}}',
    ]


def test_a_refusal_is_a_part_of_the_message() -> None:
    place = f'"item_id":"{ids("msg", 0)}","output_index":0,"content_index":1'
    part = '{"type":"refusal","refusal":'
    assert told(Text(0, "x"), Refusal(0, "No."))[5:9] == [
        f'response.content_part.added","sequence_number":7,{place},"part":{part}""}}}}',
        f'response.refusal.delta","sequence_number":8,{place},"delta":"No."}}',
        f'response.refusal.done","sequence_number":9,{place},"refusal":"No."}}',
        f'response.content_part.done","sequence_number":10,{place},"part":{part}"No."}}}}',
    ]


@pytest.mark.parametrize(
    ("name", "client", "namespace"), [("g", "g", ""), ("mcp_f", "f", ',"namespace":"mcp"')]
)
def test_a_call(name: str, client: str, namespace: str) -> None:
    events = [ToolDelta(0, 0, "call_1", name, "{"), ToolDelta(0, 0, None, None, '"a":1}')]
    id = ids("fc", 0)
    place = f'"item_id":"{id}","output_index":0'
    item = f'{{"id":"{id}","type":"function_call","status":'
    named = f'"call_id":"call_1","name":"{client}","arguments":'
    kind = "response.function_call_arguments"
    whole = r'"{\"a\":1}"'
    assert told(*events, reason="tool_calls") == [
        f'response.output_item.added","sequence_number":2,"output_index":0,"item":{item}"in_progress",{named}""{namespace}}}}}',
        f'{kind}.delta","sequence_number":3,{place},"delta":"{{"}}',
        f'{kind}.delta","sequence_number":4,{place},"delta":"\\"a\\":1}}"}}',
        f'{kind}.done","sequence_number":5,{place},"name":"{client}","arguments":{whole}}}',
        f'response.output_item.done","sequence_number":6,"output_index":0,"item":{item}"completed",{named}{whole}{namespace}}}}}',
    ]


@pytest.mark.parametrize(
    ("name", "client", "namespace"),
    [("apply", "apply_patch", ""), ("mcp_c", "c", ',"namespace":"mcp"')],
)
def test_a_custom_call(name: str, client: str, namespace: str) -> None:
    events = [ToolDelta(0, 0, "call_1", name, '{"in'), ToolDelta(0, 0, None, None, r'put":"a\n"}')]
    id = ids("ctc", 0)
    place = f'"item_id":"{id}","output_index":0'
    item = f'{{"id":"{id}","type":"custom_tool_call","status":'
    named = f'"call_id":"call_1","name":"{client}","input":'
    kind = "response.custom_tool_call_input"
    assert told(*events, reason="tool_calls") == [
        f'response.output_item.added","sequence_number":2,"output_index":0,"item":{item}"in_progress",{named}""{namespace}}}}}',
        f'{kind}.delta","sequence_number":3,{place},"delta":"a\\n"}}',
        f'{kind}.done","sequence_number":4,{place},"input":"a\\n"}}',
        f'response.output_item.done","sequence_number":5,"output_index":0,"item":{item}"completed",{named}"a\\n"{namespace}}}}}',
    ]


@pytest.mark.parametrize(
    ("arguments", "said", "notes"),
    [
        ('{"input":""}', "", {}),
        ("", "", {}),
        ('{"input":"a","b":[1]}', "a", {"extra_field_dropped": 1}),
        ("{}", "", {}),
        ('{"input":1}', '{"input":1}', {"custom_tool_input_not_json": 1}),
        ('{"input":"a', '{"input":"a', {"custom_tool_input_not_json": 1}),
        ('["a"]', '["a"]', {"custom_tool_input_not_json": 1}),
        ("a", "a", {"custom_tool_input_not_json": 1}),
    ],
)
def test_a_custom_calls_input(arguments: str, said: str, notes: dict[str, int]) -> None:
    found, counts = body(ToolDelta(0, 0, "call_1", "apply", arguments), reason="tool_calls")
    assert found["output"][0]["input"] == said
    assert counts == notes


def test_the_whole_response() -> None:
    given = {"tools": b'[\n{"type": "function"}]', "temperature": b"0.25", "odd": b"[\r\n1]"}
    exchange = response_exchange(response=facts(**given))
    usage = Usage(5, 7, Raw(b'{"cached_tokens":3,"audio_tokens":1}'), Raw(b'{"odd_tokens":2}'))
    extra = Extra("answer", None, "timings", Raw(b"{\n}"))
    events: list[Event] = [START, Text(0, "Hi"), extra, Finish(0, "stop"), usage, End(True)]
    writer = write_body(events, exchange)
    found = json.loads(writer.body())
    assert list(found) == [*ResponseObject.__struct_fields__, "odd", "timings"]
    assert b"\n" not in writer.body()
    said = {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}
    message = {"id": ids("msg", 0), "type": "message", "status": "completed", "role": "assistant"}
    echoed = {key: json.loads(bytes(value)) for key, value in ECHOED.items()}
    assert found == {
        **echoed,
        "id": f"resp_{SUFFIX}00000000",
        "object": "response",
        "created_at": NOW,
        "status": "completed",
        "completed_at": NOW + 5,
        "error": None,
        "incomplete_details": None,
        "model": "m",
        "output": [{**message, "content": [said]}],
        "tools": [{"type": "function"}],
        "temperature": 0.25,
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {
                "cached_tokens": 3,
                "cache_write_tokens": 0,
                "audio_tokens": 1,
            },
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0, "odd_tokens": 2},
            "total_tokens": 12,
        },
        "odd": [1],
        "timings": {},
    }


@pytest.mark.parametrize(
    ("reason", "status", "why"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_how_an_answer_ends(reason: Reason, status: str, why: Json | None) -> None:
    found, _ = body(Reasoning(0, "Hm"), Text(0, "Hi"), reason=reason)
    assert (found["status"], found["incomplete_details"]) == (status, why)
    assert found["completed_at"] == (NOW + 5 if status == "completed" else None)
    assert [item["status"] for item in found["output"]] == ["completed", status]


@pytest.mark.parametrize(
    ("events", "reason", "kinds"),
    [
        ([], "stop", ["message"]),
        ([], "length", ["message"]),
        ([Open(0), Text(0, "")], "stop", ["message"]),
        ([Reasoning(0, "Hm")], "stop", ["reasoning", "message"]),
        ([Reasoning(0, "Hm")], "content_filter", ["reasoning", "message"]),
        ([Reasoning(0, "Hm")], "length", ["reasoning"]),
        ([Reasoning(0, "Hm"), CALL], "stop", ["reasoning", "function_call"]),
        ([Reasoning(0, "")], "length", ["message"]),
    ],
)  # fmt: skip
def test_an_answer_always_has_an_item(
    events: list[Event], reason: Reason, kinds: list[str]
) -> None:
    found, _ = body(*events, reason=reason)
    assert [item["type"] for item in found["output"]] == kinds
    cut = reason in ("length", "content_filter")
    assert found["output"][-1]["status"] == ("incomplete" if cut else "completed")


def test_what_is_said_between_a_calls_pieces_waits_for_its_end() -> None:
    first: list[Event] = [
        ToolDelta(0, 0, "c1", "f", "{"),
        Text(0, "\n"),
        ToolDelta(0, 0, None, None, "}"),
    ]
    found, _ = body(*first, Reasoning(0, "Hm"), ToolDelta(0, 1, "c2", "g", "{}"), Text(0, "x"))
    items = [item["type"] for item in found["output"]]
    assert items == ["function_call", "message", "reasoning", "function_call", "message"]
    assert [found["output"][n]["arguments"] for n in (0, 3)] == ["{}", "{}"]
    assert all(item["status"] == "completed" for item in found["output"])


@pytest.mark.parametrize(("arguments", "status"), [("{", "incomplete"), ("{}", "completed")])
def test_a_call_that_the_limit_cut_before_what_waited(arguments: str, status: str) -> None:
    found, _ = body(ToolDelta(0, 0, "c1", "f", arguments), Text(0, "\n"), reason="length")
    assert [item["status"] for item in found["output"]] == [status, "incomplete"]


def test_each_kind_of_part_is_one_part_as_long_as_it_goes_on() -> None:
    found, _ = body(Text(0, "a"), Refusal(0, "b"), Refusal(0, "c"), Text(0, "d"))
    (message,) = found["output"]
    assert [part["type"] for part in message["content"]] == [
        "output_text",
        "refusal",
        "output_text",
    ]
    assert message["content"][1]["refusal"] == "bc"


def test_bytes_are_always_a_list() -> None:
    odd = entry('"bytes":null', b"null")
    found, _ = body(scored("", odd), scored("a", entry("a")), logprobs=True)
    rows = found["output"][0]["content"][0]["logprobs"]
    assert [row["bytes"] for row in rows] == [[], [97]]
    assert rows[0]["token"] == '"bytes":null'
    assert rows[0]["top_logprobs"][0] == {"token": '"bytes":null', "logprob": -0.5, "bytes": []}


def test_entries_of_a_refusal_are_dropped_by_name() -> None:
    exchange = response_exchange()
    refused = Refusal(0, "No", Logprobs([entry("No")], plain=True))
    write_body([START, refused, Finish(0, "stop"), End(True)], exchange)
    assert exchange.notes.fields == {"logprobs.refusal": 1}


def test_what_a_response_has_no_key_for_is_dropped_by_name() -> None:
    exchange = response_exchange()
    start = Start("chatcmpl-1", 1, "m", "fp")
    extras = [Extra("answer", None, "status", Raw(b"1")), Extra("choice", 0, "usage", Raw(b"2"))]
    writer = write_body([start, start, *extras, Text(0, "a"), End(True)], exchange)
    assert json.loads(writer.body())["status"] == "completed"
    assert exchange.notes.fields == {"status": 1, "usage": 1}


def test_a_choice_that_nobody_asked_for_is_left_out_by_name() -> None:
    found, counts = body(Text(0, "a"), Text(1, "b"), Text(1, "c"), Finish(1, "length"))
    assert len(found["output"]) == 1 and found["status"] == "completed"
    assert counts == {"choice_unasked": 1}


def test_extras_are_joined_or_the_last_of_them() -> None:
    extras = [
        Extra("choice", 0, "token_ids", Raw(b"[1]")),
        Extra("answer", None, "timings", Raw(b"1")),
        Extra("choice", 0, "token_ids", Raw(b"[2,3]")),
        Extra("answer", None, "timings", Raw(b"2")),
    ]
    found, _ = body(*extras)
    assert list(found)[-2:] == ["token_ids", "timings"]
    assert (found["token_ids"], found["timings"]) == ([1, 2, 3], 2)


def test_nothing_is_written_before_something_is_said() -> None:
    write = ResponseStream(response_exchange())
    assert write([START, Open(0), Text(0, ""), Usage(1, 0)]) == b"" and not write.started
    assert write([Fault(404, "x")]) == b""
    assert write.fault is not None and write.done and not write.started


def test_no_end_precedes_a_failure() -> None:
    write = ResponseStream(response_exchange())
    out = write([START, Text(0, "Hi"), Finish(0, "stop"), Usage(1, 2)])
    assert b".done" not in out and write.closing == 0
    out += write([Fault(502, "It broke off.", param="p", code="upstream_cut"), Text(0, "more")])
    assert write([End(True)]) == b""
    found = fold_response(out)
    assert found["status"] == "failed" and found["usage"]["total_tokens"] == 3
    assert found["error"] == {"code": "server_error", "message": "It broke off."}
    assert [item["status"] for item in found["output"]] == ["incomplete"]
    error = response_events(out)[-2]
    inner = {
        "type": "server_error",
        "code": "server_error",
        "message": "It broke off.",
        "param": "p",
    }
    assert error.pop("error") == inner
    assert list(error) == ["type", "sequence_number", "code", "message", "param"]
    assert out.count(b".done") == 0


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(429, "x"), "rate_limit_exceeded"),
        (Fault(502, "x", code="rate_limit_exceeded"), "rate_limit_exceeded"),
        (Fault(400, "x", code="context_length_exceeded"), "context_length_exceeded"),
        (Fault(502, "x\ud83d", code="\ud83d"), "server_error"),
    ],
)
def test_the_code_of_a_failure(fault: Fault, code: str) -> None:
    stream, _ = stream_response([START, Text(0, "Hi"), fault], response_exchange())
    assert fold_response(stream)["error"]["code"] == code
    assert fold_response(fail_stream(facts(), "m", NOW, fault))["error"]["code"] == code


def test_a_failure_names_what_the_client_sent() -> None:
    fault = Fault(400, "'max_completion_tokens' is too large", param="max_completion_tokens")
    stream, writer = stream_response([START, Text(0, "Hi"), fault], response_exchange())
    assert writer.fault is not None and writer.fault.param == "max_output_tokens"
    body = write_body([START, fault], response_exchange())
    assert body.fault == writer.fault
    for out in (stream, fail_stream(facts(), "m", NOW, fault)):
        error = response_events(out)[-2]
        told = ("'max_output_tokens' is too large", "max_output_tokens")
        assert (error["message"], error["param"]) == told


def test_a_stream_that_failed_before_anything_came() -> None:
    out = fail_stream(facts(store=b"false"), "m", NOW, Fault(503, "Down."))
    kinds = ["response.created", "response.in_progress", "error", "response.failed"]
    assert [event["type"] for event in response_events(out)] == kinds
    found = fold_response(out)
    assert (found["model"], found["created_at"], found["store"]) == ("m", NOW, False)


def test_what_waits_at_a_failure_is_said() -> None:
    events: list[Event] = [
        START,
        ToolDelta(0, 0, "c", "apply", '{"inp'),
        Text(0, "x"),
        Fault(502, "y"),
    ]
    stream, writer = stream_response(events, response_exchange())
    found = fold_response(stream)
    assert [item["status"] for item in found["output"]] == ["incomplete", "incomplete"]
    assert json.loads(writer.body()) == found


def test_the_last_bytes_tell_only_the_end() -> None:
    write = ResponseStream(response_exchange())
    begun = len(write([START, Text(0, "Hi")]))
    out = write([Text(0, "!"), Finish(0, "stop"), Usage(1, 2), End(True)])
    assert begun and b'"delta":"!"' in out[: -write.closing]
    assert out[-write.closing :].startswith(b"event: response.output_text.done")


ITEMS: list[Event] = [
    Reasoning(0, "Hm"),
    Text(0, "Hi "),
    scored("you", entry("you")),
    Refusal(0, "No"),
    ToolDelta(0, 0, "c1", "mcp_f", '{"a"'),
    ToolDelta(0, 0, None, None, ":1}"),
    ToolDelta(0, 1, "c2", "apply", '{"input":"x"}'),
    ToolDelta(0, 2, "c3", "g", ""),
]


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
def test_a_response_that_is_over_is_streamed_again(reason: Reason) -> None:
    events = [START, *ITEMS, Finish(0, reason), Usage(1, 2), End(True)]
    stored = write_body(events, response_exchange()).body()
    stream = replay_response(stored)
    assert fold_response(stream) == json.loads(stored)
    assert stream.endswith(stored + b"}\n\n")
    kinds = [event["type"] for event in response_events(stream)]
    assert kinds.count("response.output_text.delta") == 1
    for number in (0, 3, len(kinds) - 2, len(kinds) - 1, len(kinds) + 5):
        later = replay_response(stored, number)
        assert stream.endswith(later)
        assert later.count(b"\n\n") == max(len(kinds) - number - 1, 0)


@pytest.mark.parametrize("size", range(1, len(ITEMS) + 1))
def test_a_response_that_failed_is_streamed_again(size: int) -> None:
    events = [START, *ITEMS[:size], Usage(1, 2), Fault(429, "Later.")]
    stream, writer = stream_response(events, response_exchange())
    again = replay_response(writer.body())
    assert fold_response(again) == fold_response(stream)


def test_a_response_that_failed_at_once_is_streamed_again() -> None:
    stream = fail_stream(facts(), "m", NOW, Fault(503, "Down."))
    stored = json.dumps(fold_response(stream)).encode()
    assert [e["type"] for e in response_events(replay_response(stored))][-2:] == [
        "error",
        "response.failed",
    ]
