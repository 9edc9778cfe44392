"""Cases of the doctor's probes of streams, calls, errors, completions and the rest."""

from __future__ import annotations

from tests.conforming import (
    CREATED,
    ID,
    TEXT,
    USAGE,
    body,
    call,
    chunk,
    finish,
    logprobs,
    message,
    role,
    sse,
)
from tests.conforming_completions import MODEL as TEXT_MODEL
from tests.conforming_completions import end as text_end
from tests.conforming_completions import piece
from tests.proxy.doctor.answers import (
    BARE,
    CALLED,
    COUNTED,
    ECHOED,
    EMBEDDED,
    FLAT,
    LAST,
    ROWS,
    START,
    STREAM_SCORED,
    TEXTLESS,
    TWO,
    VECTORS,
    Case,
    called,
    calls,
    error,
    raw,
    rows,
    said,
    streamed,
    text,
    texted,
    without,
)
from wellspoken.proxy.doctor.probe import ProbeContext, ProbeResponse
from wellspoken.proxy.doctor.probe_requests import NAMED, PROMPT

STREAM_CASES = {
    "stream-framing": Case(
        [streamed(FLAT)],
        {
            "content type": [raw(sse(FLAT), "text/plain")],
            "never comes": [streamed(FLAT, done=False)],
            "is not its end": [raw(sse([]) + sse(FLAT, done=False))],
            "neither data nor comment": [raw(b"event: message\n" + sse(FLAT))],
            "CR LF": [raw(sse(FLAT).replace(b"\n", b"\r\n"))],
            "end with an empty line": [raw(sse(FLAT).replace(b"\n\n", b"\n", 1))],
            "no empty line ends": [raw(sse(FLAT)[:-1])],
            "an event is not JSON": [raw(b"data: {'id': 1}\n\n" + sse(FLAT))],
        },
    ),
    "stream-chunks": Case(
        [streamed(FLAT)],
        {
            "OpenAI's: timings": [streamed([*FLAT[:-1], finish() | {"timings": {}}])],
            "id changes": [streamed([*FLAT[:-1], finish() | {"id": "chatcmpl-another"}])],
            "has no finish_reason": [
                streamed(
                    [
                        *FLAT[:1],
                        chunk(
                            {"content": "x"},
                            top={"choices": [{"index": 0, "delta": {}, "logprobs": None}]},
                        ),
                    ]
                )
            ],
            "tool_calls []": [streamed([*FLAT[:1], chunk({"tool_calls": []})])],
            "object is": [streamed([c | {"object": "chat.completion"} for c in FLAT])],
            "model is": [streamed([c | {"model": "m.gguf"} for c in FLAT])],
            "created is 763": [streamed([c | {"created": 763} for c in FLAT])],
            "id is": [streamed([c | {"id": "cmpl-x"} for c in FLAT])],
            "a choice has no delta": [streamed([chunk({}, top={"choices": [{"index": 0}]})])],
            "an error in the stream: boom": [streamed([role(), {"error": "boom"}])],
            "no chunk": [streamed([])],
        },
    ),
    "stream-role": Case(
        [streamed(FLAT)],
        {
            "assistantassistant": [streamed([role(), chunk({**BARE, "content": "x"})])],
            "role is null": [streamed(FLAT[1:])],
            "no refusal": [streamed([chunk(BARE), *FLAT[1:]])],
            "not empty": [streamed([chunk(message("Hi")), *FLAT[1:]])],
        },
    ),
    "stream-finish": Case(
        [streamed(FLAT)],
        {
            "beside": [streamed([role(), chunk({"content": TEXT}, finish_reason="stop")])],
            "follows its end": [streamed([*FLAT, finish()])],
            "no finish_reason": [streamed(FLAT[:-1])],
            'finish_reason is ""': [streamed([role(), *(finish(""),)])],
        },
    ),
    "stream-no-usage": Case(
        [streamed(FLAT)],
        {
            "not asked for": [streamed([*FLAT[:-1], finish() | {"usage": USAGE}])],
            "has no choice": [streamed([*FLAT, chunk({}, top={"choices": []})])],
        },
    ),
    "stream-usage": Case(
        [streamed([*COUNTED, LAST])],
        {
            "the last chunk is not": [streamed([*COUNTED[:-1], finish() | {"usage": USAGE}])],
            "more than the last": [streamed([*(c | {"usage": USAGE} for c in FLAT), LAST])],
            "earlier chunks have no usage": [streamed([*FLAT, LAST])],
            "does not add up": [
                streamed([*COUNTED, LAST | {"usage": USAGE | {"total_tokens": 1}}])
            ],
        },
    ),
    "stream-characters": Case(
        [streamed(FLAT)],
        {
            "is broken": [streamed([role(), chunk({"content": "Hi \ufffd\ufffd"}), finish()])],
            "has no text": [streamed([role(), finish()])],
        },
    ),
    "stream-logprobs": Case(
        [streamed(STREAM_SCORED)],
        {
            "has no logprobs": [streamed(FLAT)],
            "but the content is": [
                streamed([role(), chunk({"content": TEXT}, logprobs=logprobs(0, 2))])
            ],
            "has no content, not even null, but the keys": [
                streamed([role(), chunk({"content": "Hi"}, logprobs={"top_logprobs": []})])
            ],
        },
    ),
    "stream-n": Case(
        [streamed(TWO)],
        {
            "in the order 0, not": [streamed(FLAT)],
            "in the order 1, 0": [streamed([TWO[1], TWO[0], *TWO[2:]])],
            "no finish_reason ends choice 1": [streamed(TWO[:-1])],
        },
    ),
    "tools": Case(
        calls(called()),
        {
            "although a call": [said(body())],
            "a call has no id": calls(without(called(), "id")),
            "no text": calls(called(function={"name": NAMED, "arguments": {"tz": "UTC"}})),
            "no JSON object": calls(called(function={"name": NAMED, "arguments": "{'a': 1"})),
            "not offered": calls(called(function={"name": "rm", "arguments": "{}"})),
            "have one id": calls(called(), called()),
            "not tool_calls": calls(called(), reason="stop"),
            'id is ""': calls(called(id="")),
        },
        lacks=[error("tools", "unsupported_parameter")],
        unclear=calls(called(), reason="length"),
    ),
    "tool-named": Case(
        calls(called(), reason="stop"),
        {
            "although a call": [said(body())],
            "but get_time": calls(called(function={"name": "get_day", "arguments": "{}"})),
            "no text": calls(called(function={"name": NAMED, "arguments": {}})),
            "finish_reason is": calls(called(), reason="function_call"),
        },
    ),
    "tools-stream": Case(
        [streamed(CALLED)],
        {
            "no call came": [streamed(FLAT)],
            "tool_calls is {}, no list": [streamed([chunk({"tool_calls": {}})])],
            "a call has no arguments": [streamed([chunk({"tool_calls": [{"index": 0}]})])],
            'name is ""': [streamed([call(0, "{}", id="call_1", name="")])],
            "the index of a call": [
                streamed([role(content=None), call(1, "{}", id="call_1", name=NAMED)])
            ],
            "without id, type and name": [streamed([role(content=None), call(0, "{}")])],
            "come again": [streamed([*CALLED[:2], *CALLED[1:]])],
            "no JSON object": [streamed([*CALLED[:3], CALLED[-1]])],
            "not tool_calls": [streamed([*CALLED[:-1], finish("stop")])],
        },
        unclear=[streamed([*CALLED[:-1], finish("length")])],
    ),
    "json-schema": Case(
        [texted('{"city": "Rome"}')],
        {
            "no JSON": [texted("Rome")],
            "does not allow": [texted('{"city": "Rome", "country": "Italy"}')],
            "schema does not": [texted('{"city": "Paris"}')],
        },
        unclear=[texted('{"city":', "length")],
    ),
}
OTHER_CASES = {
    "error-json": Case(
        [error()],
        {
            "the status is 500": [error(status=500)],
            "not in {'error'": [said({"detail": "There was an error parsing the body"}, 400)],
            "not JSON": [said(b"Internal Server Error", 400)],
            "content type": [said(b"<html>", 400, content_type="text/html")],
        },
    ),
    "error-messages": Case(
        [error("messages")],
        {
            "is answered": [said(body())],
            "param is null": [error()],
            "code is 400": [error("messages", 400)],
            "OpenAI's: extra": [error("messages", extra=1)],
        },
    ),
    "error-temperature": Case(
        [error("temperature", "decimal_above_max_value")],
        {"is answered": [said(body())], "the status is 422": [error("temperature", status=422)]},
    ),
    "error-stream": Case(
        [error("temperature")],
        {
            "is answered": [streamed([{"error": {"message": "No."}}])],
            'message is ""': [error("temperature", message="")],
        },
    ),
    "error-model": Case(
        [error(None, "model_not_found", 404)],
        {
            "code is null": [error(None, None, 404)],
            "the status is 400": [error(None, "model_not_found")],
        },
        lacks=[said(body())],
    ),
    "error-path": Case(
        [error(status=404)],
        {"not in {'error'": [said({"detail": "Not Found"}, 404)]},
    ),
    "completions": Case(
        text(),
        {
            'id is "chatcmpl': text(id=ID),
            "object is": text(object="chat.completion"),
            "OpenAI's: stop_reason": text({"stop_reason": None}),
            "text is null": text({"text": None}),
            'finish_reason is "tool_calls"': text({"finish_reason": "tool_calls"}),
            "logprobs is []": text({"logprobs": []}),
            "created is 1": text(created=1),
            "at most 8": text(
                usage={"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}
            ),
        },
        context=ProbeContext(TEXT_MODEL, listed=True, text=TEXT, now=CREATED),
        lacks=[error(None, "unsupported_endpoint")],
    ),
    "completions-logprobs": Case(
        rows(ROWS),
        {
            "OpenAI's: content; logprobs has no tokens": rows({"content": []}),
            "null or missing": text(),
            "text_offset is 0, no list": rows(ROWS | {"text_offset": 0}),
            "tokens is [1, 2]": rows(ROWS | {"tokens": [1, 2]}),
            "text is 7": text({"text": 7, "logprobs": ROWS}),
            "is 6, not 22": rows(ROWS | {"text_offset": [START, 6]}),
            "2, 2, 1, 2 places": rows(ROWS | {"top_logprobs": ROWS["top_logprobs"][:1]}),
            "lacks the sampled": rows(ROWS | {"top_logprobs": [{"x": -1.0}, {" é": -0.25}]}),
            "the text is": rows(ROWS, " there"),
            "is null, its": rows(ROWS | {"token_logprobs": [None, -0.25]}),
            "4 alternatives": rows(
                ROWS | {"top_logprobs": [{" there": -0.5, "a": -1, "b": -2, "c": -3}, {}]}
            ),
        },
    ),
    "completions-echo": Case(
        rows(ECHOED, PROMPT + "!"),
        {
            "without the prompt": rows(ROWS),
            "which nothing can give": rows(
                ECHOED
                | {
                    "token_logprobs": [-1.0, -1.0, -2.0, -0.5],
                    "top_logprobs": [{"Once": -1.0}, *ECHOED["top_logprobs"][1:]],
                },
                PROMPT + "!",
            ),
            "behind the first": rows(
                ECHOED
                | {
                    "token_logprobs": [None, None, None, -0.5],
                    "top_logprobs": [None, None, None, {"!": -0.5}],
                },
                PROMPT + "!",
            ),
        },
    ),
    "completions-stream": Case(
        [streamed([piece("Hi"), piece("!"), text_end()])],
        {
            "0 times": [streamed([piece("Hi"), piece("!")])],
            "object is": [streamed([piece("Hi") | {"object": "chat.completion"}, text_end()])],
            "id is": [streamed([piece("Hi") | {"id": ID}, text_end()])],
            "OpenAI's: timings": [streamed([piece("Hi"), text_end() | {"timings": 1}])],
            "text is null": [streamed([piece("") | {"choices": [TEXTLESS]}, text_end()])],
            "never comes": [streamed([piece("Hi"), text_end()], done=False)],
        },
    ),
    "embeddings": Case(
        [said(EMBEDDED)],
        {
            "no list of numbers": [
                said(EMBEDDED | {"data": [v | {"embedding": "AAAA"} for v in VECTORS]})
            ],
            "indices [0, 0]": [said(EMBEDDED | {"data": [VECTORS[0], VECTORS[0]]})],
            "usage has keys that are not OpenAI's": [said(EMBEDDED | {"usage": USAGE})],
            "lengths [1, 2]": [
                said(EMBEDDED | {"data": [VECTORS[0], VECTORS[1] | {"embedding": [1.0]}]})
            ],
            "the list has no object": [said(without(EMBEDDED, "object"))],
        },
        lacks=[error(None, "unsupported_endpoint", 501)],
    ),
    "concurrency": Case(
        [said(body(id=f"chatcmpl-{n}2345678")) for n in range(4)],
        {
            "share the id": [said(body())] * 4,
            "status 503": [said(body()), *([error(status=503)] * 3)],
        },
    ),
    "disconnect": Case(
        [said(body()), streamed(FLAT, done=False), said(body())],
        {
            "is still computed": [
                said(body()),
                streamed(FLAT, done=False),
                ProbeResponse(200, {}, said(body()).body, seconds=9.0),
            ],
            "no answer": [
                said(body()),
                streamed(FLAT, done=False),
                ProbeResponse(failure="no answer within 30 s"),
            ],
        },
        unclear=[said(body()), raw(b""), said(body())],
    ),
}
