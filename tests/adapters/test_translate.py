"""The whole way: what passes untouched, body for stream and stream for body, lenient JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.answers import (
    DONE,
    ID,
    TOOL,
    ask,
    body,
    call,
    choice,
    chunk,
    completion,
    counted,
    data,
    end,
    entries,
    message,
    role,
    say,
    scored,
    stream,
)
from tests.conformance import check_stream
from tests.corpus import checked_request
from tests.fold import comparable, fold
from tests.replay import body_as_stream, exchange
from wellspoken.adapters.repairs.loose_json import parse, raw
from wellspoken.adapters.translate import (
    StreamTranslator,
    translate_body,
)

FULL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "text": (ask(), choice()),
    "empty": (ask(), choice("")),
    "length": (ask(), choice(finish_reason="length")),
    "filter": (ask(), choice(finish_reason="content_filter")),
    "logprobs": (scored(), choice(logprobs=entries("H", "i"))),
    "call": (
        ask(tools=[TOOL]),
        choice(message=message(None, tool_calls=[call()]), finish_reason="tool_calls"),
    ),
    "refusal": (ask(), choice(message=message(None, refusal="No."))),
    "reasoning": (ask(), choice(message=message(reasoning_content="Hm."))),
}


@pytest.mark.parametrize("name", FULL)
def test_a_conforming_body_passes_as_the_bytes_it_is(name: str) -> None:
    request, given = FULL[name]
    sent = json.dumps(completion(given), indent=1).encode()
    said = body(sent, request)
    assert (said.raw, said.repairs) == (sent, {})


def test_a_conforming_stream_passes_as_the_bytes_it_is() -> None:
    usage = {"stream_options": {"include_usage": True}}
    for request, parts in (
        (ask(), [role(), say("H"), say("i"), end("length")]),
        (scored(), [role(), say("Hi", logprobs=entries("H", "i")), end()]),
        (ask(n=2), [role(), role(1), say("b", index=1), say("a"), end(), end(index=1)]),
        (
            ask(tools=[TOOL]),
            [
                chunk({**message(None), "tool_calls": [{"index": 0, **call()}]}),
                chunk({"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}),
                end("tool_calls"),
            ],
        ),
        (ask(**usage), [*({**x, "usage": None} for x in (role(), say("Hi"), end())), counted()]),
    ):
        said = stream(parts, request)
        assert said.raw == b"".join(map(data, parts)) + DONE
        assert said.repairs == {}


def test_one_event_that_needs_a_repair_does_not_spoil_the_others() -> None:
    good, odd = say("H"), say("i")
    odd["vendor"] = 1
    said = stream([role(), good, odd, end()])
    assert data(good) in said.raw and b"vendor" not in said.raw
    assert said.repairs == {"extra_field_dropped": 1}


@pytest.mark.parametrize("name", FULL)
def test_a_body_becomes_a_stream_that_says_the_same(name: str) -> None:
    request, given = FULL[name]
    asked = exchange({**request, "stream": True})
    found = body_as_stream(asked, "application/json", json.dumps(completion(given)).encode())
    assert isinstance(found, bytes)
    assert check_stream(found, checked_request(request), None) == []
    assert comparable(fold(found)) == comparable(completion(given))
    assert asked.notes.counts["body_for_stream"] == 1


@pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "application/json", ""])
@pytest.mark.parametrize("front", [b"", b"\xef\xbb\xbf", b"\n\n", b": ping\n\n"])
def test_a_stream_becomes_a_body(kind: str, front: bytes) -> None:
    sent = front + b"".join(map(data, [role(), say("H"), say("i"), end(), counted()])) + DONE
    asked = exchange(ask())
    answer = translate_body(asked, 200, kind, sent)
    assert json.loads(answer.body) == completion()
    assert asked.notes.counts["stream_for_body"] == 1


def test_a_cut_stream_is_no_body() -> None:
    answer = translate_body(
        exchange(ask()), 200, "text/event-stream", data(role()) + data(say("x"))
    )
    assert answer.status == 502
    assert json.loads(answer.body)["error"]["code"] == "upstream_cut"


def test_a_translator_tells_where_it_is() -> None:
    translator = StreamTranslator(exchange(ask(stream=True)))
    assert (translator.done, translator.started, translator.fault) == (False, False, None)
    assert translator.feed(b": ping\n\n") == b""
    assert not translator.started
    assert translator.feed(data(role())) + translator.feed(data(say("Hi"))) == data(role()) + data(
        say("Hi")
    )
    assert translator.started and not translator.done
    assert translator.feed(data(end())) == b""
    assert translator.feed(DONE) == data(end()) + DONE
    assert translator.done and translator.fault is None
    assert translator.close() == b"" and translator.feed(data(say("x"))) == b""


def test_an_event_without_its_last_newline_counts() -> None:
    translator = StreamTranslator(exchange(ask(stream=True)))
    translator.feed(data(role()) + data(say("Hi")) + data(end()))
    assert translator.feed(b"data: [DONE]") == b""
    assert translator.close() == data(end()) + DONE


def test_the_last_text_without_a_newline_is_not_lost() -> None:
    translator = StreamTranslator(exchange(ask(stream=True)))
    translator.feed(data(role()) + data(say("H")))
    out = translator.feed(data(chunk({"content": "i"}, "stop"))[:-2])
    assert b'"i"' in out + translator.close()


def test_a_constant_clock_and_id() -> None:
    given = completion(id="x", created=1)
    assert body(given).raw == body(given).raw
    assert body(given).answer["id"] != ID


def test_what_shapes_nobody_has_a_name_for_is_counted() -> None:
    given = completion()
    given["usage"] = {**given["usage"], "prompt_tokens": 5.0}
    assert body(given).repairs == {"shape_unusual": 1}


# --- lenient JSON ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'["\\ud83d\\ude00"]', ["😀"]),
        (b'["\\ud83d"]', ["\ufffd"]),
        (b'{"\\ude00": ["\\ud83d", "x"]}', {"\ufffd": ["\ufffd", "x"]}),
        (b'["\xff", 1]', ["\ufffd", 1]),
        (b"[-Infinity, Infinity]", [float("-inf"), float("inf")]),
    ],
)
def test_what_strict_json_refuses(text: bytes, value: Any) -> None:
    assert parse(text) == value


@pytest.mark.parametrize("text", [b"", b"{", b"nope", b"[1] 2", b"[" * 200_000, b"[NaN," * 200_000])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse(text)


def test_numbers_that_json_lacks_become_null() -> None:
    assert bytes(raw([float("nan"), float("inf"), 1.5])) == b"[null,null,1.5]"


def test_an_answer_with_lone_surrogates_and_nan_is_still_an_answer() -> None:
    lp = {"content": [{"token": "H", "logprob": float("nan"), "bytes": None, "top_logprobs": []}]}
    said = body(
        json.dumps(completion(choice("H", logprobs=lp))).replace('"H"', '"\\ud83d"').encode(),
        scored(),
        waived=["7.tiling"],
    )
    assert said.message["content"] == "\ufffd"
    assert said.entries[0]["logprob"] == -9999.0


def test_data_in_several_lines_leaves_in_one() -> None:
    lines = json.dumps(say("Hi"), indent=1).encode().replace(b"\n", b"\ndata: ")
    said = stream([role(), lines, end()])
    assert said.message["content"] == "Hi"
    assert said.repairs == {"sse_data_lines": 1}


def test_json_that_nests_as_deep_as_the_parser_bears_is_no_crash() -> None:
    for depth in (200, 400, 600, 900):
        deep: Any = "[" * depth + "]" * depth
        for key in ("logprobs", "message", "x"):
            sent = json.dumps(completion()).replace('"index": 0', f'"index": 0, "{key}": {deep}')
            assert body(sent.encode(), scored()).status in (200, 502)
        assert body(f'{{"error": {deep}}}'.encode()).status == 502


def test_a_byte_order_mark_before_json_is_left_out() -> None:
    assert parse(b'\xef\xbb\xbf{"a": NaN}')["a"] != 1
    said = body(b"\xef\xbb\xbf" + json.dumps(completion()).encode())
    assert said.message["content"] == "Hi"
